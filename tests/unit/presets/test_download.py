"""Downloads of models from a real server: cut, resumed, checked, refused."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import BusyError, FetchError, SpaceError, WorldError
from builder.presets import models as api
from builder.presets.models import Fetch, download, on_the_hub
from support import model_hub
from support.model_hub import Hub
from support.registries import answering

CONTENT = os.urandom(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    file = tmp_path / "hub" / "me" / "A-GGUF" / "Q8" / "a.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(CONTENT)
    with model_hub.served(tmp_path / "hub") as found:
        model_hub.use(monkeypatch, HF_ENDPOINT=found.endpoint)
        yield found


@pytest.fixture
def fetch(hub: Hub, tmp_path: Path) -> Fetch:  # noqa: ARG001  (the endpoint is set)
    place = on_the_hub("me/A-GGUF", "Q8/a.gguf")
    return Fetch(place, "Q8/a.gguf", tmp_path / "models" / "a.gguf", len(CONTENT), SHA256)


def quiet(*_: object) -> None:
    pass


def ranges(hub: Hub) -> int:
    """Requests for bytes that reached the CDN."""
    return sum(path.startswith("/cdn/") for _, path, _ in hub.requests)


def test_the_hub_lists_files_with_their_digests(hub: Hub) -> None:
    (file,) = api.hub_files("me/A-GGUF")
    assert (file.path, file.size, file.sha256) == ("Q8/a.gguf", len(CONTENT), SHA256)
    with pytest.raises(FetchError) as caught:
        api.hub_files("me/Absent")
    assert "404" in caught.value.why
    assert caught.value.hint == "check the name of the repository"
    assert hub.requests


def test_the_token_of_the_hub_is_sent(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", model_hub.TOKEN)
    api.hub_files("me/A-GGUF")
    assert hub.requests[-1][2] == f"Bearer {model_hub.TOKEN}"


def test_offline_nothing_is_asked(fetch: Fetch, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    model_hub.use(monkeypatch, HF_HUB_OFFLINE="1")
    for ask in (
        lambda: api.hub_files("me/A-GGUF"),
        lambda: download([fetch], fetch.target.parent, quiet),
    ):
        with pytest.raises(FetchError) as caught:
            ask()
        assert caught.value.why == "HF_HUB_OFFLINE is set"
        assert caught.value.hint == "unset it"
    assert hub.requests == []
    assert not fetch.part.exists()


def test_no_telemetry_is_sent(fetch: Fetch, hub: Hub) -> None:
    api.hub_files("me/A-GGUF")
    download([fetch], fetch.target.parent, quiet)
    asked = [path for _, path, _ in hub.requests]
    file = "me/A-GGUF/Q8/a.gguf"
    assert asked == [
        "/api/models/me/A-GGUF?blobs=true",
        f"/{file.replace('GGUF/', 'GGUF/resolve/main/')}",
        f"/cdn/{file}",
    ]


def test_a_file_appears_when_it_is_complete(fetch: Fetch, hub: Hub) -> None:
    seen: list[tuple[str, int, int]] = []
    download([fetch], fetch.target.parent, lambda *each: seen.append(each))
    assert fetch.target.read_bytes() == CONTENT
    assert not fetch.part.exists()
    assert seen[-1] == ("Q8/a.gguf", len(CONTENT), len(CONTENT))
    before = ranges(hub)
    download([fetch], fetch.target.parent, quiet)
    assert ranges(hub) == before  # it is there


def test_a_cut_download_continues_by_itself(fetch: Fetch, hub: Hub) -> None:
    hub.cuts = [1_500_000]
    download([fetch], fetch.target.parent, quiet)
    assert fetch.target.read_bytes() == CONTENT
    assert ranges(hub) == 2
    assert hub.sent < len(CONTENT) + api.BLOCK


def test_what_a_stopped_run_left_is_taken(fetch: Fetch, hub: Hub) -> None:
    fetch.part.parent.mkdir()
    fetch.part.write_bytes(CONTENT[:2_000_000])
    assert fetch.left == 1_000_000
    download([fetch], fetch.target.parent, quiet)
    assert fetch.target.read_bytes() == CONTENT
    assert hub.sent == 1_000_000


def test_a_server_without_ranges_begins_anew(fetch: Fetch, hub: Hub) -> None:
    hub.ranges = False
    fetch.part.parent.mkdir()
    fetch.part.write_bytes(b"other" * 1000)
    download([fetch], fetch.target.parent, quiet)
    assert fetch.target.read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"", b"x" * 2_000_000, b"x" * 4_000_000])
def test_other_bytes_are_refused_and_removed(fetch: Fetch, left: bytes) -> None:
    fetch.part.parent.mkdir()
    fetch.part.write_bytes(left)
    if len(left) > fetch.size:  # the part of a larger file: it is begun anew
        download([fetch], fetch.target.parent, quiet)
        assert fetch.target.read_bytes() == CONTENT
        return
    other = replace(fetch, sha256="0" * 64) if not left else fetch
    with pytest.raises(FetchError) as caught:
        download([other], fetch.target.parent, quiet)
    assert "not the file that the Hub lists" in caught.value.what
    assert not fetch.target.exists()
    assert not fetch.part.exists()


def test_a_file_that_is_larger_than_listed_is_refused(fetch: Fetch) -> None:
    with pytest.raises(FetchError) as caught:
        download([replace(fetch, size=1000)], fetch.target.parent, quiet)
    assert "larger than 1000 bytes" in caught.value.why
    assert not fetch.part.exists()


def test_a_file_that_only_xet_gives_is_told(
    fetch: Fetch, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.presets.models.require_space", quiet)
    with pytest.raises(FetchError) as caught:
        download([replace(fetch, size=51 * 10**9)], fetch.target.parent, quiet)
    assert "hf download" in caught.value.hint
    assert hub.requests == []


def test_a_file_that_is_gone_is_told(fetch: Fetch) -> None:
    gone = replace(fetch, location=on_the_hub("me/A-GGUF", "absent.gguf"))
    with pytest.raises(FetchError) as caught:
        download([gone], fetch.target.parent, quiet)
    assert "404" in caught.value.why
    assert list(fetch.target.parent.iterdir()) == []


def test_the_disk_must_have_room_for_all_of_it(fetch: Fetch, hub: Hub) -> None:
    too_large = shutil.disk_usage(fetch.target.parent.parent).free + (2 << 30)
    with pytest.raises(SpaceError):
        download([replace(fetch, size=too_large)], fetch.target.parent, quiet)
    assert ranges(hub) == 0
    assert not fetch.target.parent.exists()


def test_another_run_downloads_the_same_file(fetch: Fetch) -> None:
    fetch.part.parent.mkdir()
    with fetch.part.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BusyError):
            download([fetch], fetch.target.parent, quiet)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_that_gets_full_is_told_and_the_part_stays(
    fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "small").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    monkeypatch.setattr("builder.presets.models.require_space", quiet)  # it fills meanwhile
    try:
        with pytest.raises(SpaceError):
            download([replace(fetch, target=folder / "a.gguf")], folder, quiet)
        assert (folder / "a.gguf.part").stat().st_size > 0
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_file_of_a_repository_may_be_empty(hub: Hub, tmp_path: Path) -> None:
    (hub.folder / "me" / "A-GGUF" / "empty").touch()
    target = tmp_path / "models" / "empty"
    place = on_the_hub("me/A-GGUF", "empty")
    download([Fetch(place, "empty", target, 0)], tmp_path / "models", quiet)
    assert target.read_bytes() == b""
    assert [path.name for path in target.parent.iterdir()] == ["empty"]


def test_a_file_that_another_run_has_just_completed_is_left(
    fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def locked(file: object, how: int) -> None:
        lock(file, how)  # type: ignore[arg-type]
        if how & fcntl.LOCK_EX:
            fetch.target.write_bytes(b"theirs")

    monkeypatch.setattr(fcntl, "flock", locked)
    download([fetch], tmp_path / "models", quiet)
    assert fetch.target.read_bytes() == b"theirs"
    assert not fetch.part.exists()


def test_a_part_that_is_a_link_is_not_followed(fetch: Fetch, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    fetch.part.parent.mkdir()
    fetch.part.symlink_to(other)
    with pytest.raises(WorldError, match="it is a link"):
        download([fetch], fetch.target.parent, quiet)
    assert other.read_bytes() == b"mine"


def test_a_directory_in_the_place_of_the_file(fetch: Fetch) -> None:
    fetch.target.mkdir(parents=True)
    with pytest.raises(WorldError, match="cannot write to"):
        download([fetch], fetch.target.parent, quiet)
    assert fetch.target.is_dir()


@pytest.mark.parametrize(
    "listed",
    [
        {"rfilename": "a\0b"},
        {"rfilename": "a" * 300},
        {"rfilename": "a/" * 2000 + "b"},
        {"rfilename": ""},
        {"rfilename": "../a"},
        {"rfilename": "a\u202eb"},
        {"size": -1},
        {"size": None},
        {"size": 10**400},
        {"lfs": {"sha256": "../../etc", "size": 1, "pointerSize": 1}},
    ],
    ids=str,
)
def test_a_list_that_cannot_be_files_is_refused(
    listed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"rfilename": "a.gguf", "size": 1, **listed}
    content = json.dumps({"id": "me/A", "siblings": [entry]}).encode()
    with answering(lambda _: (200, {}, content)) as (address, _):
        model_hub.use(monkeypatch, HF_ENDPOINT=f"http://{address}")
        with pytest.raises(FetchError) as caught:
            api.hub_files("me/A")
    assert str(caught.value).replace("\n", "").isprintable()
    assert len(str(caught.value)) < 1000
