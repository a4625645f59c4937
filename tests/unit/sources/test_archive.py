""".deb files from the mirror, else from the snapshots; each is verified and kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from builder.core.errors import FetchError, GoneError
from builder.core.settings import Servers
from builder.recipes.locks import DebianFile
from builder.sources.apt import AptSource, PackageArchive, archive_of, deb822, fetch
from support.debian_archive import DebianArchive, served

AS_OF = datetime(2026, 11, 21, 2, 10, 46, tzinfo=UTC)


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[DebianArchive]:
    with served(tmp_path / "archive") as made:
        made.add("aa", "1:1.0+b1", "amd64")
        made.add("bb", "2.0", "amd64")
        yield made


def locked(archive: DebianArchive, *names: str) -> list[DebianFile]:
    found = []
    for name in names:
        stanza = archive.lists["amd64"][name]
        fields = dict(line.split(": ", 1) for line in stanza.splitlines())
        file = {"path": f"debian/{fields['Filename']}", "version": fields["Version"]}
        found.append(DebianFile(**file, size=int(fields["Size"]), sha256=fields["SHA256"]))
    return found


def place(archive: DebianArchive) -> PackageArchive:
    return PackageArchive(tuple(archive.sources), archive.snapshot)


def test_the_mirror_first_and_then_the_cache(archive: DebianArchive, tmp_path: Path) -> None:
    said: list[str] = []
    files = locked(archive, "aa", "bb")
    paths = fetch(files, AS_OF, place(archive), tmp_path / "cache", said.append)
    assert [path.name for path in paths] == ["aa_1.0+b1_amd64.deb", "bb_2.0_amd64.deb"]
    assert said == ["fetching 2 of 2 Debian packages"]
    assert [path.split("/")[1] for path in archive.asked] == ["debian", "debian"]
    again = fetch(files, AS_OF, place(archive), tmp_path / "cache", said.append, offline=True)
    assert again == paths
    assert len(archive.asked) == 2
    assert paths[0].parent == tmp_path / "cache" / "debian" / files[0].sha256


def test_a_damaged_file_in_the_cache_is_fetched_again(
    archive: DebianArchive, tmp_path: Path
) -> None:
    said: list[str] = []
    files, cache = locked(archive, "aa", "bb"), tmp_path / "cache"
    first, second = fetch(files, AS_OF, place(archive), cache, said.append)
    whole = first.read_bytes()
    first.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))  # the same size
    said.clear()
    damaged = "aa_1.0+b1_amd64.deb in the cache is damaged: its sha256 is not the lock's"
    with pytest.raises(FetchError, match=r"not in the cache: aa_1\.0\+b1_amd64\.deb"):
        fetch(files, AS_OF, place(archive), cache, said.append, offline=True)
    assert said == [damaged]
    assert fetch(files, AS_OF, place(archive), cache, said.append) == [first, second]
    assert said[1:] == [damaged, "fetching 1 of 2 Debian packages"]
    assert first.read_bytes() == whole
    assert len(archive.asked) == 3


def test_what_the_mirror_dropped_comes_from_a_snapshot_soon_after(
    archive: DebianArchive, tmp_path: Path
) -> None:
    archive.gone.add("aa_1.0+b1_amd64.deb")
    (path,) = fetch(locked(archive, "aa"), AS_OF, place(archive), tmp_path, lambda _: None)
    assert path.read_bytes() == (archive.folder / "pool/main/a/aa/aa_1.0+b1_amd64.deb").read_bytes()
    assert archive.asked[-1].startswith("/archive/debian/20261121T081046Z/pool/main/a/aa/aa_1.0")


def test_what_no_server_has_is_gone(archive: DebianArchive, tmp_path: Path) -> None:
    archive.gone.add("aa_1.0+b1_amd64.deb")
    archive.lost.add("aa_1.0+b1_amd64.deb")
    with pytest.raises(GoneError, match="no server has the Debian package aa_1") as error:
        fetch(locked(archive, "aa"), AS_OF, place(archive), tmp_path, lambda _: None)
    assert archive.mirror in error.value.why
    assert "20261122T021046Z" in error.value.why  # a day later, the last try
    assert "404" in error.value.why
    assert not list(tmp_path.glob("debian/*"))
    for archive.refusal in (403, 407):  # a firewall's or a proxy's word
        with pytest.raises(FetchError, match="cannot fetch the Debian package aa_1") as refused:
            fetch(locked(archive, "aa"), AS_OF, place(archive), tmp_path, lambda _: None)
        assert not isinstance(refused.value, GoneError)


def test_a_server_that_does_not_answer_is_not_asked_again(
    archive: DebianArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.core.web.GIVE_UP", 0.0)
    away = AptSource(("http://127.0.0.1:9/debian",), ("tested",), ("main",))
    sources = replace(place(archive), sources=(away,))
    first, second = locked(archive, "aa", "bb")
    archive.lost.add(second.path.rpartition("/")[2])
    with pytest.raises(FetchError, match=r"127\.0\.0\.1:9 does not answer") as error:
        fetch([first, second], AS_OF, sources, tmp_path, lambda _: None)
    assert [*(tmp_path / "debian" / first.sha256).iterdir()]
    assert not isinstance(error.value, GoneError)  # the mirror may have it


def test_other_bytes_are_refused(archive: DebianArchive, tmp_path: Path) -> None:
    (file,) = locked(archive, "aa")
    other = file.model_copy(update={"sha256": "0" * 64})
    with pytest.raises(FetchError, match="does not have the pinned digest"):
        fetch([other], AS_OF, place(archive), tmp_path, lambda _: None)
    assert not list(tmp_path.glob("debian/*"))


def test_offline_names_what_is_missing(archive: DebianArchive, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"not in the cache: bb_2\.0_amd64\.deb"):
        fetch(locked(archive, "bb"), AS_OF, place(archive), tmp_path, lambda _: None, offline=True)
    assert archive.asked == []


def test_security_updates_are_in_an_archive_of_their_own() -> None:
    main = AptSource(("http://m.example.invalid/debian/",), ("trixie", "trixie-updates"), ("main",))
    security = AptSource(("http://m.example.invalid/sec",), ("trixie-security",), ("main",))
    found = PackageArchive((main, security), "https://s.example.invalid")
    inside = "pool/updates/main/o/openssl/openssl_3~1"
    path = f"debian-security/{inside}+2_amd64.deb"
    first, second, _ = found.urls(path, AS_OF)
    assert first == f"http://m.example.invalid/sec/{inside}%2B2_amd64.deb"
    time = "20261121T081046Z"
    assert second.startswith(f"https://s.example.invalid/archive/debian-security/{time}/pool")


def test_a_mirror_is_asked_instead_of_the_sources_of_the_machine() -> None:
    found = archive_of("trixie", Servers("http://m.example.invalid/", "https://s.example.invalid"))
    assert deb822(found.sources).splitlines()[1:3] == [
        "URIs: http://m.example.invalid/debian",
        "Suites: trixie trixie-updates",
    ]
    for name in ("debian", "debian-security"):
        first, second, _ = found.urls(f"{name}/pool/x_1_all.deb", AS_OF)
        assert first == f"http://m.example.invalid/{name}/pool/x_1_all.deb"
        assert second.startswith(f"https://s.example.invalid/archive/{name}/2026")
