"""The command that says what an image is made of."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.options import (
    OTHERS,
    CatalogOption,
    DryRunOption,
    RecipeName,
    Reference,
    app,
    build_session,
    catalog_at,
    recipe_group,
    reference_option,
    repository_of,
)
from builder.errors import WorldError
from builder.farm import farm_root

if TYPE_CHECKING:
    from builder.publish.referrers import File


class Format(StrEnum):
    """The documents that tell what an image is made of, or how it came about."""

    CYCLONEDX = "cyclonedx"
    SPDX = "spdx"
    PROVENANCE = "provenance"


From = Annotated[
    str | None,
    reference_option(
        "--from",
        "Take the document that is attached to this image in the registry. Default: describe the "
        "verified image in the engine.",
    ),
]


@app.command(rich_help_panel=OTHERS)
def sbom(
    recipe: RecipeName,
    catalog: CatalogOption = None,
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="CycloneDX 1.6, SPDX 2.3, or SLSA v1 provenance as a statement of in-toto.",
        ),
    ] = Format.CYCLONEDX,
    published: From = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output-file",
            metavar="FILE",
            dir_okay=False,
            help="Write the document to this file. Default: print it.",
        ),
    ] = None,
) -> None:
    """Print the bill of materials of a recipe's verified image, as JSON.

    It includes what a scanner of the image cannot see: the fork and its commit, each patch and
    pull request with its reason, CUDA's libraries from wheels, the base, the GPUs; and the Debian
    packages that the image lists. Tools that were only used in the build are marked as such, and
    files of unknown origin are mentioned. The registry keeps the documents that an image was
    pushed with. The exit code is 4 when there is no verified image, 12 when the registry has no
    document of it.
    """
    from builder import sbom as documents_of

    kind = {
        Format.CYCLONEDX: documents_of.CYCLONEDX,
        Format.SPDX: documents_of.SPDX,
        Format.PROVENANCE: documents_of.PROVENANCE,
    }[form]
    if published is None:
        text = _made(recipe, catalog, kind)
    else:
        text = _attached(recipe, catalog, published, kind)[0].content.decode("utf-8", "replace")
    if output is None:
        typer.echo(text, nl=False)
    else:
        _write(output, text)


def _made(recipe: str, catalog: Path | None, kind: str) -> str:
    """A document of the image in the engine."""
    from builder.images.lookup import verified
    from builder.publish.attachments import documents
    from builder.tools.files import workspace

    session = build_session(catalog)
    image, record = verified(session, recipe)
    with workspace(session.settings.cache_dir) as work:
        return documents(image, record, work)[kind]


def _attached(recipe: str, catalog: Path | None, reference: str, kind: str) -> list[File]:
    """What is attached to an image of the registry."""
    from builder.publish.attachments import attached

    return attached(repository_of(catalog_at(catalog), recipe), reference, kind)


@recipe_group.command("export")
def thaw(
    recipe: RecipeName,
    reference: Reference,
    catalog: CatalogOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            file_okay=False,
            help="Write the recipe to this directory. Default: recipes/ of the catalog.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Write the recipe that a published image was made of, so that it can be built again.

    For an image of a channel, this is the recipe with the pins of that night; its first lines name
    the commit of the farm whose bases, locks and patches were used. An existing file with other
    contents is not overwritten; then the exit code is 4.
    """
    from builder.cli import console
    from builder.publish import attachments
    from builder.recipes.edit import write

    folder = output or farm_root(catalog) / "recipes"
    found = _attached(recipe, catalog, reference, attachments.RECIPE)
    texts = {folder / name: text for name, text in attachments.recipe_texts(found).items()}
    for file, text in texts.items():
        if dry_run:
            console.line(f"# {file}\n{text}")
        elif file.exists() and file.read_text("utf-8", "replace") != text:
            raise WorldError(f"{file} is there, and is another recipe", hint="give --output DIR")
    for file, text in texts.items() if not dry_run else ():
        there = file.exists()
        write(file, text)
        console.line(f"{'is there already:' if there else 'written'} {file}")


def _write(output: Path, text: str) -> None:
    from builder.tools.files import atomic_write

    try:
        with atomic_write(output) as waiting:
            waiting.write_text(text, "utf-8")
    except OSError as error:
        raise WorldError(f"{output} cannot be written", error.strerror or str(error)) from error
