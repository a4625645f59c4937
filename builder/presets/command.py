"""The arguments of a preset's server: its own, the models, and the context."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from builder.engines import families
from builder.engines.servers import API_FLAVORS, PLACE, filled
from builder.presets.schema import ContainerOptions, Preset
from builder.recipes.schema import Recipe

VARIABLE = re.compile(r"(?:LLAMA|HELLO)_(?:ARG_)?(?:NO_(?!HOST$))?([A-Z0-9_]+)")
"""A variable of llama.cpp or hello-sm120 that stands for an option (``common/arg.cpp``)."""
OPPOSITE = re.compile(r"^(?:--(?:(?:no|disable|enable)-)+(?!host$)|-no-)")
"""The beginning of an option that turns another one off; llama.cpp's --no-host is its own."""
DRAFTED = ("--spec-draft-n-max", "--draft-max")
BLOCK = "--draft-block-size"  # of AtomicChat's fork: the drafted tokens and the one before them
PARALLEL = "--tensor-parallel-size"  # of vLLM and SGLang: the cards that share each tensor
TOKENS = re.compile(r"(\d+(?:\.\d+)?)([kKmM]?)")
PART = re.compile(r"(-[^.]+)\..*")
"""A key of an option's JSON (vLLM, "JSON CLI Arguments"): vLLM replaces the whole value."""


def option_of(word: str) -> str:
    """The long name of the option that an argument begins with; empty for a value."""
    name = word.split("=", 1)[0]
    if not name.startswith("-") or not name.lstrip("-")[:1].isalpha():
        return ""
    return _tables()["aliases"].get(name, name)


def setting_of(word: str, recipe: Recipe) -> str:
    """One name for all options and variables that set the same as a word: ``-ngl``, ``--no-mmap``.

    Empty for a value, and for a variable that stands for no option.
    """
    if variable := VARIABLE.fullmatch(word):
        name = f"--{variable[1].lower()}"
    elif option_of(word):
        name = word.split("=", 1)[0]
    else:
        return ""
    name = PART.sub(r"\1", name.replace("_", "-") if name.startswith("--") else name)
    name = OPPOSITE.sub(lambda found: "--" if found[0].startswith("--") else "-", name)
    return _names(_table(recipe)).get(name, name)


def joins(recipe: Recipe) -> bool:
    """Whether a server takes ``--option=value``: llama.cpp does not (``common/arg.cpp``)."""
    return recipe.family != "llama-cpp"


def repeated(recipe: Recipe) -> set[str]:
    """The settings whose options a server takes several times, and adds up."""
    return {*_tables().get(_table(recipe), {}).get("repeated", "").split()}


def _table(recipe: Recipe) -> str:
    serve = families.serve_of(recipe)
    return serve.api_flavor if serve and serve.api_flavor in _tables() else recipe.family


@cache
def _names(table: str) -> Mapping[str, str]:
    rows = [line.split() for line in _tables().get(table, {}).get("names", "").splitlines()]
    return {name: row[0] for row in rows for name in row}


@cache
def _tables() -> dict[str, dict[str, str]]:
    return tomllib.loads(Path(__file__).with_name("options.toml").read_text("utf-8"))


def groups(words: Iterable[str]) -> Iterator[list[str]]:
    """Each option with its values; values before the first option are a group of their own."""
    group: list[str] = []
    for word in words:
        if group and option_of(word):
            yield group
            group = []
        group.append(word)
    if group:
        yield group


def known_options(recipe: Recipe) -> dict[str, Sequence[str]]:
    """The words that bring ``{model}``, ``{context}``, ``{draft}`` and ``{mmproj}`` to a server.

    They come from the recipe's [serve], else from its family; unknown ones are missing.
    """
    serve = families.serve_of(recipe)
    if serve is None:
        return {}
    found: dict[str, Sequence[str]] = {
        place: group
        for group in groups([*serve.arguments, *serve.draft])
        for place in ("{model}", "{context}", "{draft}")
        if any(place in word for word in group)
    }
    projector = API_FLAVORS[serve.api_flavor].projector
    if projector is not None:
        found["{mmproj}"] = [projector, "{mmproj}"]
    return found


def arguments(preset: Preset, recipe: Recipe, places: Mapping[str, str]) -> list[str]:
    """The arguments after the entrypoint; ``places`` are the models in the container, by ``model``,
    ``draft`` and ``mmproj``."""
    tokens = preset.serve.context
    values = {**places, **({"context": str(tokens)} if tokens is not None else {})}
    return filled(written(preset, recipe, values), values)


def written(
    preset: Preset, recipe: Recipe, places: Collection[str], others: Sequence[str] = ()
) -> list[str]:
    """The arguments with ``{model}``, ``{context}``, ...; ``places`` are the known ones.

    ``others``, such as a user's, replace the options that set the same, under any of their names.
    """
    own = list(preset.serve.arguments)
    known = (
        group
        for place, group in known_options(recipe).items()
        if place.strip("{}") in places and not any(place in word for word in own)
    )
    return merged([*(word for group in known for word in group), *own], others, recipe)


def merged(words: Sequence[str], others: Sequence[str], recipe: Recipe) -> list[str]:
    """The words, with the options of ``others`` in place of those that set the same."""
    replaced = settings_of(others, recipe)
    model = known_options(recipe).get("{model}", ())
    if model and not option_of(model[0]) and replaced & {"", "--model"}:
        replaced |= {"", "--model"}  # vLLM takes its model with and without an option
    kept = [group for group in groups(words) if setting_of(group[0], recipe) not in replaced]
    given = [*groups(others)]
    first = given[:1] if given and not option_of(given[0][0]) else []  # no value of an option
    return [word for group in [*first, *kept, *given[len(first) :]] for word in group]


def settings_of(words: Iterable[str], recipe: Recipe) -> set[str]:
    """What these options set; empty stands for values before the first option."""
    return {setting_of(group[0], recipe) for group in groups(words)}


def values_by_setting(words: Iterable[str], recipe: Recipe) -> dict[str, str]:
    """The value of each setting, empty without one: ``--gpu_layers=3`` sets ``--n-gpu-layers``."""
    return values_of(words, lambda word: option_of(setting_of(word, recipe)))


def values_of(words: Iterable[str], named: Callable[[str], str] = option_of) -> dict[str, str]:
    """The value of each option, by the name that ``named`` gives it; empty without one."""
    return {
        named(first): rest[0] if rest else first.partition("=")[2] for first, *rest in groups(words)
    }


def drafted_tokens(options: Mapping[str, str]) -> int:
    """The tokens that options let an engine draft in a step; 0: none, or not known."""
    try:
        if BLOCK in options:
            return int(options[BLOCK]) - 1
        if "--speculative-config" in options:
            return int(json.loads(options["--speculative-config"])["num_speculative_tokens"])
        return next((int(options[name]) for name in DRAFTED if name in options), 0)
    except (ValueError, TypeError, KeyError):  # no number, no JSON, or another key
        return 0


def tokens(text: str) -> int | None:
    """A size as engines read it: vLLM's K is 1024, and its k 1000; None: it is no size."""
    step = {"": 1, "k": 1000, "m": 10**6, "K": 1 << 10, "M": 1 << 20}
    given = TOKENS.fullmatch(text)
    return int(float(given[1]) * step[given[2]]) if given else None


def places_by_setting(preset: Preset | None, recipe: Recipe) -> dict[str, str]:
    """``model``, ``context``, ... by the setting that names nothing else."""
    found = {}
    own = groups(preset.serve.arguments) if preset else ()
    for group in [*known_options(recipe).values(), *own]:
        value = group[-1].partition("=")[2] if len(group) == 1 and "=" in group[0] else group[-1]
        if place := PLACE.fullmatch(value):
            found[setting_of(group[0], recipe)] = place[1]
    return found | ({"--model": "model"} if found.get("") == "model" else {})


def container_options(container: ContainerOptions) -> list[str]:
    """The options of ``docker run`` for the needs of a container beside GPU and models."""
    words = [f"--ipc={container.ipc}"] if container.ipc else []
    words += [f"--shm-size={container.shm_size}"] if container.shm_size else []
    words += ["--ulimit=memlock=-1"] if container.memlock else []
    return words + [f"--cap-add={name}" for name in container.capabilities]


ADDRESS_OPTION = re.compile(
    "--(host|port|uds|api-prefix|root-path|fastapi-root-path|server-name|server-port|ssl(-.*)?)"
)
"""Options by which a server leaves the image's address: llama.cpp (``common/arg.cpp``), vLLM
(``entrypoints/openai/cli_args.py``), SGLang (``srt/server_args.py``), LMDeploy (``cli/serve.py``),
llama-cpp-python (``server/settings.py``), TabbyAPI (``common/config_models.py``)."""
ADDRESS_VARIABLE = re.compile(
    r"(LLAMA_ARG|HELLO_ARG|TABBY_NETWORK)_(HOST|PORT|API_PREFIX|SSL_\w+)|HOST|PORT|ROOT_PATH"
    "|SSL_KEYFILE|SSL_CERTFILE"
)  # variables with the same effect


def addresses(words: Iterable[str]) -> Iterator[str]:
    """The options among ``words`` that set the server's address, as they are written."""
    for word in words:
        name = word.partition("=")[0]
        if ADDRESS_OPTION.fullmatch(name.replace("_", "-").lower()):
            yield name
