"""Which images are there, by recipe, key or name; checked against their recipes, the verdicts
recorded."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from builder.build import ccache
from builder.build import record as records
from builder.build.record import Record
from builder.build.roots import in_engine
from builder.checks import kernel_test, simulated
from builder.checks.check import CHECKS_VERSION, check_layers, run_programs
from builder.checks.device import card_for
from builder.checks.simulated import why_not
from builder.checks.subject import Context, DeviceTest, NumbersTest, Subject
from builder.checks.verdict import Verdict
from builder.core.errors import (
    BuilderError,
    RecipeError,
    SmokeError,
    UntriedError,
    WorldError,
    suggestion,
)
from builder.core.files import atomic_write, keep_newest, named_lock, workspace
from builder.core.log import CHECK_STAGE, Timings
from builder.core.platforms import GNU_TRIPLETS, Architecture, Platform, platform_of
from builder.docker import engine as docker
from builder.docker.containers import blobs_of
from builder.engines.families import complete
from builder.engines.layout import BASE_DIGEST, BASE_NAME, LABEL_KEY, LABEL_RECIPE, REVISION
from builder.image.contents import Contents, ReadOptions, read_contents
from builder.plan.inputs import GitCommit
from builder.plan.plan import Plan
from builder.presets import cards, is_preset
from builder.presets import catalog as preset_files
from builder.presets.catalog import of_recipe
from builder.presets.schema import Preset
from builder.recipes.catalog import known_exceptions
from builder.recipes.probes import Accept
from builder.recipes.schema import Recipe
from builder.sources import gather
from builder.sources.git import COMMIT
from simulator.ledger import Ledger
from simulator.selection import Capability

if TYPE_CHECKING:
    from builder.build.build import BuildSession

# The sources of a comparison of numbers: the tests of the image's tree, and the kept PTX.

FOLDER = "numbers"  # in the cache: compiled tests, by build key and by ``program_key``
KEPT = 60  # programs; each has some megabytes


def test_of(
    plan: Plan, image: docker.Image, context: Context, session: BuildSession
) -> NumbersTest | str | BuilderError:
    """The sources of the comparison of an image's numbers, as ``Context.numbers`` has them."""
    devel = plan.base.references.get("devel")
    if not context.wants_numbers:
        return "its server is not tried on a simulated card"
    if devel is None or not plan.has_nvcc:
        return "the base has no nvcc: there is no PTX to compute from"
    work = Path(tempfile.mkdtemp(prefix="numbers-", dir=context.work))
    work.chmod(0o755)  # the image's own user reads the PTX
    try:
        return _numbers_test(plan, devel, image, session, context.contents, work)
    except BuilderError as error:
        return error


def _numbers_test(
    plan: Plan,
    devel: str,
    image: docker.Image,
    session: BuildSession,
    contents: Contents,
    work: Path,
) -> NumbersTest | str:
    settings, cache = session.settings, session.settings.cache_dir
    kept_work = work / "kept"
    kept_work.mkdir()
    kept = ccache.keep(plan, image, settings, kept_work)
    if kept is None or not kept.known:
        return (
            "its PTX is not known, so its kernels cannot be computed: "
            f"`builder ptx {plan.name} --compile` compiles it again"
        )
    texts = work / "ptx"
    ccache.unpack(kept.file, texts)
    texts.chmod(0o755)
    if not kernel_test.libraries(contents):
        return NumbersTest(texts, "the image has no library of ggml to call from outside")
    folder, theirs, tree = cache / FOLDER, plan.recipe.ggml and plan.recipe.ggml.tests, plan
    if theirs:
        tree = replace(plan, source=GitCommit(theirs.git, theirs.commit), patches=())
    binary = folder / f"{tree.key[:12]}-{kernel_test.program_key()}"
    with named_lock(cache, f"numbers-{plan.key[:12]}"):
        if not binary.exists():
            servers = settings.debian_servers
            options = gather.GatherOptions(cache, session.log, devel, session.offline, servers)
            tests = kernel_test.in_tree(gather.source_of(tree, options, work)[0])
            if tests is None:
                why = "; [ggml.tests] may name a ggml that has it" * (plan.recipe.ggml is not None)
                return NumbersTest(texts, f"the source tree has no {kernel_test.SOURCE}{why}")
            if theirs:
                (own := work / "own").mkdir()
                wrong = kernel_test.other_headers(tests, gather.source_of(plan, options, own)[0])
                if wrong:
                    return NumbersTest(texts, f"[ggml.tests] is of another ggml: {wrong} differs")
            session.log(f"compiling {kernel_test.PROGRAM} of the source tree of {plan.title}")
            made = kernel_test.compiled(tests, image.reference, contents, devel, work)
            with atomic_write(binary) as waiting:
                waiting.write_bytes(made.read_bytes())
            binary.chmod(0o755)  # the image's own user runs it
            keep_newest(folder, KEPT)
    return NumbersTest(texts, binary)


def contract_of(plan: Plan) -> str:
    """sha256 (hex) over the checks that an image must pass: its recipe's, and its presets'."""
    parts = {"probe", "patch", "cuda", "ggml", "image", "serve", "budget", "accept", "start"}
    parts.add("artifact")
    # The recipe is for one platform: its code and its probes have been chosen.
    chosen: dict[str, Any] = {
        "cuda": {"arm64"},
        "probe": {"__all__": {"platform"}},
        "patch": {"__all__": {"probe": {"platform"}, "no_probe": True}},
    }
    contract = plan.recipe.model_dump(mode="json", include=parts, exclude=chosen)
    del contract["budget"]["update"], contract["budget"]["fixed"]  # promises of the tags alone
    contract["accept"] = [e for e in contract["accept"] if e["check"] != "vulnerabilities"]
    if plan.platform != "linux/amd64":
        contract["platform"] = plan.platform
    contract["checks"] = CHECKS_VERSION
    known = [each for each in known_exceptions(plan.recipe.family) if each.check != "numbers"]
    contract["accept"] += [each.model_dump(mode="json") for each in known]
    presets = of_recipe(plan.file.parents[1], plan.name)
    contract["presets"] = {name: each.identity for name, each in presets.items()}
    return hashlib.sha256(json.dumps(contract, sort_keys=True).encode()).hexdigest()


def extended_image(plan: Plan) -> docker.Image | None:
    """The image of the engine that an image extends; None where it extends none."""
    if not plan.extends_base:
        return None
    name = plan.base.references["runtime"]
    found = docker.image(name)
    if found is None:
        raise WorldError(
            f"Docker does not have the base of {plan.name}",
            f"looked for {name}",
            f"build it: `builder build {plan.name}`",
        )
    return found


def subject_of(plan: Plan, image: docker.Image, session: BuildSession) -> Subject:
    """An image of the engine and all that its recipe asks of it."""
    recipe, cache = plan.recipe, session.settings.cache_dir
    root = plan.file.parents[1]
    presets: dict[str, Preset] = of_recipe(root, plan.name)
    card = card_for(root, recipe, session.card)
    theirs = cards.known(root, {preset.card for preset in presets.values()})
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
        records.least_errors(session.settings.state_dir),
    )


def verdict_of(
    plan: Plan,
    image: docker.Image,
    subject: Subject,
    session: BuildSession,
    work: Path,
    before_programs: Callable[[], None] = lambda: None,
) -> Verdict:
    """All checks of an image; ``before_programs`` is called before its first program is run."""
    context = check_layers(subject, work)
    before_programs()
    context.numbers = test_of(plan, image, context, session)
    return run_programs(context)


def compile_simulators(plan: Plan, session: BuildSession) -> None:
    """Compile the simulated cards that the check of an image will need."""
    cache = session.settings.cache_dir
    if plan.devel is not None and session.simulated:
        for computes in simulators(plan):
            simulated.libraries(cache, plan.devel, session.log, computes=computes)


def simulators(plan: Plan) -> list[bool]:
    """The simulated cards that a check needs: False for one that counts kernels, True for one that
    computes them, which takes most of the time to compile."""
    serve = plan.family.server_of(plan.recipe)
    if plan.devel is None or why_not(plan.recipe, serve, plan.platform, extends=False):
        return []
    compares = plan.has_nvcc and plan.family.compiles_ggml(plan.recipe, plan.platforms)
    return [False, True] if compares else [False]


def check(
    plan: Plan,
    image: docker.Image,
    session: BuildSession,
    seconds: Timings,
    work: Path,
    before_programs: Callable[[], None] = lambda: None,
) -> Record:
    """Check an image, and add the time to its build's ``seconds``; the record is not written."""
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
    bad, what = verdict.untried, "could not be run"
    kind: type[BuilderError] = UntriedError
    if verdict.failures:
        bad, what, kind = verdict.failures, "failed", SmokeError
        kept += ACCEPT if any(check.kind in ACCEPTABLE for check in bad) else ""
    lines = (f"{check.kind}: {check.subject}: {check.comparison}" for check in bad)
    what = f"{name} is built, and {len(bad)} of {len(verdict.checks)} checks {what}"
    return kind(what, "\n".join(lines), kept)


# Images found by recipe, key or name, checked again, or read.

REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


@dataclass(frozen=True, slots=True)
class Images:
    """Which images of the engine a session's plans and names mean, and whether they are there."""

    session: BuildSession

    def of(self, plan: Plan) -> tuple[docker.Image | None, Record | None]:
        """The image of a plan's key under its immutable tag, and its record if it is verified."""
        found = in_engine(plan, plan.references[0])
        return found, self.verified(plan, found) if found is not None else None

    def record(self, plan: Plan, image: docker.Image) -> Record | None:
        """The record of this very image; another one under the key says nothing about it."""
        kept = records.read(self.session.settings.state_dir, plan.name, plan.key)
        return kept if kept is not None and kept.digest == image.digest else None

    def verified(self, plan: Plan, image: docker.Image) -> Record | None:
        """The record of a plan's image, if its verdict is good and holds for today's contract."""
        kept = self.record(plan, image)
        if kept is None or not kept.verdict.good:
            return None
        current = (contract_of(plan), plan.references)
        return kept if (kept.contract, kept.references) == current else None

    def require(self, plan: Plan) -> docker.Image:
        """The image of a plan's key; raises ``WorldError`` if the engine does not have it."""
        found = in_engine(plan, plan.references[0])
        if found is not None:
            return found
        others = [
            f"{name} is of another state of it, mostly an older one: its build key is {key[:12]}"
            for name in plan.references[1:]
            if (there := docker.image(name)) and (key := there.labels.get(LABEL_KEY))
        ]
        raise WorldError(
            f"Docker has no image of the current recipe {plan.title}",
            "\n".join([f"looked for {plan.references[0]}", *others]),
            f"build it: `builder build {plan.name}`",
        )

    def candidate(self, plan: Plan) -> docker.Image | None:
        """The image of a plan's key without a verdict, which a stopped run of this machine built.

        Any registry can serve an image under that name, with the label of the key.
        """
        found = in_engine(plan, plan.candidate)
        if found is None:
            return None
        if found.digest != self._built_digest(plan):
            self.session.log(f"{plan.candidate} is not known to be built here; it is built again")
            return None
        self.session.log(f"{plan.candidate} exists; it is not built again")
        return found

    def name(self, plan: Plan, image: docker.Image) -> None:
        """Point every name of a plan's image to it, and forget its candidate."""
        is_candidate = image.reference == plan.candidate  # its names may be minutes old
        for reference in plan.references:
            if is_candidate or reference not in image.names:
                docker.tag(image.reference, reference)
        if is_candidate:
            docker.untag(plan.candidate)

    def is_recipe(self, name: str) -> bool:
        """Whether a name means a recipe, or an engine that has recipes."""
        return name in self._recipes()

    def named(self, target: str, platform: Platform | None = None) -> docker.Image:
        """The image of a recipe, for a platform, as it is now, or any image of the engine."""
        if self.is_recipe(target):
            return self.require(self.session.resolve(target, platform))
        if is_preset(target):
            recipe = preset_files.load(self.session.catalog).preset(target).preset.recipe
            raise RecipeError(
                f"{target} is a preset, neither a recipe nor an image",
                f"its recipe is {recipe}",
                "name the recipe",
            )
        # A name of a letter and so on, or a digest: nothing that docker would take for an option.
        found = docker.image(target) if REFERENCE.fullmatch(target) else None
        if found is not None:
            return found
        what = f"{target} is neither a recipe nor an image that Docker has"
        hint = "`builder list` shows the recipes, `docker image ls` the images"
        if REFERENCE.fullmatch(target) and {"/", ":"} & {*target}:
            hint = f"if a registry has this image, get it: `docker pull {target}`"
        else:
            what += suggestion(target, sorted(self._recipes()))
        raise WorldError(what, hint=hint)

    def served(self, target: str) -> tuple[docker.Image, Recipe]:
        """The image of a recipe, or an image whose label names its recipe; and that recipe.

        A recipe with several images: the one for the engine's machine, unless the options name a
        platform.  Raises ``WorldError`` where there is no such image, ``RecipeError`` for a preset,
        and where no recipe is named, or the catalog lacks it.
        """
        session = self.session
        if self.is_recipe(target):
            platforms = session.catalog.engine(target).recipe.platform
            own = platform_of(docker.engine().architecture)
            several = session.platform is None and len(platforms) > 1 and own in platforms
            plan = session.resolve(target, own if several else None)
            return self.require(plan), plan.recipe
        found = self.named(target)
        entry = session.catalog.engine(self.recipe_in_label(target, found))
        return found, complete(entry.recipe.on(found.platform))

    def recipe_in_label(self, target: str, found: docker.Image) -> str:
        """The recipe that an image names; ``RecipeError`` where the catalog has none of it."""
        named = recipe_label(target, found)
        if named not in self.session.catalog.engines:
            raise RecipeError(
                f"the recipe of the image {target} is not in the catalog",
                f"its label {LABEL_RECIPE} names {named}; the catalog is "
                f"{self.session.catalog.root}",
                "name the catalog that has this recipe with --catalog DIR",
            )
        return named

    def compiled_on(self, plan: Plan, key: str) -> Architecture | None:
        """The architecture that the image of this ``key`` was compiled on; None: another reason."""
        (other,) = {*GNU_TRIPLETS} - {plan.platforms.build}
        settings = self.session.settings.model_copy(update={"compile_on": other})
        try:
            found = replace(self.session, settings=settings).resolve(plan.name, plan.platform)
        except BuilderError:  # a family that is not cross-compiled
            return None
        return other if found.key == key else None

    def check(
        self,
        plan: Plan,
        image: docker.Image,
        work: Path,
        before_programs: Callable[[], None] = lambda: None,
    ) -> Record:
        """Check an image that an earlier run built; its record keeps the facts of that build."""
        before = self.record(plan, image)
        seconds = Timings(before.seconds if before else {})
        found = check(plan, image, self.session, seconds, work, before_programs)
        if before is not None:
            return found.with_build_of(before)
        return found.model_copy(update={"built_here": image.digest == self._built_digest(plan)})

    def check_again(self, plan: Plan, image: docker.Image, work: Path) -> Record:
        """Check an image that has its names, and record the verdict.

        A good verdict on the same image stays where a check could not be run this time.
        """
        good = self.verified(plan, image)
        kept = self.check(plan, image, work)
        if good is not None and kept.verdict.untried and not kept.verdict.failures:
            self.session.log("a check could not be run: the earlier good verdict stays recorded")
        else:
            records.write(self.session.settings.state_dir, kept)
        return kept

    def _built_digest(self, plan: Plan) -> str:
        return records.candidate_digest(self.session.settings.state_dir, plan.name, plan.key)

    def _recipes(self) -> set[str]:
        """The names of recipes, and the names of their engines."""
        entries = self.session.catalog.engines
        return {*entries, *(entry.recipe.engine for entry in entries.values() if entry.recipe)}


def recipe_label(target: str, found: docker.Image) -> str:
    """The recipe that the label of an image names."""
    named = found.labels.get(LABEL_RECIPE)
    if not named:
        raise RecipeError(
            f"the image {target} names no recipe",
            f"it has no label {LABEL_RECIPE}: builder did not build it",
            "name a recipe, or an image that builder built",
        )
    return named


@dataclass(frozen=True, slots=True)
class CheckedImage:
    """An image of the engine with its verdict; ``name`` is its recipe's, or its own."""

    name: str
    reference: str
    verdict: Verdict
    record: Record | None = None

    def as_json(self) -> dict[str, Any]:
        """The verdict with all that is known of the image, as JSON data."""
        if self.record is not None:
            return self.record.as_json()
        return {"reference": self.reference, "verdict": asdict(self.verdict)}


def smoke_test(session: BuildSession, target: str) -> tuple[CheckedImage, ...]:
    """Smoke-test the images of a recipe again, or any image of the engine.

    A ``target`` that is no recipe is an image, which is checked against the recipe that its label
    names, for its platform, else for the first one; without one, only the checks for every image
    run.
    """
    images, cache = Images(session), session.settings.cache_dir
    session.settings.require_directories()
    if images.is_recipe(target):
        checked = []
        for plan, image in [(plan, images.require(plan)) for plan in session.plans(target)]:
            with workspace(cache) as work:
                kept = images.check_again(plan, image, work)
            checked.append(CheckedImage(plan.title, kept.references[0], kept.verdict, kept))
        return tuple(checked)
    found = images.named(target)
    named, key = found.labels.get(LABEL_RECIPE, ""), found.labels.get(LABEL_KEY, "")
    with workspace(cache) as work:
        if named in session.catalog.engines:
            platforms = session.catalog.engine(named).recipe.platform
            same = (platform for platform in platforms if platform == found.platform)
            plan = session.resolve(named, next(same, platforms[0]))
            if key != plan.key:
                other = images.compiled_on(plan, key)
                session.log(
                    f"the image was compiled on {other}, not on {plan.platforms.build}"
                    if other
                    else f"the image was not built from the current recipe {plan.name}"
                )
            subject = subject_of(plan, found, session)
            subject = replace(subject, labels={**subject.labels, LABEL_KEY: key})
            verdict = verdict_of(plan, found, subject, session, work)
        else:
            session.log("no recipe describes this image: only the checks for every image are made")
            gpu_test = session.gpu_test
            subject = Subject(found.reference, found.digest, gpu_test=gpu_test, cache=cache)
            verdict = run_programs(check_layers(subject, work))
    session.reporter.on_verdict(target, verdict)
    return (CheckedImage(target, target, verdict),)


def verified(session: BuildSession, name: str) -> tuple[Plan, Record]:
    """A recipe as it is now, and the record of its verified image."""
    images, plan = Images(session), session.resolve(name)
    found, kept = images.of(plan)
    if found is None or kept is None:
        raise WorldError(
            f"there is no verified image of the current recipe {plan.title}",
            f"looked for {plan.references[0]}, and for its record",
            f"build it: `builder build {plan.name}`",
        )
    images.name(plan, found)
    return plan, kept


def ledger_of(session: BuildSession, target: str, card: Capability) -> Ledger:
    """Every kernel that a card finds in an image of a recipe or of the engine, which is not run."""
    cache = session.settings.cache_dir
    session.settings.require_directories()
    image = Images(session).named(target)
    with workspace(cache) as work:
        blobs = blobs_of(image.reference, work, image.digest)
        contents = read_contents(blobs, work, ReadOptions(card=card), cache)
    libraries = sorted(contents.libraries(), key=lambda library: library.path)
    if not libraries:
        raise UntriedError(
            f"{target} has no GPU code",
            "no library or program in it has a fat binary",
            "an engine that compiles its kernels when it runs has none",
        )
    return Ledger(target, image.digest, card, tuple(libraries))
