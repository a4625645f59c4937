"""Security updates of Debian: a night takes them into an image, and says which.

The locks of a recipe's bases stay as they are while no package of its image has a newer version in
Debian's security archive.  Where one has, all of them are made anew, so that they fit together, for
bases of the night's own: the files of the farm stay.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from builder.core.errors import listed
from builder.plan.inputs import AnyEntry, lock_file
from builder.recipes import edit, locks
from builder.recipes.catalog import Entry, R, parse
from builder.recipes.locks import DebianLock
from builder.recipes.schema import BaseRecipe, Recipe
from builder.upstream.locks import SHIPPED, DebianSession
from builder.upstream.update import DIGEST_DIGITS, FrozenRecipe, extended, frozen_entry

Texts = Mapping[str, str]  # of the files of a recipe, by their paths below ``recipes/``
NAMED = 5  # packages in the reason of a move


def secured(
    frozen: FrozenRecipe, session: DebianSession, folder: Path, served: Texts
) -> tuple[FrozenRecipe, str]:
    """A frozen recipe with new Debian locks, if a package of its image has a security update; and
    the updates that the image which is ``served`` lacks, as a reason to move; else empty.

    ``served`` are the texts of the recipe in the lock of that image, by their paths: a Debian lock
    of the same packages stays as it is there, with its date, which is a part of the key.  The new
    files are written below ``folder``, where a frozen recipe's are.  Raises like
    ``DebianSession.make`` and ``updates``.
    """
    catalog, recipe = frozen.catalog, frozen.entry.recipe
    chain = [catalog.base(name) for name in reversed(catalog.chain(recipe.base))]
    entries: list[AnyEntry] = [*chain, frozen.entry]
    locked = [each for each in entries if lock_file(each)]
    updates = {each.name: session.updates(each, recipe.targets) for each in locked}
    if not any(updates.values()) and not is_secured(served):
        return frozen, ""
    changed = [session.make(each).changes for each in locked]  # the lowest base first
    if not any(changed):
        return frozen, ""
    why = [text for e in locked for text in _updates(session, e, updates[e.name], served)]
    total, below, bases = hashlib.sha256(), "", list[Entry[BaseRecipe]]()
    for base in chain:
        lock = session.lock(base)
        total.update(repr(lock and lock.install).encode())
        name = f"{base.name}-{total.hexdigest()[:DIGEST_DIGITS]}"
        bases.append(_moved(base, name, below, lock, folder, served))
        below = name
    own = session.lock(frozen.entry)
    entry = _moved(frozen.entry, frozen.name, below, own, folder, served)
    made = frozen._replace(entry=entry, bases=tuple(bases), catalog=extended(catalog, entry, bases))
    return made, f"Debian's security updates: {listed(why, NAMED, ', ')}" if why else ""


NIGHTS = re.compile(r"bases/locks/(.+)-[0-9a-f]{12}\.debian\.toml")
"""The path of a lock that a night made for a base."""


def is_secured(served: Texts) -> bool:
    """Whether the recipe of an image has locks that an earlier night made: then the locks of the
    farm, which may be older, are no longer enough."""
    return any(map(NIGHTS.fullmatch, served))


def _updates(
    session: DebianSession, entry: AnyEntry, found: Mapping[str, tuple[str, str]], served: Texts
) -> Iterator[str]:
    """The updates of an entry's packages that the served image lacks, each with the CVEs that the
    new package's changelog names.  A package that the new lock no longer has is none."""
    there, now = dict[str, str](), _versions(session.lock(entry))
    for path, text in served.items():
        base, own = NIGHTS.fullmatch(path), isinstance(entry.recipe, Recipe)
        if base[1] == entry.name if base else own and path.startswith("locks/"):
            there |= _versions(parse(text, entry.file, DebianLock)[0])
    for name, (locked, new) in found.items():
        was = there.get(name, locked)
        if was != new and name in now:
            mends = session.mended(entry, name, was)
            yield f"{name} {was} -> {new}" + (f" ({listed(mends, 3, ', ')})" if mends else "")


def _versions(lock: DebianLock | None) -> dict[str, str]:
    """The versions of the packages that are in images, by name."""
    installs = [each for each in lock.install if each.stage in SHIPPED] if lock else []
    return {file.name: file.version for each in installs for file in each.files}


def _moved(
    entry: Entry[R], name: str, below: str, lock: DebianLock | None, folder: Path, served: Texts
) -> Entry[R]:
    """An entry under another name, on another base, with another Debian lock, in ``folder``, to
    which its locks are written."""
    place = "bases/" if isinstance(entry.recipe, BaseRecipe) else ""
    changes: dict[edit.Keys, object] = {("base",): below} if below else {}
    if place:
        changes["name",] = name
    texts = entry.texts()
    del texts[entry.file.name]
    if lock is not None and entry.recipe.debian is not None:
        texts.pop(str(entry.recipe.debian.lock))
        changes["debian", "lock"] = path = f"locks/{name}.debian.toml"
        there = parse(served.get(place + path, ""), entry.file, DebianLock)[0]
        same = there is not None and (there.suite, there.install) == (lock.suite, lock.install)
        texts[path] = locks.text_of(there if same and there else lock, name)
    for path, text in texts.items():
        edit.write(folder / place / path, text)
    file = folder / place / f"{name}.toml"
    return frozen_entry(edit.edited(entry.text, changes), file, type(entry.recipe))
