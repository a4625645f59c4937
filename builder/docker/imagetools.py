"""Images of registries as ``docker buildx imagetools`` shows them: with Docker's own logins."""

from __future__ import annotations

import json
from typing import Any

from builder.core.errors import BuildError, FetchError
from builder.docker import engine as docker
from builder.docker.client import LateError, call


def digest(reference: str, timeout: float) -> str:
    """The digest of a tag in its registry.

    Raises ``GoneError`` where the registry has no such image, ``RegistryError`` where it refuses
    this login, ``FetchError`` where it fails, or does not answer in time.
    """
    output = _inspect(reference, timeout)
    try:
        return str(json.loads(output)["digest"])
    except (ValueError, KeyError) as error:
        raise BuildError(f"buildx gave no digest for {reference}", output) from error


def config(reference: str, platform: str, timeout: float) -> dict[str, Any]:
    """The OCI image configuration of an image, for one platform ("linux/amd64").

    Raises like ``digest``.
    """
    images = json.loads(_inspect(reference, timeout, "{{json .Image}}"))
    # buildx gives a mapping by platform for an index, the image alone for a manifest.
    found = images if "rootfs" in images else images.get(platform)
    if found is None:
        raise FetchError(
            f"{reference} has no image for {platform}",
            f"it has: {', '.join(images)}",
            "use an image of that platform",
        )
    return dict(found)


def _inspect(reference: str, timeout: float, template: str = "{{json .Manifest}}") -> str:
    """The output of ``imagetools inspect`` with a template."""
    options = [f"--builder={docker.context()}", f"--format={template}"]
    try:
        done = call("buildx", "imagetools", "inspect", *options, reference, timeout=timeout)
    except LateError:
        raise docker.refusal(reference, f"no response within {timeout:.0f} s") from None
    if done.returncode != 0:
        raise docker.refusal(reference, done.stderr.strip().removeprefix("ERROR: "))
    return done.stdout
