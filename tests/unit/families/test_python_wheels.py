"""Bases of Python wheels: what a base may set."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.family_recipes import (
    base_problems,
)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            '[python]\nlock = "l.toml"\nrequirements = ["x==1"]\n',
            "needs a base: a CUDA runtime",
        ),
        ('base = "cuda-13.0"\n', "needs a [python] table"),
        (
            'base = "cuda-13.0"\n[python]\nlock = "l.toml"\nrequirements = ["x @ https://x/y"]\n',
            "must be taken from the package index",
        ),
        (
            'base = "cuda-13.0"\n[python]\nlock = "l.toml"\nrequirements = ["--index x"]\n',
            "must be a requirement",
        ),
        (
            'base = "cuda-13.0"\n[python]\nlock = "l.toml"\nrequirements = ["x==1"]\nnvcc = true\n',
            'needs the requirement "cuda-toolkit[nvcc]"',
        ),
        (
            'base = "cuda-13.0"\n[python]\nlock = "l.toml"\nrequirements = ["x==1"]\n'
            '[[python.dead]]\npath = "x/_C.so"\nwhy = "x"\n',
            "needs capabilities",
        ),
    ],
)
def test_a_base_of_python_wheels(catalog: Path, parts: str, message: str) -> None:
    found = base_problems(catalog, "python-wheels", parts)
    assert message in found if message else not found
