"""``builder sbom``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from builder.cli.options import (
    CatalogOption,
    OnePlatformOption,
    RecipeName,
    catalog_at,
    reference_option,
)
from builder.cli.terminal import log
from builder.core.platforms import Platform


class BillFormat(StrEnum):
    """A document about the contents of an image, or about its build."""

    SPDX = "spdx"
    PROVENANCE = "provenance"


def sbom(
    recipe: RecipeName,
    catalog: CatalogOption = None,
    platform: OnePlatformOption = None,
    form: Annotated[
        BillFormat,
        typer.Option(
            "--format",
            help="SPDX 2.3, or SLSA v1 provenance as an in-toto statement.",
        ),
    ] = BillFormat.SPDX,
    published: Annotated[
        str | None,
        reference_option(
            "--from",
            "Print the document that is attached to this image in the registry. Default: describe "
            "the verified image in the local engine.",
        ),
    ] = None,
) -> None:
    """Print the SBOM of a recipe's verified image, as JSON.

    It lists parts that scanners of the image cannot see: the fork and its commit, each patch and
    pull request with its reason, CUDA libraries from wheels, the base image and the GPUs; and the
    Debian packages in the image. Build tools are marked as such, and files of unknown origin are
    mentioned. The registry keeps the documents that an image was pushed with. The exit code is 4 if
    there is no verified image, and 12 if the registry has no such document.
    """
    from builder.publish import builder_sbom as documents_of

    kind = documents_of.SPDX if form is BillFormat.SPDX else documents_of.PROVENANCE
    if published is None:
        text = _of_local_image(recipe, catalog, platform, kind)
    else:
        text = _of_published_image(recipe, catalog, published, platform, kind)
    typer.echo(text, nl=False)


def _of_local_image(recipe: str, catalog: Path | None, platform: Platform | None, kind: str) -> str:
    from builder.build.lookup import verified
    from builder.cli.session import build_session
    from builder.core.files import workspace
    from builder.publish.attachments import documents

    session = build_session(catalog, platform=platform)
    image, record = verified(session, recipe)
    with workspace(session.settings.cache_dir) as work:
        return documents(image, record, work)[kind]


def _of_published_image(
    recipe: str, catalog: Path | None, reference: str, platform: Platform | None, kind: str
) -> str:
    from builder.publish.attachments import attached
    from builder.publish.tags import repository_of

    files = attached(repository_of(catalog_at(catalog), recipe, log), reference, kind, platform)
    return files[0].content.decode("utf-8", "replace")
