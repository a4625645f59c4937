"""Families that are not one cmake call: what each refuses, and that no flag is lost."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from builder.families import ggml_python
from builder.plan.dockerfile import link_lints
from builder.plan.inputs import Plan
from support.catalogs import load, rendered
from support.environment import REPOSITORY

COMMIT = "0123456789" * 4


HEAD = """
engine  = "x"
version = "1"
summary = "x"
license = "MIT"
family  = "{family}"
base    = "cuda-13.0"
cuda    = {{ arch = ["120"], vmm = {vmm} }}

[image]
repository = "x"
tags       = ["1"]
{image}

[[probe]]
option = "--x"
"""


GIT = f'[source]\ngit = "https://git.example.invalid/x"\ncommit = "{COMMIT}"\n'


WHEEL = f'[source]\npypi = "vllm"\nversion = "1.0"\nsha256 = "{"0" * 64}"\n'


OVERLAY = '[overlay]\npackage = "vllm"\nversion = "1.0"\n'


CALL = '[[cmake]]\ntargets = ["a"]\n'


START = '[[start]]\nrun = ["x"]\nwhy = "x"\n'


ADDED = (
    f'[[patch]]\nwhy = "x"\n[patch.add]\ngit = "https://git.example.invalid/y"\n'
    f'commit = "{COMMIT}"\npath = "p"\nto = "p"\n'
    '[patch.add.distribution]\nname = "p"\nversion = "1.0"\n'
)


FILE = '[[patch]]\nfile = "x.patch"\nwhy = "x"\n'


LOCKED = '[python]\nlock = "lock.toml"\n'


RUNS = 'entrypoint = ["x"]'


def problems(catalog: Path, family: str, *parts: str, image: str = "", vmm: str = "false") -> str:
    text = HEAD.format(family=family, image=image, vmm=vmm) + "\n".join(parts)
    (catalog / "recipes" / "x-1.toml").write_text(text)
    return "\n".join(str(problem) for problem in load(catalog).problems())


@pytest.mark.parametrize(
    ("parts", "image", "message"),
    [
        ((WHEEL,), "", ""),
        ((GIT, OVERLAY, START), "", ""),
        ((GIT,), "", "needs [overlay]: package and version"),
        (('[source]\ninstalled = "vllm"\n', OVERLAY), "", ""),
        (
            ('[source]\ninstalled = "vllm"\n', OVERLAY, FILE),
            "",
            "cannot be checked against the base",
        ),
        (('[source]\ninstalled = "torch"\n', OVERLAY), "", "is not the package vllm"),
        ((WHEEL, CALL), "", "the family vllm-overlay has no use for [[cmake]]"),
        ((WHEEL, LOCKED), "", "the family vllm-overlay has no use for [python]"),
        ((WHEEL, '[debian]\nruntime = ["jq"]\n'), "", "installs no Debian packages"),
        ((WHEEL, START), RUNS, "cannot be set with [[start]]"),
        ((WHEEL, ADDED), "", ""),
    ],
)
def test_an_overlay(catalog: Path, parts: tuple[str, ...], image: str, message: str) -> None:
    found = problems(catalog, "vllm-overlay", *parts, image=image)
    assert message in found if message else not found


@pytest.mark.parametrize(
    ("parts", "image", "message"),
    [
        ((GIT, CALL, '[artifact]\nfiles = ["a.so"]\n'), "", ""),
        ((GIT, CALL), "", "needs an [artifact] table"),
        ((GIT, CALL, '[artifact]\nfiles = ["a/x.so", "b/x.so"]\n'), "", "two files would be /x.so"),
        (
            ('[source]\ninstalled = "vllm"\n', CALL, '[artifact]\nfiles = ["a.so"]\n'),
            "",
            "cannot use a package of the base as source",
        ),
        ((GIT, CALL, CALL, '[artifact]\nfiles = ["a.so"]\n'), "", "exactly one [[cmake]]"),
        ((GIT, CALL, '[artifact]\nfiles = ["a.so"]\n'), RUNS, "an artifact runs nothing"),
        ((GIT, CALL, '[artifact]\nfiles = ["../a.so"]\n'), "", "stays inside its tree"),
        ((GIT, CALL, START, '[artifact]\nfiles = ["a.so"]\n'), "", "no use for [[start]]"),
        (
            (GIT, CALL, '[artifact]\nfiles = ["a"]\nloads = false\nundefined = { f = "x" }\n'),
            "",
            "undefined has no use where loads = false",
        ),
    ],
)
def test_an_artifact(catalog: Path, parts: tuple[str, ...], image: str, message: str) -> None:
    found = problems(catalog, "artifact", *parts, image=image)
    assert message in found if message else not found


def test_a_recipe_says_how_its_artifact_is_optimised(catalog: Path) -> None:
    define = 'define = { CMAKE_BUILD_TYPE = "Debug" }\n'
    parts = (GIT, CALL + define, '[artifact]\nfiles = ["a.so"]\n')
    assert problems(catalog, "artifact", *parts) == ""
    (line,) = [x for x in rendered(catalog, "x-1").text.splitlines() if '"/src/.' in x]
    assert re.findall(r"CMAKE_BUILD_TYPE=\w+", line) == ["CMAKE_BUILD_TYPE=Debug"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((GIT, LOCKED, CALL, CALL.replace("]\n", ']\nplace = "b"\n', 1)), "needs an entrypoint"),
        ((GIT, CALL), "needs a [python] table"),
        ((GIT, LOCKED, CALL, CALL), "two cmake calls would put their libraries in"),
        ((GIT, LOCKED, "[[cmake]]\n"), "name the targets"),
        (
            (GIT, LOCKED, CALL + "define = { GGML_CUDA_NO_VMM = true }\n"),
            "is set by the family for every tree",
        ),
        (
            (GIT, LOCKED, CALL + "define = { GGML_NATIVE = true }\n"),
            "is set by the family for every tree",
        ),
        ((GIT, LOCKED, CALL, ADDED), "has no installed packages to add to"),
    ],
)
def test_programs_and_a_server_in_python(
    catalog: Path, parts: tuple[str, ...], message: str
) -> None:
    assert message in problems(catalog, "ggml-python", *parts)


@pytest.mark.parametrize(
    ("image", "wrong"),
    [
        ('entrypoint = ["x"]\nport = 8000', True),
        ('entrypoint = ["x", "--port", "80001"]\nport = 8000', True),
        ('entrypoint = ["x", "--port", "8000"]\nport = 8000', False),
        ('entrypoint = ["x"]\nport = 8000\nenv = { PORT = "8000" }', False),
        ('entrypoint = ["x"]', False),
    ],
)
def test_a_server_is_told_the_port_that_its_image_exposes(
    catalog: Path, image: str, wrong: bool
) -> None:
    found = problems(catalog, "ggml-python", GIT, LOCKED, CALL, image=image)
    assert ("pass 8000 to the server in entrypoint, command or env" in found) is wrong
    assert bool(found) is wrong


@pytest.mark.parametrize("vmm", ["false", "true"])
def test_both_cmake_calls_say_how_the_driver_is_linked(catalog: Path, vmm: str) -> None:
    text = (REPOSITORY / "recipes" / "lucebox-f12a87c.toml").read_text()
    text = text.replace("vmm  = false", f"vmm  = {vmm}")
    (catalog / "recipes" / "lucebox-f12a87c.toml").write_text(text)
    (catalog / "recipes" / "locks").symlink_to(REPOSITORY / "recipes" / "locks")
    found = rendered(catalog, "lucebox-f12a87c")
    assert isinstance(found.plan, Plan)
    recipe = found.plan.recipe

    def faults(text: str) -> list[str]:
        return list(link_lints(text, recipe, ggml_python.FAMILY.no_vmm))

    assert not faults(found.text)
    assert found.text.count("-DGGML_CUDA_NO_VMM=ON") == (2 if vmm == "false" else 0)
    word = ":/usr/local/cuda/lib64/stubs" if vmm == "true" else ', "-DGGML_CUDA_NO_VMM=ON"'
    first = found.text.replace(word, "", 1)
    last = word.join(found.text.split(word)[:-1]) + found.text.split(word)[-1]
    for broken in (first, last, found.text.replace(word, "")):
        assert broken != found.text
        assert faults(broken)
    if vmm == "false":
        off = re.sub("NO_VMM=ON", "NO_VMM=OFF", found.text, count=1)
        assert "without GGML_CUDA_NO_VMM=ON would link the driver" in faults(off)[0]


BASE = """
name    = "seen"
summary = "x"
license = "MIT"
family  = "{family}"
{parts}
"""


DIGEST = f'digest = "sha256:{"0" * 64}"\n'


@pytest.mark.parametrize(
    ("family", "parts", "message"),
    [
        ("published", f'[published]\nimage = "a/b:1"\n{DIGEST}', ""),
        ("published", '[published]\nimage = "a/b:1"\nnote = "so"\n', ""),
        (
            "published",
            '[published]\nimage = "a/b:1"\n',
            "give its digest, or the reason why not in note",
        ),
        ("published", f'[published]\nimage = "a/b"\n{DIGEST}', "must be an image with its tag"),
        ("published", f'[published]\nimage = "--x:1"\n{DIGEST}', "must be an image with its tag"),
        ("published", "", "needs a [published] table"),
        (
            "published",
            f'base = "debian-trixie"\n[published]\nimage = "a/b:1"\n{DIGEST}',
            "has no base",
        ),
        (
            "published",
            f'[published]\nimage = "a/b:1"\n{DIGEST}[runtime]\npackages = ["jq"]\n',
            "used unchanged",
        ),
        (
            "python-wheels",
            '[python]\nlock = "l.toml"\nrequirements = ["x==1"]\n',
            "needs a base: a CUDA runtime",
        ),
        ("python-wheels", 'base = "cuda-13.0"\n', "needs a [python] table"),
        (
            "python-wheels",
            'base = "cuda-13.0"\n[python]\nlock = "l.toml"\nrequirements = ["x @ https://x/y"]\n',
            "must be taken from the package index",
        ),
        (
            "python-wheels",
            'base = "cuda-13.0"\n[python]\nlock = "l.toml"\nrequirements = ["--index x"]\n',
            "must be a requirement",
        ),
    ],
)
def test_bases(catalog: Path, family: str, parts: str, message: str) -> None:
    (catalog / "recipes" / "bases" / "seen.toml").write_text(
        BASE.format(family=family, parts=parts)
    )
    found = "\n".join(str(problem) for problem in load(catalog).problems())
    assert message in found if message else not found


def test_what_runs_at_start_is_data(catalog: Path) -> None:
    text = HEAD.format(family="vllm-overlay", image="", vmm="true") + WHEEL
    hostile = '"; touch /x; $(touch /y) \\\\ ]'
    text += f"[[start]]\nrun = ['x', '{hostile}']\nwhy = 'x'\n"
    (catalog / "recipes" / "x-1.toml").write_text(text)
    found = rendered(catalog, "x-1")
    (line,) = [line for line in found.text.splitlines() if '"--start"' in line]
    command = json.loads(line[line.index("[") :])
    (step,) = json.loads(command[command.index("--start") + 1])
    assert step["run"] == ["x", hostile]
