"""The reasons of a service's settings, as comments of one line each."""

from __future__ import annotations

from collections.abc import Iterator

from builder.errors import plain
from builder.presets.service import Service, container_needs

NEEDS = {
    "ipc": "ipc",
    "shm_size": "shm-size",
    "memlock": "ulimit memlock",
    "capabilities": "cap-add",
}
"""How ``docker run`` calls the keys of a preset's [container]."""


def comment(text: str) -> str:
    """Text as one line, without control characters: it cannot end a comment."""
    return " ".join(plain(text).split())


def reasons(service: Service) -> Iterator[str]:
    """What is served, what has to be there first, the caveats, and the reason for each setting."""
    yield comment(service.title)
    yield from (comment(each) for each in service.missing)
    yield from (f"Caveat: {comment(each)}" for each in service.notes)
    for key, value, why in container_needs(service.container):
        yield comment(f"--{NEEDS[key].replace(' ', '=')} {value}: {why}")
    for variable in service.environment:
        if variable.why:
            yield comment(f"{variable.name}: {variable.why}")
    for option in service.arguments:
        if option.why and option.words[0].startswith("-"):
            yield comment(f"{option.words[0]}: {option.why}")
        elif option.why:
            yield comment(f"model: {option.why}")
