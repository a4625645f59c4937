"""Docker Hub's own API: logins, descriptions and tags."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from typing import Any

import pytest

from builder.core.errors import FetchError, RegistryError
from builder.publish.hub import Grant, Hub, Shown, TagPage, checked, error_text
from support.damaged import damaged, fuzzed
from support.hub import DockerHub, Fault, Page
from support.hub_login import NAME, SECRET


@pytest.fixture
def client(hub: DockerHub) -> Hub:
    return Hub(hub.address, lambda _: None)


def test_names_that_docker_hub_does_not_have(client: Hub, hub: DockerHub) -> None:
    for name in ("hello", "me/deeper/hello", "/hello"):
        with pytest.raises(RegistryError, match="is not the name of a Docker Hub repository"):
            client.describe(name, "short", "long")
    assert hub.requests == []


def test_what_passes_is_tried_again(hub: DockerHub, client: Hub) -> None:
    hub.faults = [
        Fault("POST .*auth", 503, 1, {"Retry-After": "0"}),
        Fault("GET .*tags", "cut", 1),
        Fault("PATCH", 500, 1, {"Retry-After": "0"}),
        Fault("DELETE", 502, 1, {"Retry-After": "0"}),
    ]
    assert client.tags(NAME) == ["0.1.0", "0.1.0-0123456789ab"]
    client.describe(NAME, "short", "# long\n")
    client.delete_tag(NAME, "0.1.0")
    assert all(fault.times == 0 for fault in hub.faults)
    assert hub.pages[NAME] == Page("short", "# long\n", ["0.1.0-0123456789ab"])


@pytest.mark.parametrize("as_date", [False, True])
def test_its_limit_is_waited_for(hub: DockerHub, as_date: bool) -> None:
    heard: list[str] = []
    client = Hub(hub.address, heard.append)
    assert client.tags(NAME)
    hub.limit, hub.as_date = len(hub.requests), as_date
    before = time.monotonic()
    assert client.tags(NAME)
    assert 0.9 < time.monotonic() - before < 9
    assert heard[0].startswith("Docker Hub: 429 Too Many Requests: Rate limit exceeded; it asks")
    assert re.search(r"to wait [123] seconds?$", heard[0])


def test_the_older_paths_do_where_the_newer_ones_are_not(hub: DockerHub, client: Hub) -> None:
    hub.older = True
    client.describe(NAME, "short", "long")
    for _ in range(2):  # once it is gone, that is no error
        client.delete_tag(NAME, "0.1.0")
    assert hub.pages[NAME] == Page("short", "long", ["0.1.0-0123456789ab"])
    with pytest.raises(RegistryError, match="cannot describe me/other: not found"):
        client.describe("me/other", "short", "long")


def test_a_token_that_is_over_is_renewed(hub: DockerHub, client: Hub) -> None:
    hub.lifetime = 0.3
    assert client.tags(NAME)
    time.sleep(0.4)
    client.describe(NAME, "short", "long")
    assert hub.count("auth/token") == 2
    hub.tokens.clear()
    hub.users.clear()
    with pytest.raises(RegistryError, match="authentication failed as me"):
        client.tags(NAME)
    assert hub.count("auth/token") == 3


def test_what_it_refuses_is_told(hub: DockerHub, client: Hub) -> None:
    with pytest.raises(RegistryError, match="full_description: Exceeded max number of characters"):
        client.describe(NAME, "x", "x" * 25_001)
    with pytest.raises(RegistryError, match="400 Bad Request"):
        client.describe(NAME, "x" * 101, "x")
    assert hub.pages[NAME].full_description == "# old"


def test_a_description_that_was_not_taken_is_noticed(hub: DockerHub, client: Hub) -> None:
    where = f"{hub.address}/v2/namespaces/me/repositories/hello-sm120"
    hub.faults = [Fault("PATCH", 200, 1)]
    with pytest.raises(RegistryError, match="but shows another one"):
        client.describe(NAME, "short", "long")
    for short, full in (("short", "# old"), ("old", "long")):
        hub.faults = [Fault("PATCH", 200, 1)]
        with pytest.raises(RegistryError, match="but shows another one"):
            client.describe(NAME, short, full)
    hub.faults = [Fault("PATCH|DELETE", 302, 2, {"Location": where})]
    with pytest.raises(RegistryError, match="cannot be used: PATCH"):
        client.describe(NAME, "short", "long")
    with pytest.raises(RegistryError, match="cannot be used: DELETE"):
        client.delete_tag(NAME, "0.1.0")
    assert hub.pages[NAME] == Page("old", "# old", ["0.1.0", "0.1.0-0123456789ab"])


def test_what_is_not_docker_hub(client: Hub, hub: DockerHub) -> None:
    hub.faults = [Fault("POST", 200, 1)]
    with pytest.raises(FetchError, match="is not from Docker Hub"):
        client.tags(NAME)


def test_no_answer_of_docker_hub_is_an_internal_error() -> None:
    documents: list[tuple[Any, Any]] = [
        ({"access_token": "abc"}, lambda content: checked(Grant, content)),
        (
            {"results": [{"name": "a"}], "next": "https://h"},
            lambda content: checked(TagPage, content),
        ),
        ({"full_description": "a"}, lambda content: checked(Shown, content)),
        ({"message": "no", "errinfo": {"fielderrors": {"a": "b"}}}, error_text),
    ]

    @fuzzed
    def fuzz(seed: bytes) -> None:
        for good, read in documents:
            with suppress(FetchError):
                read(damaged(good, seed))

    fuzz()


@pytest.mark.parametrize("content", ['{"results":[5]}', "[]", '{"results":[{"name":"../x"}]}'])
def test_a_damaged_list_of_tags(content: str, hub: DockerHub, client: Hub) -> None:
    hub.damaged = content.encode()
    with pytest.raises(FetchError, match="response of Docker Hub is damaged") as caught:
        client.tags(NAME)
    assert "pattern" not in caught.value.why


def test_a_token_that_is_no_token_is_not_shown() -> None:
    with pytest.raises(FetchError) as caught:
        checked(Grant, json.dumps({"access_token": f"{SECRET}\nX: y"}).encode())
    assert SECRET not in str(caught.value)


def test_all_pages_of_tags_are_read(hub: DockerHub, client: Hub) -> None:
    names = [f"t{number:03}" for number in range(250)]
    hub.pages[NAME].tags = names[::-1]
    assert client.tags(NAME) == names
    assert hub.count("GET .*tags") == 3
    assert client.tags("me/other") == []


def test_a_deletion_whose_response_was_lost_is_no_error(hub: DockerHub, client: Hub) -> None:
    hub.faults = [Fault("DELETE", "cut", first=lambda: hub.pages[NAME].tags.remove("0.1.0"))]
    client.delete_tag(NAME, "0.1.0")
    assert "0.1.0" not in hub.pages[NAME].tags
