"""A model of llama-swap, which starts the server on request and stops it for another one.

Keys and macros follow its ``docs/configuration.md`` and ``config-schema.json``
(mostlygeek/llama-swap): ``cmd`` is split as a shell does, ``${NAME}`` is a macro everywhere in it.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from builder.errors import RecipeError
from builder.exports import docker_run
from builder.exports.text import comment, reasons, scalar
from builder.presets.service import HOST, STOP, Service

LONGEST = 1024  # characters of a description
LONGEST_NAME = 128  # characters of a name
IDLE = 1800
MARGIN = 5
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
    lines = ["models:"]
    lines += [f"  # {each}" for each in reasons(service)]
    lines += [f"  {scalar(service.run)}:"]
    lines += [f"    name: {scalar(comment(service.model)[:LONGEST_NAME])}"] if service.model else []
    lines += [f"    description: {scalar(comment(service.title)[:LONGEST])}"]
    short = service.run.partition("@")[0]
    lines += [f"    aliases: [{scalar(short)}]"] if short != service.run else []
    lines += ["    # It first stops a container of its name, such as one of a killed llama-swap."]
    lines += ["    cmd: |", *(f"      {each}" for each in _command(service))]
    lines += [f"    cmdStop: docker stop {service.name}"]
    lines += ["    # Docker kills the server first.", f"    unloadTimeout: {STOP + MARGIN}"]
    lines += [f'    proxy: "http://{HOST}:${{PORT}}"', f"    checkEndpoint: {service.health}"]
    if service.api_model:
        lines += ["    # The server answers to no other name."]
        lines += [f"    useModelName: {scalar(service.api_model)}"]
    lines += ["    # Seconds without a request; then the card is free again.", f"    ttl: {IDLE}"]
    lines += ["", "# Seconds until a model must be ready; it is for all models."]
    lines += [f"healthCheckTimeout: {service.loading}"]
    return "\n".join(lines) + "\n"


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
    rest = [port if each == [published] else _quoted(each) for each in options[1:]]
    return [shlex.join(start), shlex.join(first), *rest]


def _quoted(words: list[str]) -> str:
    return " ".join(shlex.quote(word).replace(MACRO, SPLIT) for word in words)
