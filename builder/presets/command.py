"""The arguments of a preset's server: its own, the models, and the context."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from builder import families
from builder.presets.schema import ContainerOptions, Preset
from builder.recipes.schema import Recipe
from builder.servers.api_flavor import API_FLAVORS, filled

ALIASES: Mapping[str, str] = {
    "-m": "--model",
    "-c": "--ctx-size",
    "-md": "--model-draft",
    "--spec-draft-model": "--model-draft",
    "-mm": "--mmproj",
    "-ngl": "--n-gpu-layers",
    "-ngld": "--n-gpu-layers-draft",
    "-fa": "--flash-attn",
    "-ctk": "--cache-type-k",
    "-ctv": "--cache-type-v",
    "-b": "--batch-size",
    "-ub": "--ubatch-size",
    "-np": "--parallel",
}
"""Other names of llama-server's options (llama.cpp, ``common/arg.cpp``)."""


def option_of(word: str) -> str:
    """The long name of the option that an argument begins with; empty for a value."""
    name = word.split("=", 1)[0]
    if not name.startswith("-") or not name.lstrip("-")[:1].isalpha():
        return ""
    return ALIASES.get(name, name)


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
    found: dict[str, Sequence[str]] = {}
    for group in groups([*serve.arguments, *serve.draft]):
        for place in ("{model}", "{context}", "{draft}"):
            if any(place in word for word in group):
                found[place] = group
    projector = API_FLAVORS[serve.api_flavor].projector
    if projector is not None:
        found["{mmproj}"] = [projector, "{mmproj}"]
    return found


def arguments(
    preset: Preset,
    recipe: Recipe,
    places: Mapping[str, str],
    context: int | None = None,
    others: Sequence[str] = (),
) -> list[str]:
    """The arguments after the entrypoint.

    ``places`` are the models in the container, by ``model``, ``draft`` and ``mmproj``.  ``context``
    replaces the preset's; ``others``, such as a result's arguments, replace the same options of it.
    """
    tokens = context or preset.serve.context
    values = {**places, **({"context": str(tokens)} if tokens is not None else {})}
    return filled(written(preset, recipe, values, others), values)


def written(
    preset: Preset, recipe: Recipe, places: Collection[str], others: Sequence[str] = ()
) -> list[str]:
    """The arguments with ``{model}``, ``{context}``, ...; ``places`` are the known ones."""
    own = _merged(preset.serve.arguments, others)
    words: list[str] = []
    for place, group in known_options(recipe).items():
        if place.strip("{}") in places and not any(place in word for word in own):
            words += group
    return [*words, *own]


def _merged(words: Sequence[str], others: Sequence[str]) -> list[str]:
    replaced = {option_of(group[0]) for group in groups(others)}
    kept = [group for group in groups(words) if option_of(group[0]) not in replaced]
    return [word for group in [*kept, *groups(others)] for word in group]


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
)
"""Variables with the same effect."""


def addresses(words: Iterable[str]) -> Iterator[str]:
    """The options among ``words`` that set the server's address, as they are written."""
    for word in words:
        name = word.partition("=")[0]
        if ADDRESS_OPTION.fullmatch(name.replace("_", "-").lower()):
            yield name
