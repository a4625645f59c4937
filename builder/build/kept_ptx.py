"""The PTX of an image's machine code: taken from beside the compiler cache, kept by build key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.build import ccache, ptx
from builder.build.session import BuildSession
from builder.build.stages import ActiveBuild, anew, build_stages, ensure_bases_of, require_disk
from builder.core.errors import BuilderError, UntriedError
from builder.core.files import named_lock, workspace
from builder.core.settings import Settings
from builder.docker import engine as docker
from builder.docker.blobs import blobs_of
from builder.engines.layout import LAYOUT
from builder.image import reading
from builder.image.options import ReadOptions
from builder.plan.plan import Plan
from simulator.selection import Capability


@dataclass(frozen=True, slots=True)
class Kept:
    """The PTX that is kept for an image."""

    file: Path
    modules: int
    """How many different modules of machine code the image has."""
    missing: frozenset[str]
    """sha256 (hex) of the modules whose PTX is not known."""

    @property
    def known(self) -> int:
        """How many modules have their PTX in the file; 0: there may be no file."""
        return self.modules - len(self.missing)


def keep(plan: Plan, image: docker.Image, settings: Settings, work: Path) -> Kept | None:
    """Keep the PTX of an image of the engine that this machine compiled.

    None: the image has no machine code of nvcc's.  ``work`` is a directory.  Raises
    ``UntriedError``, ``BuildError``, ``SpaceError``, ``WorldError``.
    """
    if not plan.has_nvcc:
        return None
    blobs = blobs_of(image.reference, work, image.digest)
    wanted: set[str] = set()  # sha256 (hex) of machine code
    for arch in plan.recipe.cuda.arch:
        # NVIDIA does not publish the PTX of CUDA's own libraries.
        options = ReadOptions(card=Capability.of_arch(arch), code_outside=LAYOUT.cuda)
        contents = reading.read(blobs, work, options, settings.cache_dir)
        for library in contents.libraries():
            wanted.update(each.machine_code for each in library.fat_binaries)
    wanted -= {""}
    if not wanted:
        return None
    file = ptx.path_of(settings.state_dir, plan.name, plan.key)
    known = ptx.digests(file) & wanted
    if known < wanted:
        folder, own_work = work / "ptx", work / "ptx-work"
        own_work.mkdir()
        devel = plan.base.references["devel"]
        ccache.take_ptx(devel, wanted, folder, own_work, builder=settings.buildx)
        taken = {each.stem for each in folder.glob("*.gz")}
        if len(taken) > len(known):
            ptx.pack(folder, file)
            known = frozenset(taken)
    return Kept(file, len(wanted), frozenset(wanted - known))


def keep_built(plan: Plan, image: docker.Image, active: ActiveBuild, work: Path) -> None:
    """Keep the PTX of an image that was just built; missing PTX and errors are logged.

    The image is the same without.
    """
    log = active.progress.log
    try:
        with active.seconds.stage("keep PTX"):
            kept = keep(plan, image, active.settings, work)
    except (BuilderError, OSError) as error:
        log(f"the PTX of {plan.title} is not kept: {error}")
        return
    if kept is not None and kept.missing:
        log(
            f"the PTX of {len(kept.missing)} of {kept.modules} modules of {plan.title} is not "
            f"known: `builder ptx {plan.name} --compile` compiles them again"
        )


def of_image(plan: Plan, image: docker.Image, session: BuildSession, *, compiles: bool) -> Kept:
    """The PTX of the image of a recipe that the engine has.

    ``compiles``: where some is not known, the engine is compiled again without the results of the
    compiler cache, so that its PTX is written; the image stays.  Raises ``UntriedError`` where it
    has no machine code of nvcc's, and like ``keep`` and ``build_stages``.
    """
    settings = session.settings
    settings.require_directories()
    with workspace(settings.cache_dir) as work:
        kept = keep(plan, image, settings, work)
    if kept is not None and kept.missing and compiles:
        with (
            workspace(settings.cache_dir) as work,
            session.active(plan.name) as active,
            named_lock(settings.cache_dir, plan.name),
        ):
            base_images = ensure_bases_of(plan, active)
            require_disk(settings, plan.recipe.build.disk, f"the build of {plan.title}")
            session.log(
                f"compiling {plan.title} without the compiler cache; the log is {active.log.path}"
            )
            options = anew(compiles=True, ccache=False)
            build_stages(plan, {"image": plan.candidate}, base_images, active, work, options)
            docker.untag(plan.candidate)
        with workspace(settings.cache_dir) as work:
            kept = keep(plan, image, settings, work)
    if kept is None:
        raise UntriedError(
            f"{plan.title} has no machine code that nvcc compiled from PTX",
            f"looked at {image.reference}",
            "engines on published images, and engines without CUDA code, have none",
        )
    return kept
