"""Commands that keep channels fresh, and tell whether they are."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli.options import (
    EVERYDAY,
    BuilderOption,
    CatalogOption,
    JsonOption,
    SummaryOption,
    app,
    build_options,
    build_session,
    catalog_at,
    print_json,
    reporter,
    summaries,
)

if TYPE_CHECKING:
    from builder.records.table import Overview

Recipes = Annotated[
    list[str] | None,
    typer.Argument(metavar="RECIPE", help="Names of recipes. Default: all."),
]


@app.command(rich_help_panel=EVERYDAY)
def nightly(
    recipes: Recipes = None,
    catalog: CatalogOption = None,
    builder: BuilderOption = None,
    summary: SummaryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring every channel to what its upstream has now: build, smoke-test, push, and move it last.

    What [track] of a recipe follows is looked up once and frozen as a recipe of its own, which is
    attached to the image and kept in the state directory. Patches that upstream has are left
    out, of a range of commits those that it has; where another does not fit, nothing is built.
    What the registry has already, by key, is not built again. A channel that was taken back by
    hand stays until upstream has something newer. Where an engine fails its channel stays where it
    is, the others move, and the exit code is 13. Each night is written down beside the channel's
    tag, where `builder status` reads it.
    """
    from builder.cli import tables
    from builder.nightly.run import require_good, tonight
    from builder.smoke.gpu import GpuTest

    options = build_options(gpu_test=GpuTest(), builder=builder)
    nights = []
    with reporter(None, summary) as progress:
        for night in tonight(build_session(catalog, options, progress), recipes or []):
            nights.append(night)
            progress.log(f"{night.recipe}: {night.outcome}: {night.reason or night.upstream}")
    _tell([asdict(night) for night in nights], tables.of_nights(nights), summary, as_json)
    require_good(nights)


@app.command(rich_help_panel=EVERYDAY)
def status(
    recipes: Recipes = None,
    catalog: CatalogOption = None,
    channels: Annotated[
        bool, typer.Option("--channels", help="Only recipes that have a channel.")
    ] = False,
    summary: SummaryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell of every recipe and channel what the registry serves, and how far upstream is ahead.

    The digest and when it was made; what upstream has, and the commits and days (d) that the image
    is behind; how the last night ended, with its reason where it failed. --json has the last good
    and the last failed night, and the commit of the image. Registry and upstream are asked, nothing
    else: any machine gives the same answer. The exit code is 14 when a channel is behind for longer
    than its limit, has no image, or cannot be asked for.
    """
    from builder import settings
    from builder.cli import console, tables
    from builder.nightly.status import require_fresh, statuses
    from builder.upstream.session import open_session

    found = catalog_at(catalog)
    chosen = settings.load()
    with open_session(found, chosen, console.log, offline=False) as at:
        asked = statuses(found, chosen, recipes or [], at.repositories, only_channels=channels)
        told = list(asked)
    as_data = [{"state": each.state, **asdict(each)} for each in told]
    _tell(as_data, tables.of_statuses(told), summary, as_json)
    require_fresh(told)


def _tell(
    data: list[dict[str, Any]], overview: Overview, summary: Path | None, as_json: bool
) -> None:
    from builder.cli import console
    from builder.records import markdown

    markdown.append(markdown.of_table(overview), summaries(summary))
    if as_json:
        print_json(data)
    else:
        console.table(overview.header, overview.rows)
        for note in overview.notes:
            console.line(note)
