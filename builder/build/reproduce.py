"""Build the image of a recipe, a base or a registry's tag again, and compare it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from builder.build.compare import AMD64, pulled_if_remote
from builder.build.lookup import Images
from builder.build.published import image_of
from builder.build.rebuild import rebuilding
from builder.build.session import BuildSession
from builder.core.errors import WorldError
from builder.core.files import named_lock, workspace
from builder.docker import buildx
from builder.docker import engine as docker
from builder.docker.blobs import blobs_of
from builder.image.compare import compare_images
from builder.image.image import damage_reported, manifest_of
from builder.image.results import Comparison
from builder.plan.plan import BasePlan, Plan

ReproductionState = Literal["reproduced", "compression", "different"]


@dataclass(frozen=True, slots=True)
class Reproduction:
    """An image that was built again."""

    name: str
    """The recipe's; a base's with the stage: "cuda-13.0 runtime"."""
    reference: str
    """The image that it was compared with."""
    expected: str
    """Its digest."""
    found: str
    """The digest of the build."""
    comparison: Comparison | None = None
    """The differences, where the digests differ."""

    @property
    def state(self) -> ReproductionState:
        """``reproduced``: the same digest; ``compression``: the same layers and configuration, but
        packed by another version of a compressor."""
        if self.comparison is None:
            return "reproduced"
        same = all(layer.state in {"equal", "compression"} for layer in self.comparison.layers)
        if same and not self.comparison.config and not self.comparison.times:
            return "compression"
        return "different"

    @property
    def packed(self) -> list[int]:
        """The numbers of the layers that differ only in their compression, from 1."""
        layers = self.comparison.layers if self.comparison else ()
        packed = [each.before for each in layers if each.state == "compression"]
        return [side.number for side in packed if side is not None]


@dataclass(frozen=True, slots=True)
class ReproducedImages:
    """The images of a command that were built again."""

    target: str
    reproductions: tuple[Reproduction, ...]
    builder: str
    """The buildx builder that built them."""
    taken: tuple[str, ...]
    """The images that were taken as they are, with digests: bases of an engine, published ones."""

    @property
    def good(self) -> bool:
        """Whether all have the same digest."""
        return all(each.state == "reproduced" for each in self.reproductions)


def reproduce(session: BuildSession, target: str, *, with_bases: bool = False) -> ReproducedImages:
    """Build an image again without caches, and compare digests; where they differ, the contents.

    ``target`` is a recipe or a base whose images Docker has, or an image: Docker's, else a
    registry's, which is pulled and removed again.  An engine is built on the bases that Docker has,
    or ``with_bases`` on bases that are built again.

    Raises ``WorldError`` where the image to compare with is not there; ``RecipeError`` where no
    recipe has its key (``image_of``); else like a build, and like ``compare_images``.  Waits
    where another run of this machine reproduces an image.
    """
    images = Images(session)
    session.settings.require_directories()
    with ExitStack() as stack:
        # Two recipes may have the same bases, which have one name each in Docker.
        stack.enter_context(named_lock(session.settings.cache_dir, "reproduce", session.log))
        work = stack.enter_context(workspace(session.settings.cache_dir))
        if target in session.catalog.bases and not images.is_recipe(target):
            plan: Plan | BasePlan = session.resolve_base(target)
        elif images.is_recipe(target):
            plan = session.resolve(target)
        else:
            stack.enter_context(pulled_if_remote(session, target, session.platform or AMD64))
            plan = image_of(session, target, images.named(target), work)
        name = plan.name
        active = stack.enter_context(session.active(f"reproduce-{name}"))
        rebuilder = stack.enter_context(rebuilding(active))
        builder = buildx.builder(session.settings.buildx).name
        if isinstance(plan, BasePlan):
            originals = _originals(plan)
            rebuilder.base(plan)
            found = [
                _reproduction(f"{base.name} {stage}", old, rebuilder.base(base)[stage], work)
                for base, stage, old in originals
            ]
            return ReproducedImages(target, tuple(found), builder, ())
        original = images.require(plan) if images.is_recipe(target) else images.named(target)
        new = rebuilder.engine(plan, with_bases=with_bases)
        result = _reproduction(name, original, new, work)
        taken = () if rebuilder.bases else tuple(plan.base_references.values())
        return ReproducedImages(target, (result,), builder, taken)


def _originals(plan: BasePlan) -> list[tuple[BasePlan, str, docker.Image]]:
    """The images of a base and the bases below it, with their stages; raises ``WorldError``."""
    found = []
    for base in reversed([*plan.chain()]):
        for stage, reference in base.references.items():
            original = docker.image(reference)
            if original is None:
                raise WorldError(
                    f"Docker has no image {reference} to compare with",
                    f"it is the stage {stage} of the base {base.name}",
                    f"build a recipe that extends {plan.name}: `builder build RECIPE`",
                )
            found.append((base, stage, original))
    return found


def _reproduction(name: str, old: docker.Image, new: docker.Image, work: Path) -> Reproduction:
    reference = old.reference
    if old.digest == new.digest:
        return Reproduction(name, reference, old.digest, new.digest)
    before = replace(blobs_of(reference, work, old.digest), platform=new.platform)
    with damage_reported():
        digest, _ = manifest_of(before)  # the name may mean an index
    if digest == new.digest:
        return Reproduction(name, reference, digest, new.digest)
    after = new.reference, blobs_of(new.reference, work, new.digest)
    folder = work / f"compared-{new.digest[-12:]}"
    folder.mkdir()
    comparison = compare_images((reference, before), after, folder)
    return Reproduction(name, reference, digest, new.digest, comparison)
