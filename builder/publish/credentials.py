"""Registry credentials: from Docker's own store, or from environment variables.

https://docs.docker.com/reference/cli/docker/login/#credential-stores; the helpers' protocol is
https://github.com/docker/docker-credential-helpers#development.
"""

from __future__ import annotations

import base64
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from builder.core.errors import WorldError
from builder.core.json_model import JsonModel, first_error
from builder.docker.engine import HUB

HUB_KEY = "https://index.docker.io/v1/"
HELPER_TIMEOUT = 30.0  # seconds


@dataclass(frozen=True, slots=True)
class Login:
    """A user with a password or token, which ``repr`` does not show."""

    user: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """Both in the format of Docker's store and the scheme Basic (RFC 7617, section 2)."""
        return base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class _StoredAuth(JsonModel):
    auth: str | None = None


class _Config(JsonModel):
    """The part of Docker's configuration in use; null means absent, as in Docker."""

    auths: dict[str, _StoredAuth | None] | None = None
    credHelpers: dict[str, str] | None = None  # noqa: N815
    credsStore: str | None = None  # noqa: N815


class _HelperLogin(JsonModel):
    Username: str
    Secret: str


def login_for(registry: str) -> Login | None:
    """The login for a registry ("docker.io", "ghcr.io", "127.0.0.1:5000"), or None.

    ``DOCKERHUB_USERNAME`` and ``DOCKERHUB_TOKEN`` take precedence over Docker's store.  Raises
    ``WorldError`` where these or the store cannot be read.
    """
    if registry == HUB:
        user, token = _variable("DOCKERHUB_USERNAME"), _variable("DOCKERHUB_TOKEN")
        if user and token:
            return Login(user, token)
    config = _config()
    keys = (HUB_KEY, HUB) if registry == HUB else (registry, f"https://{registry}")
    helpers = config.credHelpers or {}
    helper = next((helpers[key] for key in keys if key in helpers), config.credsStore)
    for key in keys:
        found = _from_helper(helper, key) if helper else stored_login(config, key)
        if found is not None:
            return found
    return None


def _variable(name: str) -> str:
    """The value of a variable, empty where it is not set.  Errors do not show the value."""
    value = os.environ.get(name, "")
    try:
        value.encode()
    except UnicodeEncodeError:  # Python keeps other bytes as surrogates
        raise WorldError(
            f"the environment variable {name} is not UTF-8", hint="set it again, or unset it"
        ) from None
    return value


def _config() -> _Config:
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    file = folder / "config.json"
    try:
        return parse_config(file.read_bytes(), file)
    except FileNotFoundError:
        return _Config()
    except OSError as error:
        raise _unreadable(file, error.strerror or "") from error


def parse_config(content: bytes, file: Path) -> _Config:
    """Parse Docker's configuration.  Raises ``WorldError`` where it is damaged."""
    try:
        return _Config.model_validate_json(content)
    except ValidationError as error:
        raise _unreadable(file, first_error(error)) from None


def _unreadable(file: Path, why: str) -> WorldError:
    hint = "repair the file, or remove it and use `docker login`"
    return WorldError(f"Docker's configuration {file} cannot be read", why, hint)


def stored_login(config: _Config, key: str) -> Login | None:
    """The login in the configuration itself, or None.  Raises ``WorldError``."""
    entry = (config.auths or {}).get(key)
    try:
        decoded = base64.b64decode((entry.auth if entry else None) or "", validate=True).decode()
    except ValueError:  # no base64, not ASCII, or no UTF-8
        raise WorldError(
            f"Docker's login for {key} cannot be read",
            "it is not the base64 text that `docker login` writes",
            f"`docker logout {key}`, then `docker login`",
        ) from None
    user, _, password = decoded.partition(":")
    return Login(user, password) if user else None


def _from_helper(helper: str, key: str) -> Login | None:
    name = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [name, "get"],
            input=key.encode(),
            capture_output=True,
            check=False,
            timeout=HELPER_TIMEOUT,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        late = f"no output within {HELPER_TIMEOUT:.0f} seconds"
        raise WorldError(
            f"the credential helper {name} does not work",
            late if isinstance(error, subprocess.TimeoutExpired) else str(error),
            "install it, or remove credsStore and credHelpers from Docker's config.json",
        ) from error
    if done.returncode != 0:
        return None  # it has no login for this registry
    try:
        found = _HelperLogin.model_validate_json(done.stdout)
    except ValidationError as error:
        raise WorldError(
            f"the output of {name} is not a login", first_error(error), f"try `{name} get`"
        ) from None
    return Login(found.Username, found.Secret)
