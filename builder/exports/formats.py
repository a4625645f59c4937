"""The formats of ``builder export``: a row each.

A format's module is loaded when it is used: the help of every command names the formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.presets.service import Service

Files = Mapping[str, str]
"""Texts by their path below the output directory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A format: the writer of its files, and their use; ``{name}`` is the service's name."""

    module: str
    """In this package: ``document(service)`` is the text of ``file``."""
    file: str | None
    """The only file; None: ``documents(service)`` of the module has all texts by their path."""
    usage: str
    """The command that uses the files."""

    def files(self, service: Service) -> Files:
        """The files of a service.  Raises ``RecipeError`` where the format cannot express it."""
        module = import_module(f"builder.exports.{self.module}")
        if self.file is None:
            several: Files = module.documents(service)
            return several
        return {self.file.format(name=service.name): module.document(service)}


FORMATS: Mapping[str, Format] = {
    "compose": Format(
        module="compose",
        file="compose.yaml",
        usage="docker compose up --detach",
    ),
    "docker-run": Format(
        module="docker_run",
        file="{name}.sh",
        usage="sh {name}.sh",
    ),
    "helm": Format(
        module="helm",
        file=None,
        usage="helm install {name} ./{name}",
    ),
    "kubernetes": Format(
        module="kubernetes",
        file="{name}.yaml",
        usage="kubectl apply --filename {name}.yaml",
    ),
    "llama-swap": Format(
        module="llama_swap",
        file="config.yaml",
        usage="llama-swap --config config.yaml",
    ),
    "quadlet": Format(
        module="quadlet",
        file="{name}.container",
        usage="move {name}.container to ~/.config/containers/systemd, then systemctl --user "
        "daemon-reload && systemctl --user start {name} (without a login: loginctl enable-linger)",
    ),
}
DEFAULT = "docker-run"
