"""Cards that can be simulated: ``cards/NAME.toml``, each figure with its source."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from builder.core.errors import UsageError, suggestion
from builder.core.farm import folder
from builder.core.platforms import Platform
from builder.recipes.catalog import read_model
from builder.recipes.fields import Model, Text

PREFIXES = ("nvidia-", "geforce-", "rtx-")
COMMON = ("-gpu", "-edition", "-blackwell")
"""Parts of NVIDIA's names that files leave out."""


def _capability(value: str) -> str:
    major, _, minor = value.partition(".")
    if not (major.isdigit() and minor.isdigit()):
        raise ValueError("must be a compute capability: 12.0")
    return value


Count = Annotated[int, Field(gt=0)]


class Source(Model):
    """Where figures of a card were published."""

    title: Text
    url: Text
    figures: tuple[str, ...] = Field(strict=False)


class Card(Model):
    """A card; one source names each figure, or the figure is listed as unverified."""

    name: Text
    """As ``cudaDeviceProp.name`` has it."""
    capability: Annotated[str, AfterValidator(_capability)]
    platform: Platform | None = None
    """Platform of the only machines that have it: linux/arm64; default: PCs have it."""
    multiprocessors: Count
    memory: Count
    """Bytes: the total that ``cudaMemGetInfo`` returns, which is less than the nominal memory."""
    context: Count
    """Bytes that a process's CUDA context itself takes."""
    shared_per_block: Count
    """Bytes of shared memory without ``cudaFuncSetAttribute``."""
    shared_per_block_optin: Count
    """Bytes of shared memory with it."""
    shared_per_multiprocessor: Count
    registers_per_block: Count
    registers_per_multiprocessor: Count
    threads_per_block: Count
    threads_per_multiprocessor: Count
    l2: Count
    """Bytes."""
    bus_width: Count
    """Bits."""
    memory_clock_khz: Count
    clock_khz: Count
    peer: bool
    """Whether cards of this kind reach each other's memory."""
    source: tuple[Source, ...] = Field(strict=False)
    unverified: dict[str, Text] = Field(default_factory=dict)
    """Figures without a log or a specification, each with a remark."""

    @model_validator(mode="after")
    def _each_figure_has_a_source(self) -> Card:
        named = [*self.unverified, *(name for each in self.source for name in each.figures)]
        twice = sorted({name for name in named if named.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)}: named by more than one source")
        lacking = [name for name in FIGURES if name not in named]
        if lacking:
            raise ValueError(f"{', '.join(lacking)}: without a source, and not in [unverified]")
        unknown = [name for name in named if name not in FIGURES]
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: a source of no figure")
        if self.context >= self.memory:
            raise ValueError("the context takes more than the card has")
        return self

    @property
    def bandwidth(self) -> int:
        """Bytes a second of its memory, which has two transfers in a period of its clock."""
        return self.bus_width // 8 * self.memory_clock_khz * 1000 * 2


FIGURES = tuple(
    name for name in Card.model_fields if name not in {"platform", "source", "unverified"}
)


def names(root: Path) -> tuple[str, ...]:
    """The names of all cards."""
    return tuple(sorted(file.stem for file in folder(root, "cards").glob("*.toml")))


def load(root: Path, name: str) -> Card:
    """The card of that name; ``RTX 5090 Laptop`` is 5090-laptop, too.

    Raises ``UsageError`` where there is none, with the name that is meant, ``RecipeError`` where
    its file is invalid.
    """
    known = names(root)
    wanted = plain_name(name)
    if wanted not in known:
        short = wanted.replace("-", "")
        longer = [each for each in known if short and each.replace("-", "").startswith(short)]
        near = (
            f"; did you mean {' or '.join(longer)}?" if longer else suggestion(wanted, list(known))
        )
        raise UsageError(f"no card is named {name}{near}", f"the cards: {', '.join(known)}")
    return read_model(
        folder(root, "cards") / f"{wanted}.toml", Card, f"the card {wanted} is invalid"
    )


def every(root: Path) -> dict[str, Card]:
    """All cards, by the names of their files.  Raises ``RecipeError`` where one is invalid."""
    return {name: load(root, name) for name in names(root)}


def known(root: Path, wanted: Collection[str]) -> dict[str, Card]:
    """The wanted cards that have a file, by its name; raises like ``every``."""
    return {name: load(root, name) for name in names(root) if name in wanted}


def plain_name(name: str) -> str:
    """The name of a card as files have it: 5090-laptop."""
    plain = "-".join(name.lower().replace("_", " ").split())
    for prefix in PREFIXES:
        plain = plain.removeprefix(prefix)
    for part in COMMON:
        plain = plain.replace(part, "")
    return plain


@dataclass(frozen=True, slots=True)
class Compute:
    """Kernels are computed, and memory has contents."""

    ptx: str = ""
    """The directory, in the container, with the PTX of machine code: ``DIGEST.ptx`` by its sha256.
    PTX that is beside the machine code in a program goes first."""
    races: bool = False
    """Whether races of warps and of blocks are found; that is slow."""
    outputs: bool = False
    """Whether the report has a checksum of the values that each launch stored."""


def text(
    cards: Sequence[Card],
    *,
    vocabulary: int = 0,
    tokens: Sequence[int] = (),
    compute: Compute | None = None,
    samples: bool = False,
) -> str:
    """The file ``cards`` of the simulator's configuration (``simulator/card``).

    Without ``compute`` kernels are counted and not run.  Then ``vocabulary`` is the number of the
    model's tokens, 0: unknown; ``tokens`` win in turns.  With ``samples`` a launch forgets all that
    was kept: what is read back is a kernel's result.
    """
    lines = [f"vocabulary {vocabulary}"]
    if tokens:
        lines.append("tokens " + " ".join(str(token) for token in tokens))
    if samples:
        lines.append("launches_write 1")
    if compute is not None:
        lines += ["mode compute", f"races {int(compute.races)}", f"outputs {int(compute.outputs)}"]
        lines += [f"ptx {compute.ptx}"] if compute.ptx else []
    for number, card in enumerate(cards):
        lines += [f"card {number}", *_lines(card)]
    return "\n".join(lines) + "\n"


def _lines(card: Card) -> Iterator[str]:
    for name in FIGURES:
        value = getattr(card, name)
        yield f"{name} {int(value) if isinstance(value, bool) else value}"
