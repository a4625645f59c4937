"""A unit of Podman's Quadlet: ``NAME.container``, which systemd runs.

The keys follow podman-systemd.unit(5), and systemd.service(5) for [Service]; ``Notify=healthy`` and
``StopTimeout=`` came with Podman 5.0 (its release notes).  Words are quoted as systemd.syntax(7)
describes; Quadlet passes them on to ``ExecStart=``, where ``%`` begins a specifier and ``$`` a
variable (systemd.service(5), "Command lines"), so both are doubled.
"""

from __future__ import annotations

from collections.abc import Iterator

from builder.errors import RecipeError
from builder.exports.text import comment, reasons
from builder.families.entrypoint import NO_CARD
from builder.presets.service import HOST, STOP, Service

PULLING = 900
"""Seconds to pull an image."""
PAUSE = 10
STARTS = 3
LOST = {"": "drops it and all that follow", ";": "makes it the end of the command"}
"""Arguments that Podman's generator does not pass on (Podman 5.4), each with its fate."""
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
    lines += [f"# {each}" for each in _notes(service)]
    lines += ["[Unit]", f"Description={comment(service.title).replace('%', '%%').rstrip(chr(92))}"]
    lines += [
        f"# After {STARTS} failures it stays stopped: systemctl --user reset-failed {service.name}"
    ]
    lines += [f"StartLimitIntervalSec={STARTS * (service.loading + PAUSE)}"]
    lines += [f"StartLimitBurst={STARTS}"]
    lines += ["", "[Container]", *_container(service)]
    lines += ["", "[Service]"]
    lines += ["Restart=on-failure", f"RestartSec={PAUSE}"]
    lines += ["# There is no usable GPU: another start would end like this one."]
    lines += [f"RestartPreventExitStatus={NO_CARD}"]
    lines += [
        "# To pull the image, and to load the weights: the unit is active once it is healthy."
    ]
    lines += [f"TimeoutStartSec={PULLING + service.loading}"]
    lines += ["", "[Install]", "WantedBy=default.target"]
    return "\n".join(lines) + "\n"


def _notes(service: Service) -> Iterator[str]:
    """The setup that a machine needs once."""
    yield "Needs Podman 5.0 or newer, and the GPU by CDI: nvidia-ctk cdi generate"
    yield "It starts at boot and outlives your login with: loginctl enable-linger"
    # The boolean lets containers use devices of the host (container_selinux(8)).
    yield "With SELinux, once: sudo setsebool -P container_use_devices on"
    if service.local:
        name = service.image.partition("@")[0]
        yield f"No registry has the image; from Docker: docker save {name} | podman load"


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
    yield f"Image={_qualified(service)}"
    if service.local:
        yield "Pull=never"
    yield "RunInit=true"
    yield f"StopTimeout={STOP}"
    yield "DropCapability=all"
    yield "NoNewPrivileges=true"
    if service.read_only:
        yield "ReadOnly=true"
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
    yield from _volumes(service)
    if container.ipc:
        yield f"PodmanArgs=--ipc={container.ipc}"
    if container.shm_size:
        yield f"ShmSize={container.shm_size}"
    if container.memlock:
        yield "Ulimit=memlock=-1:-1"
    for name in container.capabilities:
        yield f"AddCapability={name}"
    yield f"HealthCmd={' '.join(service.health_check)}"
    yield "Notify=healthy"
    yield "HealthInterval=10s"
    yield "HealthTimeout=5s"
    yield f"HealthStartPeriod={service.loading}s"


def _volumes(service: Service) -> Iterator[str]:
    if service.mounts:
        yield "# z: with SELinux, containers get the right to read the files."
    for mount in service.mounts:
        yield f"Volume={_path(mount.source)}:{_path(mount.target)}:ro,z"
    if service.cache:
        yield "# Compiled kernels are kept: the next start is faster."
        yield f"Volume={service.name}-cache:{service.cache}"


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


def _qualified(service: Service) -> str:
    """An image with its registry: Podman takes short names from several (containers-registries).

    Docker reads the first part as a registry where it has a dot or a port, or is localhost. Podman
    (5.4) loads an image of ``docker save`` under the name that Docker pulls it by, and makes a
    digest of its own for it.
    """
    image = service.image.partition("@")[0] if service.local else service.image
    first, _, rest = image.partition("/")
    if rest and ("." in first or ":" in first or first == "localhost"):
        return image
    return f"docker.io/{image}" if rest else f"docker.io/library/{image}"
