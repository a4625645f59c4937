"""``builder doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from builder.cli.options import JsonOption
from builder.cli.terminal import print_json, table
from builder.core.errors import WorldError

if TYPE_CHECKING:
    from builder.core.platforms import Platforms
    from builder.core.settings import Settings
    from builder.docker.buildx import Builder
    from builder.measure.doctor import Finding


def doctor(as_json: JsonOption = False) -> None:
    """Check whether this machine can build, and suggest fixes.

    The exit code is 4 if a requirement of every build is missing.
    """
    from builder.core import settings
    from builder.measure import doctor

    found = settings.load()
    findings = [*doctor.examine(found), *ways(found)]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = [(each.state, each.what, each.found, each.advice) for each in findings]
        table(("", "what", "found", "what to do"), rows)
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(WorldError.exit_code)


def ways(settings: Settings) -> Iterator[Finding]:
    """The way of a build for each platform with these settings; nothing where Docker does not
    answer."""
    from builder.build.roots import compiles_on
    from builder.core.platforms import PLATFORMS, Platforms
    from builder.docker import buildx

    try:
        build, builder = compiles_on(settings), buildx.builder(settings.buildx)
    except WorldError:
        return
    for target in PLATFORMS.values():
        yield _way(Platforms(build, target), builder, settings.state_dir)


def _way(platforms: Platforms, builder: Builder, state: Path) -> Finding:
    from builder.build import record
    from builder.docker import buildx
    from builder.measure.doctor import Finding

    # Most recipes have an image for linux/amd64 alone.
    needed = platforms.image == "linux/amd64"
    what = "way" if needed else f"way to {platforms.image}"
    last = record.last_time(state, buildx.way_name(platforms, builder))
    found = buildx.way_text(platforms, builder) + (f"; last time {last}" if last else "")
    try:
        buildx.require_emulators(platforms, builder)
    except WorldError as error:
        return Finding(what, "missing" if needed else "could", f"{found}; {error.what}", error.hint)
    if buildx.is_emulated(platforms, builder):
        advice = "the compiler itself is emulated: unset BUILDER_COMPILE_ON to avoid that"
        return Finding(what, "could", found, advice)
    return Finding(what, "has", found)
