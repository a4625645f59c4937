"""The format of a receipt: one benchmark of a published image on a card, as one JSON file.

It tells no host name, user, path, address or serial number (``receipts.redaction``).
"""

from __future__ import annotations

from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from builder.checks.series import Generation
from builder.core.errors import ReceiptError
from builder.core.json_model import first_error
from builder.recipes.fields import Digest, Name, Sha256, Text, Value

LARGEST = 4 << 20  # bytes of a file

LARGEST_NUMBER = 1 << 53  # every reader of JSON has integers up to it exactly (RFC 8259, section 6)

Size = Annotated[int, Field(ge=0, le=LARGEST_NUMBER)]
Count = Annotated[int, Field(gt=0, le=LARGEST_NUMBER)]


class ReceiptPart(BaseModel):
    """The base class of all parts."""

    model_config = ConfigDict(
        allow_inf_nan=False,
        extra="forbid",
        frozen=True,
        regex_engine="python-re",
        strict=True,
    )


class MeasuredImage(ReceiptPart):
    """The image that was measured."""

    recipe: Name
    key: Sha256
    """The build's: the label ``builder.key``."""
    digest: Digest
    """The manifest's."""


class MeasuredCard(ReceiptPart):
    """A card, as nvidia-smi lists it in the container."""

    name: Text
    capability: Annotated[str, Field(pattern=r"^\d{1,2}\.\d$")]
    """Compute capability: "12.0"."""
    memory: Count


class ReceiptModel(ReceiptPart):
    """A file that the engine loaded; of a split model, the first part."""

    name: Text
    """Without its directory."""
    size: Size
    sha256: Sha256


class Request(ReceiptPart):
    """The request of each run."""

    prompt: Sha256
    tokens: Count
    """The most tokens of one answer."""
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
    device: Literal["GPU", "CPU"]
    """CPU: the engine had no card."""
    cards: list[MeasuredCard] = []
    driver: Value = ""
    """Version of NVIDIA's driver; empty on the CPU."""
    cpu: Text
    model: ReceiptModel
    draft: ReceiptModel | None = None
    arguments: list[Value]
    """The server's, with the recipe's own; files without their directories."""
    request: Request
    measured: Annotated[list[ReceiptFigures], Field(min_length=1)]
    """One for each context."""
    by: Text | None = None
    """Who measured, if they want to be named."""
    created: AwareDatetime
    builder: Text

    def as_json(self) -> dict[str, Any]:
        """The receipt as JSON data."""
        return self.model_dump(mode="json")

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
