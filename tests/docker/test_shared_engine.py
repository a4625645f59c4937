"""Two users of one engine: what one has just listed, the other may remove."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from builder.errors import WorldError
from builder.tools.docker import engine as docker

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
