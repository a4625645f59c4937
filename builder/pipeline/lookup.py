"""Images that are there already: found by recipe or by name, checked again, served, or read."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from builder.contents import reading
from builder.contents.options import ReadOptions
from builder.errors import BuilderError, RecipeError, UntriedError, WorldError
from builder.families import complete
from builder.families.layout import LABEL_KEY, LABEL_RECIPE
from builder.images.build import built_image, ensure_tags, find_image
from builder.kernels.ledger import Ledger
from builder.kernels.selection import Capability
from builder.pipeline.check import check_again, find_verified, subject_of, verdict_of
from builder.pipeline.session import BuildSession
from builder.plan.plan import Plan
from builder.platforms import GNU_TRIPLETS, Architecture, Platform, platform_of
from builder.presets import catalog as preset_files
from builder.presets.short_names import is_preset
from builder.recipes.parse import suggestion
from builder.recipes.schema import Recipe
from builder.records.record import Record
from builder.smoke.check import check_image
from builder.smoke.subject import Subject
from builder.smoke.verdict import Verdict
from builder.tools.docker import engine as docker
from builder.tools.docker.blobs import blobs_of
from builder.tools.files import workspace

REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


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
    session.settings.require_directories()
    if is_recipe(session, target):
        there = [(plan, built_image(plan)) for plan in session.plans(target)]
        return tuple(_check_again(session, plan, found) for plan, found in there)
    found = _any_image(session, target)
    named = found.labels.get(LABEL_RECIPE, "")
    known = named in session.catalog.engines
    with workspace(session.settings.cache_dir) as work:
        verdict = _verdict_on(session, found, named if known else None, work)
    session.reporter.on_verdict(target, verdict)
    return (CheckedImage(target, target, verdict),)


def is_recipe(session: BuildSession, name: str) -> bool:
    """Whether a name means a recipe, or an engine that has recipes."""
    return name in _recipes(session)


def _recipes(session: BuildSession) -> set[str]:
    """The names of recipes, and the names of their engines."""
    engines = {entry.recipe.engine for entry in session.catalog.engines.values() if entry.recipe}
    return {*session.catalog.engines, *engines}


def _verdict_on(
    session: BuildSession, found: docker.Image, recipe: str | None, work: Path
) -> Verdict:
    if recipe is None:
        session.log("no recipe describes this image: only the checks for every image are made")
        gpu_test, cache = session.gpu_test, session.settings.cache_dir
        subject = Subject(found.reference, found.digest, gpu_test=gpu_test, cache=cache)
        return check_image(subject, work)
    plan = image_for(session, recipe, found)
    key = found.labels.get(LABEL_KEY, "")
    if key != plan.key:
        other = compiled_on(session, plan, key)
        session.log(
            f"the image was compiled on {other}, not on {plan.platforms.build}"
            if other
            else f"the image was not built from the current recipe {plan.name}"
        )
    subject = subject_of(plan, found, session)
    subject = replace(subject, labels={**subject.labels, LABEL_KEY: key})
    return verdict_of(plan, found, subject, session, work)


def compiled_on(session: BuildSession, plan: Plan, key: str) -> Architecture | None:
    """The architecture that an image of the recipe with this ``key`` was compiled on.

    None where the key differs for another reason.
    """
    (other,) = {*GNU_TRIPLETS} - {plan.platforms.build}
    settings = session.settings.model_copy(update={"compile_on": other})
    try:
        found = replace(session, settings=settings).resolve(plan.name, plan.platform)
    except BuilderError:  # a family that is not cross-compiled
        return None
    return other if found.key == key else None


def verified(session: BuildSession, name: str) -> tuple[Plan, Record]:
    """A recipe as it is now, and the record of its verified image.

    Raises ``WorldError`` where there is none.
    """
    plan = session.resolve(name)
    found = find_image(plan)
    kept = find_verified(plan, found, session.settings)
    if found is None or kept is None:
        raise WorldError(
            f"there is no verified image of the current recipe {plan.title}",
            f"looked for {plan.references[0]}, and for its record",
            f"build it: `builder build {plan.name}`",
        )
    ensure_tags(plan, plan.references[0], found.names)
    return plan, kept


def served(session: BuildSession, target: str) -> tuple[docker.Image, Recipe]:
    """The image of a recipe, or an image whose label names its recipe; and that recipe.

    A recipe with several images: the one for the engine's machine, unless the options name a
    platform.  Raises ``WorldError`` where there is no such image, ``RecipeError`` for a preset, and
    where no recipe is named, or the catalog lacks it.
    """
    if is_recipe(session, target):
        platforms = session.catalog.engine(target).recipe.platform
        own = platform_of(docker.engine().architecture)
        several = session.platform is None and len(platforms) > 1 and own in platforms
        plan = session.resolve(target, own if several else None)
        return built_image(plan), plan.recipe
    found = _any_image(session, target)
    named = _recipe_in_label(session, target, found)
    return found, complete(session.catalog.engine(named).recipe.on(found.platform))


def image_for(session: BuildSession, recipe: str, found: docker.Image) -> Plan:
    """The image of a recipe, as it is now, for the platform of an image of the engine.

    Where the recipe has none for it, the first one.  Raises like ``BuildSession.resolve``.
    """
    platforms = session.catalog.engine(recipe).recipe.platform
    same = (platform for platform in platforms if platform == found.platform)
    return session.resolve(recipe, next(same, platforms[0]))


def recipe_label(target: str, found: docker.Image) -> str:
    """The recipe that the label of an image names; raises ``RecipeError`` where it has none."""
    named = found.labels.get(LABEL_RECIPE)
    if not named:
        raise RecipeError(
            f"the image {target} names no recipe",
            f"it has no label {LABEL_RECIPE}: builder did not build it",
            "name a recipe, or an image that builder built",
        )
    return named


def _recipe_in_label(session: BuildSession, target: str, found: docker.Image) -> str:
    """The recipe that an image names; raises ``RecipeError`` where the catalog has none of it."""
    named = recipe_label(target, found)
    if named not in session.catalog.engines:
        raise RecipeError(
            f"the recipe of the image {target} is not in the catalog",
            f"its label {LABEL_RECIPE} names {named}; the catalog is {session.catalog.root}",
            "name the catalog that has this recipe with --catalog DIR",
        )
    return named


def located(session: BuildSession, target: str, platform: Platform | None = None) -> docker.Image:
    """The image of a recipe as it is now, or any image of the engine.

    ``platform`` chooses among the images of a recipe.  Raises ``WorldError`` where there
    is no such image, ``RecipeError`` for a preset.
    """
    if is_recipe(session, target):
        return built_image(session.resolve(target, platform))
    return _any_image(session, target)


def ledger_of(session: BuildSession, target: str, card: Capability) -> Ledger:
    """Every kernel that a card finds in the image of a recipe, or in any image of the engine.

    The image is read, not run.  Raises ``WorldError`` where there is no such image,
    ``UntriedError`` where it, or the GPU code of a file, cannot be read, or there is none.
    """
    session.settings.require_directories()
    image = located(session, target)
    with workspace(session.settings.cache_dir) as work:
        blobs = blobs_of(image.reference, work, image.digest)
        options, cache = ReadOptions(card=card), session.settings.cache_dir
        contents = reading.read(blobs, work, options, cache)
    libraries = sorted(contents.libraries(), key=lambda library: library.path)
    if not libraries:
        raise UntriedError(
            f"{target} has no GPU code",
            "no library or program in it has a fat binary",
            "an engine that compiles its kernels when it runs has none",
        )
    return Ledger(target, image.digest, card, tuple(libraries))


def _any_image(session: BuildSession, reference: str) -> docker.Image:
    if is_preset(reference):
        recipe = preset_files.load(session.catalog).preset(reference).preset.recipe
        raise RecipeError(
            f"{reference} is a preset, neither a recipe nor an image",
            f"its recipe is {recipe}",
            "name the recipe",
        )
    # A name of a letter and so on, or a digest: nothing that docker would take for an option.
    found = docker.image(reference) if REFERENCE.fullmatch(reference) else None
    if found is None:
        what = f"{reference} is neither a recipe nor an image that Docker has"
        if REFERENCE.fullmatch(reference) and {"/", ":"} & {*reference}:
            raise WorldError(
                what, hint=f"if a registry has this image, get it: `docker pull {reference}`"
            )
        raise WorldError(
            what + suggestion(reference, sorted(_recipes(session))),
            hint="`builder list` shows the recipes, `docker image ls` the images",
        )
    return found


def _check_again(session: BuildSession, plan: Plan, found: docker.Image) -> CheckedImage:
    with workspace(session.settings.cache_dir) as work:
        kept = check_again(plan, found, session, work)
    return CheckedImage(plan.title, kept.references[0], kept.verdict, kept)
