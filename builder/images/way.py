"""The way of a compile: on the engine's machine or another one, for its own architecture or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from builder.errors import WorldError
from builder.host.doctor import Finding
from builder.images.session import BuildOptions
from builder.platforms import PLATFORMS, Architecture, Platforms, architecture
from builder.records import record
from builder.settings import Settings
from builder.tools.docker import buildx
from builder.tools.log import duration

EMULATORS = (
    "register an emulator: `apt-get install qemu-user-static` on Debian or Ubuntu, which needs "
    "systemd; elsewhere "
    "`docker run --privileged --rm tonistiigi/binfmt --install all`"
)


@dataclass(frozen=True, slots=True)
class Way:
    """How a compile reaches its platforms.

    ``machine`` is the architecture of the builder; ``builder`` its name, empty for the engine's.
    """

    platforms: Platforms
    machine: Architecture
    builder: str = ""

    @property
    def emulated(self) -> bool:
        """Whether the compiler itself runs under emulation."""
        return self.platforms.build != self.machine

    @property
    def name(self) -> str:
        """ "native", "cross" or "emulated", or several: "remote cross"."""
        words = ["remote"] if self.builder else []
        words += ["cross"] if self.platforms.cross else []
        words += ["emulated"] if self.emulated else []
        return " ".join(words if self.emulated or self.platforms.cross else [*words, "native"])

    @property
    def text(self) -> str:
        """For people: "cross: compiled on linux/arm64 for linux/amd64"."""
        platforms = self.platforms
        parts = [f"compiled on linux/{platforms.build}"]
        parts += [f"(emulated on {self.machine})"] if self.emulated else []
        parts += [f"for linux/{platforms.target}"] if platforms.cross else []
        parts += [f"by the builder {self.builder}"] if self.builder else []
        return f"{self.name}: {' '.join(parts)}"


def way_of(platforms: Platforms, settings: Settings) -> Way:
    """The way to ``platforms`` with the builder of the settings.

    Raises ``WorldError`` where the builder does not answer.
    """
    builder = buildx.builder(settings.buildx)
    machine = architecture(builder.architecture) or platforms.build
    return Way(platforms, machine, "" if builder.is_engine else builder.name)


def require_emulators(way: Way, settings: Settings) -> None:
    """Raise ``WorldError`` where the builder cannot run the programs of both platforms.

    Those of the build platform compile.  Those of the target install Debian's packages in the
    image, and run in its smoke test.
    """
    platforms = way.platforms
    if not way.emulated and not platforms.cross:
        return
    runs = buildx.platforms(settings.buildx)
    for name in platforms.both:
        if f"linux/{name}" not in runs:
            why = f"it runs {', '.join(runs)}; the build is {way.text}"
            if name != platforms.build:
                why += "\nthe compile needs no emulation, but the packages of the image and its "
                why += "smoke test run programs of the image"
            raise WorldError(f"the builder runs no programs of linux/{name}", why, EMULATORS)


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
        build = BuildOptions(settings).compiles_on()
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
