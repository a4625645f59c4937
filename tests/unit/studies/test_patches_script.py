"""studies/patches.py runs, on a generated history and on itself as another repository."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support import histories
from support.environment import REPOSITORY


def test_it_counts_what_is_recognised(tmp_path: Path) -> None:
    made = histories.make(tmp_path, 1, pulls=12)
    folder = made.upstream.folder
    command = [sys.executable, "studies/patches.py", str(folder), "--pulls=3", "--json"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["target"] == made.main[-1]
    right, count = figures["again"]
    assert right == count > 0
