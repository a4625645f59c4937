"""The programs that run in images, on packages of the test's own: what they refuse, and how."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.environment import REPOSITORY
from support.overlaid import METADATA, PACKAGE

INSIDE = REPOSITORY / "dockerfiles" / "scripts"


class Site:
    """An installed package "vllm" 1.0, and an overlay over it."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "site"
        self.overlay = folder / "overlay"
        (self.overlay / "files").mkdir(parents=True)
        self.install(self.site, "1.0")
        self.path = [self.site]
        self.before = self.text("vllm/worker.py")

    def install(self, site: Path, version: str, *, files: bool = True) -> None:
        named = {f"vllm-{version}.dist-info/METADATA": METADATA.format(version=version)}
        for name, text in {**(PACKAGE if files else {}), **named}.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text)

    def text(self, name: str) -> bytes:
        return (self.site / name).read_bytes()

    def lay(self, text: str | None, *, version: str = "1.0") -> subprocess.CompletedProcess[str]:
        """Lay one file over vllm/worker.py."""
        change: dict[str, Any] = {"path": "vllm/worker.py", "after": None}
        change["before"] = hashlib.sha256(self.before).hexdigest()
        if text is not None:
            file = self.overlay / "files" / "vllm" / "worker.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
            change["after"] = hashlib.sha256(text.encode()).hexdigest()
        (self.overlay / "manifest.json").write_text(json.dumps([change]))
        return subprocess.run(
            [
                *(sys.executable, INSIDE / "overlay.py", self.overlay),
                *("--package", "vllm", "--version", version),
            ],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": ":".join(map(str, self.path))},
        )

    def refused(self, message: str, text: str = "x = 1\n", **options: str) -> None:
        done = self.lay(text, **options)
        assert done.returncode == 1
        assert message in done.stderr
        assert "Traceback" not in done.stderr


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_package_is_patched_whole(site: Site) -> None:
    done = site.lay("x = 1\n")
    assert done.returncode == 0, done.stderr
    assert site.text("vllm/worker.py") == b"x = 1\n"
    assert list((site.site / "vllm" / "__pycache__").glob("worker.*.pyc"))
    site.refused("is not what the patches were made for")  # a second time


def test_a_file_goes_and_what_was_compiled_of_it(site: Site) -> None:
    cache = site.site / "vllm" / "__pycache__"
    cache.mkdir()
    (cache / "worker.cpython-312.pyc").write_bytes(b"stale")
    assert site.lay(None).returncode == 0
    assert not (site.site / "vllm" / "worker.py").exists()
    assert not list(cache.iterdir())


def test_a_base_that_is_not_what_the_recipe_says(site: Site, tmp_path: Path) -> None:
    site.refused("the base has vllm 1.0, and the recipe is for 2.0", version="2.0")
    more = tmp_path / "more"
    site.install(more, "0.9", files=False)
    site.path.append(more)
    site.refused(f"the base has vllm twice: 0.9 in {more}, 1.0 in {site.site}")
    site.path = [site.site]
    site.install(site.site, "0.9", files=False)
    site.refused("the base has vllm twice: 0.9 in")
    (site.site / "vllm-0.9.dist-info" / "METADATA").unlink()
    (site.site / "vllm-0.9.dist-info").rmdir()
    shadow = tmp_path / "shadow" / "vllm"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("")
    site.path = [shadow.parent, site.site]
    site.refused(f"and Python imports it from {shadow / '__init__.py'}")
    site.path = [tmp_path / "nothing"]
    site.refused("of the base has no vllm installed")
    assert site.text("vllm/worker.py") == site.before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n", "vllm/worker.py is empty when patched"),
        ("def work(:\n", "vllm/worker.py is no Python when patched"),
        ("x = '\0'\n", "vllm/worker.py is no Python when patched"),
    ],
)
def test_a_patch_that_breaks_a_file(site: Site, text: str, message: str) -> None:
    site.refused(message, text)
    assert site.text("vllm/worker.py") == site.before


def test_a_link_is_not_followed(site: Site, tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_bytes(site.before)
    (site.site / "vllm" / "worker.py").unlink()
    (site.site / "vllm" / "worker.py").symlink_to(outside)
    site.refused("is a link, or behind one")
    assert outside.read_bytes() == site.before


class Start:
    """A package that is patched at start, and an engine that says so."""

    def __init__(self, folder: Path) -> None:
        self.package = folder / "vllm"
        for name, text in PACKAGE.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        (folder / "start.py").write_bytes((INSIDE / "start.py").read_bytes())
        self.folder = folder

    def run(self, script: str, *arguments: str, says: str = "", **env: str) -> tuple[int, str]:
        step = {"run": ["sh", "-c", script], "says": [says] if says else [], "seconds": 2}
        plan = {"steps": [step], "package": str(self.package)}
        plan |= {"entrypoint": ["echo", "serving"], "command": ["all"]}
        (self.folder / "start.json").write_text(json.dumps(plan))
        done = subprocess.run(
            [sys.executable, self.folder / "start.py", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            cwd=self.package,
            env=os.environ | env,
        )
        return done.returncode, done.stdout


@pytest.fixture
def begins(tmp_path: Path) -> Start:
    return Start(tmp_path)


def test_the_engine_follows(begins: Start) -> None:
    status, output = begins.run("echo 'x = 1' > ops.py", "a b")
    assert status == 0
    assert f"changed 1 files of {begins.package}: ops.py" in output
    assert output.endswith("serving a b\n")
    assert begins.run("true")[1].endswith("serving all\n")
    status, output = begins.run("true", BUILDER_START="only")
    assert status == 0
    assert "\nserving" not in output


@pytest.mark.parametrize(
    ("script", "status", "message"),
    [
        ("exit 1", 1, "failed with exit status 1"),
        ("exit 2", 2, "failed with exit status 2"),
        ("kill -9 $$", 137, "failed with exit status 137"),
        ("sleep 60 & wait", 124, "did not end within 2 s"),
        ("echo 'def x(:' > ops.py", 76, "ops.py is no Python any more"),
        (": > ops.py", 76, "ops.py is empty"),
        ("rm worker.py", 76, "worker.py is gone"),
    ],
)
def test_a_step_that_breaks_the_package(
    begins: Start, script: str, status: int, message: str
) -> None:
    found, output = begins.run(script)
    assert found == status
    assert f"{message}" in output
    assert "the engine is not started" in output
    assert "\nserving" not in output
    found, output = begins.run("true")
    assert found == 75
    assert "patching failed in this container before" in output


def test_what_a_step_must_say_and_what_may_be_asked(begins: Start) -> None:
    assert begins.run("echo P60 applied", says="P60 applied")[0] == 0
    status, output = begins.run("true", BUILDER_START="Only")
    assert status == 76
    assert "BUILDER_START=Only is not known" in output
    status, output = begins.run("echo nothing", says="P60 applied")
    assert status == 76
    assert "did not say 'P60 applied'" in output


def test_a_folder_gets_one_time_and_plain_modes(tmp_path: Path) -> None:
    folder = tmp_path / "opt"
    (folder / "bin").mkdir(parents=True, mode=0o700)
    (folder / "bin" / "run").touch(0o750)
    (folder / "text").touch(0o666)
    (folder / "link").symlink_to("/nowhere")
    subprocess.run([INSIDE / "reproducible", folder], check=True)
    found = {path.name: path.lstat() for path in (folder, *folder.rglob("*"))}
    assert {stat.st_mtime for stat in found.values()} == {315532800}
    modes = {name: stat.st_mode & 0o7777 for name, stat in found.items() if name != "link"}
    assert modes == {"opt": 0o755, "bin": 0o755, "run": 0o755, "text": 0o644}
