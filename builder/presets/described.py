"""Services that are written down: for ``builder export``, and ``builder run --print``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from builder.checks.server import mounts_of
from builder.core.errors import FetchError, RecipeError, WorldError
from builder.core.log import Log
from builder.core.settings import Settings
from builder.engines.servers import PLACE
from builder.presets import catalog as presets
from builder.presets import command, model_files, models
from builder.presets.catalog import PresetEntry
from builder.presets.images import Images, RunImage
from builder.presets.schema import ModelFile
from builder.presets.service import OPTIONS_OF_PLACES, Files, Mount, Run, Service, service
from builder.presets.short_names import is_preset
from builder.recipes.catalog import Catalog


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """The request of the user."""

    target: str
    """A preset, or a recipe."""
    given: Mapping[str, Path] = field(default_factory=dict)
    """Files of this machine, by ``model``, ``draft`` and ``mmproj``."""
    context: int | None = None
    port: int | None = None
    """On the host; default: the image's port."""
    options: tuple[str, ...] = ()
    cpu: bool = False
    old: bool = False
    """An image of another state of the recipe will do."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A request with all that its steps share."""

    catalog: Catalog
    settings: Settings
    log: Log
    wanted: LaunchRequest
    run: Run
    entry: PresetEntry | None
    """The preset; None: a recipe is run."""

    @property
    def models_dir(self) -> Path:
        """The models directory as an absolute path; ~ is the user's home."""
        return self.settings.models_dir.expanduser().absolute()


def prepared(catalog: Catalog, wanted: LaunchRequest, settings: Settings, log: Log) -> Launch:
    """The launch of a preset or a recipe, with the options after ``--`` that name builder's own.

    The context and the files of this machine that these options name are taken from them;
    ``--option=value`` becomes two words where the engine takes no other.  Raises ``RecipeError``
    for an unknown or broken preset or recipe, for a context that cannot be checked, and for a file
    in place of a mounted one that is not on this machine.
    """
    entry = presets.load(catalog).preset(wanted.target) if is_preset(wanted.target) else None
    preset = entry.preset if entry else None
    engine = catalog.engine(preset.recipe if preset else wanted.target)
    run = Run(entry.name if entry else engine.name, engine.recipe, preset)
    job = Launch(catalog, settings, log, wanted, run, entry)
    places = command.places_by_setting(preset, run.recipe)
    own = {*wanted.given, *(model_files.of_preset(preset) if preset else ())}
    given, context, options = dict(wanted.given), wanted.context, list[str]()
    for group in command.groups(wanted.options):
        place = places.get(command.setting_of(group[0], run.recipe), "")
        name, joined, value = group[0].partition("=")
        if joined and command.option_of(name) and not command.joins(run.recipe):
            group = [name, value, *group[1:]]
        value = value or "".join(group[1:2] if command.option_of(group[0]) else group[:1])
        file = _file_of(value, job.models_dir) if place and value else None
        if not place or PLACE.fullmatch(value):
            options += group
        elif place == "context" and value.isdecimal() and int(value) > 0:
            context = int(value)
        elif name.replace("_", "-") == "--max-model-len" and command.tokens(value):
            context = command.tokens(value)  # llama.cpp reads 64K as 64
        elif place == "context":
            raise RecipeError(
                f"{' '.join(group)} after -- is no number of tokens that builder can check",
                hint="name the size before --: --context TOKENS",
            )
        elif file:
            given[place] = file
        elif place in own and value:
            raise RecipeError(
                f"{name} after -- names no file of this machine: {value}",
                "builder mounts the file that it replaces",
                f"name a file before --: {OPTIONS_OF_PLACES[place]} FILE",
            )
        else:
            options += group
    wanted = replace(wanted, given=given, context=context, options=tuple(options))
    run = replace(run, context=context, options=wanted.options, cpu=wanted.cpu)
    return replace(job, wanted=wanted, run=run)


def _file_of(value: str, directory: Path) -> Path | None:
    """A file of this machine by its path here, or by its path in the container's models."""
    inside = PurePosixPath(value)
    if inside.is_relative_to(model_files.DIRECTORY):
        here = directory / inside.relative_to(model_files.DIRECTORY)
        if here.exists():
            return here
    path = Path(value).expanduser()
    return path if path.exists() else None


def described(job: Launch) -> Service:
    """The service of a preset or a recipe, whether its image and models are here or not.

    The Hub is asked for the names of files that the preset does not give.  Raises ``RecipeError``,
    ``FetchError`` where a given file does not exist.
    """
    images = Images(job.catalog, job.run.recipe, job.settings, job.log)
    try:  # by digest, from the registry or the engine; by tag where neither has it
        image = images.find(old=job.wanted.old, published_first=True)
    except WorldError as error:
        job.log(error.what)
        what = f"whether there is an image {images.tagged} is not known"
        image = RunImage(images.tagged, what=what, hint=error.hint)
    if image.note:
        job.log(image.note)
    own = model_files.of_preset(job.run.preset) if job.run.preset else {}
    others = {place: file for place, file in own.items() if place not in job.wanted.given}
    directory = job.models_dir
    names = {place: _name_of(place, file, directory, job.log) for place, file in others.items()}
    mounted = model_files.mounted(others, str(directory), names)
    files = joined(given_files(job.wanted.given), mounted)
    found = service(job.run, image.name, files, published=job.wanted.port)
    missing = (f"{image.what}: {image.hint}",) if image.what else ()
    return replace(found, local=image.local, incomplete=(*missing, *files.incomplete))


def given_files(given: Mapping[str, Path]) -> Files:
    """Files or directories that the user named, each mounted under its own name.

    An underscore stands for a colon, which Kubernetes does not allow in the path of a mount.
    Raises ``FetchError`` where one does not exist, or has a name that no text file can have.
    """
    places, mounts = {}, []
    for place, path in given.items():
        file = path.expanduser().absolute()
        if not file.exists():
            raise FetchError(
                f"there is no file {path}", hint=f"name an existing one: --{place} FILE"
            )
        if not str(file.resolve()).isprintable():  # also what is no UTF-8: surrogates
            raise FetchError(
                f"cannot mount {path}",
                "its name has characters that cannot be written",
                "rename it",
            )
        places[place] = f"/{place}/{file.name}".replace(":", "_")
        mounts += [
            Mount(str(host), inside.replace(":", "_"), host.is_file())
            for inside, host in mounts_of(f"/{place}", file).items()
        ]
    return Files(places, tuple(mounts))


def joined(*groups: Files) -> Files:
    """All files together."""
    return Files(
        {place: path for each in groups for place, path in each.places.items()},
        tuple(dict.fromkeys(mount for each in groups for mount in each.mounts)),
        tuple(line for each in groups for line in each.missing),
        tuple(line for each in groups for line in each.incomplete),
    )


def _name_of(place: str, file: ModelFile, directory: Path, log: Log) -> str:
    """The path of a file in its repository, from the models directory or the Hub; empty: neither
    knows it."""
    if file.repository is None or file.whole or file.file is not None:
        return file.file or ""
    found = model_files.chosen(file, model_files.names_below(directory / file.repository))
    if found:
        return found[0]
    try:
        names = [each.path for each in models.hub_files(file.repository, file.revision)]
    except FetchError as error:
        log(f"{error.what}: {error.why}; {model_files.UNKNOWN[place]} stands for its file")
        return ""
    return next(iter(model_files.chosen(file, names)), "")
