"""The formats of ``builder export``, and the files of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from builder.exports import compose, docker_run, helm, kubernetes, llama_swap, quadlet
from builder.presets.service import Service

Files = Mapping[str, str]
"""Texts by their path below the output directory."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format: how its files are written, and how they are used."""

    files: Callable[[Service], Files]
    usage: str
    """The command that uses the files, with ``{name}`` for the name of the service."""


def _single(name: str, document: Callable[[Service], str]) -> Callable[[Service], Files]:
    return lambda service: {name.format(name=service.name): document(service)}


FORMATS: Mapping[str, Format] = {
    "compose": Format(
        _single("compose.yaml", compose.document),
        "docker compose up --detach",
    ),
    "docker-run": Format(
        _single("{name}.sh", docker_run.document),
        "sh {name}.sh",
    ),
    "helm": Format(
        helm.documents,
        "helm install {name} ./{name}",
    ),
    "kubernetes": Format(
        _single("{name}.yaml", kubernetes.document),
        "kubectl apply --filename {name}.yaml",
    ),
    "llama-swap": Format(
        _single("config.yaml", llama_swap.document),
        "llama-swap --config config.yaml",
    ),
    "quadlet": Format(
        _single("{name}.container", quadlet.document),
        "move {name}.container to ~/.config/containers/systemd, then systemctl --user "
        "daemon-reload && systemctl --user start {name}",
    ),
}
