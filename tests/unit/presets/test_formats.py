"""The table of formats: each row has its module and its line in the docs, and nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.presets.formats import FORMATS
from support.environment import REPOSITORY
from support.services import OPEN, SERVICES

PACKAGE = REPOSITORY / "builder" / "exports"
PAGE = REPOSITORY / "docs" / "run.md"


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_written_by_its_module(name: str) -> None:
    module = FORMATS[name].module
    assert (PACKAGE / f"{module}.py").is_file(), f"builder/exports/{module}.py is missing"
    for service in SERVICES.values():
        files = FORMATS[name].files(service)
        assert files
        assert all(files.values())
        assert not [text for text in files.values() if OPEN.search(text)]
        assert FORMATS[name].usage.format(name=service.name)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_described(name: str) -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1, f"docs/run.md needs a row for {name} in its table of formats"


def writers() -> list[Path]:
    """The modules that write a format."""
    return [file for file in PACKAGE.glob("*.py") if "\ndef document" in file.read_text()]


@pytest.mark.parametrize("file", writers(), ids=lambda file: file.stem)
def test_a_module_that_writes_a_format_is_in_the_table(file: Path) -> None:
    known = {each.module for each in FORMATS.values()}
    assert file.stem in known, f"builder/presets/formats.py needs a row for {file.stem}"
