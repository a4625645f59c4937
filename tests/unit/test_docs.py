"""The README and docs/: links lead to files, commands exist with their options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from builder.cli.app import app
from support.environment import REPOSITORY

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
COMMAND = re.compile(r"^[#$] \./farm (.+)$", re.MULTILINE)


def commands(page: Path) -> list[list[str]]:
    """The arguments of every ``./farm`` line of a page's console blocks."""
    text = page.read_text().replace("\\\n", " ")
    lines = [re.sub(r" && .*| \| .*", "", line) for line in COMMAND.findall(text)]
    return [shlex.split(re.sub(r"\[(-[^]]*)\]", r"\1", line), comments=True) for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_exist_with_their_options(page: Path) -> None:
    for arguments in commands(page):
        if arguments[0] == "test":
            continue
        command = typer.main.get_command(app)
        context = command.make_context("builder", list(arguments))
        rest = list(arguments)
        while hasattr(command, "commands"):
            name, command, rest = command.resolve_command(context, rest)
            try:
                context = command.make_context(name, list(rest), parent=context)
            except typer.BadParameter as error:
                assert "does not exist" in error.message, error.message  # noqa: PT017
                break


def test_there_are_commands_to_check() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 40
