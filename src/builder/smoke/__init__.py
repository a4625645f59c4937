"""An image becomes a verdict: every promise of its recipe, checked on the finished image."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from builder.schema import LibraryProbe, OptionProbe, Recipe, RunProbe
from builder.smoke import answers, architectures, closure, contents, leftovers
from builder.smoke.verdict import Check, Verdict
from builder.tools import docker

DRIVER_STUB = "/usr/local/cuda/lib64/stubs/libcuda.so.1"


def prove(
    recipe: Recipe, reference: str, digest: str, work: Path, devel: str | None = None
) -> Verdict:
    """Check an image of the engine against its recipe, without a GPU and without network.

    ``devel`` is the base's image to compile in: it has the driver stub that an engine with
    ``vmm = true`` cannot start without.  ``work`` is a directory for the saved image.

    Raises ``UntriedError`` when a proof cannot be tried, which says nothing of the image.
    """
    archive = work / "image.tar"
    docker.save(reference, archive)
    found = contents.read(archive)
    archive.unlink()
    stub = None
    if recipe.cuda.vmm and devel is not None:
        stub = work / "libcuda.so.1"
        docker.copy_out(devel, DRIVER_STUB, stub)
    checks = tuple(_timed(_all(recipe, answers.Sealed(reference, stub), found)))
    return Verdict(digest, checks, found.download_size, found.unpacked_size)


def _all(recipe: Recipe, sealed: answers.Sealed, found: contents.Contents) -> Iterator[Check]:
    yield from architectures.prove(recipe, found)
    yield from closure.prove(recipe, found)
    yield from leftovers.prove(found)
    for probe in recipe.probe:
        if isinstance(probe, RunProbe):
            yield from answers.prove_run(probe, sealed)
        elif isinstance(probe, OptionProbe):
            yield from answers.prove_option(probe, recipe, sealed)
        elif isinstance(probe, LibraryProbe):
            yield from architectures.prove_library(probe, found)


def _timed(checks: Iterator[Check]) -> Iterator[Check]:
    started = time.monotonic()
    for check in checks:
        yield replace(check, seconds=round(time.monotonic() - started, 3))
        started = time.monotonic()
