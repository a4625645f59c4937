"""Check: the engine's libraries contain machine code for the GPUs that the recipe names.

The libraries of the base are not the farm's to compile: ``code_paths`` checks them.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections import Counter
from collections.abc import Iterator

from builder.checks.code_paths import ARCHITECTURES, cards, hollow
from builder.checks.subject import Context
from builder.checks.verdict import Check
from builder.engines.layout import LAYOUT
from builder.image.contents import Contents, File
from builder.recipes.probes import LibraryProbe
from simulator.library import ElfFile

ENGINE = f"{LAYOUT.engine}/"
GLIBC = re.compile(r"GLIBC_(.+)")


def _summary(code: ElfFile) -> str:
    names = Counter(entry.name for entry in code.code)
    return ", ".join(f"{count} {name}" for name, count in sorted(names.items())) or "no GPU code"


def _machine_code(code: ElfFile) -> set[str]:
    return {entry.name for entry in code.code if entry.kind == "elf"}


def _satisfied(expected: str, found: set[str]) -> bool:
    """Whether machine code for ``expected`` is there; without a suffix, any variant is enough.

    llama.cpp's cmake turns 120 into 120a, and both run on compute capability 12.0.
    """
    if expected[-1] in "af":
        return expected in found
    return bool(found & {expected, f"{expected}a", f"{expected}f"})


def check(context: Context) -> Iterator[Check]:
    """Every library of the engine has machine code in the variants that the recipe names."""
    contents, rules, recipe = context.added, context.rules, context.subject.recipe
    wanted = recipe.cuda.arch if recipe else ARCHITECTURES
    expected = [
        f"sm_{arch.removesuffix('-real')}" for arch in wanted if not arch.endswith("-virtual")
    ]
    with_code = [(file, parsed) for file, parsed in contents.elves() if parsed.code]
    place = ENGINE if any(path.startswith(ENGINE) for path in contents.files) else "/"
    own = [(file, parsed) for file, parsed in with_code if file.path.startswith(place)]
    if not own:
        needed = f"GPU code for {' '.join(expected)}"
        yield Check.of("architectures", place, needed, "none at all", False)
    for file, parsed in own:
        found = _machine_code(parsed)
        summary = _summary(parsed)
        complete = all(_satisfied(name, found) for name in expected)
        offenders = [] if complete else [(file.path, summary)]
        for card in cards(recipe) if complete else ():
            if why := hollow(file, card):
                offenders.append((file.path, f"{summary}; {file.path} on {card}: {why}"))
        yield rules.check("architectures", file.path, " ".join(expected), offenders, summary)
    for file in contents.files.values():
        if file.malformed or file.unread_code:
            damage = [(file.path, file.malformed or file.unread_code)]
            yield rules.check("architectures", file.path, "a readable ELF file", damage)


def matching(contents: Contents, name: str) -> list[tuple[File, ElfFile]]:
    """The ELF files whose path, or a link to them, ends in ``name``."""
    found: dict[str, tuple[File, ElfFile]] = {}
    for path in contents.files:
        if path.endswith("/" + name.lstrip("/")):
            file = contents.files.get(contents.resolve(path) or "")
            if file is not None and file.elf is not None:
                found[file.path] = (file, file.elf)
    return list(found.values())


def check_library(probe: LibraryProbe, contents: Contents) -> Iterator[Check]:
    """The checks of a recipe's ``[[probe]] library``."""
    names = [probe.library, *probe.alternatives]
    libraries = next(filter(None, (matching(contents, name) for name in names)), [])
    if not libraries:
        subject = " or ".join(names)
        yield Check.of("library", subject, "is in the image", "no such ELF file", False)
    for file, parsed in libraries:
        found = _machine_code(parsed)
        for name in probe.architectures:
            passed = _satisfied(name, found)
            yield Check.of(
                "library", file.path, f"machine code for {name}", _summary(parsed), passed
            )
        needed, defined = ", ".join(parsed.needed), file.symbols or frozenset()
        for name in (*probe.needs, *probe.needs_not):
            wanted, there = name in probe.needs, name in parsed.needed
            expected = f"{'needs' if wanted else 'does not need'} {name}"
            yield Check.of("library", file.path, expected, needed, wanted is there)
        for name in (*probe.symbols, *probe.symbols_not):
            wanted, there = name in probe.symbols, name in defined
            lacks = f"not among {len(defined)} symbols" if wanted else "not there"
            expected = f"{'defines' if wanted else 'does not define'} {name}"
            found_name = name if there else lacks
            yield Check.of("library", file.path, expected, found_name, wanted is there)
        for pattern, least in probe.symbols_at_least.items():
            count = len(fnmatch.filter(defined, pattern))
            expected = f"defines at least {least} symbols like {pattern}"
            yield Check.of("library", file.path, expected, str(count), count >= least)
        if probe.glibc is not None:
            yield _glibc(probe.glibc, file, parsed)


def _glibc(newest: str, file: File, parsed: ElfFile) -> Check:
    """A library needs no glibc symbol version newer than ``newest``.

    A version without a number counts as newer than any: GLIBC_PRIVATE belongs to one glibc only,
    GLIBC_ABI_DT_RELR came with 2.36.
    """
    versions = {version for _, several in parsed.versions_needed for version in several}
    needed = sorted(
        (match[1] for version in versions if (match := GLIBC.fullmatch(version))), key=_number
    )
    passed = not needed or _number(needed[-1]) <= _number(newest)
    found = f"GLIBC_{needed[-1]}" if needed else "no version"
    return Check.of("library", file.path, f"needs glibc {newest} at most", found, passed)


def _number(version: str) -> list[float]:
    """``2.34`` as numbers; anything else counts as the newest."""
    numbers = version.split(".")
    return [float(number) if number.isdigit() else math.inf for number in numbers]
