"""Recipes and bases of each family, and their problems."""

from __future__ import annotations

from pathlib import Path

from support.catalogs import load

COMMIT = "0123456789" * 4
HEAD = """
engine  = "x"
version = "1"
summary = "x"
license = "MIT"
family  = "{family}"
base    = "cuda-13.0"
cuda    = {{ arch = ["{cuda}"], vmm = {vmm} }}

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


def problems(
    catalog: Path, family: str, *parts: str, image: str = "", vmm: str = "false", cuda: str = "120"
) -> str:
    """The problems of a catalog with a recipe."""
    text = HEAD.format(family=family, image=image, vmm=vmm, cuda=cuda) + "\n".join(parts)
    (catalog / "recipes" / "x-1.toml").write_text(text)
    return "\n".join(str(problem) for problem in load(catalog).problems())


BASE = """
name    = "seen"
summary = "x"
license = "MIT"
family  = "{family}"
{parts}
"""
DIGEST = f'digest = "sha256:{"0" * 64}"\n'


def base_problems(catalog: Path, family: str, parts: str) -> str:
    """The problems of a catalog with a base."""
    text = BASE.format(family=family, parts=parts)
    (catalog / "recipes" / "bases" / "seen.toml").write_text(text)
    return "\n".join(str(problem) for problem in load(catalog).problems())
