"""Sources that are archives: by digest, unpacked safely, from a directory inside."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import tenacity.nap

from builder.errors import FetchError, GoneError
from builder.plan.inputs import Archive
from builder.sources import checkout
from builder.tools import archives
from builder.tools.web import downloads


class Files:
    """A directory on loopback; the statuses in ``faults`` are answered first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: list[tuple[int, dict[str, str]]] = []
        self.asked = 0
        self.ranges: list[str | None] = []
        self.url = ""

    def put(self, name: str, content: bytes) -> Archive:
        (self.folder / name).write_bytes(content)
        return Archive(f"{self.url}/{name}", hashlib.sha256(content).hexdigest(), ".")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    served = Files(tmp_path / "served")
    served.folder.mkdir()
    waited: list[float] = []
    monkeypatch.setattr(tenacity.nap.time, "sleep", waited.append)
    served.waited = waited  # type: ignore[attr-defined]

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(served.folder))  # type: ignore[arg-type]

        def do_GET(self) -> None:
            served.asked += 1
            served.ranges.append(self.headers.get("Range"))
            if not served.faults:
                super().do_GET()
                return
            status, headers = served.faults.pop(0)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield served
    server.shutdown()
    server.server_close()


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


def unpack(source: Archive, folder: Path, *, offline: bool = False) -> Path:
    target = folder / "tree"
    checkout.unpack(source, folder / "cache", target, lambda _: None, offline=offline)
    return target


def test_a_directory_of_an_archive_is_the_source(files: Files, tmp_path: Path) -> None:
    made = files.put("x.tar.xz", tar(("x-1/src/a.c", b"a"), ("x-1/README", b"r")))
    tree = unpack(Archive(made.url, made.sha256, "x-1/src"), tmp_path)
    assert [path.name for path in tree.iterdir()] == ["a.c"]
    assert [path.name for path in tmp_path.iterdir() if "unpacked" in path.name] == []


def test_a_zip_keeps_what_may_be_run(files: Files, tmp_path: Path) -> None:
    program = ("x/run.sh", b"#!/bin/sh\n", stat.S_IFREG | 0o755)
    made = files.put("x.zip", zipped(program, ("x/a.c", b"a", stat.S_IFREG | 0o644)))
    tree = unpack(Archive(made.url, made.sha256, "x"), tmp_path)
    assert (tree / "run.sh").stat().st_mode & 0o111
    assert not (tree / "a.c").stat().st_mode & 0o111


def test_what_was_fetched_once_is_not_fetched_again(files: Files, tmp_path: Path) -> None:
    made = files.put("x.tar.xz", tar(("a.c", b"a")))
    with pytest.raises(FetchError, match="is not in the cache"):
        unpack(made, tmp_path, offline=True)
    unpack(made, tmp_path).rename(tmp_path / "first")
    (files.folder / "x.tar.xz").unlink()
    assert (unpack(made, tmp_path, offline=True) / "a.c").read_text() == "a"


def test_other_bytes_are_refused(files: Files, tmp_path: Path) -> None:
    made = files.put("x.tar.xz", tar(("a.c", b"a")))
    files.put("x.tar.xz", tar(("a.c", b"b")))
    with pytest.raises(FetchError, match="does not have the pinned digest"):
        unpack(made, tmp_path)
    assert not list((tmp_path / "cache").rglob("*.xz"))


def test_a_busy_server_is_waited_for_as_it_asks(files: Files, tmp_path: Path) -> None:
    made = files.put("x.tar.xz", tar(("a.c", b"a")))
    files.faults = [(429, {"Retry-After": "7"}), (503, {})]
    unpack(made, tmp_path)
    waited = files.waited  # type: ignore[attr-defined]
    assert waited[0] == 7.0
    assert len(waited) == 2


@pytest.mark.parametrize(
    "fault", [(404, {}), (403, {}), (410, {}), (503, {"Retry-After": "86400"})]
)
def test_no_is_an_answer(files: Files, tmp_path: Path, fault: tuple[int, dict[str, str]]) -> None:
    made = files.put("x.tar.xz", tar(("a.c", b"a")))
    files.faults = [fault] * 9
    with pytest.raises(FetchError, match="cannot fetch"):
        unpack(made, tmp_path)
    assert files.asked == 1
    with pytest.raises(GoneError if fault[0] != 503 else FetchError, match="cannot fetch"):
        downloads.check(made.url)


def test_whether_a_file_can_be_had_is_asked_with_its_first_byte(files: Files) -> None:
    made = files.put("x.tar.xz", tar(("a.c", b"a")))
    downloads.check(made.url)
    assert files.ranges == ["bytes=0-0"]
    files.faults = [(416, {})]  # of an empty file
    downloads.check(made.url)
    with pytest.raises(GoneError, match="cannot fetch"):
        downloads.check(f"{made.url}.gone")


def test_a_directory_that_is_not_there_is_named(files: Files, tmp_path: Path) -> None:
    made = files.put("x.tar.xz", tar(("x-1/a.c", b"a")))
    with pytest.raises(FetchError, match="has no directory x-2") as caught:
        unpack(Archive(made.url, made.sha256, "x-2"), tmp_path)
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


def test_an_absolute_name_in_a_tar_is_taken_as_relative(tmp_path: Path) -> None:
    """As tar itself does (PEP 706, "data")."""
    archive = tmp_path / "x.tar.xz"
    archive.write_bytes(tar(("/tmp/owned-by-tar", b"x")))
    archives.unpack(archive, tmp_path / "tree")
    assert (tmp_path / "tree" / "tmp" / "owned-by-tar").is_file()
    assert not Path("/tmp/owned-by-tar").exists()
