"""The programs that an image starts, followed through links, wrappers and scripts."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from builder.checks import contract
from builder.checks.contract import Start, followed
from builder.checks.verdict import CheckState
from builder.image.contents import Contents, read_contents
from support.layouts import Image, layer_of, member
from support.smoke_tests import context_of, hello_recipe

# ruff: noqa: E501


TRUE = Path("/bin/true").read_bytes()
LOADER = "lib64/ld-linux-x86-64.so.2"
PATH = "/opt/engine/bin:/usr/bin"


def contents_of(
    work: Path, files: Mapping[str, bytes | str], user: str = "10001:10001", **modes: int
) -> Contents:
    """An image of these files; a text that begins with "->" is a link.  ``modes`` by name."""
    image, members = Image(), []
    every: dict[str, bytes | str] = {LOADER: TRUE, "usr/bin/sh": TRUE, "usr/bin/env": TRUE, **files}
    folders = {str(each) for path in every for each in Path(path).parents if str(each) != "."}
    for folder in sorted(folders):
        mode = modes.get(Path(folder).name, 0o755)
        members.append(member(folder, type=b"5", mode=mode))
    for path, content in every.items():
        if isinstance(content, str):
            members.append(member(path, type=b"2", linkname=content.removeprefix("->")))
        else:
            members.append(member(path, content, mode=modes.get(Path(path).name, 0o755)))
    contents = read_contents(
        image.in_folder(work / "blobs", image.manifest(layer_of(*members))), work
    )
    contents.config.update({"Env": [f"PATH={PATH}"], "User": user, "WorkingDir": "/srv"})
    return contents


VLLM = b"#!/opt/engine/bin/python3\nfrom vllm.entrypoints.cli.main import main\n"
PYTHON = {"opt/engine/bin/python3": "->python3.12", "opt/engine/bin/python3.12": TRUE}


@pytest.mark.parametrize(
    ("words", "files", "expected"),
    [
        ("vllm serve", {"opt/engine/bin/vllm": VLLM, **PYTHON}, ("/opt/engine/bin/vllm", "")),
        ("env A=b vllm", {"usr/bin/vllm": VLLM, **PYTHON}, ("/usr/bin/vllm", "")),
        ("tini -g -- vllm", {"usr/bin/tini": TRUE, "usr/bin/vllm": VLLM, **PYTHON}, ("/usr/bin/vllm", "")),
        ("/usr/bin/env --chdir=/tmp /opt/engine/bin/python3 -u /m.py", {"m.py": b"x", **PYTHON}, ("/m.py", "")),
        ("python3 server.py", {"srv/server.py": b"x", **PYTHON}, ("/srv/server.py", "")),
        ("python3 -u -X dev -m a.b --port 1", PYTHON, ("", "a.b")),
        ("python3 -um a.b", PYTHON, ("", "a.b")),
        ("python3 -Ximporttime -I -ma.b", PYTHON, ("", "a.b")),
        ("script", {"usr/bin/script": b"#!/usr/bin/env -S python3 -u\n", **PYTHON}, ("/usr/bin/script", "")),
        ("script", {"usr/bin/script": b"#!/usr/bin/env -vS python3 -u\n", **PYTHON}, ("/usr/bin/script", "")),
        ("script", {"usr/bin/script": b"#!/usr/bin/env --split-string=A=b python3\n", **PYTHON}, ("/usr/bin/script", "")),
        ("env -C /opt python3 m.py", {"opt/m.py": b"x", **PYTHON}, ("/opt/m.py", "")),
        ("env --chdir=/opt PATH=/x python3 m.py", {"opt/m.py": b"x", "x/python3": TRUE}, ("/opt/m.py", "")),
        ("tini -e 143 -- python3 -m a", {"usr/bin/tini": TRUE, **PYTHON}, ("", "a")),
        ("dumb-init --rewrite 15:3 python3 -m a", {"usr/bin/dumb-init": TRUE, **PYTHON}, ("", "a")),
        ("gosu 10001:1 python3 -m a", {"usr/bin/gosu": TRUE, **PYTHON}, ("", "a")),
        ("link", {"usr/bin/link": "->/x/vllm", "x/vllm": VLLM, **PYTHON}, ("/usr/bin/link", "")),
    ],
)  # fmt: skip
def test_programs_are_followed_to_what_python_starts(
    tmp_path: Path, words: str, files: Mapping[str, bytes | str], expected: tuple[str, str]
) -> None:
    start = followed(words.split(), contents_of(tmp_path, files))
    assert (start.fault, start.unknown) == ("", "")
    assert (start.file, start.module) == expected
    assert start.python


@pytest.mark.parametrize(
    ("words", "files", "fault"),
    [
        ("vllm serve", {}, "vllm is in no directory of PATH (/opt/engine/bin:/usr/bin)"),
        ("/opt/vllm", {}, "/opt/vllm does not exist"),
        ("vllm", {"usr/bin/vllm": "->/opt/gone"}, "vllm is in no directory of PATH"),
        ("/usr/bin/vllm", {"usr/bin/vllm": "->/gone"}, "/usr/bin/vllm does not exist (a link to /gone)"),
        ("vllm", {"usr/bin/vllm": b""}, "/usr/bin/vllm is empty"),
        ("vllm", {"usr/bin/vllm/x": b""}, "/usr/bin/vllm is no file"),
        ("vllm", {"usr/bin/vllm": VLLM}, "/opt/engine/bin/python3 does not exist"),
        ("vllm", {"usr/bin/vllm": VLLM, "opt/engine/bin/python3": "->python3.13"}, "/opt/engine/bin/python3 does not exist (a link to python3.13)"),
        ("vllm", {"usr/bin/vllm": b"#!/usr/bin/env python3\n"}, "python3 is in no directory"),
        ("vllm", {"usr/bin/vllm": b"#!/usr/bin/env -S python3 -u\n"}, "python3 is in no directory"),
        ("vllm", {"usr/bin/vllm": b"#!/bin/bash\nexec x\n"}, "/bin/bash does not exist"),
        ("vllm", {"usr/bin/vllm": b"#!/usr/bin/sh\r\nexec x\n"}, "the first line of /usr/bin/vllm ends with a carriage return"),
        ("vllm", {"usr/bin/vllm": b"#!/usr/bin/vllm\n"}, "programs start each other without end"),
        ("python3 server.py", PYTHON, "/srv/server.py, which Python is to run, does not exist"),
        ("sh /start.sh", {}, "/start.sh, which a shell is to run, does not exist"),
        ("gosu vllm vllm", {"usr/bin/gosu": TRUE}, "vllm is in no directory"),
        ("tini -- vllm", {"usr/bin/tini": TRUE}, "vllm is in no directory"),
        ("noexec", {"usr/bin/noexec": TRUE}, "/usr/bin/noexec cannot be executed by the image's user (mode 0644)"),
        ("owned", {"usr/bin/owned": TRUE}, "/usr/bin/owned cannot be executed by the image's user (mode 0700)"),
        ("/secret/vllm", {"secret/vllm": TRUE}, "/secret/vllm is below /secret, which the image's user cannot enter"),
        ("cut", {"usr/bin/cut": TRUE[:700]}, "/usr/bin/cut is damaged"),
        ("", {}, "it names no program"),
        ("env A=b", {}, "it names no program"),
    ],
)  # fmt: skip
def test_a_program_that_cannot_be_started_is_named(
    tmp_path: Path, words: str, files: Mapping[str, bytes | str], fault: str
) -> None:
    modes = {"noexec": 0o644, "owned": 0o700, "secret": 0o700}
    assert followed(words.split(), contents_of(tmp_path, files, **modes)).fault.startswith(fault)


def test_env_splits_only_its_own_word(tmp_path: Path) -> None:
    contents = contents_of(tmp_path, {**PYTHON, "m.py": b"x"})
    assert followed(["env", "-S", "python3 -u", "/m.py", "it's"], contents).file == "/m.py"
    assert followed(["env", "-S python3 -u /m.py it's"], contents).file == "/m.py"


def test_docker_starts_no_text_without_an_interpreter(tmp_path: Path) -> None:
    contents = contents_of(tmp_path, {"run": b"exec vllm\n", "bin": "->usr/bin"})
    fault = "/run is neither an ELF file nor begins with #!: Docker cannot start it"
    assert followed(["/run"], contents, by_docker=True).fault == fault
    assert followed(["/usr/bin/env", "/run"], contents, by_docker=True).fault == ""


def test_roots_programs_are_roots(tmp_path: Path) -> None:
    files = {"secret/a": TRUE, "usr/bin/noexec": TRUE}
    contents = contents_of(tmp_path, files, "", secret=0o700, a=0o700, noexec=0o644)
    assert followed(["/secret/a"], contents).fault == ""
    assert "cannot be executed" in followed(["noexec"], contents).fault


def test_a_program_for_another_machine_or_without_its_loader(tmp_path: Path) -> None:
    foreign = bytearray(TRUE)
    foreign[18:20] = (183).to_bytes(2, "little")
    source, out = tmp_path / "a.c", tmp_path / "a"
    source.write_text("int main() {}")
    gcc = shutil.which("gcc")
    assert gcc
    subprocess.run([gcc, source, "-o", out, "-Wl,-dynamic-linker,/lib/ld-musl.so.1"], check=True)
    files = {"usr/bin/arm": bytes(foreign), "usr/bin/musl": out.read_bytes()}
    contents = contents_of(tmp_path, files)
    assert followed(["arm"], contents).fault == "/usr/bin/arm is a program for aarch64"
    assert "needs the loader /lib/ld-musl.so.1" in followed(["musl"], contents).fault


def test_a_shells_programs_are_said_to_be_unknown(tmp_path: Path) -> None:
    files = {
        "usr/bin/run": b"#!/usr/bin/sh\nexec vllm\n",
        "plain": b"exec vllm\n",
        "bin": "->usr/bin",
    }
    contents = contents_of(tmp_path, files)
    for words in (["run"], ["/plain"], ["sh", "-c", "exec vllm"]):
        start = followed(words, contents)
        assert (start.fault, start.python) == ("", ())
        assert "the programs that it starts are not known" in start.unknown


@pytest.mark.parametrize(
    "without",
    ["", "usr/local/bin/healthcheck", "usr/bin/vllm", "opt/builder/probe"],
)
def test_the_engine_of_needs_and_the_health_check_are_followed(
    tmp_path: Path, without: str
) -> None:
    files: dict[str, bytes | str] = {
        "opt/builder/entrypoint": TRUE,
        "opt/builder/probe": TRUE,
        "usr/bin/vllm": TRUE,
        "usr/local/bin/healthcheck": TRUE,
        "opt/builder/needs": b"",
    }
    files.pop(without, None)
    contents = contents_of(tmp_path, files)
    needs = contents.files["/opt/builder/needs"]
    object.__setattr__(needs, "text", "recipe x\nentrypoint vllm\nentrypoint serve\ncommand --a\n")
    contents.config["Entrypoint"] = ["/opt/builder/entrypoint", "--"]
    contents.config["Healthcheck"] = {"Test": ["CMD", "/usr/local/bin/healthcheck", "80", "health"]}
    assert contract.engine_of(contents) == ["vllm", "serve", "--a"]
    checks = [*contract.check_programs(context_of(contents, hello_recipe()))]
    failed = [check.found for check in checks if check.state is CheckState.FAILED]
    assert len(failed) == bool(without)
    assert all(Path(without).name in found for found in failed)


def test_an_image_without_a_recipe_may_start_nothing(tmp_path: Path) -> None:
    contents = contents_of(tmp_path, {})
    assert [*contract.check_programs(context_of(contents))] == []
    assert followed([], contents) == Start(fault="it names no program")
