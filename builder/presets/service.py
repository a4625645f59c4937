"""A service: all that a container needs to serve a preset, or a recipe with a model.

Everything that starts or describes such a container is written from it: ``builder run``, and the
formats of ``builder export``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath

from builder.core.errors import RecipeError
from builder.core.names import SPLIT, parts_of
from builder.engines import families, layout
from builder.engines.layout import LAYOUT
from builder.engines.servers import filled
from builder.presets import command
from builder.presets.schema import DIRECTORY, Caveat, ContainerOptions, ModelFile, Preset
from builder.recipes.schema import Recipe

HOST = "127.0.0.1"  # the address that a service is published on, where the user names no other
KEY = "/run/api-key"  # the file of the API key in a container, less its suffix
LOADING = 900  # seconds to load the weights of a model
RESTART = "unless-stopped"
"""It starts again after a reboot; the pause between two starts doubles, up to a minute (Docker,
"Start containers automatically")."""
IN_RAM = ("--mlock", "--n-cpu-moe", "--cpu-moe", "--override-tensor", "--cpu-offload-gb")
"""Options that keep weights in the machine's memory; how many is not computed: all count."""
STOP = 30  # seconds between SIGTERM and SIGKILL: the answers under way come to their end
SHARED = "2g"
"""Shared memory for tensor parallelism (vLLM, "Using Kubernetes"): 64 MB, Docker's own, end it."""
LONGEST_NAME = 53
"""Characters of a release of Helm (``ValidateReleaseName``), the shortest limit of all programs."""


@dataclass(frozen=True, slots=True)
class ServiceOption:
    """An option with its values, and the reason for it; empty where no source gives one."""

    words: tuple[str, ...]
    why: str = ""
    written: tuple[str, ...] = ()
    """The words with ``{model}``, ``{context}``, ... for ``Service.places``; empty: ``words``."""


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable, and the reason for it."""

    name: str
    value: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or directory of the host, read-only in the container."""

    source: str
    target: str
    file: bool = False


@dataclass(frozen=True, slots=True)
class Files:
    """The models as the container sees them: paths by ``model``, ``draft`` and ``mmproj``."""

    places: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    missing: tuple[str, ...] = ()
    """A sentence on each prerequisite; below it, after two blanks, the command that brings it."""
    incomplete: tuple[str, ...] = ()
    """Sentences on the models that no path of ``places`` names: a placeholder stands for them."""


@dataclass(frozen=True, slots=True)
class Service:
    """A container that serves a model, with the reason for each of its settings."""

    name: str  # name of the container: a DNS label of at most ``LONGEST_NAME`` characters
    run: str  # name of the preset or recipe: "qwen3.6-27b-dflash@5090-laptop"
    title: str
    image: str
    arguments: tuple[ServiceOption, ...]
    port: int
    published: int
    health: str  # path of its health page, with the leading slash
    local: bool = False  # no registry has the image: it is in Docker alone, or is not built yet
    model: str = ""
    api_model: str = ""  # the model's name in requests; empty: the server takes any
    environment: tuple[Variable, ...] = ()
    mounts: tuple[Mount, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    """Paths of ``model``, ``draft`` and ``mmproj`` in the container, and ``context`` in tokens: the
    values in ``arguments`` that a user changes."""
    cards: int = 1
    memory: int = 0  # bytes on all cards, as the source of the preset states them; 0: not known
    ram: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the machine's memory that it is taken to need, by what they are for."""
    devices: tuple[int, ...] = ()  # numbers of these GPUs, as nvidia-smi counts them; empty: any
    cdi: bool = False  # whether the engine has its GPUs by CDI, without NVIDIA's runtime
    container: ContainerOptions = field(default_factory=ContainerOptions)
    cache: str | None = None  # directory of the container whose contents make the next start faster
    read_only: bool = False
    """It runs on a read-only root with a /tmp of its own, as the smoke test has shown."""
    user: int | None = None
    """Number of its user; None: the user of a published base, which may be root."""
    restart: str | None = RESTART
    listen: str = HOST  # the address of this machine that its port is published on
    key_file: str = ""  # the user's file with the API key that it asks for; empty: it asks for none
    loading: int = LOADING
    notes: tuple[str, ...] = ()
    slower: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    """Why it cannot start as it is: an image that is nowhere, a placeholder for a model."""

    @property
    def caveats(self) -> list[str]:
        """The known problems as lines."""
        return [f"Caveat: {text}" for text in (*self.slower, *self.notes)]

    @property
    def words(self) -> list[str]:
        """The arguments as one list."""
        return [word for option in self.arguments for word in option.words]

    @property
    def health_check(self) -> list[str]:
        """The command of its health check, which each of our images contains."""
        return [LAYOUT.healthcheck, str(self.port), self.health.removeprefix("/")]

    @property
    def publish(self) -> str:
        """The value of ``docker run --publish``."""
        return f"{in_url(self.listen)}:{self.published}:{self.port}"

    @property
    def url(self) -> str:
        """The address of the server for programs of this machine."""
        own = {"0.0.0.0": HOST, "::": "::1"}.get(self.listen, self.listen)  # noqa: S104
        return f"http://{in_url(own)}:{self.published}"


def in_url(address: str) -> str:
    """An IP address as URLs and ``--publish`` have it: IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


@dataclass(frozen=True, slots=True)
class Run:
    """A named run of a preset, or, without one, of a recipe."""

    name: str
    recipe: Recipe
    preset: Preset | None = None
    context: int | None = None
    """Size of the context in tokens; default: the preset's, else the engine's."""
    options: tuple[str, ...] = ()
    """More options of the engine, which replace the same ones of the preset."""
    cpu: bool = False  # it runs on the CPU, without a GPU


def service(run: Run, image: str, files: Files, *, published: int | None = None) -> Service:
    """The service of a run whose models are ``files``, if its recipe takes them and the context."""
    recipe = families.complete(run.recipe)
    port = recipe.image.port
    if port is None:
        raise RecipeError(f"{recipe.name} is no server: its image has no port")
    _require_taken(run, recipe, files)
    for name in command.addresses(run.options):
        raise RecipeError(
            f"{name} cannot be given after --",
            f"the server's port {port} is published by Docker, and its health page is asked there",
            "leave it out: --listen ADDRESS and --port N set the address of this "
            "machine. For a path or TLS, put a proxy before the server",
        )
    if any(word.partition("=")[0].replace("_", "-") == "--api-key" for word in run.options):
        raise RecipeError(
            "--api-key cannot be given after --",
            "everyone on this machine would see the key in the command line",
            "--api-key-file FILE mounts it as a file",
        )
    preset = run.preset
    context = run.context or (preset.serve.context if preset else None)
    values = {**files.places, **({"context": str(context)} if context is not None else {})}
    written = _named(run, recipe, values)
    caveats = _caveats(run, recipe, values)
    arguments = []
    for group in written:
        words = filled(group, values)
        why = _reason(words, run, files)
        arguments.append(ServiceOption(tuple(words), why, tuple(group)))
    given = command.settings_of(run.options, recipe)
    given |= {
        setting
        for setting, place in command.places_by_setting(preset, recipe).items()
        if place in values
    }
    environment = {
        name: value
        for name, value in (preset.serve.environment if preset else {}).items()
        if command.setting_of(name, recipe) not in given - {""}
    }
    by_setting = {command.setting_of(each.words[0], recipe): each.words for each in arguments}
    container = preset.container if preset else ContainerOptions()
    if command.PARALLEL in by_setting and not (container.ipc or container.shm_size):
        container = container.model_copy(update={"shm_size": SHARED})
    family = families.ENGINES[recipe.family]
    # vLLM answers to the first of several names, else to the model as given.
    first, *others = by_setting.get(family.name_option or "", ("",))
    api_model = first.partition("=")[2] or next(iter(others), "") if first else values.get("model")
    user = recipe.image.user or ("" if family.extends_base else LAYOUT.user)
    uid = user.partition(":")[0]
    return Service(
        name=container_name(run.name),
        run=run.name,
        title=preset.summary if preset else recipe.summary,
        image=image,
        arguments=tuple(arguments),
        port=port,
        published=published or port,
        health=f"/{recipe.image.health or ''}",
        model=preset.model.name if preset else "",
        api_model=api_model or "" if family.serve else "",
        environment=tuple(
            Variable(name, value, _reasons()["variable"].get(name, ""))
            for name, value in {**environment, **(layout.CPU if run.cpu else {})}.items()
        ),
        mounts=files.mounts,
        places={
            place: value
            for place, value in values.items()
            if any(f"{{{place}}}" in word for group in written for word in group)
        },
        cards=0 if run.cpu else preset.cards if preset else 1,
        memory=(preset.memory.whole or 0) if preset and preset.memory else 0,
        ram=_ram(run, recipe, files, [word for each in arguments for word in each.words]),
        container=container,
        cache=family.cache,
        read_only=recipe.serve is not None and not recipe.start,
        user=int(uid) if uid.isdigit() else None,
        notes=tuple(f"{note.shown}{old and f' This is about {old}'}" for note, old in caveats),
        slower=preset.notes(preset.published) if preset else (),
        missing=files.missing,
        incomplete=files.incomplete,
    )


def _ram(run: Run, recipe: Recipe, files: Files, words: Sequence[str]) -> dict[str, int]:
    """The machine's memory: bytes by what they are for.

    Weights for the cards stay out: their files are mapped, or read piece by piece.
    """
    given = command.values_by_setting(words, recipe)
    why = "--cpu" if run.cpu else next((each for each in IN_RAM if each in given), "")
    why = why or ("--no-mmap" if "--no-mmap" in words else "")
    own = run.preset.files.items() if run.preset else ()
    named = [
        file for place, file in own if not files.places.get(place, "").startswith(f"/{place}/")
    ]
    sizes = [file.known_size for file in named]
    sizes += [Path(mount.source).stat().st_size for mount in files.mounts if mount.file]
    unknown = " that are known" if None in sizes else ""
    found = {f"of weights{unknown} ({why})": sum(size or 0 for size in sizes)} if why else {}
    memory = run.preset.memory if run.preset else None
    if run.cpu and memory and memory.whole:
        found = {"that the published run took on its card (--cpu)": memory.whole}
    serve = families.serve_of(recipe)
    if families.ENGINES[recipe.family].name_option:
        return found | {'as in vLLM\'s own example ("Using Kubernetes")': 6 * 10**9}
    if serve and serve.api_flavor == "llama-server":
        cache = given.get("--cache-ram", "")
        mib = int(cache) if cache.isdecimal() else 8192
        found["of cached prompts (llama-server's --cache-ram)"] = mib << 20
    return found | {"for the program and its libraries (not measured)": 1 << 30}


def container_name(run: str) -> str:
    """``builder-qwen3-6-27b-5090-laptop``: a name for containers, and a label in DNS (RFC 1035)."""
    plain = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    return f"builder-{plain}"[:LONGEST_NAME].rstrip("-")


def container_needs(container: ContainerOptions) -> Iterator[tuple[str, str, str]]:
    """The needs of a container beside GPU and models: key of the preset, value, reason."""
    values = {
        "ipc": container.ipc,
        "shm_size": container.shm_size,
        "memlock": "-1" if container.memlock else None,
        "capabilities": ", ".join(container.capabilities),
    }
    for key, value in values.items():
        if value:
            yield key, value, _reasons()["container"][key]


def _require_taken(run: Run, recipe: Recipe, files: Files) -> None:
    known = command.known_options(recipe)
    own = [*(run.preset.serve.arguments if run.preset else ()), *run.options]
    given = [*files.places, *(["context"] if run.context is not None else [])]
    for name in given:
        if f"{{{name}}}" not in known and not any(f"{{{name}}}" in word for word in own):
            why = f"builder knows no option for it of {recipe.name}"
            hint = "leave it out, or give the engine's own option after --"
            raise RecipeError(f"{run.name} takes no --{name}", why, hint)
    if run.preset is None and "{model}" in known and not files.places and not run.options:
        hint = "name it: --model FILE, or the engine's option after --"
        raise RecipeError(f"{run.name} needs a model", hint=hint)


def _written(run: Run, recipe: Recipe, values: Mapping[str, str]) -> list[str]:
    if run.preset is not None:
        return command.written(run.preset, recipe, values, run.options)
    known = command.known_options(recipe).items()
    own = [word for place, group in known if place.strip("{}") in values for word in group]
    own += recipe.serve.gpu if recipe.serve and not run.cpu else []
    return command.merged(own, run.options, recipe)


def _named(run: Run, recipe: Recipe, values: Mapping[str, str]) -> list[list[str]]:
    """The options, with the model's name in requests: a preset's short name, else the file's."""
    groups = [*command.groups(_written(run, recipe, values))]
    option = families.ENGINES[recipe.family].name_option
    known = {command.setting_of(group[0], recipe) for group in groups}
    places = [place for place, group in enumerate(groups, 1) if "{model}" in group]
    if option and places and option not in known:
        name = run.name.partition("@")[0] if run.preset else PurePosixPath(values["model"]).name
        groups.insert(places[0], [option, name])
    return groups


def _caveats(run: Run, recipe: Recipe, values: Mapping[str, str]) -> list[tuple[Caveat, str]]:
    """The known problems of the preset that hold for a run: none of an option that it replaces.

    A caveat that names such an option without its value stays: only a person can tell whether it
    holds.  It has a text about the replaced option beside it, which is empty for all others.
    """
    if run.preset is None:
        return []
    before = command.arguments(run.preset, recipe, values)
    now = [*command.groups(filled(_written(run, recipe, values), values))]
    replaced = {
        command.setting_of(group[0], recipe): group
        for group in command.groups(before)
        if not any(_state(group, recipe) == _state(each, recipe) for each in now)
    }
    found = []
    for note in run.preset.caveat:
        about = ""
        words = [word.strip("`'\"()[],;:.") for word in note.text.split()]
        for word, following in zip(words, [*words[1:], ""], strict=True):
            group = replaced.get(command.setting_of(word, recipe)) if word[:1] == "-" else None
            if group is None:
                continue
            setting, negated, own = _state(group, recipe)
            named = word.partition("=")[2] or following
            if own[:1] == (named,) if own else _state([word], recipe) == (setting, negated, own):
                break
            if own and not any(each.isdigit() for each in named):
                about = f"the preset's {' '.join(group)}, which is replaced."
        else:
            found.append((note, about))
    return found


def _state(group: Sequence[str], recipe: Recipe) -> tuple[str, bool, tuple[str, ...]]:
    name, _, value = group[0].partition("=")
    off = re.match(r"--?(no|disable)[-_]|-n(kvo|ocb|dio|r)$", name) is not None
    return command.setting_of(name, recipe), off, (*filter(None, [value]), *group[1:])


def _reason(group: Sequence[str], run: Run, files: Files) -> str:
    name = command.option_of(group[0])
    parts = [_reasons()["option"].get(name, "")]
    for place, path in files.places.items():
        whole = re.compile(rf"{re.escape(path)}(?![\w./-])")
        file = getattr(run.preset, "drafter" if place == "draft" else place, None)
        if file is not None and any(whole.search(word) for word in group):
            parts.append(file.shown)
    return "; ".join(filter(None, parts))


@cache
def _reasons() -> dict[str, dict[str, str]]:
    return tomllib.loads(Path(__file__).with_name("reasons.toml").read_text("utf-8"))


# The models of a preset as files: in the models directory, on the Hub, and in a container.
#
# The models directory has the paths of the Hub: ``OWNER/NAME/FILE``, as
# ``hf download OWNER/NAME FILE --local-dir DIRECTORY/OWNER/NAME`` writes them.

UNKNOWN = {"model": "MODEL.gguf", "draft": "DRAFT.gguf", "mmproj": "MMPROJ.gguf"}
"""Stand for files whose names nobody knows yet."""
UNFINISHED = (".part", ".incomplete")
"""The ends of the files of a download that was cut: builder's, and the Hub's own client's."""
CONFIGURATIONS = {"config.json", "params.json"}
"""Configuration of a model in a repository: of Transformers, of Mistral."""


def chosen(file: ModelFile, names: Iterable[str]) -> list[str]:
    """The paths in a repository that belong to a model: all parts of a split one, in order.

    Empty where none is the model, or a part is missing.  A whole repository has all of them.
    """
    known = sorted(names)
    if file.whole:
        return known
    if file.file is not None:
        first = [file.file] if file.file in known else []
    else:
        first = file.of_quantization(known)[:1]
    return [part for name in first for part in _parts(name, known)]


def complete(file: ModelFile, names: Iterable[str]) -> list[str]:
    """Like ``chosen``, of files on a disk: empty where a download was cut.

    A repository is complete with its configuration, which ``download`` writes last, and without
    unfinished files.
    """
    known = [*names]
    found = chosen(file, known)
    if file.whole:
        unfinished = any(name.endswith(UNFINISHED) for name in known)
        return found if not unfinished and CONFIGURATIONS & {*known} else []
    return found


def _parts(name: str, names: list[str]) -> list[str]:
    found, split = parts_of(name, names), SPLIT.search(name)
    return found if split is None or len(found) == int(split[2]) else []


def names_below(folder: Path) -> list[str]:
    """The paths of the files below a directory; empty where it is none."""
    if not folder.is_dir():
        return []
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def in_directory(file: ModelFile, directory: Path) -> Path | None:
    """A model in the models directory: its (first) file, or its repository's folder.

    None where it is not there, or not all of it: a download that was cut.
    """
    if file.repository is None:
        return None
    folder = directory / file.repository
    found = complete(file, names_below(folder))
    if not found:
        return None
    return folder if file.whole else folder / found[0]


def mounted(files: Mapping[str, ModelFile], directory: str, names: Mapping[str, str]) -> Files:
    """Models under the models directory, which is mounted as a whole.

    ``names`` are the paths in their repositories that were found; where one is not known, a name
    stands for it, and ``incomplete`` says how to learn it.
    """
    places, missing, incomplete = {}, [], []
    for place, file in files.items():
        name = names.get(place) or file.file
        is_file = file.quantization is not None or place == "mmproj"  # else it may be a directory
        unknown = UNKNOWN[place] if is_file else Path(UNKNOWN[place]).stem
        path = "/".join(filter(None, (file.repository, None if file.whole else name or unknown)))
        places[place] = f"{DIRECTORY}/{path}"
        command = file.download(directory, [name] if name else [])
        if file.whole or name is not None:
            needs = f"Needs {file.shown}"
            missing.append(
                f"{needs}:\n  {command}" if command else f"{needs} at {directory}/{path}"
            )
        elif command:
            why = f"The name of its file {file.shown} is not known; download it first:"
            incomplete.append(f"{why}\n  {command}")
        else:
            option = f"--{place} FILE"
            incomplete.append(f"No repository of {file.shown} is known: name a file with {option}")
    mounts = (Mount(directory, DIRECTORY),) if places else ()
    return Files(places, mounts, tuple(missing), tuple(incomplete))
