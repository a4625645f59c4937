"""The table of formats: each row has its function and its line in the docs."""

from __future__ import annotations

import pytest

from builder.cli.run import Format
from builder.presets.exports import FORMATS
from support.environment import REPOSITORY
from support.services import OPEN, SERVICES

PAGE = REPOSITORY / "docs" / "run.md"


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_written_by_its_function(name: str) -> None:
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


def test_the_command_takes_each_format() -> None:
    assert [*Format] == [*FORMATS]
