"""``builder site``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from builder.cli.options import CatalogOption, JsonOption, catalog_at, output_option
from builder.cli.terminal import counted, line, log, print_json
from builder.core import sizes


def site(
    output: Annotated[
        Path, output_option("Directory for the pages; an earlier site in it is replaced.")
    ],
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Ask no registry: without tags, history and nights."),
    ] = False,
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write static pages: the presets for each card, the images, published speeds, nights.

    The facts come from the recipes, the presets and the records of this machine, and from the
    registry if BUILDER_NAMESPACE is set. Unknown facts are left out. The pages need no server and
    load nothing from elsewhere; without JavaScript they show everything, with JavaScript they
    filter and sort. index.json has the same facts for programs. The pages link to the repository
    BUILDER_FARM_URL.

    The exit code is 5 if the registry does not answer; the directory is then as it was before. It
    is 16 if a file of receipts/ is no valid receipt; the pages are then written without it.
    """
    from datetime import UTC, datetime

    from builder.core import settings
    from builder.presets.receipts import checked
    from builder.site.facts import collect
    from builder.site.pages import write

    recipes = catalog_at(catalog)
    receipts = checked(recipes, datetime.now(UTC))
    found = collect(recipes, settings.load(), log, receipts.entries, offline=offline)
    written = write(found, output.absolute())
    if as_json:
        print_json({"directory": str(output.absolute()), "files": written})
    else:
        total = sizes.shown(sum(written.values()))
        line(f"written  {output}: {counted(len(written), 'file')}, {total}")
        line(f"         {counted(len(found.images), 'image')}, {counted(len(found.cards), 'card')}")
    receipts.require_valid()
