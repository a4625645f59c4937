"""A model of llama-swap, which starts the server on request and stops it for another one.

Keys and macros follow its ``docs/configuration.md`` and ``config-schema.json``
(mostlygeek/llama-swap): ``cmd`` is split as a shell does, ``${NAME}`` is a macro everywhere in it.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from builder.core.errors import RecipeError
from builder.presets import docker_run
from builder.presets.exports import rendered
from builder.presets.service import HOST, Service

MACRO = "${"
START = (
    "docker stop {0} >/dev/null 2>&1; "
    "while docker container inspect {0} >/dev/null 2>&1; "
    "do docker rm --force {0} >/dev/null 2>&1 || sleep 0.2; done; "
    'exec "$@"'
)
"""Waits for a container of that name to end: Docker removes it after ``docker stop`` has returned,
and it runs on without its client if that was killed."""
SPLIT = "$''{"
"""A literal ``${`` between single quotes: the quotes end and begin again in its middle."""


def document(service: Service) -> str:
    """``config.yaml``, with one model; its entry can be copied to another one.

    Raises ``RecipeError`` for an argument with a line break or another control character.
    """
    short = service.run.partition("@")[0]
    return rendered("llama-swap.yaml.j2", service=service, command=_command(service), short=short)


def _command(service: Service) -> list[str]:
    """The lines of ``cmd``: llama-swap itself starts and stops, and chooses the port."""
    for word in service.words + [each.value for each in service.environment]:
        if any(not (each.isprintable() or each == " ") for each in word):
            raise RecipeError(
                f"llama-swap cannot pass the argument {word!r} to the engine",
                "its commands are lines of text",
                "choose another format: --format compose",
            )
    options = docker_run.lines(replace(service, restart=None))
    start = ["sh", "-c", START.format(service.name), "start"]
    first = ["docker", "run", "--rm", f"--name={service.name}"]
    published = f"--publish={HOST}:{service.published}:{service.port}"
    port = f"--publish={HOST}:${{PORT}}:{service.port}"
    rest = [
        port
        if each == [published]
        else " ".join(shlex.quote(word).replace(MACRO, SPLIT) for word in each)
        for each in options[1:]
    ]
    return [shlex.join(start), shlex.join(first), *rest]
