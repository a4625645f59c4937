"""Line numbers of TOML keys."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builder.core.toml_lines import line_numbers, line_of

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


def test_every_header_form_has_its_line() -> None:
    text = """[ a . "b.c" ] # [x]
k = \"\"\"
[[x]]
\"\"\"
['a'."d"]
z = {}
[[ q ]]
[[q]]
[q.r]
[[q.r.s]]
y = [{ a = 1 },
     { b = 2 }]
"""
    expected = {
        ("a", "b.c"): 1,
        ("a", "b.c", "k"): 2,
        ("a", "d", "z"): 6,
        ("q", 0): 7,
        ("q", 1): 8,
        ("q", 1, "r"): 9,
        ("q", 1, "r", "s", 0): 10,
        ("q", 1, "r", "s", 0, "y", 1, "b"): 11,
    }
    tomllib.loads(text)
    places = line_numbers(text)
    assert {path: places.get(path) for path in expected} == expected
    assert not [path for path in places if path[0] == "x"]


def leaves(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every path of a document, found without the code under test."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*at, key)
        if isinstance(inner, (dict, list)):
            yield from leaves(inner, (*at, key))


KEYS = st.sampled_from(["a", "b", "long-key", '"quoted key"', '"x.y"', "'#'"])
VALUES = st.sampled_from(
    [
        *("1", '"[t]"', "[1, [2]]", "[\n  1, # ]\n  2,\n]", "{ p = 1, q = { r = [] } }"),
        *("[{ p = 1 }, { p = 2 }]", '"""\n[t]\nk = 1\n"""', "'''\n[[t]]\n'''", "1979-05-27"),
    ]
)
PAIRS = st.lists(st.tuples(KEYS, VALUES), unique_by=lambda pair: pair[0], max_size=4)
HEADERS = st.sampled_from(["[t{0}]", "[[rows]]", "[[rows]] # [x]", "[ deep.t{0} ]", "[['q.r']]"])


@given(PAIRS, st.lists(st.tuples(HEADERS, PAIRS), max_size=6), st.integers(0, 2))
def test_every_path_stands_on_a_line_that_bears_its_key(
    top: list[tuple[str, str]], tables: list[tuple[str, list[tuple[str, str]]]], blank: int
) -> None:
    lines: list[str] = []
    marks: dict[int, str] = {}

    def write(pairs: list[tuple[str, str]]) -> None:
        for key, value in pairs:
            lines.extend(["", "  # [c]"][:blank])
            marks[len(lines) + 1] = key.strip("\"'")
            lines.extend(f"{key} = {value}".split("\n"))

    write(top)
    for number, (header, pairs) in enumerate(tables):
        lines.append(header.format(number))
        write(pairs)
    text = "\n".join(lines)
    document = tomllib.loads(text)
    places = line_numbers(text)
    assert set(leaves(document)) <= places.keys()
    for path, line in places.items():
        if line in marks:
            assert marks[line] in path
