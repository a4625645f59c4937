"""A unit of Podman's Quadlet: ``NAME.container``, which systemd runs.

The keys are those of podman-systemd.unit(5).  Words are quoted as systemd.syntax(7) describes;
Quadlet passes them on to ``ExecStart=``, where ``%`` begins a specifier and ``$`` a variable
(systemd.service(5), "Command lines"), so both are doubled.
"""

from __future__ import annotations

from collections.abc import Iterator

from builder.errors import RecipeError
from builder.exports.comments import comment, reasons
from builder.presets.service import HOST, Service

LOST = {"": "drops it and all that follow", ";": "makes it the end of the command"}
"""Arguments that Podman's generator does not pass on (Podman 5.4), and what becomes of them."""
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "%": "%%", "$": "$$"}


def document(service: Service) -> str:
    """``NAME.container``.

    Raises ``RecipeError`` for an argument that Podman's generator does not pass on, and for a path
    that it cannot mount.
    """
    for lost in LOST.keys() & {*service.words}:
        raise RecipeError(
            f"Quadlet cannot pass the argument {lost!r} to the engine",
            f"Podman's generator {LOST[lost]}",
            "choose another format: --format compose",
        )
    lines = [f"# {each}".rstrip("\\") for each in reasons(service)]
    lines += ["[Unit]", f"Description={comment(service.title).replace('%', '%%').rstrip(chr(92))}"]
    lines += ["", "[Container]", *_container(service)]
    lines += ["", "[Service]"]
    lines += ["Restart=always"] if service.restart else []
    lines += ["# The image may have to be pulled first.", f"TimeoutStartSec={service.loading}"]
    lines += ["", "[Install]", "WantedBy=default.target"]
    return "\n".join(lines) + "\n"


def word(text: str) -> str:
    """A word as systemd reads it, between double quotes."""
    return '"' + "".join(ESCAPES.get(each) or _printable(each) for each in text) + '"'


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\U{code:08x}" if code > 0x7F else f"\\x{code:02x}"


def _container(service: Service) -> Iterator[str]:
    container = service.container
    yield f"ContainerName={service.name}"
    yield f"Image={_qualified(service.image)}"
    if service.arguments:
        yield " \\\n    ".join(
            ["Exec=", *(" ".join(map(word, option.words)) for option in service.arguments)]
        )
    for variable in service.environment:
        yield f"Environment={word(f'{variable.name}={variable.value}')}"
    for number in service.devices or range(service.cards):
        yield f"AddDevice=nvidia.com/gpu={number}"
    yield "# This machine alone: the server asks for no password."
    yield f"PublishPort={HOST}:{service.published}:{service.port}"
    for mount in service.mounts:
        yield f"Volume={_path(mount.source)}:{_path(mount.target)}:ro"
    if container.ipc:
        yield f"PodmanArgs=--ipc={container.ipc}"
    if container.shm_size:
        yield f"ShmSize={container.shm_size}"
    if container.memlock:
        yield "Ulimit=memlock=-1:-1"
    for name in container.capabilities:
        yield f"AddCapability={name}"
    yield f"HealthCmd={' '.join(service.health_check)}"
    yield "HealthInterval=30s"
    yield "HealthTimeout=5s"
    yield f"HealthStartPeriod={service.loading}s"


def _path(text: str) -> str:
    """A path of ``Volume=``, whose parts are separated by colons.

    Raises ``RecipeError`` where it cannot be written.
    """
    if ":" in text or not text.isprintable():
        raise RecipeError(
            f"Quadlet cannot mount {text}",
            "its paths have no colons and no control characters",
            "rename the file, or choose another format: --format compose",
        )
    return text.replace("%", "%%").replace("$", "$$")


def _qualified(image: str) -> str:
    """An image with its registry: Podman takes short names from several (containers-registries).

    Docker reads the first part as a registry where it has a dot or a port, or is localhost.
    """
    first, _, rest = image.partition("/")
    if rest and ("." in first or ":" in first or first == "localhost"):
        return image
    return f"docker.io/{image}" if rest else f"docker.io/library/{image}"
