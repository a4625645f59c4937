"""The images of a recipe: what follows where some of them fail."""

from __future__ import annotations

import pytest

from builder.errors import SmokeError, UntriedError, WorldError
from builder.pipeline import Outcome, require_all
from builder.plan.resolver import Resolver
from builder.records.record import Record
from support.catalogs import UNASKED, load
from support.environment import REPOSITORY
from support.verdicts import GOOD, verdict

IMAGES = Resolver(load(REPOSITORY), "amd64", UNASKED).images("hello-blackwell")
UNTRIED = UntriedError("a check could not be run", "no container", "start Docker")
FAILED = SmokeError("a check failed", "runs: x: 1, expected 2")


def test_the_error_of_the_only_image_is_that_of_the_build() -> None:
    with pytest.raises(UntriedError) as caught:
        require_all(IMAGES[:1], [UNTRIED])
    assert caught.value is UNTRIED


def test_a_failed_check_counts_more_than_one_that_was_not_run() -> None:
    with pytest.raises(SmokeError) as caught:
        require_all(IMAGES, [UNTRIED, FAILED])
    assert caught.value.what == "2 of 2 images of hello-blackwell-0.1.0 failed"
    assert caught.value.why == (
        "linux/amd64: a check could not be run\nno container\nstart Docker\n"
        "linux/arm64: a check failed\nruns: x: 1, expected 2"
    )


def test_an_error_of_one_image_is_not_hidden_by_the_others() -> None:
    kept = Record(
        recipe=IMAGES[0].plan.name,
        key=IMAGES[0].key,
        contract="c" * 64,
        references=IMAGES[0].references,
        digest="sha256:" + "d" * 64,
        verdict=verdict(GOOD),
        created="2026-11-20T03:10:00+00:00",
        seconds={},
    )
    gone = WorldError("Docker went away")
    with pytest.raises(WorldError, match="1 of 2 images of hello-blackwell") as caught:
        require_all(IMAGES, [Outcome(kept, built=True), gone])
    assert caught.value.why == "linux/arm64: Docker went away"
