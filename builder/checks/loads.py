"""Check: a library that is delivered alone can be loaded, and every symbol it needs is defined.

It is loaded like a shim, by LD_PRELOAD into a program.  The loader resolves functions only when
they are first called (ld.so(8), LD_BIND_NOW), so undefined symbols are found by comparing the
symbol tables of the library and of all files that were loaded with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from builder.checks.subject import Context
from builder.checks.verdict import Check
from builder.docker import containers, copies
from builder.recipes.schema import Artifact
from simulator.library import Symbols, read_symbols

STUBS = "/usr/local/cuda/lib64/stubs"
PLACE = "/run/artifact"
TIMEOUT = 30.0  # seconds
MAPPED = re.compile(r"^\S+-\S+ \S+ \S+ \S+ \d+ +(/.+)$", re.MULTILINE)  # proc_pid_maps(5)


def check(context: Context) -> Iterator[Check]:
    """Load each file of an artifact in the image that it was compiled in, with the stubs of the
    driver's libraries."""
    artifact, devel, work = context.recipe.artifact, context.subject.devel, context.work
    if artifact is None or not artifact.loads:
        return
    if devel is None:
        why = "the base has no image to compile in"
        yield Check.untried("loads", "LD_PRELOAD", "loads it into a program", why)
        return
    for name in artifact.names:
        file = work / name
        copies.copy_out(context.subject.reference, f"/{name}", file)
        place = f"{PLACE}/{name}"
        # cat does not use the library, and shows its own memory map.
        done = containers.run(
            devel,
            ["/proc/self/maps"],
            entrypoint="cat",
            timeout=TIMEOUT,
            extra=(
                f"--volume={file}:{place}:ro",
                f"--env=LD_PRELOAD={place}",
                f"--env=LD_LIBRARY_PATH={STUBS}",
            ),
        )
        loaded = list(dict.fromkeys(MAPPED.findall(done.output)))
        passed = done.status == 0 and place in loaded
        found = "loaded" if passed else done.output.strip()[:300] or f"exit code {done.status}"
        yield Check.of("loads", f"/{name}", "LD_PRELOAD loads it into a program", found, passed)
        if passed:
            others = [path for path in loaded if path != place]
            yield _undefined(artifact, file, devel, others, work)


def _undefined(artifact: Artifact, file: Path, devel: str, loaded: list[str], work: Path) -> Check:
    """Every symbol that ``file`` needs is defined by it or by the files ``loaded``, except those
    that the recipe accepts."""
    libraries = {path: work / f"loaded-{number}" for number, path in enumerate(loaded)}
    copies.copy_all_out(devel, libraries)
    missing = _symbols(file).undefined
    for library in libraries.values():
        missing -= _symbols(library).defined
    accepted = artifact.undefined
    faults = [f"{name} is undefined" for name in sorted(missing - accepted.keys())]
    faults += [
        f"{name} is defined: remove it from the recipe"
        for name in sorted(accepted.keys() - missing)
    ]
    fine = "; ".join(f"accepted: {name} ({why})" for name, why in accepted.items())
    expected = "every symbol is defined"
    return Check.of(
        "loads", f"/{file.name}", expected, "; ".join(faults) or fine or "all are", not faults
    )


def _symbols(file: Path) -> Symbols:
    with file.open("rb") as stream:
        return read_symbols(stream)
