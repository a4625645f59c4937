"""Services that are written down: for ``builder export``, and ``builder run --print``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from builder.errors import FetchError, RecipeError, WorldError
from builder.launch.images import Images, RunImage
from builder.models import hub
from builder.presets import catalog as presets
from builder.presets import command, model_files
from builder.presets.catalog import PresetEntry
from builder.presets.schema import ModelFile
from builder.presets.service import OPTIONS_OF_PLACES, Files, Mount, Run, Service, service
from builder.presets.short_names import is_preset
from builder.recipes.catalog import Catalog
from builder.servers.api_flavor import PLACE
from builder.servers.server import mounts_of
from builder.settings import Settings
from builder.tools.log import Log


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
    """More options of the engine."""
    cpu: bool = False
    """On the CPU, without a GPU."""
    old: bool = False
    """An image of another state of the recipe will do."""


def find_entry(catalog: Catalog, wanted: LaunchRequest) -> PresetEntry | None:
    """The preset of that name; None for a recipe.  Raises ``RecipeError``."""
    if not is_preset(wanted.target):
        return None
    return presets.load(catalog).preset(wanted.target)


def run_of(found: PresetEntry | None, catalog: Catalog, wanted: LaunchRequest) -> Run:
    """The run of a preset that was found, or else of the recipe; raises ``RecipeError``."""
    entry = catalog.engine(found.preset.recipe if found else wanted.target)
    preset = found.preset if found else None
    name = found.name if found else entry.name
    return Run(name, entry.recipe, preset, wanted.context, wanted.options, wanted.cpu)


def followed(catalog: Catalog, wanted: LaunchRequest, directory: Path) -> LaunchRequest:
    """The request, with the context and the files of this machine that options after ``--`` name,
    and ``--option=value`` in two words where the engine takes no other.

    Raises ``RecipeError`` for a context that cannot be checked, and for a file in place of a
    mounted one that is not on this machine.
    """
    run = run_of(find_entry(catalog, wanted), catalog, wanted)
    places = command.places_by_setting(run.preset, run.recipe)
    own = {*wanted.given, *(model_files.of_preset(run.preset) if run.preset else ())}
    given, context, options = dict(wanted.given), wanted.context, list[str]()
    for group in command.groups(wanted.options):
        place = places.get(command.setting_of(group[0], run.recipe), "")
        name, joined, value = group[0].partition("=")
        if joined and command.option_of(name) and not command.joins(run.recipe):
            group = [name, value, *group[1:]]
        value = value or "".join(group[1:2] if command.option_of(group[0]) else group[:1])
        file = _file_of(value, directory) if place and value else None
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
    return replace(wanted, given=given, context=context, options=tuple(options))


def _file_of(value: str, directory: Path) -> Path | None:
    """A file of this machine by its path here, or by its path in the container's models."""
    inside = PurePosixPath(value)
    if inside.is_relative_to(model_files.DIRECTORY):
        here = directory / inside.relative_to(model_files.DIRECTORY)
        if here.exists():
            return here
    path = Path(value).expanduser()
    return path if path.exists() else None


def models_directory(settings: Settings) -> Path:
    """The models directory as an absolute path; ~ is the user's home."""
    return settings.models_dir.expanduser().absolute()


def described(catalog: Catalog, wanted: LaunchRequest, settings: Settings, log: Log) -> Service:
    """The service of a preset or a recipe, whether its image and models are here or not.

    The Hub is asked for the names of files that the preset does not give.  Raises ``RecipeError``,
    ``FetchError`` where a given file does not exist.
    """
    wanted = followed(catalog, wanted, models_directory(settings))
    run = run_of(find_entry(catalog, wanted), catalog, wanted)
    image = _image(Images(catalog, run.recipe, settings, log), old=wanted.old)
    files = given_files(wanted.given)
    others = {
        place: file
        for place, file in (model_files.of_preset(run.preset) if run.preset else {}).items()
        if place not in wanted.given
    }
    directory = models_directory(settings)
    names = {place: _name_of(place, file, directory, log) for place, file in others.items()}
    files = joined(files, model_files.mounted(others, str(directory), names))
    found = service(run, image.name, files, published=wanted.port)
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
    places = {place: path for each in groups for place, path in each.places.items()}
    mounts = tuple(dict.fromkeys(mount for each in groups for mount in each.mounts))
    missing = tuple(line for each in groups for line in each.missing)
    incomplete = tuple(line for each in groups for line in each.incomplete)
    return Files(places, mounts, missing, incomplete)


def _name_of(place: str, file: ModelFile, directory: Path, log: Log) -> str:
    """The path of a file in its repository, from the models directory or the Hub; empty: neither
    knows it."""
    if file.repository is None or file.whole or file.file is not None:
        return file.file or ""
    found = model_files.chosen(file, model_files.names_below(directory / file.repository))
    if found:
        return found[0]
    try:
        names = [each.path for each in hub.files(file.repository, file.revision)]
    except FetchError as error:
        log(f"{error.what}: {error.why}; {model_files.UNKNOWN[place]} stands for its file")
        return ""
    return next(iter(model_files.chosen(file, names)), "")


def _image(images: Images, *, old: bool) -> RunImage:
    """The image by digest, from the registry or the engine; by tag where neither has it."""
    try:
        found = images.find(old=old, published_first=True)
    except WorldError as error:
        images.log(error.what)
        what, hint = f"whether there is an image {images.tagged} is not known", error.hint
        return RunImage(images.tagged, what=what, hint=hint)
    if found.note:
        images.log(found.note)
    return found
