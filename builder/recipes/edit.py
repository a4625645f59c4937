"""Edit recipe files that people wrote: comments, order and layout stay."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.items import AoT, Array, SingleKey, Table

from builder.core.errors import RecipeError, WorldError
from builder.core.files import atomic_write
from builder.recipes.catalog import locks_of
from builder.recipes.locks import PinnedFile
from builder.recipes.patches import PullPatch
from builder.recipes.schema import GitSource, PypiSource, Recipe

Keys = tuple[str | int, ...]
DEFAULTED = {"image", "cuda", "build", "cmake"}
"""Tables whose values a recipe may leave to defaults."""
SHORT_COMMIT = 7  # digits: fewer are not taken for a commit


@dataclass(frozen=True, slots=True)
class NamedCommit:
    """A commit, and the name that it is known by: a tag, a branch, or itself.

    The commit of a published image is its digest.
    """

    name: str
    commit: str
    kind: Literal["tag", "branch", "commit", "release", "image"]
    file: PinnedFile | None = None
    """The file of a release on PyPI."""


@dataclass(frozen=True, slots=True)
class Recount:
    """The number of a source's commits, under a key of the recipe, before and after a move."""

    key: tuple[str, str]
    old: int
    new: int


def edited(text: str, changes: Mapping[Keys, Any]) -> str:
    """A TOML text with other values at some paths.

    None takes a key out.  A value of a table or a list that the text does not have is a default,
    which follows from the other values: it is left out.
    """
    document = tomlkit.parse(text)
    for path, value in changes.items():
        table: Any = document
        try:
            for part in path[:-1]:
                table = table[part]
        except LookupError as error:
            if value is None or path[0] in DEFAULTED:
                continue
            if "extends" in document:
                raise RecipeError(
                    f"{'.'.join(map(str, path))} cannot be changed: the recipe has no {path[0]}",
                    f"it extends {document['extends']}, which may not change with it",
                    f"write the whole {path[0]} into the recipe, then try again",
                ) from error
            raise
        if value is None:
            table.pop(path[-1], None)
        else:
            table[path[-1]] = value
    return tomlkit.dumps(document)


def with_key(text: str, table: str, key: str, value: str) -> str:
    """A TOML text with a key at the end of a table, which is added if it is not there."""
    document = tomlkit.parse(text)
    if table in document:
        known: Any = document[table]
        known[key] = value
        return tomlkit.dumps(document)
    added = tomlkit.table()
    added.update({key: value})
    return _with_table(document, table, added)


def with_kept(text: str, why: str) -> str:
    """A recipe's text with the reason why it is kept, after its version, unless it has one."""
    if re.search(r"(?m)^kept\b", text):
        return text
    return re.sub(
        r"(?m)^(version\b.*\n)",
        lambda found: f"{found[1]}kept    = {json.dumps(why)}\n",
        text,
        count=1,
    )


def moved(
    text: str,
    recipe: Recipe,
    source: GitSource,
    target: NamedCommit,
    recount: Recount | None,
    *,
    moving: bool,
) -> str:
    """A recipe's text with its pin at another commit.

    The ref becomes the target's name (a commit has none); a version or a tag of the image that
    named the old pin (its tag, its number of commits, the start of its commit) names the new one.
    ``moving`` says that the old ref is a branch: then a name like it moves with the pin, and stays.
    """
    changes: dict[Keys, Any] = {
        ("source", "commit"): target.commit,
        ("source", "ref"): None if target.kind == "commit" else target.name,
    }
    if recount is not None:
        changes[recount.key] = recount.new
    for path, name in _names(recipe).items():
        if moving and name == source.ref:
            continue
        new = _renamed(name, source, target, recount)
        if new != name:
            changes[path] = new
    if source.ref is None and target.kind != "commit":
        text = _with_ref(text, target.name)
    return edited(text, _with_locks(recipe, changes))


def _with_ref(text: str, ref: str) -> str:
    """A recipe's text with a ref of its source before the commit, where people write it."""
    document = tomlkit.parse(text)
    source = document["source"]
    if not isinstance(source, Table):
        return text
    with_ref = tomlkit.table()
    for key, item in source.value.body:
        if key is not None and key.key == "commit":
            aligned = "ref".ljust(len(key.as_string()))
            with_ref.append(SingleKey("ref", sep=key.sep, original=aligned), tomlkit.string(ref))
        with_ref.append(key, item)
    document["source"] = with_ref
    return tomlkit.dumps(document)


def released(
    text: str, recipe: Recipe, source: PypiSource, file: PinnedFile, origin: tuple[str, str]
) -> str:
    """A recipe's text with its source at another release of PyPI; ``origin`` are the commit and the
    version of its tree, empty where it does not tell them.

    A version or a tag of the image that is the old release's, or the start of the old commit,
    becomes the new one's; another version becomes the tree's.
    """
    commit, version = origin
    changes: dict[Keys, Any] = {
        ("source", "version"): file.version,
        ("source", "sha256"): file.sha256,
    }
    old, known = source.version, recipe.llama.build_commit if recipe.llama else None
    if known is not None:
        changes["llama", "build_commit"] = commit[: len(known)] or None
    for path, name in _names(recipe).items():
        if name == old:
            changes[path] = file.version
        elif known is not None and len(name) >= SHORT_COMMIT and known.startswith(name):
            changes[path] = commit[: len(name)] or file.version
        elif name == recipe.version and version:
            changes[path] = version
    return edited(text, _with_locks(recipe, changes))


def _with_locks(recipe: Recipe, changes: Mapping[Keys, Any]) -> dict[Keys, Any]:
    """The changes, and the new names of lock files that have the name of the recipe."""
    name = f"{recipe.engine}-{changes.get(('version',), recipe.version)}"
    locks: dict[Keys, Any] = {
        (table, "lock"): lock.replace(recipe.name, name)
        for table, lock in locks_of(recipe).items()
        if recipe.name in lock and name != recipe.name
    }
    return {**changes, **locks}


def _names(recipe: Recipe) -> dict[Keys, str]:
    """The version and the tags of a recipe, which may name its pin, by their keys."""
    tags: dict[Keys, str] = {
        ("image", "tags", index): tag for index, tag in enumerate(recipe.image.tags)
    }
    return {("version",): recipe.version, **tags}


def _renamed(name: str, source: GitSource, target: NamedCommit, recount: Recount | None) -> str:
    """The new name for a name of the old pin; any other name stays."""
    by_name = target.name if target.kind == "tag" else target.commit[:SHORT_COMMIT]
    if name == source.ref:
        return by_name
    if source.ref == f"v{name}":
        return by_name.removeprefix("v")
    if recount is not None and name == f"b{recount.old}":
        # A tag that counts other commits is a name of its own: b10018-1.2.0 is atomic's 10400th.
        words = re.split(r"[^A-Za-z0-9]+", target.name)
        counted = target.kind != "tag" or f"b{recount.new}" in words
        return f"b{recount.new}" if counted else by_name
    if len(name) >= SHORT_COMMIT and source.commit.startswith(name):
        return target.commit[: len(name)]
    return name


def with_pull_request(text: str, recipe: Recipe, patch: PullPatch) -> str:
    """A recipe's text with a pull request's base, head and reason, in a new ``[[patch]]`` if need
    be."""
    document = tomlkit.parse(text)
    first = len(recipe.patch) - len(document.get("add", {}).get("patch", []))
    for index, known in enumerate(recipe.patch):
        if isinstance(known, PullPatch) and (known.pull, known.git) == (patch.pull, patch.git):
            keys = ("base", "head", "why")
            changed = [key for key in keys if getattr(patch, key) != getattr(known, key)]
            place: Keys = ("patch", index) if index < first else ("add", "patch", index - first)
            return edited(text, {(*place, key): getattr(patch, key) for key in changed})
    written = patch.model_dump(exclude_defaults=True)
    values = {key: written[key] for key in ("pull", "git", "base", "head", "why") if key in written}
    patches = document.get("patch")
    table = tomlkit.inline_table() if isinstance(patches, Array) else tomlkit.table()
    table.update(values)
    if isinstance(patches, Array | AoT):
        patches.append(table)
        return tomlkit.dumps(document)
    if recipe.extends:
        return f"{text}\n[[add.patch]]\n{tomlkit.dumps(table)}"
    added = tomlkit.aot()
    added.append(table)
    return _with_table(document, "patch", added)


def _with_table(document: TOMLDocument, name: str, table: Table | AoT) -> str:
    if not document.as_string().endswith("\n\n"):
        document.add(tomlkit.nl())
    document.add(name, table)
    return tomlkit.dumps(document)


def without_patches(text: str, indices: Sequence[int]) -> str:
    """The text without some of its patches; a probe that one has becomes the recipe's own."""
    document = tomlkit.parse(text)
    patches: Any = document["patch"]
    probes = [patches[index].get("probe") for index in indices]
    for index in sorted(indices, reverse=True):
        del patches[index]
    if not patches:
        document.pop("patch")
    if any(probes) and "probe" not in document:
        document.add("probe", tomlkit.aot())
    known: Any = document.get("probe")
    for probe in probes:
        if probe is not None:
            table = tomlkit.inline_table() if isinstance(known, Array) else tomlkit.table()
            table.update(probe.unwrap())
            known.append(table)
    return tomlkit.dumps(document)


def write(file: Path, text: str, like: Path | None = None) -> None:
    """Write a file whole or not at all; its lines end as in ``like``, or as before.

    Raises ``WorldError`` when the directory does not take it.
    """
    model = like or file
    try:
        old = model.read_bytes() if model.exists() else b""
        with atomic_write(file) as waiting:
            waiting.write_text(text, "utf-8", newline="\r\n" if b"\r\n" in old else "\n")
    except OSError as error:
        raise WorldError(
            f"{file} cannot be written", error.strerror or str(error), "nothing was changed"
        ) from error


def difference(old: str, new: str, name: str, new_name: str) -> str:
    """The unified diff of two texts."""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), name, new_name
    )
    return "".join(lines)
