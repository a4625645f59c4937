"""``builder clean``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from builder.cli import options
from builder.cli.options import argument, catalog_at, flag, option, user_settings
from builder.cli.terminal import can_ask, counted, line, log, paragraph, print_json, table
from builder.core import sizes
from builder.core.errors import UsageError, WorldError, suggestion

if TYPE_CHECKING:
    from builder.build.clean import Row

MOST = 12  # things of a kind that are named


def clean(
    what: list[str] | None = argument(
        "WHAT",
        "Names of the table, or all. Default: images, bases, reproduced, work, which nobody needs.",
        None,
    ),
    model: list[str] | None = option(
        "--model NAME", "Remove this file of the models directory: OWNER/NAME/FILE; repeatable."
    ),
    dry_run: bool = flag("--dry-run", "Show what would be removed, and remove nothing."),
    yes: bool = option("--yes -y", "Remove without a question.", False),
    as_json: options.JsonOption = False,
) -> None:
    """Show what Docker, the caches and the state directory hold, and remove what nobody needs.

    First a table shows all kinds of things with their sizes. Then the ones that are named are
    removed, after a question or with --yes. What is in use stays: images of containers, of tags
    and of today's recipes, and everything while another run of this user is at work (exit code 9).
    Caches are removed only by name: they cost the time or the download to make them again; images
    of other checkouts only as gone, which all leaves out; models only with --model. Without Docker,
    the rest is cleaned.
    """
    from builder.build import clean as things
    from builder.docker.usage import usage as held

    recipes, loaded, usage = catalog_at(), user_settings(), None
    log("asking Docker what it holds")
    try:
        usage = held()
    except WorldError as error:
        if model or {*(what or ())} & {*things.OF_DOCKER}:
            raise
        log(f"{error.what}: only files are cleaned. {error.why}")
    rows = things.of_docker(recipes, usage) if usage else []
    rows += things.of_files(loaded, usage.images if usage else None)
    folder = loaded.models_dir.expanduser().absolute()
    models = things.models_of(folder, usage)
    chosen = things.chosen(rows, what or []) if what or not model else []
    chosen += _named(models, folder, model or [])
    if as_json:
        own = [row for row in chosen if row.name == models.name]
        found = [
            {**asdict(row), "size": row.size, "chosen": any(row is each for each in chosen)}
            for row in [*rows, models, *own]
        ]
        print_json({"rows": found, "bytes": sum(row.size for row in chosen)})
    else:
        _print([*rows, models], chosen)
    if dry_run or not chosen:
        return
    if not yes:
        if as_json or not can_ask():
            log("nothing is removed: --yes removes it")
            return
        if not typer.confirm("Remove this?", default=False, err=True):
            return
    stayed = [*things.remove(chosen, loaded, log)]
    for why in stayed:
        log(f"stays: {why}")
    if stayed:
        raise WorldError(f"{counted(len(stayed), 'thing')} could not be removed")


def _named(models: Row, folder: Path, names: Sequence[str]) -> list[Row]:
    """The models to remove; raises ``UsageError`` where there is none of a name."""
    from builder.build.clean import Row

    found = Row(models.name, models.about)
    for name in names:
        path = str(folder / name)
        if path not in models.things:
            known = [str(Path(each).relative_to(folder)) for each in models.things]
            if Path(path).is_file():
                raise UsageError(f"a container serves {name}", hint="`builder ps` lists servers")
            what = f"no model is named {name}{suggestion(name, known)}"
            raise UsageError(what, f"looked in {folder}", "`builder clean` lists the models")
        found.add(path, models.things[path])
    return [found] if names else []


def _print(rows: Sequence[Row], chosen: Sequence[Row]) -> None:
    cells = [(row.name, sizes.shown(row.size), row.about) for row in rows if row.things]
    table(("what", "size", "for"), cells, wraps="for")
    models = [row for row in rows if row.name == "models" and row not in chosen]
    for title, shown in (("Models", models), ("To remove", chosen)):
        for row in shown:
            names = [f"{sizes.shown(size)}  {name}" for name, size in row.things.items()]
            more = [f"and {len(names) - MOST} more: --json has all"] if len(names) > MOST else []
            of = f"{title}: {row.name}" if title != "Models" else title
            paragraph(f"{of}, {sizes.shown(row.size)}", [*names[:MOST], *more])
    if chosen:
        line(f"\ntogether {sizes.shown(sum(row.size for row in chosen))}")
    else:
        line("\nnothing to remove that nobody needs; name what else: `builder clean ccache`")
