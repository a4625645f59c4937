"""Requests to a registry: its name and certificate, authorization, retries, and errors.

A temporary failure is retried (``builder.core.web``); any other is an error at once.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar
from urllib.parse import urlencode

from platformdirs import user_config_path
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import from_json

from builder.core import sizes
from builder.core.errors import FetchError, RegistryError, WorldError
from builder.core.json_model import JsonModel, first_error
from builder.core.web import (
    Client,
    Follow,
    Response,
    RetryPolicy,
    WebError,
    cause,
    is_loopback,
    join_url,
    origin,
    seconds_since,
    split_url,
)
from builder.docker.engine import HUB, split

# Registry credentials: from Docker's own store, or from environment variables.
#
# https://docs.docker.com/reference/cli/docker/login/#credential-stores; the helpers' protocol is
# https://github.com/docker/docker-credential-helpers#development.

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

    ``DOCKERHUB_USERNAME`` and ``DOCKERHUB_TOKEN`` take precedence over Docker's store.
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
    """Parse Docker's configuration."""
    try:
        return _Config.model_validate_json(content)
    except ValidationError as error:
        raise _unreadable(file, first_error(error)) from None


def _unreadable(file: Path, why: str) -> WorldError:
    hint = "repair the file, or remove it and use `docker login`"
    return WorldError(f"Docker's configuration {file} cannot be read", why, hint)


def stored_login(config: _Config, key: str) -> Login | None:
    """The login in the configuration itself, or None."""
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


# The responses of registries, checked: no other module parses them.
#
# OCI distribution specification 1.1 (https://github.com/opencontainers/distribution-spec) and
# image specification 1.1; tokens as in
# https://distribution.github.io/distribution/spec/auth/token/. Fields that the models do not name
# are kept.  A response that does not fit its model raises ``RegistryError``, which never holds a
# value of the response: it may be a secret.

Model = TypeVar("Model", bound=BaseModel)
IMAGE_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
TAG = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*")
PRINTABLE = r"^[!-~]+$"
PARAMETER = re.compile(r'(\w+)="([^"]*)"')

Digest = Annotated[str, StringConstraints(pattern=f"^(?:{DIGEST.pattern})$")]
MediaType = Annotated[str, StringConstraints(pattern=f"^{MEDIA_TYPE.pattern}$")]
Token = Annotated[str, StringConstraints(pattern=PRINTABLE)]
Annotations = dict[str, str] | None


class _OpenModel(JsonModel):
    """A model that keeps fields that it does not name."""

    model_config = ConfigDict(extra="allow")


class PlatformEntry(_OpenModel):
    """The platform of an image in an index ("OCI Image Index Specification")."""

    os: str | None = None
    architecture: str | None = None

    @property
    def name(self) -> str:
        """``linux/amd64``; empty where it is not named, as BuildKit does for its attestations."""
        known = self.os and self.architecture and self.os != "unknown"
        return f"{self.os}/{self.architecture}" if known else ""


class Descriptor(_OpenModel):
    """A reference to a manifest or a blob ("OCI Content Descriptors").

    Docker's own manifests are read as well; registries' lists of referrers have been seen without
    a media type and a size.
    """

    digest: Digest
    mediaType: MediaType = IMAGE_MANIFEST  # noqa: N815
    size: Annotated[int, Field(ge=0)] = 0
    artifactType: str | None = None  # noqa: N815
    annotations: Annotations = None
    platform: PlatformEntry | None = None


class Body(_OpenModel):
    """A manifest or an index ("OCI Image Manifest Specification", "Image Index")."""

    mediaType: MediaType | None = None  # noqa: N815
    artifactType: str | None = None  # noqa: N815
    config: Descriptor | None = None
    layers: list[Descriptor] | None = None
    manifests: list[Descriptor] | None = None
    subject: Descriptor | None = None
    annotations: Annotations = None


class _ImageSettings(_OpenModel):
    Labels: dict[str, str] | None = None


class Configuration(_OpenModel):
    """An image's configuration ("OCI Image Configuration")."""

    os: str | None = None
    architecture: str | None = None
    created: str | None = None
    config: _ImageSettings | None = None

    @property
    def platform(self) -> str:
        """``linux/amd64``; empty where it is not named."""
        return f"{self.os}/{self.architecture}" if self.os and self.architecture else ""

    @property
    def labels(self) -> dict[str, str]:
        """The image's labels."""
        return (self.config.Labels if self.config else None) or {}


class _Tags(_OpenModel):
    tags: list[Annotated[str, StringConstraints(pattern=TAG)]] | None = None


class _Referrers(_OpenModel):
    manifests: list[Descriptor] | None = None


class _Grant(_OpenModel):
    token: Token | None = None
    access_token: Token | None = None


def checked(model: type[Model], content: bytes | dict[str, Any], what: str) -> Model:
    """Parse JSON as that model.  Raises ``RegistryError``, which names ``what`` it is."""
    try:
        if isinstance(content, dict):
            return model.model_validate(content)
        return model.model_validate_json(content)
    except ValidationError as error:
        raise RegistryError(
            f"{what} is damaged",
            first_error(error),
            "check that the address is a registry's, and the proxy; try again",
        ) from None


def json_object(content: bytes, model: type[BaseModel], what: str) -> dict[str, Any]:
    """A JSON object, unchanged, after the check with that model."""
    checked(model, content, what)
    found: dict[str, Any] = from_json(content)
    return found


def response_tags(response: Response, source: str) -> list[str]:
    """A page of tags ("Listing Tags")."""
    return checked(_Tags, response.content, f"the list of tags of {source}").tags or []


def referrers(response: Response, source: str) -> list[dict[str, Any]]:
    """A page of descriptors, unchanged ("Listing Referrers")."""
    found = json_object(response.content, _Referrers, f"the list of referrers of {source}")
    return list(found.get("manifests") or [])


def token(response: Response, source: str) -> str:
    """The token of a response, or an empty text."""
    found = checked(_Grant, response.content, f"the token for {source}")
    return found.token or found.access_token or ""


def error_text(content: bytes) -> str:
    """The errors in a response ("Error Codes"); empty where they cannot be read."""
    try:
        found = from_json(content)
        errors = found.get("errors") or []
        texts = [f"{each.get('code', '')}: {each.get('message', '')}" for each in errors[:5]]
    except (ValueError, AttributeError, TypeError, KeyError):
        return ""
    return "; ".join(texts)[:1000]


def required(response: Response, *statuses: int) -> Response:
    """The response, which has one of these statuses.

    They are the specification's for the request ("Endpoints").
    """
    if response.status not in statuses:
        raise response.error(error_text(response.content))
    return response


def challenge(header: str) -> tuple[str, dict[str, str]]:
    """The scheme of a WWW-Authenticate header, in lower case, and its parameters."""
    kind, _, rest = header.partition(" ")
    return kind.lower(), dict(PARAMETER.findall(rest))


def response_digest(headers: Mapping[str, str]) -> str:
    """The digest in a response's headers; empty where there is no valid one."""
    found = headers.get("Docker-Content-Digest", "")
    return found if DIGEST.fullmatch(found) else ""


def media_type(headers: Mapping[str, str]) -> str:
    """The media type of a response; empty where there is no valid one."""
    found = headers.get("Content-Type", "").partition(";")[0].strip()
    return found if MEDIA_TYPE.fullmatch(found) else ""


def upload_address(response: Response, source: str) -> str:
    """The address of a blob's upload ("POST then PUT")."""
    named = response.headers.get("Location", "")
    return _address(response, named, f"the upload address of {source}")


def next_page(response: Response, source: str) -> str | None:
    """The next page of a list (RFC 8288), or None."""
    match = re.match(r'<([^>]*)>;\s*rel="?next"?', response.headers.get("Link", ""))
    if match is None:
        return None
    what = f"the next page of {source}"
    url = _address(response, match[1], what)
    if origin(url) != origin(response.url):
        raise RegistryError(f"{what} is on another host", origin(url)[1], "nothing was changed")
    return url


def _address(response: Response, named: str, what: str) -> str:
    why = "" if named else "the response has none"
    try:
        url = join_url(response.url, named)
        before, after = origin(response.url), origin(url)
        if before[0] == "https" and after[0] == "http":
            why = f"it is on {after[1]} without TLS"
    except WebError:
        why = "it is not a valid address"
    if why:
        hint = "check the registry, and the proxy"
        raise RegistryError(f"{what} cannot be used", why, hint) from None
    return url


# Requests to one repository of a registry, authorized by a login or a token.
#
# https://distribution.github.io/distribution/spec/auth/token/.  Only a 401 of the registry itself
# counts: hosts that it redirects to get neither a login nor a token.

TOKEN_HOSTS = {HUB: "auth.docker.io", "registry.gitlab.com": "gitlab.com"}
"""Registries whose tokens another host issues: docs.docker.com/reference/api/registry/auth/, and
docs.gitlab.com/administration/packages/container_registry/."""
HUB_HOST = "registry-1.docker.io"
MUTABLE = (
    "a rule of the registry makes tags immutable. These must stay mutable: latest and all moving "
    "tags, each CHANNEL and CHANNEL.nights, and sha256-*, which list attachments"
)
CERTIFICATES = Path("/etc/docker/certs.d")


def certificate_of(registry: str) -> Path | None:
    """The file of the user's own certificate authority for a registry, or None.

    It is where Docker expects it (https://docs.docker.com/engine/security/certificates/); a
    rootless engine uses the user's configuration directory (moby, registry/config_unix.go).
    """
    folders = (CERTIFICATES, user_config_path("docker") / "certs.d")
    files = (folder / registry / "ca.crt" for folder in folders)
    return next(filter(Path.is_file, files), None)


def may_name(registry: str, host: str) -> bool:
    """Whether a registry ("ghcr.io", "127.0.0.1:5000") may name a host for tokens.

    It may name itself; Docker Hub and GitLab name one known host; one of this machine names hosts
    of this machine.  A host of the same domain may be anyone's: whoever rents a registry at
    azurecr.io has a name there.
    """
    own = split_url(f"https://{registry}").hostname or ""
    here = is_loopback(own) and is_loopback(host)
    return here or host in {own, TOKEN_HOSTS.get(registry, own)}


class Transport:
    """Requests to one repository of a registry; ``log`` gets a line before a wait.

    ``token_hosts``: other hosts that the registry may name for tokens, by the user's settings.
    ``ahead``: the seconds by which this machine's clock was ahead of the registry's at its last
    response; negative where it was behind.
    """

    def __init__(self, name: str, log: Callable[[str], None], token_hosts: Collection[str]) -> None:
        self.name = name
        self.registry, self.path = split(name)
        host = HUB_HOST if self.registry == HUB else self.registry
        certificate = certificate_of(self.registry)
        plain = certificate is None and is_loopback(re.sub(r":\d+$", "", host).strip("[]"))
        self._base = f"{'http' if plain else 'https'}://{host}/v2/{self.path}/"
        self._client, self._token_hosts = Client(certificate), token_hosts
        try:
            self._origin = origin(self._base)
        except WebError as error:  # a port above 65535
            raise RegistryError(
                f"{self.registry} is no address of a registry: {name}",
                hint="correct the name: BUILDER_NAMESPACE is REGISTRY/ACCOUNT",
            ) from error
        self._authorized: dict[str, str] = {}  # the header Authorization, by scope
        self._user = ""  # of the login, once the registry has asked for one
        self.log = log
        self.retry = RetryPolicy(self.registry, log)
        self.ahead = 0.0

    def _covers(self, url: str) -> bool:
        """Whether an address is on the registry itself."""
        return origin(url) == self._origin

    def request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **bounds: Any
    ) -> Response | None:
        """A response with the status 200, or None for 404."""
        response = self.send_with_retries(
            lambda: required(self.send(method, path, headers, **bounds), 200, 404),
            f"{method} {path}",
        )
        return None if response.status == 404 else response

    def send_with_retries(
        self, work: Callable[[], Response], what: str, *, uploads: bool = False
    ) -> Response:
        """The response that ``work`` returns; a temporary failure that it raises is retried."""
        try:
            return self.retry.call(work)
        except WebError as error:
            if error.url and not self._covers(error.url):
                error.why = f"{origin(error.url)[1]}: {error.why}"
            if not error.temporary:
                raise self._error(error, what) from error
            hint = "try again later" + (": finished uploads are not repeated" if uploads else "")
            hint = "check the network and HTTPS_PROXY" if error.unresolved else hint
            raise FetchError(
                f"{self.registry} {error.outcome}: {what}", cause(error), hint
            ) from error

    def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        push: bool = False,
        source: str = "",
        content: Callable[[], Any] = lambda: None,
        **bounds: Any,
    ) -> Response:
        """One request, and one more where the registry wants a login or a token.

        ``source`` is the path of another repository that is read.
        """
        url = path if path.startswith(("http://", "https://")) else self._base + path
        actions = f"pull{',push' if push else ''}{',delete' if method == 'DELETE' else ''}"
        scope = f"repository:{self.path}:{actions}"
        scope += f" repository:{source}:pull" if source else ""
        for again in (False, True):
            sent = dict(headers or {})
            if scope in self._authorized and self._covers(url):
                sent["Authorization"] = self._authorized[scope]
            response = self._client.request(
                method, url, headers=sent, data=content(), follow=Follow.ANYWHERE, **bounds
            )
            if not self._covers(response.url):
                # Hosts that the registry names get no login.
                if response.status in {401, 403}:
                    why = f"{origin(response.url)[1]}, which it names for this, responds "
                    raise WebError(f"{why}{response.status} {response.reason}", temporary=False)
                break
            self.ahead = seconds_since(response.headers.get("Date", "")) or 0.0
            refused = response.status == 401 and not again
            if not (refused and self._authorize(response, scope)):
                break
        return response

    @cached_property
    def _login(self) -> Login | None:
        found = login_for(self.registry)
        self._user = found.user if found else ""
        return found

    def _authorize(self, response: Response, scope: str) -> bool:
        """Respond to a 401; whether there is a login or token to repeat the request with."""
        kind, named = challenge(response.headers.get("WWW-Authenticate", ""))
        login, value = self._login, ""
        if kind == "basic" and login:
            value = f"Basic {login.basic}"
        elif kind == "bearer":
            given = self._token(named.get("realm", ""), named.get("service", ""), scope)
            value = f"Bearer {given}" if given else ""
        if value:
            self._authorized[scope] = value
        return bool(value)

    def _token(self, realm: str, service: str, scope: str) -> str:
        outward = not self._require_safe(realm)
        query = urlencode({"service": service, "scope": scope.split()}, doseq=True)
        headers = {"Authorization": f"Basic {self._login.basic}"} if self._login else {}
        url = f"{realm}{'&' if '?' in realm else '?'}{query}"
        # A redirect would name a host that the registry did not name.
        response = self._client.request(
            "GET", url, headers=headers, follow=Follow.SAME_HOST, outward=outward
        )
        return token(required(response, 200), self.registry)

    def _require_safe(self, realm: str) -> bool:
        """Whether the registry may name a realm's host, or the user allows it.

        Both are sent over TLS; without it only on this machine, for a registry on this machine.
        """
        try:
            parts = split_url(realm)
        except WebError as error:
            raise RegistryError(
                f"{self.registry} names an address for tokens that is not valid", error.why
            ) from None
        host = parts.hostname or ""
        here = self._origin[0] == "http" and is_loopback(host)
        if parts.username is not None or not (parts.scheme == "https" or here):
            secret = "login" if self._login else "token"
            raise RegistryError(
                f"{self.registry} wants the {secret} to be sent without TLS",
                f"its address for tokens is at {host}",
                "nothing was sent; check the registry, and the proxy before it",
            )
        allowed = may_name(self.registry, host) or host in self._token_hosts
        if self._login and not allowed:
            raise RegistryError(
                f"no login for {self.registry} is sent to {host}",
                "the registry names that host for tokens, and it is not the registry's own",
                f"nothing was sent; if that host is right, set BUILDER_TOKEN_HOSTS={host}",
            )
        return allowed

    def _error(self, error: WebError, what: str) -> RegistryError:
        """The error of a request that a retry does not help."""
        user = self._user
        if error.untrusted:
            return RegistryError(
                f"{self.registry}: no secure connection: {what}",
                error.why,
                "for a certificate authority of your own, put its certificate at "
                f"{CERTIFICATES / self.registry / 'ca.crt'}",
            )
        if "immutable" in error.why.lower():
            return RegistryError(f"{self.registry}: a tag may not move: {what}", error.why, MUTABLE)
        if error.status == 401:
            who = f"as {user}" if user else "without a login"
            hint = f"docker login{'' if self.registry == HUB else ' ' + self.registry}"
            if self.registry == HUB:
                hint += ", or set DOCKERHUB_USERNAME and DOCKERHUB_TOKEN"
            return RegistryError(
                f"{self.registry}: authentication failed {who}: {what}", error.why, hint
            )
        if error.status == 403:
            return RegistryError(
                f"{user or 'access without a login'} has no permission in {self.name}: {what}",
                error.why,
                "check the namespace (BUILDER_NAMESPACE) and the permissions of the token",
            )
        hint = "check the name of the repository and the tag" if error.status == 404 else ""
        return RegistryError(f"{self.registry} refuses: {what}", error.why, hint)


LINE_EVERY = 10.0  # seconds between two lines about an upload


class UploadStream:
    """A file as a request's body, with lines about the progress; ``name`` is the blob's."""

    def __init__(self, stream: IO[bytes], size: int, transport: Transport, name: str) -> None:
        self._stream, self._size, self._transport, self._name = stream, size, transport, name
        self._count = 0
        self._last_line = time.monotonic()

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        while block := self.read(1 << 16):
            yield block

    def read(self, size: int = -1) -> bytes:
        """The next bytes, like a file."""
        block = self._stream.read(size)
        self._count += len(block)
        self._transport.retry.server_responded()
        if time.monotonic() - self._last_line >= LINE_EVERY and self._count < self._size:
            self._last_line = time.monotonic()
            self._transport.log(f"{self._name}: {sizes.shown(self._count)} sent")
        return block
