"""Bases of Python wheels: what a base may set, and the bytecode of their packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from support.environment import REPOSITORY
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


def test_bytecode_is_the_same_each_time_and_never_stale(tmp_path: Path) -> None:
    golden = REPOSITORY / "tests/data/golden/vllm-wheel-0.33.0.Dockerfile"
    (line,) = (each for each in golden.read_text().splitlines() if '"compileall"' in each)
    command = json.loads(line[line.index("[") :])
    paths = {"/opt/engine/bin/python": sys.executable, "/opt/engine/lib": str(tmp_path)}
    command = [paths.get(word, word) for word in command]
    source = tmp_path / "seen.py"
    source.write_text("FOUND = frozenset(('a', 'b', 'c')), 'one'\n")
    (tmp_path / "other.py").write_text("print 'for Python 2'\n")
    made = []
    for _ in range(2):
        subprocess.run(command, check=True, capture_output=True)
        compiled = Path(cache_from_source(str(source)))
        made.append(compiled.read_bytes())
        compiled.unlink()
    assert made[0] == made[1]
    compiled.write_bytes(made[0])
    ask = [sys.executable, "-c", "import seen; print(seen.FOUND[1])"]
    times = source.stat()
    source.write_text(source.read_text().replace("one", "two"))  # of the same size and time
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    done = subprocess.run(ask, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout == "two\n"
