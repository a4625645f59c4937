"""``builder build``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.options import (
    BuilderOption,
    CatalogOption,
    JobsOption,
    JsonOption,
    JunitOption,
    OfflineOption,
    RecipeName,
    SummaryOption,
    build_options,
    build_session,
    reporter,
)
from builder.cli.tables import filled, pairs
from builder.cli.terminal import line, print_json
from builder.tools import sizes
from builder.tools.log import duration

if TYPE_CHECKING:
    from builder.pipeline import Outcome
    from builder.smoke.verdict import Verdict


def build(
    recipe: RecipeName,
    catalog: CatalogOption = None,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="Build even if the image exists. The base image and the compiler cache are kept.",
        ),
    ] = False,
    jobs: JobsOption = None,
    builder: BuilderOption = None,
    offline: OfflineOption = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            file_okay=False,
            help="Also write the files of an artifact (a library, not an engine) to this "
            "directory.",
        ),
    ] = None,
    junit: JunitOption = None,
    summary: SummaryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build the image of a recipe, smoke-test it, and tag it.

    The command downloads and verifies all inputs, builds the base image if it is missing, compiles
    the engine without network access, and checks the image against the recipe. If a verified image
    with the same build key exists, nothing is built. An interrupted build can be started again.
    """
    from builder import pipeline
    from builder.images import export
    from builder.smoke.gpu import GpuTest

    options = build_options(
        gpu_test=GpuTest(), rebuild=rebuild, offline=offline, jobs=jobs, builder=builder
    )
    with reporter(junit, summary) as progress:
        session = build_session(catalog, options, progress)
        wanted = session.catalog.engine(recipe).recipe
        artifact = export.require_artifact(wanted, output) if output is not None else None
        image = session.resolve(recipe)
        outcome = pipeline.build(image, options, progress)
    record = outcome.record
    files = []
    if artifact is not None and output is not None:
        files = export.deliver(artifact, record.references[0], output)
    if as_json:
        done = {"built": outcome.built, "checked": outcome.checked}
        print_json({**done, **record.as_json(), "delivered": [str(file) for file in files]})
        return
    _print_outcome(outcome)
    for file in files:
        line(f"written     {file}")


def _print_outcome(outcome: Outcome) -> None:
    state = "unchanged: built and verified before"
    if outcome.checked:
        state = "built and verified" if outcome.built else "built before, verified now"
    record = outcome.record
    times = ", ".join(f"{name} {duration(seconds)}" for name, seconds in record.seconds.items())
    download, unpacked = record.verdict.download_size, record.verdict.unpacked_size
    lines = {
        "image": f"{record.references[0]}  ({state})",
        "other tags": "  ".join(record.references[1:]),
        "digest": record.digest,
        "key": record.key,
        "checks": _checks(record.verdict),
        "way": record.way,
        "device": record.verdict.device.text if record.verdict.device else "",
        "size": f"{sizes.shown(download)} to download, {sizes.shown(unpacked)} unpacked",
        "time": times,
        "log": record.log,
    }
    pairs(filled(lines))


def _checks(verdict: Verdict) -> str:
    counts: dict[str, int] = {}
    for check in verdict.checks:
        counts[check.kind] = counts.get(check.kind, 0) + 1
    kinds = [f"{kind} {count}" if count > 1 else kind for kind, count in counts.items()]
    return f"{len(verdict.checks)} passed: {', '.join(kinds)}"
