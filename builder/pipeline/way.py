"""The way of a build as people see it: how long the last one took, and what ``doctor`` finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from builder.errors import WorldError
from builder.host.doctor import Finding
from builder.images.way import Way, compiles_on, require_emulators, way_of
from builder.platforms import PLATFORMS, Platforms
from builder.records import record
from builder.settings import Settings
from builder.tools.log import duration


def last_time(state: Path, way: Way, recipe: str = "*") -> str:
    """How long the last build of a recipe took that went this way: "hello-1: 2 min 3 s".

    "*" is any recipe; empty where there is none.
    """
    kept = record.newest_good(state, recipe, way.name)
    seconds = kept.seconds.get(f"build {kept.recipe}") if kept else None
    return f"{kept.recipe}: {duration(seconds)}" if kept and seconds is not None else ""


def findings(settings: Settings) -> Iterator[Finding]:
    """The way of a build for each platform with these settings; nothing where Docker does not
    answer."""
    try:
        build = compiles_on(settings)
        ways = [way_of(Platforms(build, target), settings) for target in PLATFORMS.values()]
    except WorldError:
        return
    yield from (_finding(way, settings) for way in ways)


def _finding(way: Way, settings: Settings) -> Finding:
    platform = way.platforms.image
    # Most recipes have an image for linux/amd64 alone.
    needed = platform == "linux/amd64"
    what = "way" if needed else f"way to {platform}"
    last = last_time(settings.state_dir, way)
    found = way.text + (f"; last time {last}" if last else "")
    try:
        require_emulators(way, settings)
    except WorldError as error:
        state: Literal["missing", "could"] = "missing" if needed else "could"
        return Finding(what, state, f"{found}; {error.what}", error.hint)
    if way.emulated:
        advice = "the compiler itself is emulated: unset BUILDER_COMPILE_ON to avoid that"
        return Finding(what, "could", found, advice)
    return Finding(what, "has", found)
