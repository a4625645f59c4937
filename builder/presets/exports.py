"""Templates of exported files, and values that no template can break."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from builder.core.errors import plain
from builder.presets.service import HOST, STOP, Service, container_needs

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
    """The served model, the prerequisites, the caveats, and the reason for each setting."""
    yield from (f"Incomplete: {comment(each)}" for each in service.incomplete)
    yield comment(service.title)
    yield from (comment(each) for each in service.missing)
    yield from map(comment, service.caveats)
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


def scalar(value: str) -> str:
    """A text as YAML's double-quoted scalar (YAML 1.2, section 7.3.1).

    JSON's escapes are YAML's, too.  Characters that are not printable are escaped, because
    YAML 1.1 takes some of them, such as U+2028, for the end of a line.
    """
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in quoted)


def rendered(template: str, **values: Any) -> str:
    """A template of this package with these values."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("builder", "presets/templates"),
        autoescape=False,  # noqa: S701  (no HTML)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"scalar": scalar, "comment": comment}
    environment.globals |= {"host": HOST, "stop": STOP, "reasons": reasons}
    return environment
