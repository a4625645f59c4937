"""Templates of exported files, and values that no template can break."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from builder.exports.comments import comment


def scalar(value: str) -> str:
    """A text as YAML's double-quoted scalar (YAML 1.2, section 7.3.1).

    JSON's escapes are YAML's, too.  What is not printable is escaped, because YAML 1.1 takes some
    of it, such as U+2028, for the end of a line.
    """
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in quoted)


def rendered(template: str, **values: Any) -> str:
    """A template of this package with these values."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("builder", "exports"),
        autoescape=False,  # noqa: S701  (no HTML)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update({"scalar": scalar, "comment": comment})
    return environment
