"""studies/sources.py runs, with the shortest history that it takes."""

from __future__ import annotations

import subprocess
import sys

from support.environment import REPOSITORY


def test_it_prints_its_rows_of_the_readme() -> None:
    command = [sys.executable, "studies/sources.py", "--commits=320", "--recipes=1", "--runs=1"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|") for line in done.stdout.splitlines()]
    assert [len(row) for row in rows] == [4, 4, 4]
    assert float(rows[2][2]) > 0
