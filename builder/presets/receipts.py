"""The format of a receipt: one benchmark of a published image on a card, as one JSON file.

It tells no host name, user, path, address or serial number (``private``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path, PurePosixPath, PureWindowsPath
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from builder.core.errors import ReceiptError, RecipeError
from builder.core.files import write_json
from builder.core.json_model import first_error
from builder.core.names import SPLIT
from builder.docker import gpus
from builder.engines import families
from builder.engines.device_code import no_code, runs_on
from builder.engines.layout import LABEL_KEY, LABEL_RECIPE
from builder.presets import choose, command
from builder.presets.cards import DRIVER, plain_name
from builder.presets.catalog import PresetEntry
from builder.presets.choose import Measured
from builder.presets.schema import Generation, ModelFile, Preset
from builder.presets.shapes import Figure
from builder.recipes.catalog import Catalog
from builder.recipes.fields import Digest, Name, Sha256, Text, Value
from builder.recipes.schema import Recipe
from simulator.selection import Capability

if TYPE_CHECKING:
    from builder.publish.registry import RemoteImage

LARGEST = 4 << 20  # bytes of a file

LARGEST_NUMBER = 1 << 53  # every reader of JSON has integers up to it exactly (RFC 8259, section 6)

Size = Annotated[int, Field(ge=0, le=LARGEST_NUMBER)]
Count = Annotated[int, Field(gt=0, le=LARGEST_NUMBER)]


class ReceiptPart(BaseModel):
    """The base class of all parts."""

    model_config = ConfigDict(
        allow_inf_nan=False, extra="forbid", frozen=True, regex_engine="python-re", strict=True
    )


class MeasuredImage(ReceiptPart):
    """The image that was measured."""

    recipe: Name
    key: Sha256  # the build's: the label ``builder.key``
    digest: Digest  # the manifest's


class MeasuredCard(ReceiptPart):
    """A card, as nvidia-smi lists it in the container."""

    name: Text
    capability: Annotated[str, Field(pattern=r"^\d{1,2}\.\d$")]  # compute capability: "12.0"
    memory: Count


class ReceiptModel(ReceiptPart):
    """A file that the engine loaded; of a split model, the first part."""

    name: Text  # without its directory
    size: Size
    sha256: Sha256


class Request(ReceiptPart):
    """The request of each run."""

    prompt: Sha256
    tokens: Count  # the most tokens of one answer
    temperature: Annotated[float, Field(ge=0)]
    top_k: Annotated[int, Field(ge=0)]
    min_p: Annotated[float, Field(ge=0, le=1)]
    fill: Annotated[float, Field(ge=0, lt=1)]
    """Share of the context that is filled before the prompt."""


class ReceiptFigures(ReceiptPart):
    """The runs with one context."""

    context: Count
    layers: list[tuple[int, int]] = []
    """Layers on the GPU and in all, of each model, as the engine's log states them."""
    memory: dict[Text, Size] = {}
    """On all cards by kind, as the engine's log states it; empty: it does not."""
    warm_ups: list[Generation] = []
    runs: Annotated[list[Generation], Field(min_length=1)]

    @property
    def mean(self) -> float:
        """Mean tokens per second of the runs."""
        return fmean(run.tokens_per_second for run in self.runs)


class Receipt(ReceiptPart):
    """A benchmark of an image on a machine's cards."""

    version: Literal[2] = 2
    image: MeasuredImage
    device: Literal["GPU", "CPU"]  # CPU: the engine had no card
    cards: list[MeasuredCard] = []
    driver: Value = ""  # version of NVIDIA's driver; empty on the CPU
    cpu: Text
    model: ReceiptModel
    draft: ReceiptModel | None = None
    arguments: list[Value]  # the server's, with the recipe's own; files without their directories
    request: Request
    measured: Annotated[list[ReceiptFigures], Field(min_length=1)]  # one for each context
    by: Text | None = None  # who measured, if they want to be named
    created: AwareDatetime
    builder: Text

    @property
    def hardware(self) -> str:
        """The cards in words: "2 x NVIDIA GeForce RTX 5090"."""
        names = [card.name for card in self.cards] or [self.device]
        counted = ((names.count(name), name) for name in dict.fromkeys(names))
        return " + ".join(name if count == 1 else f"{count} x {name}" for count, name in counted)


def parse(content: bytes, name: str) -> Receipt:
    """The receipt in the file ``name``; raises ``ReceiptError`` for any other content."""
    try:
        return Receipt.model_validate_json(content)
    except ValidationError as error:
        raise ReceiptError(
            f"{name} is not a receipt",
            first_error(error),
            "give a file that `builder bench --receipt FILE` wrote",
        ) from error


# The receipts of a farm: ``receipts/*.json``.


@dataclass(frozen=True, slots=True)
class Receipts:
    """The receipts of a farm, by the names of their files without the suffix, and the problems of
    the other files of ``receipts/``."""

    entries: Mapping[str, Receipt]
    invalid: Sequence[ReceiptError]

    def require_valid(self) -> None:
        """Raise ``ReceiptError`` that names all files that are left out."""
        count = len(self.invalid)
        if count:
            what = "a receipt is left out" if count == 1 else f"{count} receipts are left out"
            lines = "\n".join(f"{each.what}: {each.why}" for each in self.invalid)
            raise ReceiptError(what, lines, "remove them, or mend them")


def read_receipt(file: Path) -> Receipt:
    """The receipt in a file; raises ``ReceiptError``."""
    try:
        with file.open("rb") as stream:
            content = stream.read(LARGEST + 1)
    except OSError as error:
        raise ReceiptError(f"cannot read {file}", error.strerror or str(error)) from error
    if len(content) > LARGEST:
        raise ReceiptError(f"{file} is not a receipt", f"it has more than {LARGEST >> 20} MiB")
    return parse(content, str(file))


def path_of(catalog: Catalog, receipt: Receipt) -> Path:
    """The file of a receipt: named by its recipe, card, time (UTC) and digest."""
    card = plain_name(receipt.cards[0].name) if receipt.cards else "cpu"
    card = re.sub(r"[^a-z0-9.]+", "-", card).strip("-.")
    count = f"{len(receipt.cards)}x-" if len(receipt.cards) > 1 else ""
    time = receipt.created.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    digest = receipt.image.digest.removeprefix("sha256:")[:12]
    name = f"{receipt.image.recipe}-{count}{card}-{time}-{digest}.json"
    return catalog.root / "receipts" / name


def write_receipt(catalog: Catalog, receipt: Receipt) -> Path:
    """Write a checked receipt to its file, which must be new."""
    file = path_of(catalog, receipt)
    if file.exists():
        raise ReceiptError(
            "the receipt is refused",
            f"another one of that image, card and second is there: {file.name}",
        )
    try:
        file.parent.mkdir(exist_ok=True)
        write_json(file, receipt.model_dump(mode="json"))
    except OSError as error:
        raise ReceiptError(f"cannot write {file}", error.strerror or str(error)) from error
    return file


# The receipts of a preset: the same image, models and options, on the same cards.


def of_presets(
    entries: Mapping[str, Receipt], catalog: Catalog, presets: Sequence[PresetEntry]
) -> dict[str, list[Measured]]:
    """The receipts that are runs of each preset, the newest first, by the preset's name."""
    newest = sorted(entries.items(), key=lambda each: each[1].created, reverse=True)
    return {
        preset.name: [
            _measured(name, each)
            for name, each in newest
            if each.image.recipe == preset.preset.recipe
            and is_run_of(each, preset.preset, catalog.engine(preset.preset.recipe).recipe)
        ]
        for preset in presets
    }


def is_run_of(receipt: Receipt, preset: Preset, recipe: Recipe) -> bool:
    """Whether a receipt is of a preset's image, models and options.

    A receipt has neither variables nor a projector: presets with them have no receipts.
    """
    if receipt.image.recipe != recipe.name or preset.serve.environment or preset.mmproj:
        return False
    pairs: list[tuple[ModelFile, ReceiptModel]] = [(preset.model, receipt.model)]
    if preset.drafter is not None and receipt.draft is not None:
        pairs.append((preset.drafter, receipt.draft))
    elif preset.drafter is not None or receipt.draft is not None:
        return False
    if not all(is_file(*pair) for pair in pairs):
        return False
    serve = families.serve_of(recipe)
    own = [*serve.arguments, *serve.gpu] if serve else []  # what a benchmark on a GPU adds
    wanted = _options(own, recipe) | _options(preset.serve.arguments, recipe)
    return _options(receipt.arguments, recipe) == wanted


def is_file(wanted: ModelFile, measured: ReceiptModel) -> bool:
    """Whether a file is the model of a preset: by sha256, else by its name, and size if known.

    Where a preset has only a quantization, the file's name must begin with the repository's name
    and contain the quantization.
    """
    if wanted.sha256 is not None:
        return wanted.sha256 == measured.sha256
    if wanted.file is not None:
        same = PurePosixPath(wanted.file).name == measured.name
        return same and wanted.size in {None, measured.size}
    if wanted.repository is None or wanted.quantization is None:
        return False
    model = wanted.repository.partition("/")[2].casefold().removesuffix("-gguf")
    named = measured.name.casefold().startswith(model)
    # A part of a split model has the quantization of the whole, and not its size.
    return (
        named and not SPLIT.search(measured.name) and bool(wanted.of_quantization([measured.name]))
    )


QUANTILES = (
    *(12.7063, 4.3027, 3.1825, 2.7765, 2.5706, 2.4470, 2.3647, 2.3061, 2.2622, 2.2282),
    *(2.2010, 2.1789, 2.1604, 2.1448, 2.1315, 2.1200, 2.1099, 2.1010, 2.0931, 2.0860),
    *(2.0797, 2.0739, 2.0687, 2.0639, 2.0596, 2.0556, 2.0519, 2.0485, 2.0453, 2.0423),
)
"""Student's t for 95 % and 1, 2, ... degrees of freedom, rounded up; the last one for more."""


def quantile(freedom: float) -> float:
    """Student's t for 95 % and at least these degrees of freedom, which may be a fraction."""
    return QUANTILES[min(max(int(freedom), 1), len(QUANTILES)) - 1]


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval of the mean with 95 % confidence, by Student's t; None for fewer than two."""
    if len(values) < 2:
        return None
    mean = fmean(values)
    reach = quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean - reach, mean + reach


def interval(point: ReceiptFigures) -> tuple[float, float] | None:
    """The tokens per second of the mean with 95 % confidence, rounded; None for one run."""
    found = mean_interval([run.tokens_per_second for run in point.runs])
    return (max(round(found[0], 2), 0.0), round(found[1], 2)) if found is not None else None


def _measured(name: str, receipt: Receipt) -> Measured:
    figures = [
        Figure(
            tokens_per_second=round(point.mean, 2),
            interval=interval(point),
            runs=len(point.runs),
            context=point.context,
            by=receipt.by or "",
            receipt=name,
        )
        for point in receipt.measured
    ]
    return [(card.name, card.memory) for card in receipt.cards], figures


def _options(words: Sequence[str], recipe: Recipe) -> dict[str, tuple[str, ...]]:
    """The values of the options, except models and context; the last of several counts."""
    places = {command.option_of(group[0]) for group in command.known_options(recipe).values()}
    found = {}
    for option, *values in command.groups(words):
        _, equals, value = option.partition("=")
        name = command.option_of(option)
        if name not in places:
            found[name or option] = ((value,) if equals and name else ()) + tuple(values)
    return found


# Text that a receipt must not have: paths, addresses, host names, identities, secrets.

PRIVATE = {
    "a URL": re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE),
    "a path": re.compile(r"(?:^|[\s=,;:\"'(])(?:~?/[\w.~-]|~$|\.\.?/|[A-Za-z]:\\|\\\\)"),
    "an e-mail address or USER@HOST": re.compile(r"[\w.+-]@[\w-]"),
    "an identity (UUID)": re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE),
    "a hardware address": re.compile(r"\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b", re.IGNORECASE),
    "a PCI address": re.compile(r"\b[0-9a-f]{2,8}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE),
    # The special addresses name no machine: every interface, and the machine itself.
    "an IP address": re.compile(r"(?<![\d.])(?!0\.0\.0\.0|127\.)\d{1,3}(?:\.\d{1,3}){3}(?![\d.])"),
    "a host name": re.compile(
        r"\b[\w-]+\.(?:local|localdomain|lan|home|internal|intranet|corp)\b", re.IGNORECASE
    ),
    "a secret": re.compile(r"\b(?:hf_|sk-|gh[pousr]_|github_pat_)[A-Za-z0-9_-]{16,}"),
}
SECRET = re.compile(r"^--?(?:\S*-)?(?:key|token|password|secret)$")
"""An option whose value is a secret: ``--api-key``."""
SHOWN = 60  # characters
HIDDEN = "***"


def private(text: str) -> str | None:
    """The private part of ``text``, such as ``a path``; None: there is none."""
    return next((what for what, pattern in PRIVATE.items() if pattern.search(text)), None)


def private_argument(words: Sequence[str]) -> str | None:
    """The first argument that a receipt must not have, and why; None: there is none."""
    for before, word in zip(["", *words], words, strict=False):
        option, _, value = word.partition("=")
        given = (before, word) if SECRET.match(before) else (option, value or HIDDEN)
        if SECRET.match(given[0]) and given[1] != HIDDEN:
            return f"{given[0]} has a secret"
        if what := private(word):
            return f"{word[:SHOWN]!r} has {what}"
    return None


def redacted(words: Sequence[str]) -> list[str]:
    """Arguments without directories and without the values of options such as ``--api-key``.

    Other private text stays: see ``private_argument``.
    """
    found: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        option, equals, value = word.partition("=")
        if SECRET.match(before):
            found.append(HIDDEN)
        elif equals and SECRET.match(option):
            found.append(f"{option}={HIDDEN}")
        elif equals and option.startswith("-"):
            found.append(f"{option}={_without_directory(value)}")
        else:
            found.append(_without_directory(word))
    return found


def _without_directory(word: str) -> str:
    if PRIVATE["a URL"].search(word) or not PRIVATE["a path"].match(word):
        return word
    return PurePosixPath(PureWindowsPath(word).name).name


# Checks a receipt before it is taken: its figures, its hardware, its image, its redaction.

Published = Callable[[str, str], "RemoteImage | None"]
"""The image of a recipe's repository with a digest; None where the registry has none."""

CLOCK = timedelta(minutes=10)  # that two clocks may differ
FASTEST = 1e6  # tokens per second


def require_valid(
    receipt: Receipt,
    catalog: Catalog,
    taken: Mapping[str, Receipt],
    published: Published,
    now: datetime,
) -> None:
    """Raise ``ReceiptError`` with all reasons to refuse a receipt.

    ``taken`` are the farm's receipts.  The registry is asked if nothing else is wrong.
    Raises ``RecipeError`` for an unknown recipe, and like ``published``.
    """
    found = list(findings(receipt, catalog, now))
    runs = [each.runs for each in receipt.measured]
    for name, there in taken.items():
        if there.image == receipt.image and [each.runs for each in there.measured] == runs:
            found.append(f"it is there already: {name}")
    found = found or list(_unpublished(receipt, published))
    if found:
        raise ReceiptError("the receipt is refused", "\n".join(found))


def checked(catalog: Catalog, now: datetime) -> Receipts:
    """The valid receipts of a farm, and the faults of the others.  The registry is not asked."""
    entries, invalid = {}, []
    for file in sorted((catalog.root / "receipts").glob("*.json"), key=attrgetter("stem")):
        try:
            receipt = read_receipt(file)
            faults = "; ".join(findings(receipt, catalog, now))
        except RecipeError as error:
            faults = error.what
        except ReceiptError as error:
            invalid.append(error)
            continue
        if faults:
            invalid.append(ReceiptError(f"{file.name} is no valid receipt", faults))
        else:
            entries[file.stem] = receipt
    return Receipts(entries, invalid)


def findings(receipt: Receipt, catalog: Catalog, now: datetime) -> Iterator[str]:
    """The problems of a receipt by itself; raises ``RecipeError`` for an unknown recipe."""
    for place, text in _texts(receipt.model_dump(mode="json", exclude={"arguments", "created"})):
        if what := private(text):
            yield f"{place}: {text[:SHOWN]!r} has {what}"
    if found := private_argument(receipt.arguments):
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
    oldest = choose.oldest_driver(recipe, catalog)
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
