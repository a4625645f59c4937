"""Recipes become a bake file: their contexts are laid out as for a build, each base once."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder.bake import bakefile, directory
from builder.bake.bakefile import CONTEXTS, FILE, Target, identifier
from builder.errors import BuilderError, RecipeError, WorldError
from builder.images.context import Context
from builder.images.session import BuildSession
from builder.images.stages import Below, lay_out
from builder.plan import published_image
from builder.plan.inputs import RegistryRoot
from builder.plan.rendered import BaseImage, EngineImage
from builder.publish.remote_image import BASE_NAME, CREATED
from builder.tools.docker import engine as docker
from builder.tools.files import named_lock, require_space

ENGINES, BASES = "engines", "bases"
SPACE = 2.0  # GiB for sources and a Debian root; wheels are hard links if possible


@dataclass(frozen=True, slots=True)
class Baked:
    """A bake file that was written: its targets by group, and the recipes left out."""

    file: Path
    groups: Mapping[str, tuple[str, ...]]
    candidates: Mapping[str, str]
    """The name of each image until its verdict is good."""
    left_out: Mapping[str, BuilderError]


@dataclass
class _Writer:
    """Lays out contexts below ``folder`` and collects targets."""

    session: BuildSession
    folder: Path
    targets: dict[str, Target] = field(default_factory=dict)
    bases: dict[str, BuilderError | None] = field(default_factory=dict)
    """The bases so far, with the error of one that failed."""

    def engine(self, image: EngineImage) -> str:
        """Lay out an engine, then its bases; the name of its target."""
        _require_gzip(image)
        for base in image.bases():
            self._raise_earlier(base)
        plan, base_images = image.plan, image.base_references
        runs_scripts = base_images.get("devel") or base_images.get("runtime")
        if runs_scripts is not None and not docker.image(runs_scripts):
            runs_scripts = None
        below = self._below(image.base)
        if not plan.family.extends_base:
            below = replace(below, config=None)
        place = Path(ENGINES) / _name(image)
        contexts = {stage: at for base in image.bases() for stage, at in _contexts(base).items()}
        context = self._lay_out(place, image, contexts, below, runs_scripts)
        try:
            for base in image.bases():
                self.base(base)
        except BuilderError:
            shutil.rmtree(self.folder / CONTEXTS / place)
            raise
        # No digest of the base: the machine that bakes builds it.
        extends = {BASE_NAME: base_images["runtime"]} if "runtime" in base_images else {}
        labels = {**image.labels, **extends, CREATED: context.created}
        name = identifier(_name(image))
        self._add(name, context, "image", image.candidate, labels)
        return name

    def base(self, image: BaseImage) -> None:
        """Lay out a base and the bases below it, once; later calls raise the same error."""
        self._raise_earlier(image)
        if _name(image) in self.bases:
            return
        self.bases[_name(image)] = None
        try:
            contexts = {}
            if image.base is not None:
                self.base(image.base)
                contexts = _contexts(image.base)
            root, below = image.plan.published_root, Below()
            if image.base is not None or root is not None:
                below = replace(self._below(image.base or image), config=None)
            if root is not None:
                contexts = {"published": f"docker-image://{published_image.reference(root)}"}
            context = self._lay_out(Path(BASES) / _name(image), image, contexts, below, None)
            for stage, tag in image.references.items():
                self._add(_stage_target(image, stage), context, stage, tag, image.labels)
        except BuilderError as error:
            self.bases[_name(image)] = error
            raise

    def _raise_earlier(self, base: BaseImage) -> None:
        error = self.bases.get(_name(base))
        if error is not None:
            raise error

    def _add(
        self, name: str, context: Context, stage: str, tag: str, labels: Mapping[str, str]
    ) -> None:
        if name in self.targets:
            raise RecipeError(f"two images have the bake target {name}", hint="rename a recipe")
        self.targets[name] = bakefile.target(self.folder, context, stage, tag, labels)

    def _lay_out(
        self,
        place: Path,
        image: EngineImage | BaseImage,
        bases: Mapping[str, str],
        below: Below,
        runs_scripts: str | None,
    ) -> Context:
        """The context of an image, without the temporary files of its making."""
        work = self.folder / CONTEXTS / place
        work.mkdir(parents=True)
        options, log = self.session.options, self.session.log
        log(f"laying out {image.plan.name} ({image.short_key})")
        try:
            context = lay_out(image, options, bases, below, runs_scripts, work, log)
        except BaseException:
            shutil.rmtree(work)
            raise
        kept = {context.folder, *context.secrets.values(), *map(Path, context.named.values())}
        for path in work.iterdir():
            if path not in kept:
                shutil.rmtree(path)  # git's, for the checkout
        for secret in context.secrets.values():
            secret.chmod(0o600)
        return context

    def _below(self, base: BaseImage) -> Below:
        """What an image on a base takes from it.

        The engine's where it has the base, else that of the registry's image which is the lowest;
        bases of our own set neither user nor entrypoint.
        """
        found = docker.image([*base.references.values()][-1])
        if found is not None:
            return Below(found.config, found.epoch)
        *_, lowest = base.chain()
        root = lowest.plan.root
        if not isinstance(root, RegistryRoot):
            return Below({})
        offline = self.session.options.offline
        target = lowest.plan.platforms.target
        config, epoch = published_image.config(root, target, offline=offline)
        return Below(config if lowest.plan.published_root else {}, epoch)


def bake(
    session: BuildSession, names: Sequence[str], folder: Path, architecture: str | None = None
) -> Baked:
    """Write the bake file of recipes and their contexts to ``folder``, completely or not at all.

    Without ``names``: all recipes whose inputs can be fetched; the others are left out.  An earlier
    bake file in ``folder`` is replaced.  ``architecture`` is as in ``BuildSession.resolve``.

    Raises a ``BuilderError`` for a recipe of ``names``; ``WorldError`` where the directory has
    files that builder did not write, or no recipe is left; ``BusyError`` where another run bakes
    into it.
    """
    session.settings.require_directories()
    with named_lock(session.settings.cache_dir, directory.lock_name(folder)):
        directory.require_usable(folder)
        require_space(folder, SPACE, f"the contexts below {folder}")
        return _bake(session, names, folder, architecture)


def _bake(
    session: BuildSession, names: Sequence[str], folder: Path, architecture: str | None
) -> Baked:
    wanted = list(dict.fromkeys(session.catalog.engine(name).name for name in names))
    left_out: dict[str, BuilderError] = {}
    groups: dict[str, list[str]] = {"default": [], BASES: []}
    candidates = {}
    with directory.replaced(folder) as new:
        writer = _Writer(session, new)
        for name in wanted or session.catalog.engines:
            try:
                for image in session.images(name, architecture):
                    target = writer.engine(image)
                    candidates[image.title] = image.candidate
                    groups["default"].append(target)
                    groups.setdefault(f"on-{identifier(_name(image.base))}", []).append(target)
            except BuilderError as error:
                if wanted:
                    raise
                session.log(f"{name} is left out: {error.what}")
                left_out[name] = error
        if not candidates:
            raise WorldError(
                "there is nothing to bake: every recipe was left out",
                "\n".join(f"{name}: {error.what}" for name, error in left_out.items()),
            )
        engines = set(groups["default"])
        groups[BASES] = [target for target in writer.targets if target not in engines]
        bakefile.write(new / FILE, folder, writer.targets, groups)
    finished = {name: tuple(targets) for name, targets in groups.items()}
    return Baked(folder / FILE, finished, candidates, left_out)


def _require_gzip(image: EngineImage) -> None:
    """Raise ``RecipeError`` where the layers of an image are zstd: --load and --push of
    ``docker buildx bake`` are outputs of their own, without that option."""
    compression = image.plan.recipe.image.compression
    if compression != "gzip":
        raise RecipeError(
            f"{image.plan.name} cannot be baked: its layers are {compression}",
            "`docker buildx bake` with --load or --push compresses with gzip",
            f"build it: `builder build {image.plan.name}`",
        )


def _contexts(base: BaseImage) -> dict[str, str]:
    """The stages of a base as named contexts: targets of the same bake file."""
    return {stage: f"target:{_stage_target(base, stage)}" for stage in base.plan.stages}


def _stage_target(base: BaseImage, stage: str) -> str:
    return identifier(f"{_name(base)}-{stage}")


def _name(image: EngineImage | BaseImage) -> str:
    """The name of its target and of its contexts: that of its plan, of arm64 with a suffix."""
    target = image.plan.platforms.target
    return image.plan.name if target == "amd64" else f"{image.plan.name}-{target}"
