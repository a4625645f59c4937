"""Checks a receipt before it is taken: its figures, its hardware, its image, its redaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from builder.core.errors import ReceiptError, RecipeError
from builder.docker import gpus
from builder.engines.device_code import no_code, runs_on
from builder.engines.layout import LABEL_KEY, LABEL_RECIPE
from builder.presets import needs, redaction
from builder.presets.machine import DRIVER
from builder.presets.receipts import Receipt
from builder.presets.receipts_catalog import ReceiptEntry, Receipts, load
from builder.recipes.catalog import Catalog
from simulator.selection import Capability

if TYPE_CHECKING:
    from builder.publish.remote_image import RemoteImage

Published = Callable[[str, str], "RemoteImage | None"]
"""The image of a recipe's repository with a digest; None where the registry has none."""

CLOCK = timedelta(minutes=10)  # that two clocks may differ
FASTEST = 1e6  # tokens per second


def require_valid(
    receipt: Receipt,
    catalog: Catalog,
    taken: Sequence[ReceiptEntry],
    published: Published,
    now: datetime,
) -> None:
    """Raise ``ReceiptError`` with all reasons to refuse a receipt.

    ``taken`` are the farm's receipts.  The registry is asked if nothing else is wrong.
    Raises ``RecipeError`` for an unknown recipe, and like ``published``.
    """
    found = list(findings(receipt, catalog, now))
    runs = [each.runs for each in receipt.measured]
    for entry in taken:
        there = entry.receipt
        if there.image == receipt.image and [each.runs for each in there.measured] == runs:
            found.append(f"it is there already: {entry.name}")
    found = found or list(_unpublished(receipt, published))
    if found:
        raise ReceiptError("the receipt is refused", "\n".join(found))


def checked(catalog: Catalog, now: datetime) -> Receipts:
    """The valid receipts of a farm, and the faults of the others.  The registry is not asked."""
    there = load(catalog)
    entries, invalid = [], list(there.invalid)
    for entry in there.entries:
        try:
            faults = "; ".join(findings(entry.receipt, catalog, now))
        except RecipeError as error:
            faults = error.what
        if faults:
            invalid.append(ReceiptError(f"{entry.name}.json is no valid receipt", faults))
        else:
            entries.append(entry)
    return Receipts(tuple(entries), tuple(invalid))


def findings(receipt: Receipt, catalog: Catalog, now: datetime) -> Iterator[str]:
    """The problems of a receipt by itself; raises ``RecipeError`` for an unknown recipe."""
    for place, text in _texts(receipt.model_dump(mode="json", exclude={"arguments", "created"})):
        if what := redaction.private(text):
            yield f"{place}: {text[: redaction.SHOWN]!r} has {what}"
    if found := redaction.private_argument(receipt.arguments):
        yield f"arguments: {found}"
    if receipt.created > now + CLOCK:
        yield f"it is dated {receipt.created:%Y-%m-%d %H:%M %Z}, which is in the future"
    yield from _hardware(receipt, catalog)
    for measured in receipt.measured:
        where = f"context {measured.context}"
        if measured.layers and not any(on_gpu for on_gpu, _ in measured.layers):
            yield f"{where}: no layer is on the GPU: receipts are of runs on cards"
        for run in measured.runs:
            if not 0 < run.tokens_per_second < FASTEST:
                yield f"{where}: a run has {run.tokens_per_second:g} tokens/s"


def _texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """All texts of JSON data, also the names of its members, each with its place."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield place, name
            yield from _texts(each, f"{place}.{name}".lstrip("."))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _texts(each, f"{place}.{number}")


def _hardware(receipt: Receipt, catalog: Catalog) -> Iterator[str]:
    recipe = catalog.engine(receipt.image.recipe).recipe
    if recipe.name != receipt.image.recipe:
        yield f"{receipt.image.recipe} is no recipe: it is {recipe.name}"
    if receipt.device == "CPU" or not receipt.cards:
        yield "it was measured without a GPU: receipts are of runs on cards"
        return
    for card in receipt.cards:
        capability = Capability.parse(card.capability)
        if not runs_on(recipe, capability):
            yield f"{card.name}: the image has {no_code(recipe, capability)}"
    oldest = needs.oldest_driver(recipe, catalog)
    if not DRIVER.fullmatch(receipt.driver):
        yield f"{receipt.driver!r} is no version of NVIDIA's driver such as 580.65.06"
    elif gpus.is_older(receipt.driver, oldest):
        yield f"the driver {receipt.driver} is too old for the image: it needs {oldest} or newer"


def _unpublished(receipt: Receipt, published: Published) -> Iterator[str]:
    image = receipt.image
    found = published(image.recipe, image.digest)
    if found is None:
        yield f"the image is not published: its registry has no {image.digest}"
        return
    recipe, key = (found.labels.get(each) or "none" for each in (LABEL_RECIPE, LABEL_KEY))
    keys = {key, *(each.key for each in found.platforms.values())}
    if recipe != image.recipe or image.key not in keys:
        yield (
            f"{image.digest} is another image: of the recipe {recipe} with the key {key[:12]}, "
            f"the receipt has {image.recipe} and {image.key[:12]}"
        )
