from __future__ import annotations

import os
import time
from pathlib import Path

from builder.simulator import build

DAY = 86400


def test_libraries_that_no_run_used_for_a_week_are_removed(tmp_path: Path) -> None:
    kept = tmp_path / "simulator"
    build.remove_unused(kept)  # there are none yet
    for name, days in {"yesterday": 1, "last month": 30}.items():
        (kept / name).mkdir(parents=True)
        (kept / name / "libcuda.so.1").write_text("x")
        used = time.time() - days * DAY
        os.utime(kept / name, (used, used))
    build.remove_unused(kept)
    assert [found.name for found in kept.iterdir()] == ["yesterday"]
