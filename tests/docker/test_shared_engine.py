"""Two users of one engine: what one has just listed, the other may remove."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from builder.core.errors import WorldError
from builder.docker import engine as docker

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]


def test_an_image_that_another_user_removes_is_none(images: dict[str, Any]) -> None:
    name = "builder-test/vanishing:1"
    digest = images["root"]
    ended = threading.Event()

    def other() -> None:
        while not ended.is_set():
            docker.tag(digest, name)
            docker.untag(name)

    thread = threading.Thread(target=other)
    thread.start()
    found = []
    try:
        until = time.monotonic() + 6
        while time.monotonic() < until:
            found += [docker.image(each) for each in docker.image_names("builder-test/vanishing:*")]
    finally:
        ended.set()
        thread.join()
        docker.untag(name)
    assert found, "the race was never run"
    assert docker.image(name) is None
    with pytest.raises(WorldError, match="cannot tag builder-test/vanishing:1"):
        docker.tag(name, "builder-test/vanishing:2")


def test_two_commands_give_one_name_to_their_images_at_the_same_time(
    images: dict[str, Any],
) -> None:
    name, failures = "builder-test/wanted:1", []

    def give(image: str) -> None:
        try:
            for _ in range(25):
                docker.tag(image, name)
        except WorldError as error:
            failures.append(error)

    both = [found for each in ("root", "small") if (found := docker.image(images[each]))]
    threads = [threading.Thread(target=give, args=[each.reference]) for each in both]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = docker.image(name)
    finally:
        docker.untag(name)
    assert not failures
    assert found is not None
    assert found.digest in {each.digest for each in both}
