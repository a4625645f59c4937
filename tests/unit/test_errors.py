"""Errors tell what failed, and no secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core import errors
from builder.core.errors import BuilderError, FetchError
from builder.recipes.catalog import parse
from builder.recipes.schema import Recipe


def test_every_kind_of_error_has_an_exit_code_of_its_own() -> None:
    kinds = BuilderError.__subclasses__()
    codes = [kind.exit_code for kind in kinds]
    assert len(set(codes)) == len(codes)
    assert set(codes) <= errors.EXIT_CODES.keys()


def test_the_password_of_a_url_is_hidden() -> None:
    said = "403 Forbidden for url: https://me:secret@index.example.invalid/simple/x"
    error = FetchError("cannot fetch x", said, "see https://token@mirror.example.invalid")
    assert "secret" not in str(error)
    assert "token" not in str(error)
    assert "https://***@index.example.invalid/simple/x" in str(error)


@pytest.mark.parametrize(
    ("url", "taken"),
    [
        ("https://git.example.invalid/a/b.git", True),
        ("ssh://git@git.example.invalid:22/a/b", True),
        ("https://me:secret@git.example.invalid/a", False),
        ("git@git.example.invalid:a/b", False),
        ("--upload-pack=touch", False),
        ("ext::sh -c x", False),
    ],
)
def test_a_recipe_holds_no_password(url: str, taken: bool) -> None:
    text = f'source = {{ git = "{url}", commit = "{"0" * 40}" }}\n'
    _, problems = parse(text, Path("x.toml"), Recipe)
    assert ("source.git" not in {problem.key for problem in problems}) is taken


def test_what_cannot_be_seen_is_escaped() -> None:
    seen = "\u00e4\u00a0\u4e2d\U0001f600"
    said = FetchError("tag v1\u202egpj", "a\u200bb\u2066c\ufeff\ud800", f"{seen}\u3164")
    assert said.what == "tag v1\\u202egpj"
    assert said.why == "a\\u200bb\\u2066c\\ufeff\\ud800"
    assert said.hint == f"{seen}\\u3164"


def test_tables_and_lines_show_what_cannot_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    from builder.cli import terminal

    terminal.line("x\u202ey")
    terminal.table(("a",), [("v1\u200b",)])
    terminal.log("z\u2069")
    shown = capsys.readouterr()
    assert shown.out == "x\\u202ey\na\nv1\\u200b\n"
    assert shown.err == "z\\u2069\n"


def test_control_characters_and_passwords_are_removed() -> None:
    error = BuilderError("a\x1b[2Jb", "//me:pa@ss@host/x", "c\x9bd\n\te")
    assert str(error) == "a[2Jb\n//***@host/x\ncd\n\te"
