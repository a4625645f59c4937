"""Images of the engine are checked against their recipes, and the verdicts recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from builder.errors import BuilderError, SmokeError, UntriedError
from builder.families.layout import BASE_DIGEST, BASE_NAME, LABEL_KEY
from builder.images.active import ActiveBuild, Timings
from builder.images.extended import extended_image
from builder.images.ptx import has_nvcc
from builder.pipeline import numbers
from builder.pipeline.session import BuildSession
from builder.plan.plan import Plan
from builder.presets.catalog import of_recipe
from builder.presets.schema import Preset
from builder.records import candidate as candidates
from builder.records import record
from builder.records.record import Record
from builder.settings import Settings
from builder.simulator import build, cards
from builder.simulator.cards import Card
from builder.simulator.server import why_not
from builder.smoke.check import CHECKS_VERSION, check_image
from builder.smoke.device import card_for
from builder.smoke.subject import DeviceTest, Subject
from builder.smoke.verdict import Check, Verdict
from builder.tools.docker import engine as docker


@dataclass(frozen=True, slots=True)
class Candidate:
    """An image of the engine that is to be checked; ``log`` is its build's log, where known."""

    reference: str
    digest: str
    labels: Mapping[str, str]
    log: str = ""
    created: str = ""
    """When its build began (RFC 3339, UTC); empty: another run built it."""
    built: bool = False
    """This run built it."""
    built_here: bool = False
    """This machine built it, in this run or an earlier one."""
    base: docker.Image | None = None
    """The image that it extends, where it is known."""
    way: str = ""
    """How it was compiled, where that is known."""


def contract_of(plan: Plan) -> str:
    """sha256 (hex) over the checks that an image must pass: its recipe's, and its presets'.

    Raises ``RecipeError`` where a preset is invalid.
    """
    parts = {"probe", "patch", "cuda", "image", "serve", "budget", "accept", "start", "artifact"}
    # The recipe is for one platform: its code and its probes have been chosen.
    chosen: dict[str, Any] = {
        "cuda": {"arm64"},
        "probe": {"__all__": {"platform"}},
        "patch": {"__all__": {"probe": {"platform"}}},
    }
    contract = plan.recipe.model_dump(mode="json", include=parts, exclude=chosen)
    del contract["budget"]["update"]  # a promise of the tags, not of the image
    if plan.platform != "linux/amd64":
        contract["platform"] = plan.platform
    contract["checks"] = CHECKS_VERSION
    contract["presets"] = {name: each.identity for name, each in _presets(plan).items()}
    return hashlib.sha256(json.dumps(contract, sort_keys=True).encode()).hexdigest()


def _presets(plan: Plan) -> dict[str, Preset]:
    return of_recipe(_root(plan), plan.name)


def _cards(root: Path, presets: Iterable[Preset]) -> dict[str, Card]:
    """The cards of presets that are known, by the name of their file."""
    wanted = {preset.card for preset in presets} & {*cards.names(root)}
    return {name: cards.load(root, name) for name in wanted}


def _root(plan: Plan) -> Path:
    """The farm that has the recipe."""
    return plan.file.parents[1]


def subject_of(plan: Plan, session: BuildSession, candidate: Candidate) -> Subject:
    """An image of the engine and all that its recipe asks of it.

    Raises like ``extended_image``, ``card_for`` and ``contract_of``.
    """
    recipe, options = plan.recipe, session.options
    card = card_for(_root(plan), recipe, options.card)
    presets = _presets(plan)
    theirs = _cards(_root(plan), presets.values())
    reference, digest = candidate.reference, candidate.digest
    return Subject(
        reference,
        digest,
        recipe,
        plan.platform,
        plan.labels,
        plan.base.references.get("devel"),
        options.gpu_test,
        DeviceTest(card, options.settings.cache_dir, session.log, theirs),
        extended_image(plan, candidate.base),
        options.settings.cache_dir,
        presets,
        partial(
            numbers.comparison_of, plan, candidate.reference, candidate.digest, session.active()
        ),
    )


def compile_simulator(plan: Plan, active: ActiveBuild) -> None:
    """Compile the libraries of the simulated cards, where the check of an image will need them.

    Raises like ``simulator.build.libraries``.
    """
    devel = plan.base.references.get("devel")
    extends = plan.family.extends_base
    if devel is not None and not why_not(plan.recipe, plan.platform, extends=extends):
        for computes in (False, True) if has_nvcc(plan) else (False,):
            build.libraries(
                active.settings.cache_dir, devel, active.progress.log, computes=computes
            )


def check(
    plan: Plan, candidate: Candidate, session: BuildSession, seconds: Timings, work: Path
) -> Record:
    """Check an image; the record is not written.

    ``seconds`` are its build's times, and get the times of the check; ``work`` is a directory for
    what is unpacked.

    Raises ``UntriedError`` when not even the image can be read.
    """
    name = plan.name
    with seconds.stage("smoke"):
        verdict = check_image(subject_of(plan, session, candidate), work)
    session.reporter.on_verdict(plan.title, verdict)
    labels = candidate.labels
    return Record(
        recipe=name,
        platform=plan.platform,
        key=plan.key,
        contract=contract_of(plan),
        references=plan.references,
        digest=verdict.digest,
        verdict=verdict,
        created=candidate.created or datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=dict(seconds),
        way=candidate.way,
        built_here=candidate.built or candidate.built_here,
        base={labels.get(BASE_NAME, ""): labels.get(BASE_DIGEST, "")},
        log=candidate.log,
    )


def check_again(plan: Plan, found: docker.Image, session: BuildSession, work: Path) -> Record:
    """Check an image that has its names, and record the verdict with what is known of its build.

    A good verdict on the same image stays recorded where a check could not be run this time: that
    says nothing about the image.  Raises like ``check``.
    """
    state = session.settings.state_dir
    good = find_verified(plan, found, session.settings)
    before = record.read(state, plan.name, plan.key)
    if before is not None and before.digest != found.digest:
        before = None  # it says nothing about this image
    built = candidates.digest_of(state, plan.name, plan.key)  # by a run that was stopped
    candidate = Candidate(
        plan.references[0], found.digest, found.labels, built_here=built == found.digest
    )
    if before is not None:
        candidate = replace(
            candidate,
            log=before.log,
            created=before.created,
            way=before.way,
            built_here=before.built_here,
        )
    kept = check(plan, candidate, session, Timings(before.seconds if before else {}), work)
    if good is not None and kept.verdict.untried and not kept.verdict.failures:
        session.log("a check could not be run: the earlier good verdict stays recorded")
    else:
        record.write(state, kept)
    return kept


def find_verified(plan: Plan, found: docker.Image | None, settings: Settings) -> Record | None:
    """The record of ``found``, which the engine has under the immutable tag, with a good verdict on
    today's contract; else None."""
    kept = record.read(settings.state_dir, plan.name, plan.key)
    if found is None or kept is None or kept.digest != found.digest or not kept.verdict.good:
        return None
    if found.labels.get(LABEL_KEY) != plan.key:
        return None
    current = (contract_of(plan), plan.references)
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
