"""The receipts of a farm: ``receipts/*.json``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC
from operator import attrgetter
from pathlib import Path

from builder.core.errors import ReceiptError
from builder.core.files import write_json
from builder.presets.cards import plain_name
from builder.presets.receipts import LARGEST, Receipt, parse
from builder.recipes.catalog import Catalog


@dataclass(frozen=True, slots=True)
class ReceiptEntry:
    """A receipt that was taken; ``name`` is its file's without the suffix."""

    name: str
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Receipts:
    """The receipts of a farm, by name, and the problems of the other files of ``receipts/``."""

    entries: tuple[ReceiptEntry, ...] = ()
    invalid: tuple[ReceiptError, ...] = ()

    def require_valid(self) -> None:
        """Raise ``ReceiptError`` that names all files that are left out."""
        count = len(self.invalid)
        if count:
            what = "a receipt is left out" if count == 1 else f"{count} receipts are left out"
            lines = "\n".join(f"{each.what}: {each.why}" for each in self.invalid)
            raise ReceiptError(what, lines, "remove them, or mend them")


def load(catalog: Catalog) -> Receipts:
    """The receipts beside the recipes of ``catalog``: every file that has the format of one."""
    entries, invalid = [], []
    for file in sorted((catalog.root / "receipts").glob("*.json"), key=attrgetter("stem")):
        try:
            entries.append(ReceiptEntry(file.stem, read(file)))
        except ReceiptError as error:
            invalid.append(error)
    return Receipts(tuple(entries), tuple(invalid))


def read(file: Path) -> Receipt:
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


def write(catalog: Catalog, receipt: Receipt) -> Path:
    """Write a checked receipt to its file.

    Raises ``ReceiptError`` where there is one of that name, or it cannot be written.
    """
    file = path_of(catalog, receipt)
    if file.exists():
        raise ReceiptError(
            "the receipt is refused",
            f"another one of that image, card and second is there: {file.name}",
        )
    try:
        file.parent.mkdir(exist_ok=True)
        write_json(file, receipt.as_json())
    except OSError as error:
        raise ReceiptError(f"cannot write {file}", error.strerror or str(error)) from error
    return file
