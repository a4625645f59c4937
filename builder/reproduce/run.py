"""Build an image again and compare it: the one of a recipe, of a base, or of a registry's tag."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from builder.compare.images import compare_images
from builder.errors import WorldError
from builder.images.compare import AMD64, pulled_if_remote
from builder.images.log import new_log
from builder.images.lookup import built_image, is_recipe, located
from builder.images.session import ActiveBuild, BuildSession
from builder.plan.rendered import BaseImage, EngineImage
from builder.reproduce.published import image_of
from builder.reproduce.rebuild import Rebuilder, rebuilding
from builder.reproduce.results import Reproduction, Result
from builder.tools.docker import buildx
from builder.tools.docker import engine as docker
from builder.tools.docker.blobs import blobs_of
from builder.tools.files import named_lock, workspace
from builder.tools.layers import damage_reported, manifest_of


def reproduce(session: BuildSession, target: str, *, with_bases: bool = False) -> Result:
    """Build an image again without caches, and compare digests; where they differ, the contents.

    ``target`` is a recipe or a base whose images Docker has, or an image: Docker's, else a
    registry's, which is pulled and removed again.  An engine is built on the bases that Docker has,
    or ``with_bases`` on ones that are built again.

    Raises ``WorldError`` where the image to compare with is not there; ``RecipeError`` where no
    recipe has its key (``image_of``); else like a build, and like ``compare_images``.  Waits
    where another run of this machine reproduces an image.
    """
    session.settings.require_directories()
    active = ActiveBuild(session.options, session.reporter)
    with ExitStack() as stack:
        # Two recipes may have the same bases, which have one name each in Docker.
        stack.enter_context(named_lock(session.settings.cache_dir, "reproduce", session.log))
        work = stack.enter_context(workspace(session.settings.cache_dir))
        if target in session.catalog.bases and not is_recipe(session, target):
            image: EngineImage | BaseImage = session.resolve_base(target)
        else:
            platform = session.options.platform or AMD64
            stack.enter_context(pulled_if_remote(session, target, platform))
            image = _described(session, target, work)
        name = image.plan.name
        log = stack.enter_context(new_log(session.settings.state_dir, f"reproduce-{name}"))
        rebuilder = stack.enter_context(rebuilding(active, log))
        builder = buildx.builder(session.settings.buildx).name
        if isinstance(image, BaseImage):
            originals = _originals(image)
            rebuilder.base(image)
            found = [_compared(original, rebuilder, work) for original in originals]
            return Result(target, tuple(found), builder, ())
        original = built_image(image) if is_recipe(session, target) else located(session, target)
        new = rebuilder.engine(image, with_bases=with_bases)
        result = _reproduction(name, original, new, work)
        return Result(target, (result,), builder, _taken(image, rebuilder))


def _described(session: BuildSession, target: str, work: Path) -> EngineImage:
    """The plan of a recipe's image, or the one that an image was built from."""
    if is_recipe(session, target):
        return session.resolve(target)
    _, found = located(session, target)
    return image_of(session, target, found, work)


def _originals(image: BaseImage) -> list[tuple[BaseImage, str, docker.Image]]:
    """The images of a base and of those below it, with their stages; raises ``WorldError``."""
    found = []
    for base in reversed([*image.chain()]):
        for stage, reference in base.references.items():
            original = docker.image(reference)
            if original is None:
                raise WorldError(
                    f"Docker has no image {reference} to compare with",
                    f"it is the stage {stage} of the base {base.plan.name}",
                    f"build a recipe that extends {image.plan.name}: `builder build RECIPE`",
                )
            found.append((base, stage, original))
    return found


def _compared(
    original: tuple[BaseImage, str, docker.Image], rebuilder: Rebuilder, work: Path
) -> Reproduction:
    base, stage, old = original
    new = rebuilder.base(base)[stage]
    return _reproduction(f"{base.plan.name} {stage}", (old.reference, old), new, work)


def _reproduction(
    name: str, original: tuple[str, docker.Image], new: docker.Image, work: Path
) -> Reproduction:
    reference, old = original
    if old.digest == new.digest:
        return Reproduction(name, reference, old.digest, new.digest)
    before = replace(blobs_of(reference, work, old.digest), platform=new.platform)
    with damage_reported():
        digest, _ = manifest_of(before)  # the name may be that of an index
    if digest == new.digest:
        return Reproduction(name, reference, digest, new.digest)
    after = new.reference, blobs_of(new.reference, work, new.digest)
    folder = work / f"compared-{new.digest[-12:]}"
    folder.mkdir()
    comparison = compare_images((reference, before), after, folder)
    return Reproduction(name, reference, digest, new.digest, comparison)


def _taken(image: EngineImage, rebuilder: Rebuilder) -> tuple[str, ...]:
    """The bases that were not built again: their names in Docker."""
    if rebuilder.bases:
        return ()
    return tuple(image.base_references.values())
