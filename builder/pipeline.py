"""From a recipe to a verified image: the steps, in order, and nothing else."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder import smoke
from builder.errors import BuilderError, FetchError, SmokeError, UntriedError, WorldError
from builder.images import build as image_build
from builder.images import context
from builder.images.build import BuildLog, Watch
from builder.plan import base_image, published_image
from builder.plan.dockerfile import Rendered, render
from builder.plan.inputs import BasePlan, Plan, RegistryRoot
from builder.plan.resolve import plan
from builder.platforms import Platforms, architecture
from builder.publish.remote_image import CREATED
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe
from builder.records import record
from builder.records.record import Record
from builder.settings import Settings
from builder.smoke.contents import Foundation
from builder.smoke.gpu import GpuTest
from builder.smoke.verdict import Check, Verdict
from builder.sources import gather
from builder.tools.docker import buildx
from builder.tools.docker import engine as docker
from builder.tools.files import named_lock, require_space, workspace

BASE_NAME = "org.opencontainers.image.base.name"
BASE_DIGEST = "org.opencontainers.image.base.digest"
WORK_SPACE = 2.0  # GiB in the cache directory: CUDA's wheels, the source, a saved image


@dataclass
class Run:
    """What a run is given beside the recipe, and the times of its stages (seconds)."""

    catalog: Catalog
    settings: Settings
    log: Callable[[str], None]
    watch: Watch
    on_verdict: Callable[[str, Verdict], None] = lambda *_: None
    """Called with every verdict, good or not, before anything follows from it."""
    gpu_test: GpuTest | None = None
    """What is tried with a GPU; None: nothing."""
    rebuild: bool = False
    offline: bool = False
    """Nothing is fetched: what is not mirrored or cached is an error."""
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - started, 2)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The record of an image, and what this run did for it."""

    record: Record
    built: bool
    checked: bool = True


def resolve(run: Run, name: str, build_architecture: str | None = None) -> Rendered:
    """The plan of a recipe and its Dockerfile; with ``build_architecture`` no engine is asked.

    Raises ``RecipeError``, ``WorldError`` or ``FetchError``.
    """
    entry = run.catalog.engine(name)
    assert entry.recipe is not None
    machine = build_architecture or buildx.builder(run.settings.buildx).architecture
    found = architecture(machine)
    if found is None:
        raise WorldError(f"builder does not compile on {machine}", hint="use amd64 or arm64")
    platforms = Platforms(found)
    root = base_image.choose(
        run.catalog,
        entry.recipe.base,
        platforms,
        run.settings.debian_root,
        run.log,
        ask=build_architecture is None,
        offline=run.offline,
    )
    return render(plan(run.catalog, entry, platforms, root))


def contract_of(recipe: Recipe) -> str:
    """sha256 over what the smoke test checks."""
    parts = {"probe", "patch", "cuda", "image", "serve", "budget", "accept", "start", "artifact"}
    checks = recipe.model_dump(mode="json", include=parts) | {"checks": smoke.CHECKS_VERSION}
    return hashlib.sha256(json.dumps(checks, sort_keys=True).encode()).hexdigest()


def build(run: Run, name: str) -> Outcome:
    """Build the image of a recipe, smoke-test it and tag it; or find it already there.

    Raises a ``BuilderError`` of the kind that says what went wrong; ``SmokeError`` when the image
    was built and a check failed.
    """
    run.catalog.engine(name)  # a wrong recipe is told also where no engine answers
    _require_digests(docker.engine())
    run.settings.require_directories()
    with run.stage("plan"):
        rendered = resolve(run, name)
        known = None if run.rebuild else recognise(run, rendered)
    if known is not None:
        return Outcome(known, built=False, checked=False)
    assert isinstance(rendered.plan, Plan)
    recipe = rendered.plan.recipe
    with named_lock(run.settings.cache_dir, recipe.name), workspace(run.settings.cache_dir) as work:
        known = None if run.rebuild else recognise(run, rendered)
        if known is not None:
            return Outcome(known, built=False, checked=False)
        found = None if run.rebuild else image_of_key(run, rendered)
        if found is not None:
            run.log(f"{recipe.name} is built already; running its smoke test again")
            return Outcome(_check_again(run, rendered, found, work), built=False)
        _require_disk(run, recipe.build.disk, f"the build of {recipe.name}")
        require_space(work, WORK_SPACE, f"the inputs of {recipe.name}")
        log = BuildLog(_log_path(run.settings.state_dir, recipe.name))
        try:
            return _build(run, rendered, work, log)
        finally:
            log.close()


def _require_digests(engine: docker.Engine) -> None:
    if not engine.containerd_store:
        raise WorldError(
            "the engine keeps its images in the classic store, without manifest digests",
            f"it uses {engine.driver}",
            'put {"features": {"containerd-snapshotter": true}} into /etc/docker/daemon.json and '
            "start it again",
        )


def _require_disk(run: Run, gib: float, what: str) -> None:
    """Raise ``SpaceError`` where the engine compiles, and has too little disk."""
    if buildx.builder(run.settings.buildx).is_engine:
        require_space(docker.engine().root, gib, what)


def _log_path(state: Path, name: str) -> Path:
    return state / "logs" / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S}.log"


def references_of(run: Run, rendered: Rendered) -> tuple[str, ...]:
    """The image's names; the first one says what it is made of and never moves."""
    assert isinstance(rendered.plan, Plan)
    recipe = rendered.plan.recipe
    repository = run.settings.repository(recipe.image.repository)
    own = f"{repository}:{recipe.version}-{rendered.short_key}"
    return (own, *(f"{repository}:{tag}" for tag in recipe.image.tags))


def own_tag(run: Run, rendered: Rendered) -> str:
    """The image's immutable tag, ``VERSION-KEY12``."""
    return references_of(run, rendered)[0].rpartition(":")[2]


def candidate_of(run: Run, rendered: Rendered) -> str:
    """The image's name until its verdict is good: nobody takes it for a finished image."""
    return f"{references_of(run, rendered)[0].rsplit(':', 1)[0]}:unverified-{rendered.short_key}"


def image_of_key(run: Run, rendered: Rendered) -> docker.Image | None:
    """The engine's image of this key, under the name that only a verified image gets."""
    return _of_key(references_of(run, rendered)[0], rendered)


def _of_key(reference: str, rendered: Rendered) -> docker.Image | None:
    found = docker.image(reference)
    return found if found and found.labels.get("builder.key") == rendered.key else None


def recognise(run: Run, rendered: Rendered) -> Record | None:
    """The record of this key, where the engine has the image and a good verdict holds for it."""
    assert isinstance(rendered.plan, Plan)
    references = references_of(run, rendered)
    found = image_of_key(run, rendered)
    if found is None:
        return None
    kept = record.read(run.settings.state_dir, rendered.plan.name, rendered.key)
    if kept is None or kept.digest != found.digest or not kept.verdict.good:
        return None
    if kept.contract != contract_of(rendered.plan.recipe) or kept.references != references:
        return None
    _give_names(references, found.digest)
    return kept


def _give_names(references: tuple[str, ...], digest: str) -> None:
    """Have every name of an image lead to it; the first one does."""
    for reference in references[1:]:
        named = docker.image(reference)
        if named is None or named.digest != digest:
            docker.tag(references[0], reference)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An image that is not verified yet; ``log`` is empty where this run did not build it."""

    reference: str
    digest: str
    labels: Mapping[str, str]
    log: str = ""


def _build(run: Run, rendered: Rendered, work: Path, log: BuildLog) -> Outcome:
    """Have a candidate in the engine, smoke-test it, and tag it where its verdict is good."""
    found = _candidate(run, rendered, work, log)
    name = rendered.plan.name
    run.log(f"smoke test of {name}")
    with run.stage("smoke"):
        subject = subject_of(run, rendered, found.reference, found.digest)
        verdict = smoke.check_image(subject, work)
    run.on_verdict(name, verdict)
    if not verdict.good:
        _write(run, rendered, (found.reference,), found.labels, verdict, found.log)
        raise smoke_error(name, found.reference, verdict)
    references = references_of(run, rendered)
    for reference in references:
        docker.tag(found.reference, reference)
    docker.untag(found.reference)
    kept = _write(run, rendered, references, found.labels, verdict, found.log)
    return Outcome(kept, built=bool(found.log))


def _candidate(run: Run, rendered: Rendered, work: Path, log: BuildLog) -> _Candidate:
    """The image to smoke-test: the one that is there, else a new one.

    What is there was baked elsewhere, or built by a run that ended before its smoke test; its key
    says what it is made of.
    """
    assert isinstance(rendered.plan, Plan)
    assert rendered.base is not None
    recipe, reference = rendered.plan.recipe, candidate_of(run, rendered)
    base_images = build_base(run, rendered.base, log)
    there = None if run.rebuild else _of_key(reference, rendered)
    if there is not None:
        run.log(f"{reference} is there, and not built again")
        return _Candidate(reference, there.digest, there.labels)
    packages = [*recipe.debian.build, *recipe.debian.runtime]
    if run.offline and packages:
        raise FetchError(
            f"{recipe.name} needs Debian packages: {', '.join(packages)}",
            "they are not mirrored, and nothing is fetched (--offline)",
            "build it where the network is, or have the base bring them",
        )
    run.log(f"building {recipe.name} ({rendered.short_key}); the full log is {log.path}")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    labels = labels_of(rendered, _base_labels(base_images), now)
    stages = {"image": reference}
    built = _build_stages(run, rendered, stages, labels, base_images, work, log)["image"]
    return _Candidate(reference, built.digest, labels, str(log.path))


def labels_of(rendered: Rendered, base: Mapping[str, str], created: str) -> dict[str, str]:
    """All labels of an image: what it is, what it stands on, and when it was made."""
    assert isinstance(rendered.plan, Plan)
    return rendered.plan.labels() | {"builder.key": rendered.key, **base, CREATED: created}


def labels_of_base(rendered: Rendered) -> dict[str, str]:
    """The labels of a base's images, by which they are known again."""
    return {"builder.base": rendered.plan.name, "builder.key": rendered.key}


def _base_labels(base_images: Mapping[str, str]) -> dict[str, str]:
    """What the image stands on, where it is not from scratch."""
    runtime = base_images.get("runtime")
    return {BASE_NAME: runtime, BASE_DIGEST: _digest(runtime)} if runtime else {}


def subject_of(run: Run, rendered: Rendered, reference: str, digest: str) -> smoke.Subject:
    """What an image must be, by its recipe.  Raises like ``_foundation``."""
    assert isinstance(rendered.plan, Plan)
    assert rendered.base is not None
    labels = rendered.plan.labels() | {"builder.key": rendered.key}
    recipe, stages = rendered.plan.recipe, rendered.base.plan.stages
    devel = base_image.image_of(rendered.base, "devel") if "devel" in stages else None
    foundation = _foundation(rendered)
    return smoke.Subject(reference, digest, recipe, labels, devel, run.gpu_test, foundation)


def _foundation(rendered: Rendered) -> Foundation | None:
    """What an image is laid over, as the engine has it; None where it is laid over nothing.

    Raises ``WorldError`` where the engine does not have it.
    """
    plan = rendered.plan
    if not isinstance(plan, Plan) or not plan.family.INHERITS:
        return None
    assert rendered.base is not None
    base = base_image.image_of(rendered.base, "runtime")
    found = docker.inspect_image(base)
    if found is None:
        raise WorldError(
            f"the engine does not have the base of {plan.name}",
            f"looked for {base}",
            f"build it: `builder build {plan.name}`",
        )
    return Foundation(len(found["RootFS"]["Layers"]), found["Config"] or {})


def _write(
    run: Run,
    rendered: Rendered,
    references: tuple[str, ...],
    labels: Mapping[str, str],
    verdict: Verdict,
    log: str,
) -> Record:
    """Keep the verdict on an image, with the labels that say what it is."""
    kept = _record(run, rendered, references, labels, verdict, log)
    record.write(run.settings.state_dir, kept)
    return kept


def _record(
    run: Run,
    rendered: Rendered,
    references: tuple[str, ...],
    labels: Mapping[str, str],
    verdict: Verdict,
    log: str,
) -> Record:
    assert isinstance(rendered.plan, Plan)
    return Record(
        recipe=rendered.plan.name,
        key=rendered.key,
        contract=contract_of(rendered.plan.recipe),
        references=references,
        digest=verdict.digest,
        verdict=verdict,
        created=labels.get(CREATED, ""),
        seconds=dict(run.seconds),
        base={labels.get(BASE_NAME, ""): labels.get(BASE_DIGEST, "")},
        log=log,
    )


def smoke_error(name: str, reference: str, verdict: Verdict) -> BuilderError:
    """The error that names every check that failed, or else every one that could not be tried."""
    kept = f"the image is {reference}: it is kept to look at"
    count = len(verdict.checks)
    if verdict.failures:
        what = f"{name} is built, and {len(verdict.failures)} of {count} checks failed"
        return SmokeError(what, _lines(verdict.failures), kept)
    what = f"{name} is built, and {len(verdict.untried)} of {count} checks could not be tried"
    return UntriedError(what, _lines(verdict.untried), kept)


def _lines(checks: Sequence[Check]) -> str:
    return "\n".join(
        f"{check.kind}: {check.subject}: expected {check.expected}; found {check.found}"
        for check in checks
    )


def _digest(reference: str) -> str:
    found = docker.image(reference)
    return found.digest if found else ""


def _build_stages(
    run: Run,
    rendered: Rendered,
    references: Mapping[str, str],
    labels: Mapping[str, str],
    base_images: Mapping[str, str],
    work: Path,
    log: BuildLog,
) -> dict[str, image_build.Built]:
    """Gather a plan's inputs and build the stages that ``references`` names."""
    name = rendered.plan.name
    builder = buildx.builder(run.settings.buildx)
    with run.stage(f"fetch {name}"):
        foundation = _foundation(rendered)
        there = base_images.get("devel") or base_images.get("runtime")
        bases = context.bases_at(base_images, work, seen=builder.is_engine)
        config = foundation.config if foundation else None
        laid_out = lay_out(run, rendered, bases, config, there, work)
    with run.stage(f"build {name}"):
        built = {
            stage: image_build.build(
                laid_out,
                stage,
                reference,
                labels,
                log,
                run.watch,
                builder,
                compression=rendered.plan.stages[stage],
                cache=layer_cache(run, rendered, stage),
                rebuild=run.rebuild and isinstance(rendered.plan, Plan),
            )
            for stage, reference in references.items()
        }
    if log.not_kept:
        run.log(f"the layers are not kept in {run.settings.layer_cache}: {log.not_kept}")
        log.not_kept = ""
    return built


def lay_out(
    run: Run,
    rendered: Rendered,
    bases: Mapping[str, str],
    inherited: Mapping[str, Any] | None,
    there: str | None,
    work: Path,
) -> context.Context:
    """Gather a plan's inputs below the empty directory ``work``, as its Dockerfile knows them.

    ``bases`` says where the images of its base are, ``inherited`` is the configuration of what it
    is laid over (None: of nothing), ``there`` an image of the engine that scripts of patches run
    in.  Raises like ``sources.gather``.
    """
    config = inherited or {}
    starts = {"entrypoint": config.get("Entrypoint") or [], "command": config.get("Cmd") or []}
    cache = run.settings.cache_dir
    materials = gather.Materials(cache, run.log, there, run.offline, starts)
    gathered = gather.gather(rendered.plan, suite_of(rendered), materials, work)
    told = {} if inherited is None else {"BASE_USER": config.get("User") or "root"}
    return context.assemble(rendered, gathered, bases, run.settings.jobs, work, told)


def layer_cache(run: Run, rendered: Rendered, stage: str) -> str:
    """Where the layers of a stage are kept on a registry; empty: nowhere.

    What is laid over a published image takes seconds, and would take all of that image along.
    What is built again for its own sake has layers that nobody else finds.
    """
    plan = rendered.plan
    if isinstance(plan, Plan):
        useless = plan.family.INHERITS or run.rebuild
    else:
        useless = plan.recipe.published is not None
    if not run.settings.layer_cache or run.offline or useless:
        return ""
    return f"{run.settings.layer_cache}:{plan.name}{'' if stage == 'image' else f'-{stage}'}"


def suite_of(rendered: Rendered) -> str | None:
    """The Debian suite that a plan stands on, or None."""
    below: Rendered | None = rendered
    while below is not None:
        root = getattr(below.plan.recipe, "root", None)
        if root is not None:
            return str(root.suite)
        below = below.base
    return None


def build_base(run: Run, rendered: Rendered, log: BuildLog) -> dict[str, str]:
    """Build what is missing of a base and of what it stands on; the images by stage."""
    plan = rendered.plan
    assert isinstance(plan, BasePlan)
    below = build_base(run, rendered.base, log) if rendered.base else {}
    images = {stage: base_image.image_of(rendered, stage) for stage in rendered.plan.stages}
    if all(base_image.in_engine(rendered, stage) for stage in images):
        return images
    cache = run.settings.cache_dir
    with named_lock(cache, f"base-{rendered.plan.name}", wait=run.log):
        missing = {
            stage: reference
            for stage, reference in images.items()
            if not base_image.in_engine(rendered, stage)
        }
        if missing and run.offline and plan.recipe.published is None:
            raise FetchError(
                f"the base {rendered.plan.name} ({rendered.short_key}) is not in the engine",
                "Debian's packages are not mirrored, and nothing is fetched (--offline)",
                "build it once where the network is: `builder build hello-sm120` does",
            )
        if missing:
            _require_disk(run, rendered.plan.recipe.build.disk, f"the base {rendered.plan.name}")
            run.log(f"building the base {rendered.plan.name} ({rendered.short_key})")
            labels = labels_of_base(rendered)
            if plan.recipe.published is not None:
                below = {"published": _fetched(run, plan)}
            with workspace(cache) as work:
                _build_stages(run, rendered, missing, labels, below, work, log)
    return images


def _fetched(run: Run, plan: BasePlan) -> str:
    """A published image, in the engine."""
    assert isinstance(plan.root, RegistryRoot)
    target = plan.platforms.target
    return published_image.fetch(
        plan.recipe, plan.root.digest, run.log, target=target, offline=run.offline
    )


def check_built(run: Run, rendered: Rendered, found: docker.Image, work: Path) -> Record:
    """Smoke-test an image that is there; the record keeps what is known of its build.

    Raises ``UntriedError`` when not even the image can be read.
    """
    assert isinstance(rendered.plan, Plan)
    references = references_of(run, rendered)
    before = record.read(run.settings.state_dir, rendered.plan.name, rendered.key)
    with run.stage("smoke"):
        subject = subject_of(run, rendered, references[0], found.digest)
        verdict = smoke.check_image(subject, work)
    run.on_verdict(rendered.plan.name, verdict)
    log = before.log if before else ""
    run.seconds = (dict(before.seconds) if before else {}) | run.seconds
    return _write(run, rendered, references, found.labels, verdict, log)


def check_pulled(run: Run, rendered: Rendered, reference: str, work: Path) -> Record:
    """Smoke-test an image that a registry gave the engine; its record, which is not written.

    Raises ``UntriedError`` when not even the image can be read, and like ``build_base``.
    """
    assert rendered.base is not None
    found = docker.image(reference)
    if found is None:
        raise UntriedError(f"the engine lost the image {reference}")
    log = BuildLog(_log_path(run.settings.state_dir, rendered.plan.name))
    try:
        build_base(run, rendered.base, log)
    finally:
        log.close()
    with run.stage("smoke"):
        verdict = smoke.check_image(subject_of(run, rendered, reference, found.digest), work)
    run.on_verdict(rendered.plan.name, verdict)
    return _record(run, rendered, references_of(run, rendered), found.labels, verdict, "")


def _check_again(run: Run, rendered: Rendered, found: docker.Image, work: Path) -> Record:
    """Smoke-test an image that is there, and tag it where its verdict is good."""
    kept = check_built(run, rendered, found, work)
    if not kept.verdict.good:
        raise smoke_error(kept.recipe, kept.references[0], kept.verdict)
    _give_names(kept.references, found.digest)
    return kept
