"""Docker Hub on loopback, with a login for it; a plugin of pytest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.hub import DockerHub, Page, docker_hub

SECRET = "dckr_pat_one-that-nobody-may-see"
ALL = {"read", "write", "delete"}
NAME = "me/hello-sm120"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerHub]:
    with docker_hub() as found:
        found.users = {"me": {SECRET: ALL, "pushes": {"read", "write"}}, "you": {SECRET: ALL}}
        found.pages = {NAME: Page("old", "# old", ["0.1.0", "0.1.0-0123456789ab"])}
        monkeypatch.setenv("BUILDER_HUB_API", found.address)
        monkeypatch.setenv("BUILDER_NAMESPACE", "me")
        monkeypatch.setenv("DOCKERHUB_USERNAME", "me")
        monkeypatch.setenv("DOCKERHUB_TOKEN", SECRET)
        yield found
