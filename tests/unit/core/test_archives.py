"""Sources that are archives: by digest, unpacked safely, from a directory inside."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
import tracemalloc
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from builder.core import archives, web
from builder.core.errors import FetchError
from builder.core.web import Client, WebError
from support.loopback import Quiet, serving_with


class Files:
    """A directory on loopback; the statuses in ``faults`` are answered first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: list[tuple[int, dict[str, str]]] = []
        self.asked = 0
        self.url = ""

    def put(self, name: str, content: bytes) -> str:
        """The sha256 of a new file."""
        (self.folder / name).write_bytes(content)
        return hashlib.sha256(content).hexdigest()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    served = Files(tmp_path / "served")
    served.folder.mkdir()
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    served.waited = waited  # type: ignore[attr-defined]

    class Handler(Quiet, SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(served.folder))  # type: ignore[arg-type]

        def do_GET(self) -> None:
            served.asked += 1
            if not served.faults:
                super().do_GET()
                return
            status, headers = served.faults.pop(0)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serving_with(Handler) as address:
        served.url = f"http://{address}"
        yield served


def tar(*members: tuple[str, bytes], **special: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz") as made:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mode = 0o755
            made.addfile(info, io.BytesIO(content))
        for name, target in special.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            made.addfile(info)
    return out.getvalue()


def zipped(*members: tuple[str, bytes, int]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, content, mode in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            made.writestr(info, content)
    return out.getvalue()


def packed_zip(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a", content)
    return out.getvalue()


def fetch(files: Files, digest: str, folder: Path) -> None:
    web.store(Client(), f"{files.url}/x.tar.xz", "x.tar.xz", digest, folder / "cache")


def test_a_zip_keeps_what_may_be_run(tmp_path: Path) -> None:
    program = ("x/run.sh", b"#!/bin/sh\n", stat.S_IFREG | 0o755)
    archive = tmp_path / "x.zip"
    archive.write_bytes(zipped(program, ("x/a.c", b"a", stat.S_IFREG | 0o644)))
    archives.unpack(archive, tmp_path / "tree")
    assert (tmp_path / "tree/x/run.sh").stat().st_mode & 0o111
    assert not (tmp_path / "tree/x/a.c").stat().st_mode & 0o111


def test_other_bytes_are_refused(files: Files, tmp_path: Path) -> None:
    digest = files.put("x.tar.xz", tar(("a.c", b"a")))
    files.put("x.tar.xz", tar(("a.c", b"b")))
    with pytest.raises(FetchError, match="does not have the pinned digest"):
        fetch(files, digest, tmp_path)
    assert not list(tmp_path.glob("cache*"))


def test_a_busy_server_is_waited_for_as_it_asks(files: Files, tmp_path: Path) -> None:
    digest = files.put("x.tar.xz", tar(("a.c", b"a")))
    files.faults = [(429, {"Retry-After": "7"}), (503, {})]
    fetch(files, digest, tmp_path)
    assert (tmp_path / "cache" / "x.tar.xz").is_file()
    waited = files.waited  # type: ignore[attr-defined]
    assert waited[0] == 7.0
    assert len(waited) == 2


@pytest.mark.parametrize(
    "fault", [(404, {}), (403, {}), (410, {}), (503, {"Retry-After": "86400"})]
)
def test_no_is_an_answer(files: Files, tmp_path: Path, fault: tuple[int, dict[str, str]]) -> None:
    digest = files.put("x.tar.xz", tar(("a.c", b"a")))
    files.faults = [fault] * 9
    with pytest.raises(WebError, match=str(fault[0])):
        fetch(files, digest, tmp_path)
    assert files.asked == 1


def test_a_directory_of_an_archive_is_found_or_named(tmp_path: Path) -> None:
    (tmp_path / "x-1").mkdir()
    assert archives.subdirectory_of(tmp_path, "x-1", "x.tar") == tmp_path / "x-1"
    with pytest.raises(FetchError, match="has no directory x-2") as caught:
        archives.subdirectory_of(tmp_path, "x-2", "x.tar")
    assert "x-1" in caught.value.why


@pytest.mark.parametrize(
    "content",
    [
        tar(("../owned", b"x")),
        tar(link="/etc/passwd"),
        tar(link="../../x"),
        tar(**{"l2": "sub/l1/../../etc/passwd", "sub/l1": ".."}),
        zipped(("../owned", b"x", 0o100644)),
        zipped(("/tmp/owned-by-zip", b"x", 0o100644)),
        zipped(("link", b"/etc/passwd", stat.S_IFLNK | 0o777)),
        zipped(("..\\owned", b"x", 0o100644)),
        b"no archive",
        b"",
        tar(("a.c", os.urandom(9000)))[:5000],
    ],
    ids=range(11),
)
def test_a_hostile_or_broken_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "x.bin"
    archive.write_bytes(content)
    target = tmp_path / "inner" / "tree"
    target.parent.mkdir()
    with pytest.raises(FetchError):
        archives.unpack(archive, target)
    assert not list(tmp_path.glob("owned*"))
    assert not list((tmp_path / "inner").glob("owned*"))
    assert not list(Path("/tmp").glob("owned-by-*"))


def members(*made: tuple[tarfile.TarInfo, bytes], packed: str = "w") -> bytes:
    """A tar of any members, valid or not."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=packed, format=tarfile.GNU_FORMAT) as written:  # type: ignore[call-overload]
        for info, content in made:
            info.size = info.size or len(content)
            written.addfile(info, io.BytesIO(content) if content else None)
    return out.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, leads: str = "", size: int = 0) -> Any:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, leads, size
    return info, b""


def encrypted() -> bytes:
    """A zip whose member says that it is encrypted."""
    content = bytearray(zipped(("a", b"content", 0o100644)))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset] |= 1
    return bytes(content)


def damaged() -> bytes:
    """A zip whose member has other bytes than its checksum says."""
    return zipped(("a", b"content", 0o100644)).replace(b"content", b"contenT", 1)


def beyond_path_max(outside: str, *, written: bool = True) -> bytes:
    """A tar that leads realpath astray: short links stand for a path longer than PATH_MAX.

    CVE-2025-4517: ``tarfile`` finds "escape" inside the directory, and the kernel outside.
    """
    long, path, steps = "d" * 247, "", "abcdefghijklmnop"
    made = []
    for step in steps:
        made.append(member(f"{path}{long}", tarfile.DIRTYPE))
        made[-1][0].mode = 0o755
        made.append(member(f"{path}{step}", LINK, long))
        path += f"{long}/"
    up = "/".join((*steps, "l" * 254))
    made += [
        member(up, LINK, "../" * len(steps)),
        member("escape", LINK, f"{up}/../{outside}"),
        member("hard", HARD, "escape/flag"),
        (tarfile.TarInfo("hard"), b"overwritten"),
        (tarfile.TarInfo("escape/new"), b"new"),
    ]
    return members(*made[: None if written else -3])


FILE, FOLDER = ("a", b"x", 0o100644), ("a/b", b"x", 0o100644)
LINK, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE
LONG_NAME = member("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=1 << 30)
HOSTILE = {
    "a file, then a directory": members(member("a"), member("a/b")),
    "a directory, then a file": members(member("a/b"), member("a")),
    "a link to itself, then below it": members(member("a", LINK, "a"), member("a/b")),
    "links in a circle": members(member("a", LINK, "b"), member("b", LINK, "a"), member("a/c")),
    "a hard link to nothing": members(member("a", HARD, "b")),
    "a hard link to itself": members(member("a", HARD, "a")),
    "a file instead of the directory": members(member("")),
    "a link instead of the directory": members(member(".", LINK, "sub")),
    "a hard link instead of the directory": members(member("b"), member("./", HARD, "b")),
    "a link back to the directory": members(member("a/..", LINK, "b")),
    "a long component": members(member("a" * 300)),
    "a path beyond PATH_MAX": beyond_path_max("outside"),
    "a link by way of a path beyond PATH_MAX": beyond_path_max("outside", written=False),
    "a file below a link": members(member("b/c"), member("a", LINK, "b"), member("a/d")),
    "a hard link to what is below a link": members(
        member("b/c"), member("a", LINK, "b"), member("d", HARD, "./a//c")
    ),
    "a hard link to a link": members(member("b"), member("a", LINK, "b"), member("c", HARD, "a")),
    "a file in the place of a link": members(member("b"), member("a", LINK, "b"), member("a")),
    "a file that is above another": members(member("b/c"), member("b/../d")),
    "a hard link upwards": members(member("b/c"), member("d", HARD, "b/../b/c")),
    "a deep path": members(member("a/" * 200 + "a")),
    "a long path": members(member("abcdefghi/" * 300 + "a")),
    "a link to a long path": members(member("a", LINK, "./" * 2000 + "b")),
    "a file of a terabyte": members(member("a", tarfile.GNUTYPE_SPARSE, size=1 << 40)),
    "a name of a gigabyte": gzip.compress(members(LONG_NAME) + bytes(1 << 20)),
    "names of names": members(member("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=1)) * 3000,
    "too many members": gzip.compress(
        b"".join(members(member(f"{n % 10}/"))[:512] for n in range(3000)), 1
    ),
    "small, and large when unpacked": gzip.compress(
        members(member("a", size=0), (tarfile.TarInfo("b"), bytes(4 << 20))), 9
    ),
    "zip: a file, then a directory": zipped(FILE, FOLDER),
    "zip: a directory, then a file": zipped(FOLDER, FILE),
    "zip: a file instead of the directory": zipped(("", b"x", 0o100644)),
    "zip: encrypted": encrypted(),
    "zip: damaged": damaged(),
    "zip: a long component": zipped(("a" * 300, b"x", 0o100644)),
    "zip: large when unpacked": packed_zip(bytes(4 << 20)),
    "zip: too many members": zipped(*((f"d{n}/", b"", 0o40755) for n in range(3000))),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_wrong_with_an_archive_is_explained_and_nothing_stays(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "FREE", 1 << 20, raising=False)
    monkeypatch.setattr(archives, "MOST_MEMBERS", 2000, raising=False)
    archive = tmp_path / "x.bin"
    archive.write_bytes(HOSTILE[kind])
    target = tmp_path / "inner" / "tree"
    target.parent.mkdir()
    tracemalloc.start()
    try:
        with pytest.raises(FetchError, match=r"x\.bin cannot be unpacked") as caught:
            archives.unpack(archive, target)
        assert tracemalloc.get_traced_memory()[1] < 1 << 27
    finally:
        tracemalloc.stop()
    assert caught.value.why
    assert str(tmp_path) not in str(caught.value)
    assert not list(target.parent.iterdir())


@pytest.mark.parametrize("streamed", [False, True])
def test_no_path_beyond_path_max_leads_outside(tmp_path: Path, *, streamed: bool) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "flag").write_text("original")
    content = beyond_path_max("outside")
    archive = tmp_path / "x.tar"
    archive.write_bytes(content)
    source: Any = io.BytesIO(content) if streamed else archive
    with pytest.raises(FetchError):
        (archives.unpack_stream if streamed else archives.unpack)(source, tmp_path / "tree")
    assert [path.name for path in outside.iterdir()] == ["flag"]
    assert (outside / "flag").read_text() == "original"
    assert not (tmp_path / "tree").exists()


def test_links_of_a_tar_are_kept(tmp_path: Path) -> None:
    archive = tmp_path / "x.tar"
    links = (member("x/link", LINK, "../a"), member("./x/hard", HARD, "x/c"))
    archive.write_bytes(members(member("./x/c"), member("a"), *links))
    archives.unpack(archive, tmp_path / "tree")
    assert (tmp_path / "tree" / "x" / "link").readlink() == Path("../a")
    assert (tmp_path / "tree" / "x" / "hard").samefile(tmp_path / "tree" / "x" / "c")


@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if "zip" not in kind])
def test_a_hostile_stream_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MOST_MEMBERS", 2000, raising=False)
    monkeypatch.setattr(archives, "LARGEST", 1 << 20, raising=False)
    content = HOSTILE[kind]
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    with pytest.raises(FetchError):
        archives.unpack_stream(io.BytesIO(content), tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_an_archive_packs_well_and_is_unpacked(tmp_path: Path) -> None:
    archive = tmp_path / "x.tar.gz"
    archive.write_bytes(gzip.compress(members((tarfile.TarInfo("a"), bytes(8 << 20)))))
    archives.unpack(archive, tmp_path / "tree")
    assert (tmp_path / "tree" / "a").stat().st_size == 8 << 20


def test_an_absolute_name_in_a_tar_is_taken_as_relative(tmp_path: Path) -> None:
    """As tar itself does (PEP 706, "data")."""
    archive = tmp_path / "x.tar.xz"
    archive.write_bytes(tar(("/tmp/owned-by-tar", b"x")))
    archives.unpack(archive, tmp_path / "tree")
    assert (tmp_path / "tree" / "tmp" / "owned-by-tar").is_file()
    assert not Path("/tmp/owned-by-tar").exists()
