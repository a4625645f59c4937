"""studies/speeds.py: the page is current, and the program has the figures of the fit."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from builder.presets import shapes
from support.environment import REPOSITORY


@pytest.fixture(scope="module")
def page() -> str:
    command = [sys.executable, "studies/speeds.py"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout


def test_the_page_is_current(page: str) -> None:
    text = (REPOSITORY / "studies" / "speeds.md").read_text("utf-8")
    assert page == text, "run: .venv/bin/python studies/speeds.py --write"


def test_the_median_error_is_below_fifteen_percent(page: str) -> None:
    own, foreign = (int(each) for each in re.findall(r"\*\*(\d+)%\*\*", page))
    assert own < 15
    assert foreign < 15


def test_the_program_uses_the_figures_of_the_fit(page: str) -> None:
    fitted = {
        name: float(re.findall(rf"^\| .*{name}.*? \| ([\d.]+)", page, re.MULTILINE)[0])
        for name in ("steady", "uneven", "fixed time")
    }
    assert pytest.approx(fitted["steady"], rel=0.03) == shapes.STEADY
    assert pytest.approx(fitted["uneven"], rel=0.03) == shapes.UNEVEN
    assert pytest.approx(fitted["fixed time"], rel=0.05) == shapes.FIXED * 1e3
    low, high = map(float, re.findall(r"tables below \| ([\d.]+) to ([\d.]+)", page)[0])
    assert (pytest.approx(low, abs=0.03), pytest.approx(high, abs=0.03)) == shapes.INTERVAL
