"""Check: the recipe's cards have a path through the device code of every library.

All layers count, whoever built the library: a published image and wheels as much as the engine.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence

from builder.checks.subject import Context
from builder.checks.verdict import Check
from builder.core import sizes
from builder.image.code_paths import CodePaths, paths, text_of
from builder.image.contents import Contents, File
from builder.recipes.schema import Recipe
from simulator.demangle import demangled, short
from simulator.selection import Capability

ARCHITECTURES = ("120",)  # of an image without a recipe
FILES = 8  # that a finding names
NAMED = 3  # names of kernels in a finding
WHEELS = "/site-packages/"  # the diet changes no other libraries; some of CUDA's have zeros, too


def cards(recipe: Recipe | None) -> list[Capability]:
    """The cards that an image is for, by its recipe's architectures."""
    wanted = recipe.cuda.arch if recipe else ARCHITECTURES
    return list(dict.fromkeys(map(Capability.of_arch, wanted)))


def table(contents: Contents, recipe: Recipe | None) -> tuple[CodePaths, ...]:
    """The device code of every library for every card, the largest library first."""
    found = [
        paths(file.path, parsed.modules, card, parsed.zeros if WHEELS in file.path else 0)
        for card in cards(recipe)
        for file, parsed in contents.elves()
        if parsed.modules and not file.shares
    ]
    return tuple(sorted(found, key=lambda each: (-each.whole, each.path)))


def check(context: Context) -> Iterator[Check]:
    """No library is without code for a card, and the driver compiles nothing at the first use.

    ``context.code`` gets the table.
    """
    context.code = found = table(context.contents, context.subject.recipe)
    for card in cards(context.subject.recipe):
        on_card = [each for each in found if each.card == str(card)]
        without = [
            (each.path, f"{each.path}: none of {sizes.shown(each.dead)} runs")
            for each in on_card
            if each.pathless
        ]
        late = [
            (
                each.path,
                f"{each.path}: {sizes.shown(each.compiled)} of PTX"
                + _late(context.contents.files[each.path], card),
            )
            for each in on_card
            if each.compiled
        ]
        fine = _fine(on_card)
        subject = f"every library has code for {card}"
        expected = "machine code or PTX in each"
        yield context.rules.check("code paths", subject, expected, without, fine)
        subject = f"the driver compiles nothing for {card}"
        expected = "machine code in every module that the card uses"
        fine = "; ".join(
            [fine, *(text for _, text in late[:FILES])]
        )  # also where they are accepted
        yield context.rules.check("code paths", subject, expected, late, fine)
        yield _computing(context, card)


def hollow(file: File, card: Capability) -> str:
    """Why code of a file does nothing on a card; empty: it computes, or is not known.

    A kernel may be empty, or only trap, where it is never launched: CUB's EmptyKernel; CUTLASS's
    for other cards, of which the wheel vllm 0.33.0 has 72 on 12.0, real for 9.0 alone.  It is wrong
    where code for another card of the same major version computes, or where nothing in the file
    does.
    """
    bodies = [body for each in file.fat_binaries if (body := each.body(card)) is not None]
    names = [name for body in bodies for name in body.hollow]
    if names:
        code = ", ".join(sorted({body.code.name for body in bodies if body.hollow}))
        return f"{_named(names)}: empty or a trap in {code}, not for another card of the family"
    kernels = sum(body.kernels for body in bodies)
    if any(body.messages for body in bodies) and not any(body.computing for body in bodies):
        return f"none of {kernels} kernels computes: they trap, print or are empty"
    return ""


def _computing(context: Context, card: Capability) -> Check:
    files = [
        file for file, parsed in context.contents.elves() if parsed.modules and not file.shares
    ]
    known = cards(context.subject.recipe)[0].major == card.major  # it is read for the first card
    read = [file for file in files if file.fat_binaries and known]
    found = [(file.path, f"{file.path}: {why}") for file in read if (why := hollow(file, card))]
    bodies = [body for file in read for each in file.fat_binaries if (body := each.body(card))]
    kernels = sum(body.kernels for body in bodies)
    messages = sum(body.messages for body in bodies)
    unread = len(files) - len(read)
    subject, expected = f"the kernels for {card} compute", "no stub in the place of one"
    if unread and not read:
        why = "the kernels of no library were read"
        return Check.skipped("code paths", subject, expected, why)
    fine = f"{kernels} kernels, {messages} only trap or print"
    fine += f"; libraries not read: {unread}" if unread else ""
    fine = fine if files else _fine(())
    return context.rules.check("code paths", subject, expected, found, fine)


def _late(file: File, card: Capability) -> str:
    """The kernels of a file of which a card takes PTX, as far as they were read."""
    names = [
        kernel.name
        for each in file.fat_binaries
        if (body := each.body(card)) is not None and body.code.name == each.code
        for kernel in (each.kernels if body.code.kind == "ptx" else ())
    ]
    return f", {_named(names)}" if names else ""


def _named(names: Sequence[str]) -> str:
    kinds = Counter(short(demangled(name)).partition("<")[0][:60] for name in names)
    most = ", ".join(f"{name} ({count})" for name, count in kinds.most_common(NAMED))
    more = f", {len(kinds) - NAMED} more names" if len(kinds) > NAMED else ""
    return f"{len(names)} kernels: {most}{more}"


def _fine(found: Sequence[CodePaths]) -> str:
    names = ", ".join(posixpath.basename(each.path) for each in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"{text_of(found)}: {names}{more}" if found else "no library has device code"
