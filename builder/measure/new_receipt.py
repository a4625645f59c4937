"""Makes a receipt of a benchmark, without anything private."""

from __future__ import annotations

import getpass
import hashlib
import platform
import re
from contextlib import suppress
from datetime import datetime

from pydantic import TypeAdapter, ValidationError

from builder.core.errors import ReceiptError
from builder.core.json_model import first_error
from builder.engines.layout import LABEL_KEY, LABEL_RECIPE
from builder.measure.bench import ServedImage
from builder.measure.results import Benchmark, Loaded
from builder.presets import receipts
from builder.presets.receipts import (
    MeasuredCard,
    MeasuredImage,
    Receipt,
    ReceiptFigures,
    ReceiptModel,
    Request,
)
from builder.recipes.fields import Text, Value

TEXTS = TypeAdapter[dict[str, str]](dict[str, Text])
FLAGS = TypeAdapter[list[str]](list[Value])
SHORTEST = 4  # characters of a name that is looked for
COMMON = frozenset({"root", "user", "localhost"})
"""Names that identify nobody."""


def require_receipt(target: ServedImage, by: str | None) -> None:
    """Raise ``ReceiptError`` where a benchmark of ``target`` could have no receipt.

    The image must have a key, and no name or flag anything private.  The server's flags lose
    directories and secrets before.
    """
    labels = target.image.labels
    image = {"recipe": labels.get(LABEL_RECIPE, ""), "key": labels.get(LABEL_KEY, "")}
    words = receipts.redacted(target.extra)
    files = {"--model": target.model, "--draft": target.draft}
    names = {option: file.name for option, file in files.items() if file is not None}
    texts = names | ({"--by": by} if by else {})
    try:
        MeasuredImage(**image, digest=target.image.digest)
        FLAGS.validate_python(words)
        TEXTS.validate_python(texts)
    except ValidationError as error:
        raise ReceiptError(
            "this run can have no receipt", first_error(error), "leave out --receipt"
        ) from error
    found = [receipts.private_argument(words)]
    for own in sorted(_own_names()):
        pattern = re.compile(rf"(?<!\w){re.escape(own)}(?!\w)", re.IGNORECASE)
        named = [*filter(pattern.search, words)]
        named += [option for option, text in names.items() if pattern.search(text)]
        if named:
            found.append(f"{named[0]!r} has the name of this machine or of its user: {own}")
    for name, text in texts.items():
        what = receipts.private(text)
        found += [f"{name} has {what}"] if what else []
    if any(found):
        raise ReceiptError(
            "the receipt would not be accepted",
            "\n".join(filter(None, found)),
            "change that, or leave out --receipt",
        )


def _own_names() -> set[str]:
    names = {platform.node(), platform.node().partition(".")[0]}
    with suppress(KeyError, OSError):  # a user without a name
        names.add(getpass.getuser())
    return {name for name in names if len(name) >= SHORTEST} - COMMON


def of_benchmark(found: Benchmark, by: str | None = None) -> Receipt:
    """The receipt of a benchmark of an image; ``by`` is who measured.

    Raises ``ReceiptError`` for findings that a receipt cannot have, such as a card without a
    compute capability.
    """
    try:
        return _receipt(found, by)
    except ValidationError as error:
        raise ReceiptError("this run can have no receipt", first_error(error)) from error


def _receipt(found: Benchmark, by: str | None) -> Receipt:
    gpus, settings = found.machine["gpus"], found.settings
    prompt = hashlib.sha256(settings["prompt"].encode()).hexdigest()
    shared = {name: settings[name] for name in ("tokens", "top_k", "min_p", "fill")}
    measured = []
    for point in found.points:
        loaded = point.loaded or Loaded((), {})
        measured.append(
            ReceiptFigures(
                context=point.context or 0,
                layers=list(loaded.layers),
                memory=dict(loaded.memory),
                warm_ups=list(point.warm_ups),
                runs=list(point.runs),
            )
        )
    return Receipt(
        image=MeasuredImage(**{name: found.subject[name] for name in MeasuredImage.model_fields}),
        device="GPU" if gpus else "CPU",
        cards=[
            MeasuredCard(**{name: gpu[name] for name in MeasuredCard.model_fields}) for gpu in gpus
        ],
        driver=gpus[0]["driver"] if gpus else "",
        cpu=found.machine["cpu"],
        model=ReceiptModel(**found.model["model"]),
        draft=ReceiptModel(**found.model["draft"]) if "draft" in found.model else None,
        arguments=receipts.redacted(found.subject["flags"]),
        request=Request(prompt=prompt, temperature=settings["temperature"], **shared),
        measured=measured,
        by=by or None,
        created=datetime.fromisoformat(found.created),
        builder=found.builder,
    )
