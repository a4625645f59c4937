"""studies/patches.py runs, on a made history and on itself as another repository."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.environment import REPOSITORY
from support.patch_wards import functions
from support.upstreams import Upstream

NAMES = ("alpha", "beta", "gamma", "delta")


def test_it_counts_what_is_recognised(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "upstream")
    values: dict[str, str] = {}
    upstream.commit("one", **{"a.c": functions(*NAMES)})
    for number, name in enumerate(NAMES, 2):
        values[name] = str(number)
        head = upstream.pull(number, {"a.c": functions(*NAMES, **values)})
        message = f"Merge pull request #{number} from x/y"
        upstream.git("merge", "--quiet", "--no-ff", "-m", message, head)
        upstream.commit("beside", **{"z.c": f"{number}\n"})
    command = [sys.executable, "studies/patches.py", str(upstream.folder), "--pulls=3", "--json"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["target"] == upstream.head()
    assert figures["file"] == figures["pull"] == [3, 3]
    right, count = figures["again"]
    assert right == count > 0
