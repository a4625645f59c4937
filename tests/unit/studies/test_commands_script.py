"""studies/commands.py runs, on a few copies."""

from __future__ import annotations

import json
import subprocess
import sys

from support.environment import REPOSITORY


def test_commands_script_measures() -> None:
    options = ["--recipes=30", "--presets=3", "--runs=1", "--json"]
    command = [sys.executable, "studies/commands.py", *options]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert {"list", "choose --card 5090"} < found.keys()
    assert all(own > 0 and large > 0 for own, large in found.values())
