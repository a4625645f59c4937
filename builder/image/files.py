"""Two trees of files compared; only files whose contents differ are read again."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from builder.image.compare_contents import compare_contents
from builder.image.compare_entries import may_have_code
from builder.image.entries import Node
from builder.image.image_tree import ImageTree
from builder.image.results import Aspect, Comparison, FileDifference
from builder.image.tree import FilesTree
from simulator.elf import is_elf
from simulator.ledger import library_name

FileTree = FilesTree | ImageTree
LARGEST = 64 << 20
"""Bytes: of larger files that cannot have device code, only the digest is compared."""


def compare_trees(before: FileTree, after: FileTree, work: Path) -> Comparison:
    """Every path that differs, with the differences of its content.

    ``work``: a directory that takes copies of the files of images that differ.  Raises
    ``SpaceError`` where they do not fit, ``WorldError`` or ``UntriedError`` where one cannot be
    read.
    """
    found = _renamed(list(_differences(before.nodes, after.nodes)))
    read = [each for each in found if _is_read(each)]
    old = {each.former or each.path for each in read if each.before}
    new = {each.path for each in read if each.after}
    copies = before.extract(old, work / "before"), after.extract(new, work / "after")
    contents = {
        each.path: compare_contents(
            each, copies[0].get(each.former or each.path), copies[1].get(each.path)
        )
        for each in read
    }
    files = tuple(contents.get(each.path, each) for each in found)
    both = before.nodes.keys() & after.nodes.keys()
    equal = len(both) - sum(not each.only_time for each in files if each.path in both)
    return Comparison(before.name, after.name, None, equal, files)


def aspects(before: Node, after: Node) -> tuple[Aspect, ...]:
    """The differences of two nodes; the mode and the size of a link do not count."""
    same: dict[Aspect, bool] = {
        "kind": before.kind == after.kind,
        "content": before.digest == after.digest,
        "target": before.target == after.target,
        "mode": before.mode == after.mode or before.kind == "link",
        "owner": (before.user, before.group) == (after.user, after.group),
        "attributes": before.attributes == after.attributes,
        "hard link": before.same_file == after.same_file,
        "time": before.time == after.time,
    }
    return tuple(aspect for aspect, equal in same.items() if not equal)


def _differences(before: Mapping[str, Node], after: Mapping[str, Node]) -> Iterator[FileDifference]:
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        found = aspects(old, new) if old and new else ()
        if found or old is None or new is None:
            yield FileDifference(path, old, new, aspects=found)


def _renamed(found: list[FileDifference]) -> list[FileDifference]:
    """The same differences; a library whose name has another version counts as changed."""
    gone, come = _libraries(found, "removed"), _libraries(found, "added")
    pairs = {
        gone[name][0]: come[name][0]
        for name in gone
        if len(gone[name]) == 1 and len(come.get(name, ())) == 1
    }
    by_path = {each.path: each for each in found}
    for old, new in pairs.items():
        removed, added = by_path.pop(old), by_path[new]
        if removed.before and added.after:
            changed = aspects(removed.before, added.after)
            by_path[new] = replace(
                added, before=removed.before, former=old, aspects=("name", *changed)
            )
    return list(by_path.values())


def _libraries(found: list[FileDifference], state: str) -> dict[tuple[str, str], list[str]]:
    named: dict[tuple[str, str], list[str]] = defaultdict(list)
    for each in found:
        node = each.before or each.after
        if each.state == state and node and is_elf(node.head):
            named[posixpath.dirname(each.path), library_name(each.path)].append(each.path)
    return named


def _is_read(each: FileDifference) -> bool:
    """Whether the content of a path is looked at: it differs, or it may be device code."""
    nodes = [node for node in (each.before, each.after) if node]
    if any(node.kind != "file" for node in nodes):
        return False
    code = any(may_have_code(each.path, node.head) for node in nodes)
    if len(nodes) == 1:
        return code
    return "content" in each.aspects and (code or max(node.size for node in nodes) <= LARGEST)
