"""The text of a Dockerfile, and our rules for it.  No I/O but templates.

Values of a recipe are data in every instruction: commands are JSON arrays that no shell reads,
environment values are quoted, paths and names come from alphabets that need no quoting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from builder.engines import layout
from builder.engines.cmake import link_faults
from builder.engines.layout import LAYOUT
from builder.recipes.schema import Recipe


def exec_form(arguments: Iterable[object]) -> str:
    """A JSON array: the form of RUN, CMD, ENTRYPOINT and HEALTHCHECK that no shell reads.

    https://docs.docker.com/reference/dockerfile/#exec-form
    """
    return json.dumps([str(argument) for argument in arguments])


def quoted(value: object) -> str:
    """A double-quoted word for ENV, in which nothing is expanded.

    https://docs.docker.com/reference/dockerfile/#environment-replacement
    """
    return '"' + re.sub(r'([\\"$])', r"\\\1", str(value)) + '"'


@cache
def templates(folder: Path) -> Environment:
    """The templates of ``folder``; each is compiled once, and again if its file changes."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  (not HTML: see exec_form and quoted)
    )
    environment.globals["layout"] = LAYOUT
    environment.globals["entrypoint_command"] = layout.command
    environment.filters |= {"exec": exec_form, "quoted": quoted}
    return environment


def render_template(folder: Path, name: str, **variables: Any) -> str:
    """The text of a template of ``folder``; commands and values are written as data."""
    return templates(folder).get_template(name).render(**variables)


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile of ours, one a line: keyword and the rest."""
    found = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            keyword, _, rest = line.partition(" ")
            found.append((keyword, rest))
    return found


LONGEST_LINE = 65_535  # bytes: BuildKit's parser reads no longer ones

KEYWORDS = frozenset(
    "ADD ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK RUN USER WORKDIR".split()  # noqa: SIM905
)


def lints(text: str) -> Iterable[str]:
    """The violations of our rules for a rendered Dockerfile, by line."""
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"#\s*(syntax|escape|check)\s*=", line, re.IGNORECASE):
            yield f"line {number}: a parser directive would change, or fetch, the frontend"
        if len(line.encode()) > LONGEST_LINE:
            yield f"line {number}: longer than BuildKit reads ({LONGEST_LINE} bytes)"
    for keyword, rest in instructions(text):
        if keyword not in KEYWORDS:
            yield f"{keyword or rest!r}: not an instruction that our templates use"
        if rest.endswith("\\"):
            yield f"{keyword} {rest}: continues on the next line"
        if keyword == "RUN":
            yield from _run_lints(rest)


def link_lints(text: str, recipe: Recipe, no_vmm: str | None) -> Iterable[str]:
    """The cmake calls of a rendered Dockerfile that cannot link.

    With ``vmm = true`` each needs the driver's stub, or the build fails at its last link; without
    it each needs the family's definition ``no_vmm``, where there is one.
    """
    for keyword, rest in instructions(text):
        _, bracket, command = rest.partition("[")
        if keyword == "RUN" and bracket:
            yield from link_faults(json.loads(bracket + command), recipe, no_vmm)


def _run_lints(rest: str) -> Iterable[str]:
    options, bracket, _ = rest.partition("[")
    if not bracket:
        yield f"RUN {rest}: needs the JSON form, which no shell reads"
    if "--network=" not in options:
        yield f"RUN {rest}: lacks --network"
    elif "--network=none" not in options and "apt-get" not in rest:
        yield f"RUN {rest}: only Debian's packages are fetched while building"
