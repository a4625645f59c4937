"""What a run means: the request of a user, its image, and the service that it describes."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path, PurePosixPath

from builder.core import errors
from builder.core.files import atomic_write
from builder.core.log import Log
from builder.core.platforms import PLATFORMS, Platform, platform_of
from builder.core.settings import Settings
from builder.core.web import GIVEN_UP
from builder.docker import engine as docker
from builder.docker.engine import split
from builder.engines import families
from builder.engines.layout import LABEL_KEY, LABEL_RECIPE, LABEL_RECIPE_KEY, VERSION
from builder.engines.servers import PLACE, KeyOption
from builder.plan.resolver import Resolver
from builder.presets import command, is_preset
from builder.presets import service as services
from builder.presets.catalog import PresetEntry, load
from builder.presets.models import given_files, hub_files, joined
from builder.presets.schema import DIRECTORY, ModelFile
from builder.publish.registry import RemotePlatform, Repository, remote_image
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe

# The image of a run: in the engine, in the registry, and whether the recipe asks for it now.

UNVERIFIED = "unverified-"  # the beginning of a candidate's tag: ``Plan.candidate``


@dataclass(frozen=True, slots=True)
class RunImage:
    """The image of a run, or one that may be it."""

    name: str  # by digest, where that is known
    local: bool = True  # Docker has it
    size: int = 0  # bytes to download at most
    least: int = 0  # bytes to download, where the engine knows all layers that it has
    key: str = ""  # its build key; empty: not known
    what: str = ""
    """Why it is not the image that the recipe asks for, or that there is none; empty: it is."""
    hint: str = ""
    builds: bool = False  # whether a build is the next step
    note: str = ""  # what is not known of an image that can be started
    current: bool = False  # it is of the recipe as it is now
    digests: frozenset[str] = frozenset()
    built: bool = False
    """It has an immutable tag of the recipe's key: a build, or an earlier pull, gave it."""


@dataclass(frozen=True)
class Images:
    """Finds the image of a recipe by its build key, whatever its names are.

    The image of a channel is the one that the channel points to, which has the key of a frozen
    recipe.
    """

    catalog: Catalog
    recipe: Recipe
    settings: Settings
    log: Log

    @property
    def repository(self) -> str:
        """The image's repository, with the user's namespace."""
        return self.settings.repository(self.recipe.image.repository)

    @property
    def tagged(self) -> str:
        """``NAMESPACE/REPOSITORY:TAG``: the tag of the recipe's version."""
        return f"{self.repository}:{self.recipe.image.tags[0]}"

    @property
    def channel(self) -> str:
        """The recipe's channel, where its image is the channel's; else empty."""
        channel = (self.recipe.track.channel if self.recipe.track else None) or ""
        return channel if channel == self.recipe.image.tags[0] else ""

    @cached_property
    def platform(self) -> Platform:
        """The platform of the image for the engine's machine; else its first one, emulated."""
        try:
            own = platform_of(docker.engine().architecture)
        except errors.WorldError:
            own = None
        return own if own in self.recipe.platform else self.recipe.platform[0]

    @cached_property
    def keys(self) -> frozenset[str]:
        """The keys of the recipe as it is now, by all ways to build it."""
        resolver = Resolver(self.catalog, PLATFORMS[self.platform])
        return resolver.recipe_keys(self.recipe.name, self.platform)

    def find(self, *, old: bool = False, published_first: bool = False) -> RunImage:
        """The image to start, or why there is none.

        ``old``: an image of another state of the recipe will do; ``published_first``: where the
        registry has the image, too, its name there.  Raises ``WorldError`` where no engine answers.
        """
        here, there, error, silent = [], None, None, None
        try:
            here = self._here()
        except errors.WorldError as failed:
            if not published_first:
                raise
            silent = failed
        follows = bool(self.channel and self.settings.namespace)
        current = next((each for each in here if each.current), None)
        if current and not published_first and (current.built or not follows):
            return current
        try:
            there = self._published(once=bool(current or (follows and here)))
        except (errors.FetchError, errors.RegistryError) as failed:
            error = failed
        if there and (there.current or follows):
            same = (each for each in here if each.digests & there.digests)
            return there if published_first else next(same, there)
        if follows and error and here:
            moved = f"whether {self.channel} has moved from {here[0].name} is not known"
            return replace(here[0], note=f"{error.what}: {moved}")
        if current:
            note = f"{error.what}: whether it is published is not known" if error else ""
            return replace(current, note=note)
        if silent:
            raise silent
        other = here[0] if here else there
        what, hint = self._lacking(here, there, error)
        if old and other:
            return replace(other, note=what)
        name, local = (other.name, other.local) if other else (self.tagged, True)
        builds = not isinstance(error, errors.FetchError) or isinstance(error, errors.GoneError)
        return RunImage(name, local, what=what, hint=hint, builds=builds)

    def _lacking(
        self, here: list[RunImage], there: RunImage | None, error: errors.BuilderError | None
    ) -> tuple[str, str]:
        parts = [f"there is no image {self.tagged} in Docker"]
        if here:
            parts = [f"the image {here[0].name} in Docker {self._other(here[0])}"]
        build = f"build it: `builder build {self.recipe.name}`"
        if error:
            gone = isinstance(error, errors.GoneError)
            so = "" if gone else ", so whether it is published is not known"
            parts.append(f"{error.what}{so}" + (f" ({error.why})" if error.why else ""))
            build = f"{error.hint}; or {build}" if error.hint else build
        elif there:
            parts.append(f"the published image {there.name} {self._other(there)}")
        elif self.settings.namespace:
            parts.append("and it is not published")
        else:
            build += ", or set BUILDER_NAMESPACE to the account that publishes it"
        if here or there:
            build += "; to start the image of the other state: `builder run` with --old"
        return "; ".join(parts).replace("; and", ", and"), build

    def _other(self, image: RunImage) -> str:
        key = f"its build key is {image.key[:12] or 'absent'}"
        return f"is of another state of {self.recipe.name}, mostly an older one ({key})"

    def _here(self) -> list[RunImage]:
        store = docker.engine().containerd_store
        found = []
        for digest in dict.fromkeys(docker.image_digests(self.repository)):
            image = docker.image(digest)
            if image is None or image.platform != self.platform:
                continue
            # The recipe made it, or a frozen recipe of its channel.
            frozen = self.channel and image.labels.get(VERSION, "").startswith(f"{self.channel}-")
            if image.labels.get(LABEL_RECIPE) != self.recipe.name and not frozen:
                continue
            names = {n for n in image.names if n.rpartition(":")[0] == self.repository}
            if names and all(f":{UNVERIFIED}" in name for name in names):
                continue  # a candidate without a verdict
            known = [f"{self.tagged}@{each}" for each in (image.digest, *sorted(image.digests))]
            fitting = (each for each in known if docker.image(each) is not None)
            tag = self.tagged if self.tagged in names else min(names, default="")
            name = tag if tag and not store else next(fitting, tag or digest)
            key = image.labels.get(LABEL_KEY, "")
            current = image.labels.get(LABEL_RECIPE_KEY, key) in self.keys
            built = current and any(each.endswith(f"-{key[:12]}") for each in names)
            one = RunImage(name, key=key, current=current, digests=image.digests, built=built)
            found.append(((self.tagged in names, image.epoch), one))
        return [image for _, image in sorted(found, key=lambda each: each[0], reverse=True)]

    def _published(self, *, once: bool) -> RunImage | None:
        """The registry's image of the version tag; None where it has none.

        ``once``: Docker has an image to start, so the registry gets one attempt.  Without a
        namespace nothing is asked: the name is then somebody else's image.  Raises
        ``RegistryError``, ``FetchError``; ``GoneError`` where it is for other platforms.
        """
        if not self.settings.namespace:
            return None
        if once:
            GIVEN_UP.add(split(self.repository)[0])
        repository = Repository(self.repository, self.log, self.settings.token_hosts)
        found = remote_image(repository, self.recipe.image.tags[0])
        if found is None:
            return None
        own = found.platforms.get(self.platform)
        if found.platforms and own is None:
            raise errors.GoneError(
                f"{self.tagged} in the registry has no image for {self.platform}",
                f"it has {' and '.join(found.platforms)}",
            )
        key = own.key if own else found.labels.get(LABEL_KEY, "")
        least = size = (own or found).download_size
        if own and (shared := self._layers_here(own)):
            least = own.download_above(shared)
            size = least if docker.engine().containerd_store else size
        return RunImage(
            f"{self.tagged}@{found.digest}",
            local=False,
            size=size,
            least=least,
            key=key,
            current=((own.recipe_key if own else "") or key) in self.keys,
            digests=frozenset({found.digest, (own or found).digest}),
        )

    @staticmethod
    def _layers_here(image: RemotePlatform) -> int:
        try:
            return docker.layers_here(image.layers)
        except errors.WorldError:  # no engine answers: a fault of its own
            return 0


def pull(images: Images, name: str) -> None:
    """Pull a published image, and give it the tags by which all find it without a registry."""
    images.log(f"pulling {name}")
    docker.pull(name, images.platform)
    found = docker.image(name)
    labels = found.labels if found else {}
    version, key = labels.get(VERSION), labels.get(LABEL_KEY)
    if version and key:
        docker.tag(name, f"{images.repository}:{version}-{key[:12]}")
    docker.tag(name, images.tagged)


# The request of a user, and the service that it means.

OPEN = "none"  # --api-key-file none: no key, on purpose
GIVE_KEY = "give it a key: --api-key-file ~/.config/builder/api-key, which is made if it is missing"
PROXY = "leave it on 127.0.0.1 and put a proxy that asks for a key in front of it"
KEY_RULE = re.compile(r"(?!-)[!#-\[\]-~]+")
"""A key: printable ASCII, so that it can stand in a header and in YAML between double quotes."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """The request of the user."""

    target: str  # a preset, or a recipe
    given: Mapping[str, Path] = field(default_factory=dict)
    """Files of this machine, by ``model``, ``draft`` and ``mmproj``."""
    context: int | None = None
    port: int | None = None  # on the host; default: the image's port
    options: tuple[str, ...] = ()
    cpu: bool = False
    old: bool = False  # an image of another state of the recipe will do
    card: str = "auto"  # the name of a card in ``cards/``
    listen: str = services.HOST
    key_file: str = ""  # the absolute path of the file with the API key; ``OPEN``; empty: not given
    restart: str = services.RESTART


@dataclass(frozen=True, slots=True)
class Launch:
    """A request with all that its steps share."""

    catalog: Catalog
    settings: Settings
    log: Log
    wanted: LaunchRequest
    run: services.Run
    entry: PresetEntry | None  # the preset; None: a recipe is run

    @property
    def models_dir(self) -> Path:
        """The models directory as an absolute path; ~ is the user's home."""
        return self.settings.models_dir.expanduser().absolute()

    @property
    def key(self) -> KeyOption | None:
        """How the server gets the key that the user wants; None: it asks for none."""
        given = self.wanted.key_file not in {"", OPEN}
        return families.ENGINES[self.run.recipe.family].key if given else None

    @property
    def key_copy(self) -> Path:
        """The key as the engine reads it: a file for all users, in a directory of this one alone.

        The user of the container is neither the owner of the key's file nor a root with
        capabilities.  Another key makes another copy: a server keeps the one that it has.
        """
        key = key_of(Path(self.wanted.key_file))
        name = hashlib.sha256(f"{self.wanted.key_file}\0{key}".encode()).hexdigest()[:12]
        suffix = self.key.suffix if self.key else ""
        return self.settings.state_dir.absolute() / "keys" / f"{name}{suffix}"


def prepared(catalog: Catalog, wanted: LaunchRequest, settings: Settings, log: Log) -> Launch:
    """The launch of a preset or a recipe, with the options after ``--`` that name builder's own.

    The context and the files of this machine that these options name are taken from them;
    ``--option=value`` becomes two words where the engine takes no other.  Raises ``RecipeError``
    for an unknown or broken preset or recipe, for a context that cannot be checked, and for a file
    in place of a mounted one that is not on this machine.
    """
    entry = load(catalog).preset(wanted.target) if is_preset(wanted.target) else None
    preset = entry.preset if entry else None
    engine = catalog.engine(preset.recipe if preset else wanted.target)
    run = services.Run(entry.name if entry else engine.name, engine.recipe, preset)
    job = Launch(catalog, settings, log, wanted, run, entry)
    _require_guarded(job)
    places = command.places_by_setting(preset, run.recipe)
    own = {*wanted.given, *(preset.files if preset else ())}
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
            raise errors.RecipeError(
                f"{' '.join(group)} after -- is no number of tokens that builder can check",
                hint="name the size before --: --context TOKENS",
            )
        elif file:
            given[place] = file
        elif place in own and value:
            raise errors.RecipeError(
                f"{name} after -- names no file of this machine: {value}",
                "builder mounts the file that it replaces",
                f"name a file before --: --{place} FILE",
            )
        else:
            options += group
    wanted = replace(wanted, given=given, context=context, options=tuple(options))
    run = replace(run, context=context, options=wanted.options, cpu=wanted.cpu)
    return replace(job, wanted=wanted, run=run)


def _require_guarded(job: Launch) -> None:
    """Raise ``UsageError`` for a server that other machines reach, and nobody has decided how."""
    wanted, recipe = job.wanted, job.run.recipe
    try:
        guarded = wanted.key_file or ip_address(wanted.listen).is_loopback
    except ValueError:
        what = f"--listen {wanted.listen} is no IP address"
        hint = "0.0.0.0 is every address of this machine; 127.0.0.1 and ::1 are this machine alone"
        raise errors.UsageError(what, hint=hint) from None
    family = families.ENGINES[recipe.family]
    takes = family.key is not None
    on_purpose = f"or open it on purpose: --api-key-file {OPEN}"
    if not guarded:
        what = f"--listen {wanted.listen} needs --api-key-file"
        why = "everyone in that network could use the server"
        if not takes:
            why += f", and {recipe.name} {family.no_key}"
        raise errors.UsageError(what, why, f"{GIVE_KEY if takes else PROXY}; {on_purpose}")
    if wanted.key_file in {"", OPEN}:
        return
    if not takes:
        what = f"the server of {recipe.name} {family.no_key}"
        raise errors.UsageError(what, hint=f"{PROXY}; {on_purpose}")
    key_of(Path(wanted.key_file))


def key_of(file: Path) -> str:
    """The API key in a file; empty where there is no such file.  Raises ``WorldError``."""
    try:
        key = file.read_text("ascii").strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", "") or "it is no text"
        hint = "name another file: --api-key-file FILE"
        raise errors.WorldError(f"cannot read the API key in {file}", why, hint) from error
    if KEY_RULE.fullmatch(key):
        return key
    raise errors.WorldError(
        f"{file} has no API key",
        "a key is one line of ASCII without blanks and quotes, and begins with no hyphen",
        "remove the file, and a key is made; or name another one: --api-key-file FILE",
    )


def write_key(job: Launch) -> str:
    """Make the user's file with a random key, if it is missing, and the copy for the engine; the
    key, empty where the server asks for none."""
    if job.key is None:
        return ""
    file = Path(job.wanted.key_file)
    key = key_of(file)
    try:
        if not key:
            file.parent.mkdir(parents=True, exist_ok=True)
            key = secrets.token_hex(32)
            file.touch(0o600, exist_ok=False)
            file.write_text(f"{key}\n", "ascii")
            job.log(f"made an API key: {file}")
        copy = job.key_copy
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.parent.chmod(0o700)
        text = job.key.text.format(key=key)
        if not copy.is_file() or copy.read_text("ascii") != text:
            with atomic_write(copy) as temporary:
                temporary.write_text(text, "ascii")
                temporary.chmod(0o444)
    except OSError as error:
        what = f"cannot write {error.filename or file}"
        raise errors.WorldError(
            what, error.strerror or "", "name another file: --api-key-file FILE"
        ) from error
    return key


def requested(job: Launch, image: str, files: services.Files) -> services.Service:
    """The service of a run with these files, at the address and with the key that a user wants."""
    wanted = job.wanted
    found = services.service(job.run, image, files, published=wanted.port)
    found = replace(found, listen=wanted.listen, restart=wanted.restart)
    if job.key is None:
        return found
    place, copy = f"{services.KEY}{job.key.suffix}", job.key_copy
    words = (job.key.option, place)
    option = services.ServiceOption(words, f"the server asks for the API key in {wanted.key_file}")
    needs = f"Needs {copy}, made of {wanted.key_file} by `builder run` and `builder export`"
    return replace(
        found,
        key_file=wanted.key_file,
        arguments=(*found.arguments, option),
        mounts=(*found.mounts, services.Mount(str(copy), place, file=True)),
        missing=(*found.missing, needs),
    )


def _file_of(value: str, directory: Path) -> Path | None:
    inside = PurePosixPath(value)
    if inside.is_relative_to(DIRECTORY):
        here = directory / inside.relative_to(DIRECTORY)
        if here.exists():
            return here
    path = Path(value).expanduser()
    return path if path.exists() else None


def described(job: Launch) -> services.Service:
    """The service of a preset or a recipe, whether its image and models are here or not.

    The Hub is asked for the names of files that the preset does not give.
    """
    images = Images(job.catalog, job.run.recipe, job.settings, job.log)
    try:  # by digest, from the registry or the engine; by tag where neither has it
        image = images.find(old=job.wanted.old, published_first=True)
    except errors.WorldError as error:
        job.log(error.what)
        what = f"whether there is an image {images.tagged} is not known"
        image = RunImage(images.tagged, what=what, hint=error.hint)
    if image.note:
        job.log(image.note)
    own = job.run.preset.files if job.run.preset else {}
    others = {place: file for place, file in own.items() if place not in job.wanted.given}
    directory = job.models_dir
    names = {place: _name_of(place, file, directory, job.log) for place, file in others.items()}
    files = joined(given_files(job.wanted.given), services.mounted(others, str(directory), names))
    found = requested(job, image.name, files)
    missing = (f"{image.what}: {image.hint}",) if image.what else ()
    return replace(found, local=image.local, incomplete=(*missing, *files.incomplete))


def _name_of(place: str, file: ModelFile, directory: Path, log: Log) -> str:
    """The path of a file in its repository, from the models directory or the Hub; empty: neither
    knows it."""
    if file.repository is None or file.whole or file.file is not None:
        return file.file or ""
    found = services.chosen(file, services.names_below(directory / file.repository))
    if found:
        return found[0]
    try:
        names = [each.path for each in hub_files(file.repository, file.revision)]
    except errors.FetchError as error:
        log(f"{error.what}: {error.why}; {services.UNKNOWN[place]} stands for its file")
        return ""
    return next(iter(services.chosen(file, names)), "")
