"""``builder export``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli import completion
from builder.cli.options import CatalogOption, catalog_at, output_option
from builder.cli.run_options import (
    ContextOption,
    DraftOption,
    ModelOption,
    Options,
    PortOption,
    ProjectorOption,
    Target,
    wanted,
)
from builder.cli.terminal import log
from builder.presets.formats import DEFAULT, FORMATS

if TYPE_CHECKING:
    Format = str
else:
    Format = StrEnum("Format", {name: name for name in FORMATS})
SCRIPT = Format(DEFAULT)


def export(
    target: Target,
    options: Options = None,
    *,
    model: ModelOption = None,
    draft: DraftOption = None,
    mmproj: ProjectorOption = None,
    context: ContextOption = None,
    port: PortOption = None,
    card: Annotated[
        str,
        typer.Option(
            "--card",
            metavar="CARD",
            autocompletion=completion.known_cards,
            help="Card of cards/ for which a short name is resolved: 5090-laptop, ... "
            "Default: the cards of this machine.",
        ),
    ] = "auto",
    form: Annotated[
        Format,
        typer.Option(
            "--format", help="Program that reads the files; docker-run is a shell script."
        ),
    ] = SCRIPT,
    output: Annotated[
        Path | None,
        output_option("Write the files to this directory. Default: a single file is printed."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that are there and differ.")
    ] = False,
    allow_incomplete: Annotated[
        bool,
        typer.Option(
            "--allow-incomplete",
            help="Write files that cannot start yet; their first lines name the missing parts.",
        ),
    ] = False,
    catalog: CatalogOption = None,
) -> None:
    """Write files that start a preset: for compose, Podman, Kubernetes and others.

    A short name means the preset that `builder choose` recommends for the card.

    The files have the image by digest, the health check, the GPU, the models directory
    (BUILDER_MODELS_DIR, else ./models) and the reason for each option as a comment. Nothing is
    started or downloaded; the Hub is asked for missing file names.

    The exit code is 4 if the image exists nowhere, or a model's file name is not known.
    """
    from builder.core import settings
    from builder.core.errors import WorldError
    from builder.presets.described import described, prepared
    from builder.presets.short import refusal, resolved

    recipes, loaded = catalog_at(catalog), settings.load()
    asked = wanted(target, model, draft, mmproj, context, port, options)
    asked = resolved(recipes, asked, card, loaded.state_dir, log)
    job = prepared(recipes, asked, loaded, log)
    if unfit := refusal(job, card):
        raise unfit
    service = described(job)
    if service.incomplete and not allow_incomplete:
        what, why = f"files for {target} would not start", "\n".join(service.incomplete)
        raise WorldError(what, why, "or write them all the same: --allow-incomplete")
    chosen = FORMATS[form]
    files = chosen.files(service)
    if output is None:
        if len(files) > 1:
            raise typer.BadParameter(f"{form} has several files: give --output DIR")
        typer.echo("".join(files.values()), nl=False)
        return
    _write(files, output, force=force)
    log(f"written to {output}: {', '.join(sorted(files))}")
    log(f"next, in that directory: {chosen.usage.format(name=service.name)}")


def _write(files: Mapping[str, str], output: Path, *, force: bool) -> None:
    """Write all files; raises ``WorldError`` before the first where one is there and differs."""
    from builder.core.errors import WorldError
    from builder.core.files import atomic_write, require_writable

    another = "name another directory: --output DIR"
    require_writable(output, another)
    try:
        differ = [name for name, text in files.items() if _differs(output / name, text)]
        if differ and not force:
            names = ", ".join(str(output / name) for name in differ)
            raise WorldError(
                f"cannot replace {names}",
                "it has other contents: it was edited, or is of another export",
                f"{another}, or --force",
            )
        for name, text in files.items():
            with atomic_write(output / name) as temporary:
                temporary.write_text(text, "utf-8")
    except OSError as error:
        why = error.strerror or str(error)
        raise WorldError(f"cannot write to {output}", why, another) from error


def _differs(file: Path, text: str) -> bool:
    return file.exists() and (not file.is_file() or file.read_bytes() != text.encode())
