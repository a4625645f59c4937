"""What is there already, and which: images found by recipe, key or name, checked again, or read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from builder.build import record as records
from builder.build.record import Record
from builder.build.roots import in_engine
from builder.build.session import BuildSession
from builder.build.verify import check, contract_of, subject_of, verdict_of
from builder.checks.check import check_image
from builder.checks.subject import Subject
from builder.checks.verdict import Verdict
from builder.core.errors import BuilderError, RecipeError, UntriedError, WorldError, suggestion
from builder.core.files import workspace
from builder.core.log import Timings
from builder.core.platforms import GNU_TRIPLETS, Architecture, Platform, platform_of
from builder.docker import engine as docker
from builder.docker.blobs import blobs_of
from builder.engines.families import complete
from builder.engines.layout import LABEL_KEY, LABEL_RECIPE
from builder.image.contents import ReadOptions, read_contents
from builder.plan.plan import Plan
from builder.presets import catalog as preset_files
from builder.presets import is_preset
from builder.recipes.schema import Recipe
from simulator.ledger import Ledger
from simulator.selection import Capability

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
        """The image of a recipe as it is now, or any image of the engine.

        ``platform`` chooses among the images of a recipe.  Raises ``WorldError`` where there
        is no such image, ``RecipeError`` for a preset.
        """
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
        if REFERENCE.fullmatch(target) and {"/", ":"} & {*target}:
            raise WorldError(
                what, hint=f"if a registry has this image, get it: `docker pull {target}`"
            )
        raise WorldError(
            what + suggestion(target, sorted(self._recipes())),
            hint="`builder list` shows the recipes, `docker image ls` the images",
        )

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
        named = self.recipe_in_label(target, found)
        return found, complete(session.catalog.engine(named).recipe.on(found.platform))

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
        """The architecture that an image of the recipe with this ``key`` was compiled on.

        None where the key differs for another reason.
        """
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
        """Check an image that an earlier run built; its record keeps the facts of that build.

        ``before_programs`` is as for ``check_image``.  Raises like ``check``.
        """
        before = self.record(plan, image)
        seconds = Timings(before.seconds if before else {})
        found = check(plan, image, self.session, seconds, work, before_programs)
        if before is not None:
            return found.with_build_of(before)
        return found.model_copy(update={"built_here": image.digest == self._built_digest(plan)})

    def check_again(self, plan: Plan, image: docker.Image, work: Path) -> Record:
        """Check an image that has its names, and record the verdict.

        A good verdict on the same image stays recorded where a check could not be run this time:
        that says nothing about the image.
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
    names; without one, only the checks for every image run.  Raises
    ``WorldError`` where the engine does not have an image, ``RecipeError`` for a preset.
    """
    images, cache = Images(session), session.settings.cache_dir
    session.settings.require_directories()
    if images.is_recipe(target):
        there = [(plan, images.require(plan)) for plan in session.plans(target)]
        checked = []
        for plan, image in there:
            with workspace(cache) as work:
                kept = images.check_again(plan, image, work)
            checked.append(CheckedImage(plan.title, kept.references[0], kept.verdict, kept))
        return tuple(checked)
    found = images.named(target)
    named = found.labels.get(LABEL_RECIPE, "")
    with workspace(cache) as work:
        if named in session.catalog.engines:
            verdict = _verdict_on(images, found, named, work)
        else:
            session.log("no recipe describes this image: only the checks for every image are made")
            gpu_test = session.gpu_test
            subject = Subject(found.reference, found.digest, gpu_test=gpu_test, cache=cache)
            verdict = check_image(subject, work)
    session.reporter.on_verdict(target, verdict)
    return (CheckedImage(target, target, verdict),)


def _verdict_on(images: Images, found: docker.Image, recipe: str, work: Path) -> Verdict:
    """The checks against the recipe as it is now: for the image's platform, else for the first."""
    session = images.session
    platforms = session.catalog.engine(recipe).recipe.platform
    same = (platform for platform in platforms if platform == found.platform)
    plan = session.resolve(recipe, next(same, platforms[0]))
    key = found.labels.get(LABEL_KEY, "")
    if key != plan.key:
        other = images.compiled_on(plan, key)
        session.log(
            f"the image was compiled on {other}, not on {plan.platforms.build}"
            if other
            else f"the image was not built from the current recipe {plan.name}"
        )
    subject = subject_of(plan, found, session)
    subject = replace(subject, labels={**subject.labels, LABEL_KEY: key})
    return verdict_of(plan, found, subject, session, work)


def verified(session: BuildSession, name: str) -> tuple[Plan, Record]:
    """A recipe as it is now, and the record of its verified image.

    Raises ``WorldError`` where there is none.
    """
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
    """Every kernel that a card finds in the image of a recipe, or in any image of the engine.

    The image is read, not run.  Raises ``WorldError`` where there is no such image,
    ``UntriedError`` where it, or the GPU code of a file, cannot be read, or there is none.
    """
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
