"""The PTX of the image of a recipe: what is kept of it, and the compile that makes the rest."""

from __future__ import annotations

from pathlib import Path

from builder.errors import UntriedError
from builder.images.bases import ensure_bases_of
from builder.images.build import anew
from builder.images.log import new_log
from builder.images.names import build_labels
from builder.images.stages import build_stages, require_disk
from builder.pipeline.kept_ptx import Kept, keep
from builder.pipeline.lookup import built_image
from builder.pipeline.session import BuildSession
from builder.plan.plan import Plan
from builder.tools.docker import engine as docker
from builder.tools.files import named_lock, workspace


def of_image(plan: Plan, session: BuildSession, *, compiles: bool) -> Kept:
    """The PTX of the image of a recipe that the engine has.

    ``compiles``: where some is not known, the engine is compiled again; the image stays.  Raises
    ``WorldError`` where there is no image, ``UntriedError`` where it has no machine code of nvcc's,
    and like ``keep`` and ``build_stages``.
    """
    settings, active = session.settings, session.active()
    settings.require_directories()
    reference, image = built_image(plan)
    with workspace(settings.cache_dir) as work:
        kept = keep(plan, reference, image.digest, active, work)
    if kept is not None and kept.missing and compiles:
        with workspace(settings.cache_dir) as work:
            _compile_again(plan, session, work)
        with workspace(settings.cache_dir) as work:
            kept = keep(plan, reference, image.digest, active, work)
    if kept is None:
        raise UntriedError(
            f"{plan.title} has no machine code that nvcc compiled from PTX",
            f"looked at {reference}",
            "engines on published images, and engines without CUDA code, have none",
        )
    return kept


def _compile_again(plan: Plan, session: BuildSession, work: Path) -> None:
    """Compile an engine without the results of the compiler cache, so that its PTX is written.

    ``work`` is an empty directory.
    """
    active, settings = session.active(), session.settings
    with new_log(settings.state_dir, plan.name) as log, named_lock(settings.cache_dir, plan.name):
        base_images = ensure_bases_of(plan, active, log)
        require_disk(settings, plan.recipe.build.disk, f"the build of {plan.title}")
        session.log(f"compiling {plan.title} without the compiler cache; the log is {log.path}")
        labels = build_labels(plan, base_images.get("runtime"))
        options = anew(compiles=True, ccache=False)
        stages = {"image": plan.candidate}
        build_stages(plan, stages, labels, base_images, active, log, work, options)
        docker.untag(plan.candidate)
