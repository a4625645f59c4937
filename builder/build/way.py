"""The way of a compile: on the engine's machine or another one, for its own architecture or not."""

from __future__ import annotations

from builder.core.errors import WorldError
from builder.core.platforms import Platforms, architecture
from builder.docker import buildx
from builder.docker.buildx import Builder

EMULATORS = (
    "register an emulator: `apt-get install qemu-user-static` on Debian or Ubuntu, which needs "
    "systemd; elsewhere "
    "`docker run --privileged --rm tonistiigi/binfmt --install all`"
)


def is_emulated(platforms: Platforms, builder: Builder) -> bool:
    """Whether the compiler itself runs under emulation."""
    return architecture(builder.architecture) not in {None, platforms.build}


def way_name(platforms: Platforms, builder: Builder) -> str:
    """ "native", "cross" or "emulated", or several: "remote cross"."""
    words = [] if builder.is_engine else ["remote"]
    if not is_emulated(platforms, builder) and not platforms.cross:
        return " ".join([*words, "native"])
    words += ["cross"] if platforms.cross else []
    words += ["emulated"] if is_emulated(platforms, builder) else []
    return " ".join(words)


def way_text(platforms: Platforms, builder: Builder) -> str:
    """For people: "cross: compiled on linux/arm64 for linux/amd64"."""
    parts = [f"compiled on linux/{platforms.build}"]
    if is_emulated(platforms, builder):
        parts.append(f"(emulated on {architecture(builder.architecture)})")
    parts += [f"for linux/{platforms.target}"] if platforms.cross else []
    parts += [] if builder.is_engine else [f"by the builder {builder.name}"]
    return f"{way_name(platforms, builder)}: {' '.join(parts)}"


def require_emulators(platforms: Platforms, builder: Builder) -> None:
    """Raise ``WorldError`` where the builder cannot run the programs of both platforms.

    Programs of the build platform compile.  Programs of the target install Debian's packages in the
    image, and run in its smoke test.
    """
    if not is_emulated(platforms, builder) and not platforms.cross:
        return
    runs = buildx.platforms(builder.name)
    for name in platforms.both:
        if f"linux/{name}" not in runs:
            why = f"it runs {', '.join(runs)}; the build is {way_text(platforms, builder)}"
            if name != platforms.build:
                why += "\nthe compile needs no emulation, but the packages of the image and its "
                why += "smoke test run programs of the image"
            raise WorldError(f"the builder runs no programs of linux/{name}", why, EMULATORS)
