"""Checks a receipt before it is taken: its figures, its hardware, its image, its redaction."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from datetime import UTC, datetime, timedelta
from typing import Any

from builder.bench.results import Generation
from builder.choose import needs
from builder.choose.machine import DRIVER
from builder.errors import ReceiptError, RecipeError
from builder.families.device_code import no_code, runs_on
from builder.families.layout import LABEL_KEY, LABEL_RECIPE
from builder.kernels.selection import Capability
from builder.publish.remote_image import RemoteImage
from builder.receipts import redaction
from builder.receipts.catalog import ReceiptEntry, Receipts, load
from builder.receipts.schema import LARGEST_NUMBER, Receipt, ReceiptFigures
from builder.recipes.catalog import Catalog
from builder.tools.docker import gpus

Published = Callable[[str, str], RemoteImage | None]
"""The image of a recipe's repository with a digest; None where the registry has none."""

CLOCK = timedelta(minutes=10)  # that two clocks may differ
EARLIEST = datetime(2025, 1, 1, tzinfo=UTC)
ROUNDING = 0.005  # share of a mean
LEAST = 0.001  # tokens per second: means are rounded to it
TIMING = 0.02  # share of a time: the server's clock and the client's
OVERHEAD = 2.0  # seconds of an answer that neither the prompt nor the tokens explain
UNEXPLAINED = 0.5  # share of an answer, where it is longer than that


def require_valid(
    receipt: Receipt,
    catalog: Catalog,
    taken: Sequence[ReceiptEntry],
    published: Published,
    now: datetime,
) -> None:
    """Raise ``ReceiptError`` with all reasons to refuse a receipt.

    ``taken`` are the receipts that are there.  The registry is asked if nothing else is wrong.
    Raises ``RecipeError`` for an unknown recipe, and like ``published``.
    """
    found = list(findings(receipt, catalog, now))
    found += [f"it is there already: {name}" for name in _same(receipt, taken)]
    found = found or list(_unpublished(receipt, published))
    if found:
        raise ReceiptError("the receipt is refused", "\n".join(found))


def checked(catalog: Catalog, now: datetime) -> Receipts:
    """The receipts of a farm that ``findings`` accepts: a file can be written by
    hand.  The registry is not asked."""
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
    yield from _private(receipt)
    yield from _when(receipt, now)
    yield from _hardware(receipt, catalog)
    for measured in receipt.measured:
        wrong = _contradictions(measured, receipt.request.tokens)
        yield from (f"context {measured.context}: {text}" for text in wrong)
        yield from _too_much_memory(receipt, measured)
    contexts = [measured.context for measured in receipt.measured]
    if len(set(contexts)) < len(contexts):
        yield "a context is measured twice"


def _private(receipt: Receipt) -> Iterator[str]:
    for place, text in _texts(receipt.model_dump(mode="json", exclude={"arguments", "created"})):
        if what := redaction.private(text):
            yield f"{place}: {text[: redaction.SHOWN]!r} has {what}"
    if found := redaction.private_argument(receipt.arguments):
        yield f"arguments: {found}"


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


def _when(receipt: Receipt, now: datetime) -> Iterator[str]:
    if receipt.created > now + CLOCK:
        yield f"it is dated {receipt.created:%Y-%m-%d %H:%M %Z}, which is in the future"
    if receipt.created < EARLIEST:
        yield f"it is dated {receipt.created.date()}, before the first version of builder"


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


def _contradictions(measured: ReceiptFigures, tokens: int) -> Iterator[str]:
    """Figures that cannot be true; ``tokens`` are the most of one answer."""
    mean = statistics.fmean(run.tokens_per_second for run in measured.runs)
    if abs(mean - measured.mean) > ROUNDING * abs(mean) + LEAST:
        yield f"the mean is {measured.mean:g} tokens/s, the mean of its runs is {mean:.2f}"
    for on_gpu, layers in measured.layers:
        if not 0 <= on_gpu <= layers:
            yield f"{on_gpu} of {layers} layers are on the GPU"
    if measured.layers and not any(on_gpu for on_gpu, _ in measured.layers):
        yield "no layer is on the GPU: receipts are of runs on cards"
    named = [(f"warm-up {number}", run) for number, run in enumerate(measured.warm_ups, 1)]
    named += [(f"run {number}", run) for number, run in enumerate(measured.runs, 1)]
    for name, run in named:
        yield from (f"{name}: {text}" for text in _of_run(run, tokens))
        if measured.context < run.prompt_tokens <= LARGEST_NUMBER:
            yield f"{name}: the prompt has {run.prompt_tokens} tokens"
    if len({astuple(run) for _, run in named}) < len(named):
        yield "two runs are the same in every figure"


def _of_run(run: Generation, tokens: int) -> Iterator[str]:
    speeds = [run.tokens_per_second, run.seconds]
    speeds += [] if run.prompt_tokens_per_second is None else [run.prompt_tokens_per_second]
    counts = [run.prompt_tokens, run.seed, run.drafted or 0, run.accepted or 0]
    if run.tokens < 1 or min(speeds) <= 0 or min(counts) < 0:
        yield "a number is not positive"
        return
    if max(run.tokens, *counts, *speeds) > LARGEST_NUMBER:
        yield "a number is too large"
        return
    if run.tokens > tokens:
        yield f"it has {run.tokens} tokens, and the request allows {tokens}"
    if run.accepted is not None and (run.drafted is None or run.accepted > run.drafted):
        yield f"{run.accepted} tokens were accepted of {run.drafted or 0} that were drafted"
    generation = run.tokens / run.tokens_per_second
    if generation > run.seconds * (1 + TIMING) + TIMING:
        yield (
            f"{run.tokens} tokens at {run.tokens_per_second:g} tokens/s take {generation:.1f} s, "
            f"and the whole answer took {run.seconds:.1f} s"
        )
    if run.prompt_tokens_per_second is None:
        return
    rest = run.seconds - generation - run.prompt_tokens / run.prompt_tokens_per_second
    if rest > max(OVERHEAD, UNEXPLAINED * run.seconds):
        yield (
            f"the answer took {run.seconds:.1f} s, {rest:.1f} s more than its prompt and "
            f"{run.tokens} tokens at {run.tokens_per_second:g} tokens/s"
        )


def _too_much_memory(receipt: Receipt, measured: ReceiptFigures) -> Iterator[str]:
    there = sum(card.memory for card in receipt.cards)
    stated = sum(measured.memory.values()) >> 20
    if receipt.cards and stated > there:
        yield f"context {measured.context}: {stated} MiB in use, the cards have {there} MiB"


def _same(receipt: Receipt, taken: Sequence[ReceiptEntry]) -> Iterator[str]:
    """The receipts with the same runs of the same image, whatever else they state."""
    runs = [each.runs for each in receipt.measured]
    for entry in taken:
        there = entry.receipt
        if there.image == receipt.image and [each.runs for each in there.measured] == runs:
            yield entry.name


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
