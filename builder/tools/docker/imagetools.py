"""Images of registries as ``docker buildx imagetools`` shows them: with Docker's own logins."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from builder.errors import BuildError, FetchError
from builder.tools.docker import engine as docker
from builder.tools.docker.client import LateError, call

LOGIN_HINT = "check the name of the image; a private one needs `docker login`"


def digest(reference: str, timeout: float) -> str | None:
    """The digest of a tag in its registry; None where it does not answer in time."""
    done = _inspect(reference, timeout)
    if done is None or done.returncode != 0:
        return None
    try:
        return str(json.loads(done.stdout)["digest"])
    except (ValueError, KeyError) as error:
        raise BuildError(f"buildx gave no digest for {reference}", done.stdout) from error


def config(reference: str, platform: str, timeout: float) -> dict[str, Any]:
    """The OCI image configuration of an image, for one platform ("linux/amd64").

    Raises ``FetchError`` where the registry does not give it.
    """
    done = _inspect(reference, timeout, "{{json .Image}}")
    if done is None or done.returncode != 0:
        why = _reason(done) if done else f"no response within {timeout:.0f} s"
        what = f"cannot read the configuration of {reference} in its registry"
        raise FetchError(what, why, LOGIN_HINT)
    images = json.loads(done.stdout)
    # buildx gives a mapping by platform for an index, the image alone for a manifest.
    found = images if "rootfs" in images else images.get(platform)
    if found is None:
        raise FetchError(
            f"{reference} has no image for {platform}",
            f"it has: {', '.join(images)}",
            "use an image of that platform",
        )
    return dict(found)


def _inspect(
    reference: str, timeout: float, template: str = "{{json .Manifest}}"
) -> subprocess.CompletedProcess[str] | None:
    """Run ``imagetools inspect`` with a template; None where it does not end in time."""
    options = [f"--builder={docker.context()}", f"--format={template}"]
    try:
        return call("buildx", "imagetools", "inspect", *options, reference, timeout=timeout)
    except LateError:
        return None


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.strip().removeprefix("ERROR: ")
