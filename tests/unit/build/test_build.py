"""The images of a recipe: what follows where some of them fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.build import record
from builder.build.build import BuildOutcome, BuildSession, require_all
from builder.build.lookup import Images
from builder.build.record import Record
from builder.cli.session import BuildProgress
from builder.core.errors import SmokeError, UntriedError, WorldError
from builder.core.settings import Settings
from builder.docker.engine import Image
from builder.engines.layout import LABEL_KEY
from builder.plan.resolver import Resolver
from support.catalogs import load
from support.environment import REPOSITORY
from support.verdicts import GOOD, verdict

IMAGES = Resolver(load(REPOSITORY), "amd64", "mmdebstrap").plans("llama-cpp-b9831")
UNTRIED = UntriedError("a check could not be run", "no container", "start Docker")
FAILED = SmokeError("a check failed", "runs: x: 1, expected 2")


def test_the_error_of_the_only_image_is_that_of_the_build() -> None:
    with pytest.raises(UntriedError) as caught:
        require_all(IMAGES[:1], [UNTRIED])
    assert caught.value is UNTRIED


def test_a_failed_check_counts_more_than_one_that_was_not_run() -> None:
    with pytest.raises(SmokeError) as caught:
        require_all(IMAGES, [UNTRIED, FAILED])
    assert caught.value.what == "2 of 2 images of llama-cpp-b9831 failed"
    assert caught.value.why == (
        "linux/amd64: a check could not be run\nno container\nstart Docker\n"
        "linux/arm64: a check failed\nruns: x: 1, expected 2"
    )


def test_errors_of_several_recipes_have_their_names() -> None:
    other = Resolver(load(REPOSITORY), "amd64", "mmdebstrap").plans("hello-sm120")
    with pytest.raises(SmokeError) as caught:
        require_all([*IMAGES[:1], *other], [FAILED, FAILED])
    assert caught.value.what == "2 of 2 images of llama-cpp-b9831, hello-sm120-0.1.0 failed"
    assert "\nhello-sm120-0.1.0: a check failed\n" in caught.value.why


def test_an_error_of_one_image_is_not_hidden_by_the_others() -> None:
    kept = Record(
        recipe=IMAGES[0].name,
        key=IMAGES[0].key,
        contract="c" * 64,
        references=IMAGES[0].references,
        digest="sha256:" + "d" * 64,
        verdict=verdict(GOOD),
        created="2026-11-20T03:10:00+00:00",
        seconds={},
    )
    gone = WorldError("Docker went away")
    with pytest.raises(WorldError, match="1 of 2 images of llama-cpp-b9831") as caught:
        require_all(IMAGES, [BuildOutcome(kept, built=True), gone])
    assert caught.value.why == "linux/arm64: Docker went away"


def test_a_candidate_counts_only_where_this_machine_built_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`docker pull --all-tags` gives an image of a registry the name of a candidate."""
    plan, digest = IMAGES[0], "sha256:" + "d" * 64
    named: dict[str, object] = {"Labels": {LABEL_KEY: plan.key}}
    pulled = Image(plan.candidate, digest, "linux/amd64", frozenset(), frozenset(), 1, named, 0)
    monkeypatch.setattr("builder.docker.engine.image", lambda _: pulled)
    session = BuildSession(
        catalog=load(REPOSITORY), settings=Settings(state_dir=tmp_path), reporter=BuildProgress()
    )

    def found() -> bool:
        return Images(session).candidate(plan) is not None

    assert not found()
    record.write_candidate(tmp_path, plan.name, plan.key, "sha256:" + "e" * 64)
    assert not found()
    record.write_candidate(tmp_path, plan.name, "f" * 64, digest)
    assert not found()
    record.write_candidate(tmp_path, plan.name, plan.key, digest)
    assert found()
    record.candidate_path(tmp_path, plan.name, plan.key).write_text("{")
    assert not found()
    record.write_candidate(tmp_path, plan.name, plan.key, digest)
    record.remove_candidate(tmp_path, plan.name, plan.key)
    record.remove_candidate(tmp_path, plan.name, plan.key)
    assert not found()
