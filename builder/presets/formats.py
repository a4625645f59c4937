"""The formats of ``builder export``: a row each.

The functions that write them are loaded when one is used: the help
of every command names the formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.presets.service import Service


@dataclass(frozen=True, slots=True)
class Format:
    """A format: the writer of its files, and their use; ``{name}`` is the service's name."""

    writer: str
    """The function of ``exports`` that takes a service and gives the text of ``file``."""
    file: str | None
    """The only file; None: the function gives all texts by their path."""
    usage: str

    def files(self, service: Service) -> Mapping[str, str]:
        """Texts by their path.  Raises ``RecipeError`` where the format cannot express it."""
        from builder.presets import exports  # slow to import

        written = getattr(exports, self.writer)(service)
        if self.file is None:
            several: Mapping[str, str] = written
            return several
        return {self.file.format(name=service.name): written}


FORMATS: Mapping[str, Format] = {
    "compose": Format("compose", "compose.yaml", "docker compose up --detach"),
    "docker-run": Format("docker_run", "{name}.sh", "sh {name}.sh"),
    "helm": Format("helm_chart", None, "helm install {name} ./{name}"),
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
