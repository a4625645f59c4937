"""The code that imports a server's modules in its image, run by this Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from builder.checks.contract import DONE, ENDS, IMPORT_CODE, NO_CARD, RUNS, UNKNOWN, _error

SERVER = "engine.entrypoints.api_server"
GOOD = {
    "engine/__init__.py": "",
    "engine/entrypoints/api_server.py": "import engine.ops\n",
    "engine/ops.py": "",
    "engine/__main__.py": "import engine.ops\nif __name__ == '__main__': raise RuntimeError\n",
    "bin/engine": "#!python\nimport sys\nfrom engine.ops import *\n"
    "if __name__ == '__main__':\n    sys.exit(1)\n",
}


GIVES_UP = "import sys\ntry:\n    import gone\nexcept ImportError:\n    sys.exit(1)\n"


def imported(
    work: Path, changes: Mapping[str, str | None], module: str = "", file: str = "", *modules: str
) -> tuple[int, str]:
    for path, text in {**GOOD, **changes}.items():
        if text is not None:
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_CODE, module, str(work / file) if file else "", *modules],
        capture_output=True,
        text=True,
        cwd="/",
        env={"PYTHONPATH": str(work)},
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "file", "modules"),
    [
        ("", "", [SERVER]),
        ("", "", ["engine.gone", SERVER]),  # another version has the first one
        ("engine", "", []),
        ("engine.ops", "bin/engine", [SERVER]),
    ],
)
def test_what_can_be_imported_is_named(
    tmp_path: Path, module: str, file: str, modules: list[str]
) -> None:
    status, printed = imported(tmp_path, {}, module, file, *modules)
    assert status == 0, printed
    assert printed.rpartition(DONE)[2].split()[-1] == (modules[-1] if modules else module)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"engine/entrypoints/api_server.py": "raise ImportError('no')"}, "ImportError: no"),
        ({"engine/entrypoints/api_server.py": "def f(:"}, "SyntaxError: invalid syntax"),
        ({"engine/entrypoints/api_server.py": "import gone"}, "No module named 'gone'"),
        ({"engine/entrypoints/api_server.py": "raise SystemExit(0)"}, "SystemExit: 0"),
        ({"engine/entrypoints/api_server.py": None, "engine/entrypoints/a.py": ""}, "none of"),
        ({"engine/ops.py": "from engine.entrypoints import gone"}, "cannot import name 'gone'"),
        ({"engine/__init__.py": "import gone"}, "No module named 'gone'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("modules", [[SERVER], ["engine.gone", SERVER]])
def test_what_cannot_be_imported_fails_with_its_error(
    tmp_path: Path, changes: Mapping[str, str | None], error: str, modules: list[str]
) -> None:
    status, printed = imported(tmp_path, changes, "", "", *modules)
    assert (status, error in _error(printed.strip())) == (1, True), printed
    assert not NO_CARD.search(_error(printed))


@pytest.mark.parametrize(
    ("module", "file", "changes", "error"),
    [
        ("engine.gone", "", {}, "No module named 'engine.gone'"),
        ("gone", "", {}, "No module named 'gone'"),
        ("engine", "", {"engine/__main__.py": "import gone"}, "No module named 'gone'"),
        ("", "bin/engine", {"bin/engine": "from engine.gone import main"}, "'engine.gone'"),
        ("", "bin/engine", {"engine/ops.py": "1/0"}, "ZeroDivisionError"),
        ("engine", "", {"engine/__main__.py": GIVES_UP}, "SystemExit: 1"),
    ],
)
def test_what_the_entrypoint_starts_is_imported(
    tmp_path: Path, module: str, file: str, changes: Mapping[str, str | None], error: str
) -> None:
    status, printed = imported(tmp_path, changes, module, file)
    assert (status, error in _error(printed.strip())) == (1, True), printed


@pytest.mark.parametrize(("module", "file"), [("engine", ""), ("", "bin/engine")])
@pytest.mark.parametrize("error", ["", "raise ImportError('no')"])
def test_a_program_that_runs_when_it_is_imported_is_unknown_and_its_server_is_tried(
    tmp_path: Path, module: str, file: str, error: str
) -> None:
    runs = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('model')\n"
    text = runs + "parser.parse_args()\n"
    changes = {"engine/__main__.py": text, "bin/engine": text}
    server = {"engine/entrypoints/api_server.py": error}
    status, printed = imported(tmp_path, {**changes, **server}, module, file, SERVER)
    assert status == (1 if error else RUNS), printed
    assert error or f"\n{ENDS}2 when" in printed


def test_a_package_without_a_server_is_unknown(tmp_path: Path) -> None:
    server = {"engine/entrypoints/api_server.py": None}
    status, printed = imported(tmp_path, server, "", "", SERVER)
    assert (status, "none of these modules exists" in printed) == (UNKNOWN, True)


@pytest.mark.parametrize(
    "error",
    [
        "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
        "RuntimeError: Found no NVIDIA driver on your system.",
        "RuntimeError: Failed to infer device type",
    ],
)
def test_the_lack_of_a_card_is_told_apart(error: str) -> None:
    assert NO_CARD.search(error)
    assert not NO_CARD.search("ImportError: libcudart.so.12: cannot open shared object file")
