"""A recipe's words in Markdown: shown as they are written, and no markup."""

from __future__ import annotations

import pytest

from builder.publish.hub import Markdown, code, console, escaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb\u200bc", r"a\\u202eb\\u200bc"),
        ("x](https://evil.example) [y", r"x\](https://evil.example) \[y"),
        ("# not a title", r"\# not a title"),
        ("> no quote", r"\> no quote"),
        ("- no item", r"\- no item"),
        ("1. no item", r"1\. no item"),
        ("one\n\n# two\n- three", "one # two - three"),
        ("~~gone~~ &copy; <b> a_b __c__", r"\~\~gone\~\~ \&copy; \<b> a_b \_\_c\_\_"),
        ("--flag is 3.5 & more", "--flag is 3.5 & more"),
        ("---", r"\---"),
    ],
)
def test_a_text_of_a_recipe_is_no_markup(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_a_command_of_a_recipe_stays_code() -> None:
    assert code("a b") == "`a b`"
    assert code("a `b` ``c") == "``` a `b` ``c ```"
    assert console(["x ```", "y"]) == "````console\n$ x ```\n$ y\n````"


def test_what_is_markdown_already_is_not_escaped() -> None:
    assert escaped(Markdown("[a](b)")) == "[a](b)"
    assert escaped(3) == "3"
