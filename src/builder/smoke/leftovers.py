"""Proof: a runtime image holds what engines load, and nothing of what they were made with."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from builder.smoke.contents import Contents, File
from builder.smoke.verdict import Check

LEAST = 64 << 10  # bytes below which a second copy is not worth a word

RULES = (
    ("driver stub", re.compile(r"/(?:stubs/.*|libcuda\.so(?:\.\d+)*)$")),
    (
        "compiler",
        re.compile(r"/(?:[^/]*-)?(?:gcc|g\+\+|cc1|cc1plus|nvcc|cicc|ptxas|ld|ld\.bfd)(?:-\d+)?$"),
    ),
    (
        "headers",
        re.compile(r"^/(?:usr/include|usr/local/cuda/include|opt/engine/include)/.*\.hp{0,2}$"),
    ),
    ("static libraries", re.compile(r"\.a$")),
    ("package lists", re.compile(r"^/var/lib/apt/lists/.+")),
    ("package archives", re.compile(r"^/var/cache/(?:apt/.+\.(?:bin|deb)|debconf/.+)$")),
    ("build directories", re.compile(r"^/(?:build|src|staging|wheels?|inside|ccache)(?:/.*)?$")),
)


def prove(contents: Contents) -> Iterator[Check]:
    """Nothing of the build is left, and no file is stored twice."""
    kept = [file for file in contents.files.values() if file.kind in {"file", "link"}]
    for name, pattern in RULES:
        found = [file.path for file in kept if pattern.search(file.path)]
        said = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        yield Check("leftovers", f"no {name}", "none", said or "none", not found)
    yield _copies(kept)


def _copies(files: list[File]) -> Check:
    same: dict[str, list[File]] = defaultdict(list)
    for file in files:
        if file.elf is not None and file.size >= LEAST and not file.shares:
            same[file.digest].append(file)
    twice = [group for group in same.values() if len(group) > 1]
    wasted = sum(group[0].size * (len(group) - 1) for group in twice)
    said = "; ".join(" = ".join(file.path for file in group) for group in twice[:5])
    return Check(
        "copies",
        "no program or library is stored twice",
        "each once, its other names as links",
        f"{said} ({wasted / 1e6:.1f} MB wasted)" if twice else "each once",
        not twice,
    )
