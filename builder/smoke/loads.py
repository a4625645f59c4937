"""Check: a library that is delivered alone can be loaded, and what it calls is there.

It is loaded as a shim is used, by LD_PRELOAD into a program: the loader looks functions up when
they are called first (ld.so(8), LD_BIND_NOW), so that one which is missing shows only then.  What
is missing is therefore read from the symbols of the library and of all that it was loaded with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from builder.recipes.schema import Artifact, Recipe
from builder.smoke.verdict import Check
from builder.tools import elf
from builder.tools.docker import containers

STUBS = "/usr/local/cuda/lib64/stubs"
PLACE = "/run/artifact"
PATIENCE = 30.0  # seconds
MAPPED = re.compile(r"^\S+-\S+ \S+ \S+ \S+ \d+ +(/.+)$", re.MULTILINE)  # proc_pid_maps(5)


def check(recipe: Recipe, reference: str, devel: str | None, work: Path) -> Iterator[Check]:
    """Each file of an artifact, in the image that it was compiled in: stubs stand in for the
    driver's libraries."""
    artifact = recipe.artifact
    if artifact is None or not artifact.loads or devel is None:
        return
    for name in artifact.names:
        file = work / name
        containers.copy_out(reference, f"/{name}", file)
        place = f"{PLACE}/{name}"
        # cat has no use for the library, and shows what it was started with.
        done = containers.run(
            devel,
            ["/proc/self/maps"],
            entrypoint="cat",
            timeout=PATIENCE,
            extra=(
                f"--volume={file}:{place}:ro",
                f"--env=LD_PRELOAD={place}",
                f"--env=LD_LIBRARY_PATH={STUBS}",
            ),
        )
        loaded = list(dict.fromkeys(MAPPED.findall(done.output)))
        passed = done.status == 0 and place in loaded
        told = "loaded" if passed else done.output.strip()[:300] or f"exit code {done.status}"
        yield Check("loads", f"/{name}", "LD_PRELOAD loads it into a program", told, passed)
        if passed:
            others = [path for path in loaded if path != place]
            yield _undefined(artifact, file, devel, others, work)


def _undefined(artifact: Artifact, file: Path, devel: str, loaded: list[str], work: Path) -> Check:
    """That ``file`` calls nothing which neither it nor the files ``loaded`` define, but for what
    the recipe accepts."""
    missing = _symbols(file).undefined
    for number, path in enumerate(loaded):
        library = work / f"loaded-{number}"
        containers.copy_out(devel, path, library)
        missing -= _symbols(library).defined
    accepted = artifact.undefined
    said = [f"{name} is undefined" for name in sorted(missing - accepted.keys())]
    said += [
        f"{name} is defined: its acceptance may go" for name in sorted(accepted.keys() - missing)
    ]
    fine = "; ".join(f"accepted: {name} ({why})" for name, why in accepted.items())
    expected = "all that it calls is defined"
    return Check("loads", f"/{file.name}", expected, "; ".join(said) or fine or "all is", not said)


def _symbols(file: Path) -> elf.Symbols:
    with file.open("rb") as stream:
        return elf.read_symbols(stream)
