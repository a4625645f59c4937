"""Check: the image keeps the promises of its recipe.

Its configuration (entrypoint, user, ports, labels, driver) and its sizes are the recipe's; no layer
carries files that a later one hides; no time is later than its newest input: none is a clock's;
nothing is empty, and nothing is secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from builder.checks.subject import Context
from builder.checks.verdict import Check
from builder.docker.engine import epoch_of
from builder.docker.gpus import is_older
from builder.engines import entrypoint
from builder.engines.layout import LAYOUT
from builder.image import secrets
from builder.image.contents import Contents, Layer
from builder.recipes.schema import Recipe

MOST_HIDDEN = 16  # MB of a layer that later layers may remove or replace
MB = 1_000_000
MOUNTED = {"/dev", "/proc", "/sys"}
"""BuildKit mounts file systems there; it makes the directories that a published base lacks."""
ZSTD = "zstd"
RUNTIME_LIBRARY = re.compile(r"/libcudart(?:[-.][0-9a-f]{8})?\.so\.(\d+)(?:\.\d+)*$")
"""Also the names that auditwheel gives, with eight digits of a hash."""


def check_extended(context: Context) -> Iterator[Check]:
    """Some checks read only the files above the image that this one extends."""
    below = len(context.contents.layers) - len(context.added.layers)
    files = len(context.contents.files) - len(context.added.files)
    why = f"{files} files of {below} layers come from the image below: docs/checks.md"
    yield Check.skipped("extended", "the image that it extends", "every check reads it", why)


def check(context: Context) -> Iterator[Check]:
    """Platform, user, entrypoint, port, health check, environment, labels, compression, driver.

    Where the recipe says nothing, an image keeps the configuration of the image that it extends.
    """
    recipe, contents, extended = context.recipe, context.contents, context.subject.extended
    image, config = recipe.image, contents.config
    before = extended.config if extended else {}
    yield _equal("platform", context.subject.platform, contents.platform)
    user = (before.get("User") or "root") if extended else LAYOUT.user
    yield _equal("user", image.user or user, config.get("User") or "root")
    starts = [] if recipe.artifact else entrypoint.command(image.entrypoint)
    yield _equal("entrypoint", _shown(starts), _shown(config.get("Entrypoint") or []))
    # A new entrypoint resets the command of the base (Dockerfile reference, "ENTRYPOINT").
    yield _equal("command", _shown(image.command), _shown(config.get("Cmd") or []))
    if extended and not image.entrypoint:
        yield _kept_start(before, contents)
    if extended:
        folder = before.get("WorkingDir") or "/"
        yield _equal("working directory", folder, config.get("WorkingDir") or "/")
    exposed = {*(before.get("ExposedPorts") or {}), *([f"{image.port}/tcp"] if image.port else [])}
    ports = ", ".join(sorted(config.get("ExposedPorts") or {})) or "none"
    yield _equal("exposed port", ", ".join(sorted(exposed)) or "none", ports)
    if image.port and image.health:
        test = " ".join((config.get("Healthcheck") or {}).get("Test") or ["none"])
        wanted = f"{image.port} {image.health}"
        yield Check.of("contract", "health check", f"asks {wanted}", test, test.endswith(wanted))
    for name, value in image.env.items():
        found = contents.environment.get(name)
        shown = "not set" if found is None else found
        yield Check.of("contract", f"environment {name}", value, shown, found == value)
    there = config.get("Labels") or {}
    for name, value in context.subject.labels.items():
        shown = there.get(name, "not set")
        yield Check.of("contract", f"label {name}", value, shown, shown == value)
    yield _compression(image.compression, context.added.layers)
    if recipe.cuda.driver is not None or not (extended or recipe.artifact):
        yield _driver(recipe, contents)


def _compression(wanted: str, layers: Sequence[Layer]) -> Check:
    """Clients that read only gzip get no zstd, and the layers of one image are of one kind."""
    zstd = [layer.media_type.endswith(ZSTD) for layer in layers]
    right = all(zstd) if wanted == ZSTD else not any(zstd)
    found = f"{sum(zstd)} of {len(zstd)} layers are {ZSTD}"
    return Check.of("contract", "compression", wanted, found, right)


def _kept_start(before: Mapping[str, Any], contents: Contents) -> Check:
    """The entrypoint starts the same program as the image that it extends."""
    file = contents.files.get(LAYOUT.needs)
    lines = (file.text or "").splitlines() if file else []
    found = [
        [line.partition(" ")[2] for line in lines if line.startswith(f"{kind} ")]
        for kind in ("entrypoint", "command")
    ]
    expected = [before.get(kind) or [] for kind in ("Entrypoint", "Cmd")]
    return _equal(
        "words after the entrypoint",
        *(" and ".join(map(_shown, words)) for words in (expected, found)),
    )


def _equal(subject: str, expected: str, found: str) -> Check:
    return Check.of("contract", subject, expected, found, expected == found)


def _shown(words: list[str]) -> str:
    return json.dumps(words) if words else "none"


def driver_of(contents: Contents) -> str | None:
    """The oldest driver that the image's CUDA runs with; None if it has no CUDA runtime."""
    versions = [int(match[1]) for path in contents.files if (match := RUNTIME_LIBRARY.search(path))]
    return entrypoint.OLDEST_DRIVERS.get(max(versions, default=0))


def _driver(recipe: Recipe, contents: Contents) -> Check:
    needed = driver_of(contents)
    oldest = recipe.cuda.driver
    if oldest is None:
        found = f"{needed} or newer" if needed else "no libcudart of a known CUDA in the image"
        return Check.of("contract", "driver", "a known CUDA", found, needed is not None)
    enough = needed is not None and not is_older(oldest, needed)
    found = f"its CUDA needs {needed}" if needed else "no libcudart of a known CUDA in the image"
    return Check.of("contract", "driver", f"runs with {oldest}", found, enough)


def check_texts(context: Context) -> Iterator[Check]:
    """No label, variable or build argument is empty."""
    contents = context.added
    labels = contents.config.get("Labels") or {}
    empty = [f"label {name}" for name, text in labels.items() if not text]
    empty += [f"environment {name}" for name, text in contents.environment.items() if not text]
    for number, step in enumerate(contents.image.get("history") or [], 1):
        arguments = secrets.arguments_of(str(step.get("created_by", "")))
        empty += [f"argument {name} of step {number}" for name, text in arguments if not text]
    subject = "labels, environment and build arguments"
    yield Check.of("contract", subject, "none is empty", "; ".join(empty) or "none", not empty)


def check_secrets(context: Context) -> Iterator[Check]:
    """No layer, label, variable or build argument has a secret."""
    contents = context.added
    found = secrets.found_in(contents)
    yield context.rules.check("secrets", "files of every layer", "none", found)
    texts = list(secrets.found_in_configuration(contents.image))
    subject = "environment, labels and history"
    yield Check.of("secrets", subject, "none", "; ".join(texts) or "none", not texts)


def check_layers(context: Context) -> Iterator[Check]:
    """The sizes of each added layer."""
    added = context.added.layers
    for number, layer in enumerate(added, len(context.contents.layers) - len(added) + 1):
        found = (
            f"{layer.size / MB:.1f} MB stored, {layer.unpacked / MB:.1f} MB unpacked, "
            f"{layer.hidden / MB:.1f} MB of it hidden: {layer.created_by[:120] or 'unknown'}"
        )
        limit = f"at most {MOST_HIDDEN} MB that later layers remove or replace"
        few = layer.hidden <= MOST_HIDDEN * MB
        yield Check.of("layers", f"layer {number}", limit, found, few)


def check_budget(context: Context) -> Iterator[Check]:
    """The limits of the image."""
    budget, contents = context.recipe.budget, context.contents
    limits = (
        ("to download", budget.download, contents.download_size),
        ("unpacked", budget.unpacked, contents.unpacked_size),
    )
    for what, most, size in limits:
        if most is not None:
            found = f"{size / MB:.1f} MB"
            yield Check.of("budget", what, f"at most {most} MB", found, size <= most * MB)


def check_times(context: Context) -> Iterator[Check]:
    """The times of the files in the added layers, and of the steps of the history.

    The time of the newest input is the image's own (``created``).  The history of an image
    that extends another one is in part the others'.
    """
    contents, added = context.contents, context.added
    epoch = epoch_of(contents.image.get("created"))
    newer = [
        (file.path, f"{file.path} is of {_date(file.modified)}")
        for layer in added.layers
        for file in layer.files
        if file.modified > epoch and file.path not in MOUNTED
    ]
    expected, rules = f"none after {_date(epoch)}", context.rules
    yield rules.check("times", f"files of {len(added.layers)} layers", expected, newer)
    steps = [] if context.subject.extended else contents.image.get("history") or []
    later = [
        ("", f"{str(step.get('created_by', ''))[:60]} is of {step['created']}")
        for step in steps
        if epoch_of(step.get("created")) > epoch
    ]
    yield rules.check("times", f"{len(steps)} steps of the history", expected, later)


def _date(epoch: int) -> str:
    return f"{datetime.fromtimestamp(epoch, UTC):%Y-%m-%d %H:%M:%S} UTC"
