"""`patch add` on real repositories, as a user runs it."""

from __future__ import annotations

import pytest

from support.farms import Farm
from support.upstreams import numbered


def test_a_patch_needs_a_reason_that_is_not_blank(farm: Farm) -> None:
    file = farm.write()
    text = file.read_text()
    farm.run("patch", "add", "eng", "--pull", "6", "--reason", " ", status=2)
    assert "the reason is empty" in farm.said
    assert "why the recipe needs the patch" in " ".join(farm.said.replace("│", " ").split())
    assert file.read_text() == text


def test_add_writes_base_and_head_and_keeps_the_file(farm: Farm) -> None:
    file = farm.write()
    before = file.read_text()
    base = farm.upstream.commit("main goes on", **{"b.c": "bb\n"})
    head = farm.upstream.pull(7, {"a.c": numbered(40, line_20="x")}, {"a.c": numbered(40)})
    head = farm.upstream.pull(7, {"a.c": numbered(40, line_20="twenty")}, base=base)
    farm.upstream.commit("and on", **{"b.c": "bbb\n"})
    out = farm.run("patch", "add", "eng", "--pull", "7", "--dry-run")
    assert f'+head = "{head}"' in out
    assert file.read_text() == before
    out = farm.run("patch", "add", "eng", "--pull", "7", "--reason", 'it "breaks"')
    assert "eng-0.1.0\tpull 7\tpin" in out
    after = file.read_text()
    assert after.startswith(before.rstrip("\n"))
    assert f'base = "{base}"' in after
    assert f'head = "{head}"' in after
    farm.run("list")

    moved = farm.upstream.pull(7, {"a.c": numbered(40, line_21="21")}, base=base)
    with_comment = after.replace(f'head = "{head}"', f'head = "{head}"   # as of today')
    file.write_text(with_comment)
    farm.run("patch", "add", "eng", "--pull", "7")
    pinned = with_comment.replace(head, moved)
    assert file.read_text() == pinned
    farm.run("patch", "add", "eng", "--pull", "7", "--reason", "it hangs")
    assert file.read_text() == pinned.replace('"it \\"breaks\\""', '"it hangs"') != pinned


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("inline", [False, True])
def test_add_and_update_write_as_the_file_is_written(farm: Farm, inline: bool, ends: str) -> None:
    file = farm.write(farm.pull(6, **{"b.c": "c\n"}))
    text = file.read_text()
    if inline:
        start, end = text.index("[[patch]]"), text.index("[image]")
        head = farm.upstream.git("rev-parse", "refs/pull/6/head")
        one = f'patch = [{{ pull = 6, base = "{farm.pin}", head = "{head}", why = "x" }}]   # all\n'
        text = text[:start] + text[end:]
        text = text.replace('base    = "cuda-13.0"\n', f'base    = "cuda-13.0"\n{one}')
    file.write_bytes(text.replace("\n", ends).encode())
    head = farm.upstream.pull(7, {"a.c": numbered(40, line_20="x")}, base=farm.pin)
    farm.run("patch", "add", "eng", "--pull", "7", "--reason", "y")
    content = file.read_bytes().decode()
    assert content.count(ends) == content.count("\n")
    assert [part in content for part in ("# all", "{ pull = 6", "[[patch]]")] == [
        *(inline, inline),
        not inline,
    ]
    assert len(farm.json("recipe", "explain", "eng")["patches"]) == 2
    assert f'head = "{head}"' in content
    farm.upstream.commit("two", **{"c.c": "c\n"})
    farm.run("pin", "update", "eng", "--to", "main")
    file = farm.recipes / f"eng-{farm.upstream.head()[:7]}.toml"
    content = file.read_bytes().decode()
    assert content.count(ends) == content.count("\n")
    assert farm.upstream.head() in content


def test_add_finds_the_base_of_what_was_merged(farm: Farm) -> None:
    farm.write()
    base = farm.upstream.commit("before", **{"b.c": "bb\n"})
    head = farm.upstream.pull(7, {"a.c": numbered(40, line_20="twenty")}, base=base)
    farm.upstream.commit("beside", **{"b.c": "bbb\n"})
    farm.upstream.git("merge", "--quiet", "--no-ff", "-m", "merge it", head)
    farm.upstream.commit("later", **{"b.c": "bbbb\n"})
    out = farm.run("patch", "add", "eng", "--pull", "7", "--dry-run")
    assert f'+base = "{base}"' in out


def test_add_says_what_is_not_there(farm: Farm) -> None:
    file = farm.write()
    before = file.read_text()
    farm.run("patch", "add", "eng", "--pull", "99", status=5)
    assert "has no pull request 99" in farm.said
    farm.upstream.pull(7, {"b.c": "c\n"})
    farm.run("patch", "add", "eng", "--pull", "7", "--onto", "nowhere", status=5)
    farm.run("patch", "add", "eng", "--pull", "7", "--repository", "ext::sh -c id", status=3)
    farm.run("patch", "add", "eng", "--pull", "7", "--onto", "-x", status=3)
    farm.run("patch", "add", "eng", "--pull", "0", status=2)
    assert file.read_text() == before
