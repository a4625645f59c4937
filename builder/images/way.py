"""The way of a compile: on the engine's machine or another one, for its own architecture or not."""

from __future__ import annotations

from dataclasses import dataclass

from builder.errors import WorldError
from builder.platforms import Architecture, Platforms, architecture
from builder.settings import Settings
from builder.tools.docker import buildx

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


def compiles_on(settings: Settings, build_architecture: str | None = None) -> Architecture:
    """The architecture that compiles; without ``build_architecture``, the builder's.

    The setting ``compile_on`` comes before both.  Raises ``WorldError`` where the builder does not
    answer, or its machine cannot compile.
    """
    machine = settings.compile_on or build_architecture
    machine = machine or buildx.builder(settings.buildx).architecture
    found = architecture(machine)
    if found is None:
        raise WorldError(f"builder does not compile on {machine}", hint="use amd64 or arm64")
    return found


def way_of(platforms: Platforms, settings: Settings) -> Way:
    """The way to ``platforms`` with the builder of the settings.

    Raises ``WorldError`` where the builder does not answer.
    """
    builder = buildx.builder(settings.buildx)
    machine = architecture(builder.architecture) or platforms.build
    return Way(platforms, machine, "" if builder.is_engine else builder.name)


def require_emulators(way: Way, settings: Settings) -> None:
    """Raise ``WorldError`` where the builder cannot run the programs of both platforms.

    Programs of the build platform compile.  Programs of the target install Debian's packages in the
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
