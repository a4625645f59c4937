"""Proof: a library that is delivered alone loads where the base's libraries are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from builder.schema import Recipe
from builder.smoke.verdict import Check
from builder.tools import containers

STUBS = "/usr/local/cuda/lib64/stubs"
# RTLD_NOW | RTLD_LOCAL: every function that it needs is looked up at once (dlopen(3)).
LOAD = "import ctypes, os, sys; ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW); print('loaded')"
PATIENCE = 30.0  # seconds


def prove(recipe: Recipe, reference: str, devel: str | None, work: Path) -> Iterator[Check]:
    """Each file of an artefact, in the image that it was compiled in: stubs stand in for the
    driver's libraries."""
    if recipe.artefact is None or not recipe.artefact.loads or devel is None:
        return
    for name in recipe.artefact.names:
        file = work / name
        containers.copy_out(reference, f"/{name}", file)
        place = f"/run/artefact/{name}"
        done = containers.run(
            devel,
            ["-c", LOAD, place],
            entrypoint="python3",
            timeout=PATIENCE,
            extra=(f"--volume={file}:{place}:ro", f"--env=LD_LIBRARY_PATH={STUBS}"),
        )
        told = done.output.strip()[-300:]
        passed = done.status == 0 and told.endswith("loaded")
        yield Check("loads", f"/{name}", "dlopen, all functions found", told, passed)
