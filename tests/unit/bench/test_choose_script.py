"""bench/choose.py runs, over a few presets."""

from __future__ import annotations

import json
import subprocess
import sys

from support.environment import REPOSITORY


def test_choose_script_measures() -> None:
    command = [sys.executable, "bench/choose.py", "--presets=3", "--runs=1", "--json"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["presets"] == 3
    assert found["cpu_seconds"] > 0
