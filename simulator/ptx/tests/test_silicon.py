"""`studies/silicon` runs: the interpreter is in the place of a card, behind the driver's functions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
COMPARE = HERE.parents[2] / "studies/silicon/compare.py"


@pytest.fixture(scope="module")
def driver(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ``libcuda.so.1``."""
    folder = tmp_path_factory.mktemp("driver")
    out, source = f"{folder}/libcuda.so.1", f"{HERE}/driver.c"
    command = ["gcc", "-shared", "-fPIC", "-o", out, source, f"{built}/libptx.so"]
    subprocess.run([*command, f"-Wl,-rpath,{built}"], check=True)
    return folder


def compare(
    driver: Path, built: Path, only: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(COMPARE), "--library", f"{built}/libptx.so", "--only", only]
    env = os.environ | {"LD_LIBRARY_PATH": str(driver)} | environment
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_all_parts_run(driver: Path, built: Path) -> None:
    done = compare(driver, built, "")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("the interpreter, compute capability 12.0; ")
    assert " refused by this card, 0 differ" in done.stdout
    assert "ex2.approx: bound " in done.stdout
    assert "products of quantized rows: 0 of 3 differ" in done.stdout
    assert done.stdout.count("of the interpreter's bound") > 10
    assert done.stdout.count("card 0, interpreter 0 elements wrong") == 5


@pytest.mark.parametrize(
    ("only", "found"),
    [
        ("add.s32", "differ, first {"),
        ("s32.s8.s8.s32", "card 1, interpreter 0 elements wrong"),
        ("quantized", "products of quantized rows: 3 of 3 differ"),
    ],
)
def test_a_card_that_computes_something_else_is_seen(
    driver: Path, built: Path, only: str, found: str
) -> None:
    done = compare(driver, built, only, DRIVER_LIES="1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert found in done.stdout


def test_what_the_driver_refuses_is_counted_apart(driver: Path, built: Path) -> None:
    done = compare(driver, built, "mxf4", DRIVER_REFUSES="block_scale")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": cuModuleLoadData: error 218 of the driver") == 3
    done = compare(driver, built, "add.s32", DRIVER_REFUSES="add.s32")
    assert " refused by this card, 0 differ" in done.stdout
