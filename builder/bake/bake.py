"""Recipes become a bake file: one ``docker buildx bake`` builds them all, wherever buildx builds.

The contexts beside it are laid out by who lays them out for a build.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.bake import bakefile
from builder.bake.bakefile import CONTEXTS, FILE, NOW, Target, identifier
from builder.errors import BuilderError, RecipeError, WorldError
from builder.images.context import Context
from builder.images.names import BASE_NAME
from builder.images.session import BuildSession
from builder.images.stages import lay_out
from builder.plan import published_image
from builder.plan.inputs import RegistryRoot
from builder.plan.rendered import BaseImage, EngineImage
from builder.publish.remote_image import CREATED
from builder.tools.docker import engine as docker
from builder.tools.files import named_lock, require_space, require_writable

ENGINES, BASES = "engines", "bases"
OURS = ".builder"
"""An empty file beside the contexts: they are ours to replace."""
WAITING = ".baking-"
SPACE = 2.0  # GiB for sources and a Debian root; wheels are links where that can be


@dataclass(frozen=True, slots=True)
class Baked:
    """A bake file: its targets by group, and why recipes are not in it."""

    file: Path
    groups: Mapping[str, tuple[str, ...]]
    candidates: Mapping[str, str]
    """The name of each recipe's image until its verdict is good."""
    left_out: Mapping[str, BuilderError]


@dataclass
class _Oven:
    """What is written so far, below ``folder``; a base is laid out once, or fails once."""

    session: BuildSession
    folder: Path
    targets: dict[str, Target] = field(default_factory=dict)
    bases: dict[str, BuilderError | None] = field(default_factory=dict)
    """Those that were laid out, and those that could not be."""

    def need(self, base: BaseImage) -> None:
        """Raise what was raised for a base before."""
        known = self.bases.get(base.plan.name)
        if known is not None:
            raise known

    def add(self, name: str, target: Target) -> None:
        if name in self.targets:
            raise RecipeError(f"two images would be the target {name}", hint="rename a recipe")
        self.targets[name] = target


def bake(
    session: BuildSession, names: Sequence[str], folder: Path, architecture: str | None = None
) -> Baked:
    """Write the bake file of recipes and their contexts to ``folder``, whole or not at all.

    Without ``names`` all recipes, as far as their inputs can be had; the others are left out, and
    why.  A bake file that was there before is replaced.  ``architecture`` is as in
    ``BuildSession.resolve``.  Raises a ``BuilderError`` for a recipe that was named, ``WorldError``
    where the directory holds something else, or not even one recipe is left; ``BusyError`` where
    another run bakes into it.
    """
    session.settings.require_directories()
    with named_lock(session.settings.cache_dir, lock_of(folder)):
        return _bake(session, names, folder, architecture)


def lock_of(folder: Path) -> str:
    """The name of the lock that is held while a directory is baked into."""
    return f"bake-{hashlib.sha256(bytes(folder.resolve())).hexdigest()[:12]}"


def _bake(
    session: BuildSession, names: Sequence[str], folder: Path, architecture: str | None
) -> Baked:
    _require_place(folder)
    require_space(folder, SPACE, f"the contexts below {folder}")
    wanted = list(dict.fromkeys(session.catalog.engine(name).name for name in names))
    left_out: dict[str, BuilderError] = {}
    groups: dict[str, list[str]] = {"default": [], BASES: []}
    candidates = {}
    with _new(folder) as waiting:
        oven = _Oven(session, waiting)
        for name in wanted or session.catalog.engines:
            try:
                image = session.resolve(name, architecture)
                target = _engine(oven, image)
            except BuilderError as error:
                if wanted:
                    raise
                session.log(f"{name} is left out: {error.what}")
                left_out[name] = error
                continue
            candidates[name] = image.candidate
            groups["default"].append(target)
            groups.setdefault(f"on-{identifier(image.base.plan.name)}", []).append(target)
        if not candidates:
            raise WorldError(
                "there is nothing to bake: every recipe was left out",
                "\n".join(f"{name}: {error.what}" for name, error in left_out.items()),
            )
        in_groups = groups["default"]
        groups[BASES] = [target for target in oven.targets if target not in in_groups]
        bakefile.write(waiting / FILE, folder, oven.targets, groups)
    finished = {name: tuple(targets) for name, targets in groups.items()}
    return Baked(folder / FILE, finished, candidates, left_out)


def _require_place(folder: Path) -> None:
    """Raise ``WorldError`` where nothing can be written, or something stands that is not ours."""
    require_writable(folder)
    file, contexts = folder / FILE, folder / CONTEXTS
    ours = {contexts: (contexts / OURS).is_file(), file: bakefile.written_here(file)}
    for path, own in ours.items():
        if path.exists() and not own:
            raise WorldError(
                f"{path} is there, and not of a bake file of builder's",
                hint="name a directory that is empty, or not there yet",
            )


@contextmanager
def _new(folder: Path) -> Iterator[Path]:
    """A directory in ``folder`` for file and contexts: they take the places of those of before
    when all went well, the file last."""
    folder.mkdir(parents=True, exist_ok=True)
    for dead in folder.glob(f"{WAITING}*"):  # of a run that was killed
        shutil.rmtree(dead)
    waiting = Path(tempfile.mkdtemp(prefix=WAITING, dir=folder))
    (waiting / CONTEXTS).mkdir()
    (waiting / CONTEXTS / OURS).touch()
    try:
        yield waiting
        (folder / FILE).unlink(missing_ok=True)
        if (folder / CONTEXTS).exists():
            (folder / CONTEXTS).rename(waiting / "before")
        (waiting / CONTEXTS).rename(folder / CONTEXTS)
        (waiting / FILE).rename(folder / FILE)
    finally:
        shutil.rmtree(waiting, ignore_errors=True)


def _engine(oven: _Oven, image: EngineImage) -> str:
    """Lay out an engine, and then what it stands on; the name of its target."""
    plan, base = image.plan, image.base
    oven.need(base)
    images = base.references
    runs = images.get("devel") or images.get("runtime")
    there = runs if runs is not None and docker.inspect_image(runs) else None
    inherited = _inherited(base, oven.session.options.offline) if plan.family.extends_base else None
    place = Path(ENGINES) / plan.name
    laid_out = _laid_out(oven, place, image, _targets(base), inherited, there)
    try:
        _base(oven, base)
    except BuilderError:
        shutil.rmtree(oven.folder / CONTEXTS / place)
        raise
    # The digest of the base is not known: it is made by who bakes.
    extends = {BASE_NAME: images["runtime"]} if "runtime" in images else {}
    labels = {**image.labels, **extends, CREATED: NOW}
    name = identifier(plan.name)
    oven.add(name, bakefile.target(oven.folder, laid_out, "image", image.candidate, labels))
    return name


def _targets(base: BaseImage | None) -> dict[str, str]:
    """Where the stages of a base are, as contexts: targets of the same bake file."""
    if base is None:
        return {}
    return {stage: f"target:{_stage(base, stage)}" for stage in base.plan.stages}


def _stage(base: BaseImage, stage: str) -> str:
    return identifier(f"{base.plan.name}-{stage}")


def _base(oven: _Oven, base: BaseImage) -> None:
    """Lay out a base and what it stands on, once; raises for it as often as it is asked for."""
    oven.need(base)
    name = base.plan.name
    if name in oven.bases:
        return
    try:
        if base.base is not None:
            _base(oven, base.base)
        _new_base(oven, base)
        oven.bases[name] = None
    except BuilderError as error:
        oven.bases[name] = error
        raise


def _new_base(oven: _Oven, base: BaseImage) -> None:
    below, root = _targets(base.base), base.plan.published_root
    if root is not None:
        below = {"published": f"docker-image://{published_image.reference(root)}"}
    laid_out = _laid_out(oven, Path(BASES) / base.plan.name, base, below, None, None)
    for stage, tag in base.references.items():
        target = bakefile.target(oven.folder, laid_out, stage, tag, base.labels)
        oven.add(_stage(base, stage), target)


def _laid_out(
    oven: _Oven,
    place: Path,
    image: EngineImage | BaseImage,
    bases: Mapping[str, str],
    inherited: Mapping[str, Any] | None,
    there: str | None,
) -> Context:
    """The context of a plan, and nothing beside it; of one that cannot be laid out nothing."""
    work = oven.folder / CONTEXTS / place
    work.mkdir(parents=True)
    oven.session.log(f"laying out {image.plan.name} ({image.short_key})")
    try:
        options, log = oven.session.options, oven.session.log
        found = lay_out(image, options, bases, inherited, there, work, log)
    except BaseException:
        shutil.rmtree(work)
        raise
    kept = {found.folder, *found.secrets.values(), *map(Path, found.named.values())}
    for path in work.iterdir():
        if path not in kept:
            shutil.rmtree(path)  # git's, that the tree came out of
    for secret in found.secrets.values():
        secret.chmod(0o600)
    return found


def _inherited(base: BaseImage, offline: bool) -> Mapping[str, Any]:
    """The configuration of an image that something is laid over: the engine's, else the one that
    a registry has of what it stands on; our own bases say nothing of how they start."""
    found = docker.inspect_image(base.references["runtime"])
    if found is not None:
        return found["Config"] or {}
    *_, lowest = base.chain()
    root = lowest.plan.root
    if not isinstance(root, RegistryRoot):
        return {}
    return published_image.config(root, lowest.plan.platforms.target, offline=offline)
