"""Who one is to a registry: Docker's own store, and the variables that CI sets.

https://docs.docker.com/reference/cli/docker/login/#credential-stores; the helpers' protocol is
https://github.com/docker/docker-credential-helpers#development.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.errors import WorldError

HUB = "docker.io"
HUB_KEY = "https://index.docker.io/v1/"
PATIENCE = 30.0  # seconds for a helper


@dataclass(frozen=True, slots=True)
class Login:
    """A user and a password or token, which no text of it shows."""

    user: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """Both as Docker's store and the scheme Basic (RFC 7617, section 2) have them."""
        return base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def login_for(registry: str) -> Login | None:
    """What is known for a registry ("docker.io", "ghcr.io", "127.0.0.1:5000"), or None.

    ``DOCKERHUB_USERNAME`` and ``DOCKERHUB_TOKEN`` go before Docker's store.  Raises ``WorldError``
    when the store cannot be read.
    """
    if registry == HUB:
        user, token = os.environ.get("DOCKERHUB_USERNAME"), os.environ.get("DOCKERHUB_TOKEN")
        if user and token:
            return Login(user, token)
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise WorldError(f"Docker's configuration {file} cannot be read", str(error)) from error
    keys = (HUB_KEY, HUB) if registry == HUB else (registry, f"https://{registry}")
    helper = next(
        (config["credHelpers"][key] for key in keys if key in config.get("credHelpers", {})),
        config.get("credsStore"),
    )
    for key in keys:
        found = _asked(helper, key) if helper else _kept(config, key)
        if found is not None:
            return found
    return None


def _kept(config: dict[str, Any], key: str) -> Login | None:
    entry = config.get("auths", {}).get(key, {})
    try:
        decoded = base64.b64decode(entry.get("auth", ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise WorldError(
            f"Docker's login for {key} cannot be read", hint=f"docker logout {key}; docker login"
        ) from error
    user, _, password = decoded.partition(":")
    return Login(user, password) if user else None


def _asked(helper: str, key: str) -> Login | None:
    try:
        done = subprocess.run(
            [f"docker-credential-{helper}", "get"],
            input=key,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorldError(
            f"docker-credential-{helper} does not answer",
            str(error),
            "install it, or take credsStore and credHelpers out of Docker's config.json",
        ) from error
    if done.returncode != 0:
        return None  # it knows nothing of this registry
    try:
        told = json.loads(done.stdout)
        return Login(told["Username"], told["Secret"])
    except (ValueError, KeyError) as error:
        raise WorldError(f"docker-credential-{helper} answers what is no login") from error
