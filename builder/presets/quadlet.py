"""A unit of Podman's Quadlet: ``NAME.container``, which systemd runs.

The keys follow podman-systemd.unit(5), and systemd.service(5) for [Service]; ``Notify=healthy`` and
``StopTimeout=`` came with Podman 5.0 (its release notes).  Words are quoted as systemd.syntax(7)
describes; Quadlet passes them on to ``ExecStart=``, where ``%`` begins a specifier and ``$`` a
variable (systemd.service(5), "Command lines"), so both are doubled.
"""

from __future__ import annotations

from builder.core.errors import RecipeError
from builder.engines.entrypoint import NO_CARD
from builder.presets.exports import rendered
from builder.presets.service import Service

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
    return rendered(
        "quadlet.container.j2",
        service=service,
        image=_qualified(service),
        arguments=[" ".join(map(word, option.words)) for option in service.arguments],
        path=_path,
        word=word,
        no_card=NO_CARD,
    )


def word(text: str) -> str:
    """A word as systemd reads it, between double quotes."""

    def escaped(character: str) -> str:
        code = ord(character)
        if character in ESCAPES or character.isprintable():
            return ESCAPES.get(character, character)
        return f"\\U{code:08x}" if code > 0x7F else f"\\x{code:02x}"

    return '"' + "".join(map(escaped, text)) + '"'


def _path(text: str) -> str:
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
