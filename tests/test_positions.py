"""Line numbers of TOML keys."""

from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from builder.positions import line_numbers, line_of

DOCUMENT = """# a comment with [brackets] and = signs
title = "x"
long = [
  "a",  # = [
  "b",
]
text = '''
[not.a.table]
x = 1
'''
inline = { a = 1, b = { c = [2] } }
dotted.key = 1
"quoted key" = 1

[table]
one = 1

[table.inner]
two = 2

[[row]]
a = 1

[[row.cell]]
b = 1
[[row.cell]]
b = 2

[[row]]
a = 3
[row.sub]
z = 1
"""


def test_every_path_has_its_line() -> None:
    places = line_numbers(DOCUMENT)
    expected = {
        ("title",): 2,
        ("long",): 3,
        ("long", 1): 3,
        ("text",): 7,
        ("inline", "b", "c", 0): 11,
        ("dotted", "key"): 12,
        ("quoted key",): 13,
        ("table",): 15,
        ("table", "one"): 16,
        ("table", "inner", "two"): 19,
        ("row", 0): 21,
        ("row", 0, "a"): 22,
        ("row", 0, "cell", 0, "b"): 25,
        ("row", 0, "cell", 1, "b"): 27,
        ("row", 1, "a"): 30,
        ("row", 1, "sub", "z"): 32,
    }
    assert {path: places.get(path) for path in expected} == expected


def test_a_path_that_is_not_there_has_the_line_of_what_contains_it() -> None:
    places = line_numbers(DOCUMENT)
    assert line_of(("row", 1, "missing"), places) == 29
    assert line_of(("nowhere", "at", "all"), places) == 1


@given(
    st.lists(
        st.tuples(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.integers(0, 3)),
        unique_by=lambda item: item[0],
    )
)
def test_keys_keep_their_lines_whatever_stands_between(entries: list[tuple[str, int]]) -> None:
    lines: list[str] = []
    expected = {}
    for key, blank in entries:
        lines += ["# comment"] * blank
        expected[(key,)] = len(lines) + 1
        lines.append(f"{key} = [1,")
        lines.append("2]")
    text = "\n".join(lines)
    tomllib.loads(text)
    places = line_numbers(text)
    assert {path: places[path] for path in expected} == expected
