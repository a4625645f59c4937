"""The PTX of an image's machine code: taken from beside the compiler cache, kept by build key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.contents import reading
from builder.contents.options import ReadOptions
from builder.errors import BuilderError
from builder.families.layout import LAYOUT
from builder.images.active import ActiveBuild
from builder.images.ptx import has_nvcc
from builder.kernels.selection import Capability
from builder.pipeline import ccache
from builder.plan.plan import Plan
from builder.records import ptx
from builder.tools.docker.blobs import blobs_of


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept for an image."""

    file: Path
    modules: int
    """How many different modules of machine code the image has."""
    missing: frozenset[str]
    """sha256 (hex) of the modules whose PTX is not known."""

    @property
    def known(self) -> int:
        """How many modules have their PTX in the file; 0: there may be no file."""
        return self.modules - len(self.missing)


def machine_code(plan: Plan, reference: str, digest: str, cache: Path, work: Path) -> set[str]:
    """sha256 (hex) of the machine code that an image of the engine has for its recipe's cards.

    CUDA's own libraries do not count: NVIDIA does not publish their PTX.  Raises ``UntriedError``
    where the image cannot be read.
    """
    blobs = blobs_of(reference, work, digest)
    found: set[str] = set()
    for arch in plan.recipe.cuda.arch:
        options = ReadOptions(card=Capability.of_arch(arch), code_outside=LAYOUT.cuda)
        contents = reading.read(blobs, work, options, cache)
        for library in contents.libraries():
            found.update(each.machine_code for each in library.fat_binaries)
    return found - {""}


def keep(plan: Plan, reference: str, digest: str, active: ActiveBuild, work: Path) -> Kept | None:
    """Keep the PTX of an image of the engine that this machine compiled.

    None: the image has no machine code of nvcc's.  ``work`` is a directory.  Raises
    ``UntriedError``, ``BuildError``, ``SpaceError``, ``WorldError``.
    """
    settings = active.settings
    if not has_nvcc(plan):
        return None
    wanted = machine_code(plan, reference, digest, settings.cache_dir, work)
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


def keep_built(plan: Plan, reference: str, digest: str, active: ActiveBuild, work: Path) -> None:
    """Keep the PTX of an image that was just built; what is missing, and an error, is logged.

    The image is the same without.
    """
    log = active.progress.log
    try:
        with active.seconds.stage("keep PTX"):
            kept = keep(plan, reference, digest, active, work)
    except (BuilderError, OSError) as error:
        log(f"the PTX of {plan.title} is not kept: {error}")
        return
    if kept is not None and kept.missing:
        log(
            f"the PTX of {len(kept.missing)} of {kept.modules} modules of {plan.title} is not "
            f"known: `builder ptx {plan.name} --compile` compiles them again"
        )
