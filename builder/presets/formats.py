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


@dataclass(frozen=True, slots=True)
class Format:
    """A format: the writer of its files, and their use; ``{name}`` is the service's name."""

    module: str
    """In this package: ``document(service)`` is the text of ``file``."""
    file: str | None
    """The only file; None: ``documents(service)`` of the module has all texts by their path."""
    usage: str

    def files(self, service: Service) -> Mapping[str, str]:
        """Texts by their path.  Raises ``RecipeError`` where the format cannot express it."""
        module = import_module(f"builder.exports.{self.module}")
        if self.file is None:
            several: Mapping[str, str] = module.documents(service)
            return several
        return {self.file.format(name=service.name): module.document(service)}


FORMATS: Mapping[str, Format] = {
    "compose": Format("compose", "compose.yaml", "docker compose up --detach"),
    "docker-run": Format("docker_run", "{name}.sh", "sh {name}.sh"),
    "helm": Format("helm", None, "helm install {name} ./{name}"),
    "kubernetes": Format("kubernetes", "{name}.yaml", "kubectl apply --filename {name}.yaml"),
    "llama-swap": Format("llama_swap", "config.yaml", "llama-swap --config config.yaml"),
    "quadlet": Format(
        "quadlet",
        "{name}.container",
        "move {name}.container to ~/.config/containers/systemd, then systemctl --user "
        "daemon-reload && systemctl --user start {name} (without a login: loginctl enable-linger)",
    ),
}
DEFAULT = "docker-run"
