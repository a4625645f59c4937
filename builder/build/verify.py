"""Images of the engine are checked against their recipes, and the verdicts recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from builder.build import numbers
from builder.build.record import Record
from builder.build.session import BuildSession
from builder.build.stages import extended_image
from builder.checks import build
from builder.checks.check import CHECKS_VERSION, check_layers, run_programs
from builder.checks.simulated import why_not
from builder.checks.smoke_device import card_for
from builder.checks.smoke_subject import DeviceTest, Subject
from builder.checks.verdict import Check, Verdict
from builder.core.errors import BuilderError, SmokeError, UntriedError
from builder.core.log import CHECK_STAGE, Timings
from builder.docker import engine as docker
from builder.engines.layout import BASE_DIGEST, BASE_NAME, REVISION
from builder.plan.plan import Plan
from builder.presets import cards
from builder.presets.catalog import of_recipe
from builder.presets.schema import Preset
from builder.recipes.probes import Accept
from builder.sources.arguments import COMMIT


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


def _root(plan: Plan) -> Path:
    """The farm that has the recipe."""
    return plan.file.parents[1]


def subject_of(plan: Plan, image: docker.Image, session: BuildSession) -> Subject:
    """An image of the engine and all that its recipe asks of it.

    Raises like ``extended_image``, ``card_for`` and ``contract_of``.
    """
    recipe, cache = plan.recipe, session.settings.cache_dir
    presets = _presets(plan)
    card = card_for(_root(plan), recipe, session.card)
    theirs = cards.known(_root(plan), {preset.card for preset in presets.values()})
    return Subject(
        image.reference,
        image.digest,
        recipe,
        plan.platform,
        plan.labels,
        plan.devel,
        session.gpu_test,
        DeviceTest(card, cache, session.log, theirs) if session.simulated else None,
        extended_image(plan),
        cache,
        presets,
    )


def verdict_of(
    plan: Plan,
    image: docker.Image,
    subject: Subject,
    session: BuildSession,
    work: Path,
    before_programs: Callable[[], None] = lambda: None,
) -> Verdict:
    """All checks of an image of a plan.

    ``before_programs`` is called before the first program of the image is run.  Raises
    ``UntriedError`` when not even the image can be read.
    """
    context = check_layers(subject, work)
    before_programs()
    context.numbers = numbers.test_of(plan, image, context, session)
    return run_programs(context)


def compile_simulators(plan: Plan, session: BuildSession) -> None:
    """Compile the simulated cards that the check of an image will need.

    Raises like ``simulator.build.libraries``.
    """
    if plan.devel is None or not session.simulated:
        return
    for computes in simulators(plan):
        build.libraries(session.settings.cache_dir, plan.devel, session.log, computes=computes)


def simulators(plan: Plan) -> list[bool]:
    """The simulated cards that the check of an image will need, by whether they compute.

    A card that counts kernels is False.  A card that computes them is True, and takes most of the
    time to compile.
    """
    serve = plan.family.server_of(plan.recipe)
    if plan.devel is None or why_not(plan.recipe, serve, plan.platform, extends=False):
        return []
    return [False, True] if numbers.are_expected(plan) else [False]


def check(
    plan: Plan,
    image: docker.Image,
    session: BuildSession,
    seconds: Timings,
    work: Path,
    before_programs: Callable[[], None] = lambda: None,
) -> Record:
    """Check an image; the record is not written, and knows nothing of its build.

    ``seconds`` are its build's times, and get the time of the check; ``work`` is a directory for
    unpacked files.  Raises like ``verdict_of``, which says what ``before_programs`` is.
    """
    with seconds.stage(CHECK_STAGE):
        subject = subject_of(plan, image, session)
        verdict = verdict_of(plan, image, subject, session, work, before_programs)
    session.reporter.on_verdict(plan.title, verdict)
    revision = image.labels.get(REVISION, "")
    return Record(
        recipe=plan.name,
        platform=plan.platform,
        key=plan.key,
        contract=contract_of(plan),
        references=plan.references,
        digest=verdict.digest,
        verdict=verdict,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=dict(seconds),
        base={image.labels.get(BASE_NAME, ""): image.labels.get(BASE_DIGEST, "")},
        commit=revision if COMMIT.fullmatch(revision) else "",
    )


def require_good(kept: Record, reference: str) -> None:
    """Raise ``SmokeError`` or ``UntriedError`` unless the verdict on an image is good."""
    if not kept.verdict.good:
        raise smoke_error(kept.recipe, reference, kept.verdict)


ACCEPTABLE = {*get_args(Accept.model_fields["check"].annotation)}
ACCEPT = """
the engine does without a file that is at fault? accept it in the recipe:
[[accept]]
check = "KIND"
path  = "/THE/FILE"
why   = "REASON\""""


def smoke_error(name: str, reference: str, verdict: Verdict) -> BuilderError:
    """The error that names every failed check, or else every check that could not be run."""
    kept = f"the image is {reference}: it is kept to look at"
    count = len(verdict.checks)
    if verdict.failures:
        what = f"{name} is built, and {len(verdict.failures)} of {count} checks failed"
        if any(check.kind in ACCEPTABLE for check in verdict.failures):
            kept += ACCEPT
        return SmokeError(what, _lines(verdict.failures), kept)
    what = f"{name} is built, and {len(verdict.untried)} of {count} checks could not be run"
    return UntriedError(what, _lines(verdict.untried), kept)


def _lines(checks: Sequence[Check]) -> str:
    return "\n".join(f"{check.kind}: {check.subject}: {check.comparison}" for check in checks)
