"""A tree's own test-backend-ops, compiled against the libraries of its image, and kept."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from builder.checks.build import compiling_image, cross_prefix, key_of
from builder.core.errors import UntriedError
from builder.core.farm import installed
from builder.docker import buildx, copies
from builder.image.contents import Contents

SOURCES = "dockerfiles/numbers"
PROGRAM = "test-backend-ops"
SOURCE = f"{PROGRAM}.cpp"
LIST = re.compile(r"^static std::vector<std::unique_ptr<test_case>> make_test_cases_eval\(\)", re.M)
"""The function of a tree that lists its cases."""
REPEATABLE = {
    "std::random_device": "builder_random_device",
    "std::thread::hardware_concurrency()": "builder_threads()",
}
"""Calls that change the random numbers of cases in each run, and their replacements in random.h."""
LINKED = re.compile(r"libggml(-base|-cpu)?\.so(\.\d+)*")
"""The libraries that the program calls; it finds the others as the image's own programs do."""


def in_tree(source: Path) -> Path | None:
    """The directory of ggml's tests in a source tree: llama.cpp itself, or where a tree has it."""
    found = sorted(source.rglob(f"tests/{SOURCE}"), key=lambda path: len(path.parts))
    return found[0].parent if found else None


def libraries(contents: Contents) -> dict[str, str]:
    """The paths in an image of the libraries that the program is linked with, by their names.

    Empty where ggml is a part of another file: then nothing can be called from outside.
    """
    found = {
        parsed.soname: file.path
        for file, parsed in contents.elves()
        if parsed.soname and LINKED.fullmatch(parsed.soname)
    }
    return found if any("base" in name for name in found) else {}


def compiled(tests: Path, reference: str, contents: Contents, devel: str, work: Path) -> Path:
    """The program, compiled without network in the image ``devel`` that the engine was compiled in.

    ``tests`` comes from ``in_tree``; ``contents`` were read of the image ``reference``; ``work`` is
    an empty directory.  Raises ``UntriedError`` where it does not compile, or a file of the image
    cannot be read; ``SpaceError`` where a disk is full.
    """
    image = compiling_image(devel)
    context, made = work / "context", work / "made"
    shutil.copytree(installed() / SOURCES, context)
    shutil.copytree(_headers(tests), context / "include")
    source = repeatable(with_more_cases((tests / SOURCE).read_text("utf-8")))
    (context / SOURCE).write_text(source, "utf-8")
    (context / "lib").mkdir()
    targets = {path: context / "lib" / name for name, path in libraries(contents).items()}
    copies.copy_all_out(reference, targets)
    output = buildx.build_files(context, {"BASE": devel, "CROSS": cross_prefix(image)}, made)
    if output:
        raise UntriedError(f"{PROGRAM} of the source tree does not compile", output)
    return made / PROGRAM


def key() -> str:
    """12 hex digits over the sources that are added to a tree's own program."""
    return key_of(installed() / SOURCES, f"{LIST.pattern} {REPEATABLE}", (".",))


def with_more_cases(source: str) -> str:
    """The source with ``cases.cpp``, which adds to the list of its cases."""
    declared = "static std::vector<std::unique_ptr<test_case>> tree_cases()"
    return LIST.sub(f'{declared};\n#include "cases.cpp"\n{declared}', source, count=1)


def repeatable(source: str) -> str:
    """The source, whose random numbers are the same in each run with ``BUILDER_REPEATABLE``."""
    for text, ours in REPEATABLE.items():
        source = source.replace(text, ours)
    return f'#include "random.h"\n{source}'


def _headers(tests: Path) -> Path:
    for folder in (tests.parent / "ggml" / "include", tests.parent / "include"):
        if (folder / "ggml.h").is_file():
            return folder
    raise UntriedError("the source tree has no headers of ggml", f"looked beside {tests}")
