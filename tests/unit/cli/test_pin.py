"""`pin outdated` and `pin verify` on real repositories and package indexes."""

from __future__ import annotations

import threading
import time
import tomllib
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.commands import Builder
from support.debian_archive import served
from support.farms import Farm
from support.overlaid import write_catalog
from support.upstreams import Upstream


def test_outdated_counts_commits_and_days(farm: Farm) -> None:
    farm.write()
    assert farm.json("pin", "outdated")[0]["ahead"] == 0
    assert farm.run("pin", "outdated") == ""
    assert "1 of 1 recipe up to date" in farm.said
    farm.upstream.commit("two", **{"b.c": "bb\n"})
    farm.upstream.commit("three", **{"b.c": "bbb\n"})
    farm.upstream.git("tag", "v0.2.0")
    (lag,) = farm.json("pin", "outdated")
    assert (lag["ahead"], lag["since"], lag["rewritten"]) == (2, "2023-11-14", False)
    assert "2 commits ahead" in farm.run("pin", "outdated")
    # The history is rewritten: the pin is nobody's ancestor any more.
    farm.upstream.git("checkout", "--quiet", "--orphan", "fresh")
    farm.upstream.commit("all anew", **{"b.c": "new\n"})
    farm.upstream.git("tag", "v0.3.0")
    (lag,) = farm.json("pin", "outdated")
    assert lag["rewritten"]


def test_a_tag_of_thousands_of_digits_is_a_number_as_any_other(farm: Farm) -> None:
    farm.write()
    new = farm.upstream.commit("two", **{"b.c": "bb\n"})
    refs = "".join(f"{new} refs/tags/v{'1' * digits}\n" for digits in (4500, 4499))
    (farm.upstream.folder / ".git" / "packed-refs").write_text(refs)
    (lag,) = farm.json("pin", "outdated")
    assert lag["ahead"] == 1
    assert lag["target"]["name"] == "v" + "1" * 4500


@pytest.mark.usefixtures("index")
def test_outdated_counts_releases_of_the_package_index(farm: Farm) -> None:
    (lag,) = farm.json("pin", "outdated")
    assert (lag["target"]["name"], lag["ahead"], lag["since"]) == ("1.10", 2, "2026-01-02")
    assert "eng-1.0\t1.10\t2 releases ahead\t2026-01-02" in farm.run("pin", "outdated")
    assert farm.json("pin", "outdated", "--offline") == []
    farm.run("pin", "outdated", "--offline")
    assert "1 recipe without an upstream to compare with" in farm.said


def test_verify_pins_names_what_is_gone(farm: Farm, tmp_path: Path) -> None:
    part = Upstream(tmp_path / "served" / "part")
    part.commit("part", **{"p.h": "1\n"})
    farm.upstream.git("submodule", "--quiet", "add", part.url, "deps/part")
    farm.pin = farm.upstream.record("with part")
    farm.write(farm.pull(6, **{"b.c": "c\n"}))
    pins = farm.json("pin", "verify")
    assert {pin["state"] for pin in pins} == {"ok"}
    kinds = [pin["kind"] for pin in pins if pin["recipe"] == "eng-0.1.0"]
    assert kinds == ["commit", "submodule", "pull"]  # the base of the request is the pin
    assert len([pin for pin in pins if pin["kind"] == "file"]) == 9  # the base's wheels
    # A pull request is closed, its branch deleted and collected; the submodule moves away.
    farm.upstream.git("update-ref", "-d", "refs/pull/6/head")
    farm.upstream.git("reflog", "expire", "--expire=now", "--all")
    farm.upstream.git("gc", "--quiet", "--prune=now")
    part.folder.rename(part.folder.with_name("renamed"))
    pins = farm.json("pin", "verify", "eng", status=5)
    states_of = {pin["kind"]: pin["state"] for pin in pins if pin["state"] != "ok"}
    assert states_of == {"submodule": "gone", "pull": "gone"}
    assert "2 of 12 pins are gone, 0 could not be checked" in farm.said
    # A server that does not answer says nothing of what it has.
    farm.write(url="http://127.0.0.1:9/eng")
    assert farm.json("pin", "verify", "eng", status=5)[0]["state"] == "unknown"


class SlowIndex(BaseHTTPRequestHandler):
    """A package index without projects, that counts how many questions wait at the same time."""

    waiting: Counter[str]

    def do_GET(self) -> None:
        self.waiting["now"] += 1
        self.waiting["most"] = max(self.waiting["most"], self.waiting["now"])
        time.sleep(0.4)
        self.waiting["now"] -= 1
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_several_pins_are_asked_for_at_once_and_told_in_their_order(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm.write()
    waiting: Counter[str] = Counter()
    handler = type("Own", (SlowIndex,), {"waiting": waiting})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        pins = farm.json("pin", "verify", status=5)
        server.shutdown()
    assert 3 <= waiting["most"] <= 8
    wheels = tomllib.loads((farm.recipes / "bases" / "cuda-13.0.toml").read_text())["wheel"]
    names = [f"{wheel['name']} {wheel['version']}" for wheel in wheels]
    assert [pin["what"] for pin in pins if pin["kind"] == "file"] == names
    assert {pin["state"] for pin in pins if pin["kind"] == "file"} == {"gone"}


class SilentIndex(BaseHTTPRequestHandler):
    """A package index that closes every connection without an answer."""

    asked: set[str]

    def do_GET(self) -> None:
        self.asked.add(self.path)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def test_an_index_that_does_not_answer_is_not_asked_again(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm.write()
    asked: set[str] = set()
    handler = type("Own", (SilentIndex,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        pins = farm.json("pin", "verify", status=5)
        server.shutdown()
    files = [pin for pin in pins if pin["kind"] == "file"]
    assert (len(files), {pin["state"] for pin in files}) == (9, {"unknown"})
    assert len(asked) <= 8  # at once, and none afterwards


def test_the_base_that_compiles_the_entrypoint_is_mirrored_too(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_catalog(tmp_path, "", "127.0.0.1:9/nowhere:1")
    monkeypatch.setenv("BUILDER_CACHE_DIR", str(tmp_path / "cache"))
    with served(tmp_path / "debian") as archive:  # it has no package
        for name in ("MIRROR", "SNAPSHOT"):
            monkeypatch.setenv(f"BUILDER_DEBIAN_{name}", archive.mirror)
        done = builder("pin", "mirror", "--catalog", tmp_path)
    assert done.returncode == 5
    assert "debian-trixie-gcc: no server has the Debian package" in done.stderr
