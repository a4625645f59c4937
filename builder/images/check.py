"""Images of the engine are checked against their recipes, and the verdicts recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder.errors import BuilderError, SmokeError, UntriedError
from builder.families.layout import LABEL_KEY
from builder.images.bases import ensure_bases_of
from builder.images.log import new_log
from builder.images.session import ActiveBuild, BuildOptions, Reporter, Timings
from builder.images.stages import extended_image
from builder.plan.rendered import EngineImage
from builder.presets.catalog import of_recipe
from builder.presets.schema import Preset
from builder.publish.remote_image import BASE_DIGEST, BASE_NAME
from builder.records import record
from builder.records.record import Record
from builder.settings import Settings
from builder.simulator import cards
from builder.simulator.cards import Card
from builder.smoke.check import CHECKS_VERSION, Subject, check_image
from builder.smoke.device import DeviceTest, card_for
from builder.smoke.verdict import Check, Verdict
from builder.tools.docker import engine as docker
from builder.tools.log import Log


@dataclass(frozen=True, slots=True)
class Candidate:
    """An image of the engine that is to be checked; ``log`` is that of its build, where known."""

    reference: str
    digest: str
    labels: Mapping[str, str]
    log: str = ""
    created: str = ""
    """When its build began (RFC 3339, UTC); empty: another run built it."""
    built: bool = False
    """This run built it."""
    base: docker.Image | None = None
    """The image that it extends, where it is known."""
    way: str = ""
    """How it was compiled, where that is known."""


def contract_of(image: EngineImage) -> str:
    """sha256 (hex) over the checks that an image must pass: its recipe's, and its presets'.

    Raises ``RecipeError`` where a preset is invalid.
    """
    parts = {"probe", "patch", "cuda", "image", "serve", "budget", "accept", "start", "artifact"}
    # The recipe is that of one platform: its code and its probes have been chosen.
    chosen: dict[str, Any] = {
        "cuda": {"arm64"},
        "probe": {"__all__": {"platform"}},
        "patch": {"__all__": {"probe": {"platform"}}},
    }
    contract = image.plan.recipe.model_dump(mode="json", include=parts, exclude=chosen)
    del contract["budget"]["update"]  # a promise of the tags, not of the image
    if image.platform != "linux/amd64":
        contract["platform"] = image.platform
    contract["checks"] = CHECKS_VERSION
    contract["presets"] = {name: each.identity for name, each in _presets(image).items()}
    return hashlib.sha256(json.dumps(contract, sort_keys=True).encode()).hexdigest()


def _presets(image: EngineImage) -> dict[str, Preset]:
    return of_recipe(_root(image), image.plan.name)


def _cards(root: Path, presets: Iterable[Preset]) -> dict[str, Card]:
    """The cards of presets that are known, by the name of their file."""
    wanted = {preset.card for preset in presets} & {*cards.names(root)}
    return {name: cards.load(root, name) for name in wanted}


def _root(image: EngineImage) -> Path:
    """The farm that has the recipe."""
    return image.plan.file.parents[1]


def subject_of(
    image: EngineImage, options: BuildOptions, candidate: Candidate, log: Log
) -> Subject:
    """An image of the engine and all that its recipe asks of it.

    Raises like ``extended_image``, ``card_for`` and ``contract_of``.
    """
    recipe = image.plan.recipe
    card = card_for(_root(image), recipe, options.card)
    presets = _presets(image)
    theirs = _cards(_root(image), presets.values())
    return Subject(
        candidate.reference,
        candidate.digest,
        recipe,
        image.platform,
        image.labels,
        image.base.references.get("devel"),
        options.gpu_test,
        DeviceTest(card, options.settings.cache_dir, log, theirs),
        extended_image(image, candidate.base),
        options.settings.cache_dir,
        presets,
    )


def check(image: EngineImage, candidate: Candidate, active: ActiveBuild, work: Path) -> Record:
    """Check an image; the record is not written.  ``work`` is a directory for what is unpacked.

    Raises ``UntriedError`` when not even the image can be read.
    """
    name = image.plan.name
    with active.seconds.stage("smoke"):
        log = active.reporter.log
        subject = subject_of(image, active.options, candidate, log)
        verdict = check_image(subject, work)
    active.reporter.on_verdict(image.title, verdict)
    labels = candidate.labels
    return Record(
        recipe=name,
        platform=image.platform,
        key=image.key,
        contract=contract_of(image),
        references=image.references,
        digest=verdict.digest,
        verdict=verdict,
        created=candidate.created or datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=dict(active.seconds),
        way=candidate.way,
        base={labels.get(BASE_NAME, ""): labels.get(BASE_DIGEST, "")},
        log=candidate.log,
    )


def check_again(
    image: EngineImage,
    found: docker.Image,
    options: BuildOptions,
    reporter: Reporter,
    work: Path,
) -> Record:
    """Check an image that has its names, and record the verdict with what is known of its build.

    A good verdict on the same image stays recorded where a check could not be run this time: that
    says nothing about the image.  Raises like ``check``.
    """
    state = options.settings.state_dir
    good = find_verified(image, found, options.settings)
    before = good or record.read(state, image.plan.name, image.key)
    log, created, way = (before.log, before.created, before.way) if before else ("", "", "")
    reference = image.references[0]
    candidate = Candidate(reference, found.digest, found.labels, log, created, way=way)
    active = ActiveBuild(options, reporter, Timings(before.seconds if before else {}))
    kept = check(image, candidate, active, work)
    if good is not None and kept.verdict.untried and not kept.verdict.failures:
        reporter.log("a check could not be run: the earlier good verdict stays recorded")
    else:
        record.write(state, kept)
    return kept


def check_pulled(
    image: EngineImage, reference: str, options: BuildOptions, reporter: Reporter, work: Path
) -> Record:
    """Check an image that the engine pulled from a registry; the record is not written.

    Raises like ``check`` and ``ensure_bases_of``.
    """
    found = docker.image(reference)
    if found is None:
        raise UntriedError(f"Docker lost the image {reference}")
    active = ActiveBuild(options, reporter)
    with new_log(options.settings.state_dir, image.plan.name) as log:
        base = ensure_bases_of(image, active, log).get("runtime")
    candidate = Candidate(reference, found.digest, found.labels, base=base)
    return check(image, candidate, active, work)


def find_verified(
    image: EngineImage, found: docker.Image | None, settings: Settings
) -> Record | None:
    """The record of ``found``, which the engine has under the immutable tag, with a good verdict on
    today's contract; else None."""
    kept = record.read(settings.state_dir, image.plan.name, image.key)
    if found is None or kept is None or kept.digest != found.digest or not kept.verdict.good:
        return None
    if found.labels.get(LABEL_KEY) != image.key:
        return None
    current = (contract_of(image), image.references)
    return kept if (kept.contract, kept.references) == current else None


def require_good(kept: Record, reference: str) -> None:
    """Raise ``SmokeError`` or ``UntriedError`` unless the verdict on an image is good."""
    if not kept.verdict.good:
        raise smoke_error(kept.recipe, reference, kept.verdict)


def smoke_error(name: str, reference: str, verdict: Verdict) -> BuilderError:
    """The error that names every check that failed, or else every one that could not be run."""
    kept = f"the image is {reference}: it is kept to look at"
    count = len(verdict.checks)
    if verdict.failures:
        what = f"{name} is built, and {len(verdict.failures)} of {count} checks failed"
        return SmokeError(what, _lines(verdict.failures), kept)
    what = f"{name} is built, and {len(verdict.untried)} of {count} checks could not be run"
    return UntriedError(what, _lines(verdict.untried), kept)


def _lines(checks: Sequence[Check]) -> str:
    return "\n".join(f"{check.kind}: {check.subject}: {check.comparison}" for check in checks)
