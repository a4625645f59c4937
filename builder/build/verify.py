"""Images of the engine are checked against their recipes, and the verdicts recorded."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from builder.build import ccache
from builder.build.record import Record
from builder.build.session import BuildSession
from builder.build.stages import extended_image
from builder.checks import kernel_test, simulated
from builder.checks.check import CHECKS_VERSION, check_layers, run_programs
from builder.checks.device import card_for
from builder.checks.simulated import why_not
from builder.checks.subject import Context, DeviceTest, NumbersTest, Subject
from builder.checks.verdict import Check, Verdict
from builder.core.errors import BuilderError, SmokeError, UntriedError
from builder.core.files import atomic_write, keep_newest, named_lock
from builder.core.log import CHECK_STAGE, Timings
from builder.docker import engine as docker
from builder.engines.layout import BASE_DIGEST, BASE_NAME, REVISION
from builder.image.contents import Contents
from builder.plan.plan import Plan
from builder.presets import cards
from builder.presets.catalog import of_recipe
from builder.presets.schema import Preset
from builder.recipes.probes import Accept
from builder.sources import gather
from builder.sources.git import COMMIT

# The sources of a comparison of numbers: the tests of the image's tree, and the kept PTX.

FOLDER = "numbers"
"""The directory, in the cache, of compiled tests: by build key and by ``program_key``."""
KEPT = 60  # programs; each has some megabytes


def are_expected(plan: Plan) -> bool:
    """Whether the image of a plan will have numbers to compare, as far as its recipe shows."""
    return plan.has_nvcc and plan.family.compiles_ggml(plan.recipe, plan.platforms)


def test_of(
    plan: Plan, image: docker.Image, context: Context, session: BuildSession
) -> NumbersTest | str | BuilderError:
    """The sources of the comparison of an image's numbers, as ``Context.numbers`` has them.

    Files are made in a directory of their own below the context's.
    """
    if not context.wants_numbers:
        return "its server is not tried on a simulated card"
    work = Path(tempfile.mkdtemp(prefix="numbers-", dir=context.work))
    work.chmod(0o755)  # the image's own user reads the PTX
    try:
        return _made(plan, image, session, context.contents, work)
    except BuilderError as error:
        return error


def _made(
    plan: Plan, image: docker.Image, session: BuildSession, contents: Contents, work: Path
) -> NumbersTest | str:
    devel = plan.base.references.get("devel")
    if devel is None or not plan.has_nvcc:
        return "the base has no nvcc: there is no PTX to compute from"
    kept_work = work / "kept"
    kept_work.mkdir()
    kept = ccache.keep(plan, image, session.settings, kept_work)
    if kept is None or not kept.known:
        return (
            "its PTX is not known, so its kernels cannot be computed: "
            f"`builder ptx {plan.name} --compile` compiles it again"
        )
    texts = work / "ptx"
    ccache.unpack(kept.file, texts)
    texts.chmod(0o755)
    if not kernel_test.libraries(contents):
        return NumbersTest(texts, "the image has no libggml-base.so to call from outside")
    folder = session.settings.cache_dir / FOLDER
    binary = folder / f"{plan.key[:12]}-{kernel_test.program_key()}"
    with named_lock(session.settings.cache_dir, f"numbers-{plan.key[:12]}"):
        if not binary.exists():
            tests = kernel_test.in_tree(_source(plan, devel, session, work))
            if tests is None:
                return NumbersTest(texts, f"the source tree has no {kernel_test.SOURCE}")
            session.log(f"compiling {kernel_test.PROGRAM} of the source tree of {plan.title}")
            made = kernel_test.compiled(tests, image.reference, contents, devel, work)
            with atomic_write(binary) as waiting:
                waiting.write_bytes(made.read_bytes())
            binary.chmod(0o755)  # the image's own user runs it
            keep_newest(folder, KEPT)
    return NumbersTest(texts, binary)


def _source(plan: Plan, devel: str, session: BuildSession, work: Path) -> Path:
    """The patched source tree of a plan, below ``work``."""
    settings = session.settings
    options = gather.GatherOptions(
        settings.cache_dir, session.log, devel, session.offline, settings.debian_servers
    )
    return gather.source_of(plan, options, work)[0]


# The check of one image, and its record.


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
    context.numbers = test_of(plan, image, context, session)
    return run_programs(context)


def compile_simulators(plan: Plan, session: BuildSession) -> None:
    """Compile the simulated cards that the check of an image will need.

    Raises like ``simulator.build.libraries``.
    """
    if plan.devel is None or not session.simulated:
        return
    for computes in simulators(plan):
        simulated.libraries(session.settings.cache_dir, plan.devel, session.log, computes=computes)


def simulators(plan: Plan) -> list[bool]:
    """The simulated cards that the check of an image will need, by whether they compute.

    A card that counts kernels is False.  A card that computes them is True, and takes most of the
    time to compile.
    """
    serve = plan.family.server_of(plan.recipe)
    if plan.devel is None or why_not(plan.recipe, serve, plan.platform, extends=False):
        return []
    return [False, True] if are_expected(plan) else [False]


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
