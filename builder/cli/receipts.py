"""``builder receipts``: list (the default), add."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from builder.cli.options import CatalogOption, DryRunOption, JsonOption, catalog_at
from builder.cli.tables import minute, table
from builder.cli.terminal import line, log, print_json

if TYPE_CHECKING:
    from builder.presets.receipts_catalog import ReceiptEntry
    from builder.publish.remote_image import RemoteImage

HEADER = ("recipe", "card", "tokens/s", "context", "runs", "model", "measured", "by", "receipt")

LIST = "list"


class ListByDefault(TyperGroup):
    """``builder receipts`` is ``builder receipts list``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The command that is named, else ``list``."""
        return super().parse_args(ctx, self._with_command(args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is named, else ``list``."""
        return super().resolve_command(ctx, self._with_command(args))

    def _with_command(self, args: list[str]) -> list[str]:
        option = bool(args) and args[0].startswith("-") and args[0] not in {"-h", "--help"}
        return [LIST, *args] if option or not args else args


group = typer.Typer(
    cls=ListByDefault,
    help="List the receipts: benchmarks of published images on cards. "
    "`builder bench run IMAGE --model FILE --receipt FILE` makes one, `builder receipts add FILE` "
    "adds it.",
)


@group.command(LIST)
def list_receipts(catalog: CatalogOption = None, as_json: JsonOption = False) -> None:
    """List the receipts of the farm, one line a context, the fastest first.

    The exit code is 16 if a file of receipts/ is no valid receipt; it is left out.
    """
    from datetime import UTC, datetime

    from builder.presets.receipts_check import checked

    found = checked(catalog_at(catalog), datetime.now(UTC))
    if as_json:
        print_json([{"name": each.name, **each.receipt.as_json()} for each in found.entries])
    elif not found.entries:
        line(
            "there are no receipts yet: `builder bench run IMAGE --model FILE --receipt FILE` "
            "makes one"
        )
    else:
        rows = [row for each in found.entries for row in _rows(each)]
        table(HEADER, [row for _, row in sorted(rows, key=lambda each: -each[0])])
    found.require_valid()


@group.command()
def add(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.json",
            exists=True,
            dir_okay=False,
            help="A receipt: `builder bench IMAGE --receipt FILE.json` writes it.",
        ),
    ],
    catalog: CatalogOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Check a receipt and copy it to receipts/.

    A receipt is refused if its registry does not have the image, a run has no possible speed, the
    image does not run on the card or with the driver, it was measured without a GPU, its date is in
    the future, the recipe is unknown, the same runs are there already, or if it has a path, a host
    name, an address or a serial number.

    The exit code is 16 if the receipt is refused, and 5 if the registry does not answer.
    """
    from datetime import UTC, datetime

    from builder.core import settings
    from builder.core.errors import RegistryError
    from builder.presets import receipts_catalog as receipts
    from builder.presets.receipts_check import require_valid
    from builder.publish.remote_image import remote_image
    from builder.publish.tags import repository_of

    recipes = catalog_at(catalog)
    receipt = receipts.read(file)

    def published(recipe: str, digest: str) -> RemoteImage | None:
        if not settings.load().namespace:
            raise RegistryError(
                "cannot ask a registry for the image of the receipt",
                "BUILDER_NAMESPACE is not set",
                "set it to the account that published the image, or to REGISTRY/ACCOUNT",
            )
        return remote_image(repository_of(recipes, recipe, log), digest)

    require_valid(receipt, recipes, receipts.load(recipes).entries, published, datetime.now(UTC))
    if dry_run:
        line(f"valid  {receipts.path_of(recipes, receipt).name}")
    else:
        line(f"taken  {receipts.write(recipes, receipt)}")


def _rows(entry: ReceiptEntry) -> list[tuple[float, tuple[str, ...]]]:
    receipt = entry.receipt
    when, by = minute(receipt.created.isoformat()), receipt.by or ""
    found: list[tuple[float, tuple[str, ...]]] = []
    for each in receipt.measured:
        figures = (f"{each.mean:.2f}", str(each.context), str(len(each.runs)))
        names = (receipt.image.recipe, receipt.hardware)
        found.append((each.mean, (*names, *figures, receipt.model.name, when, by, entry.name)))
    return found
