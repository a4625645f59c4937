"""The responses of registries, checked: no other module parses them.

OCI distribution specification 1.1 (https://github.com/opencontainers/distribution-spec) and image
specification 1.1; tokens as in https://distribution.github.io/distribution/spec/auth/token/.
Fields that the models do not name are kept.  A response that does not fit its model raises
``RegistryError``, which never holds a value of the response: it may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import from_json

from builder.core.address import join_url, origin
from builder.core.errors import RegistryError
from builder.core.json_model import JsonModel, first_error
from builder.core.web import Response
from builder.core.web_errors import WebError

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
    """A JSON object, unchanged, after the check with that model.  Raises ``RegistryError``."""
    checked(model, content, what)
    found: dict[str, Any] = from_json(content)
    return found


def tags(response: Response, source: str) -> list[str]:
    """A page of tags ("Listing Tags").  Raises ``RegistryError``."""
    return checked(_Tags, response.content, f"the list of tags of {source}").tags or []


def referrers(response: Response, source: str) -> list[dict[str, Any]]:
    """A page of descriptors, unchanged ("Listing Referrers").  Raises ``RegistryError``."""
    found = json_object(response.content, _Referrers, f"the list of referrers of {source}")
    return list(found.get("manifests") or [])


def token(response: Response, source: str) -> str:
    """The token of a response, or an empty text.  Raises ``RegistryError``."""
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

    They are the specification's for the request ("Endpoints").  Raises ``WebError`` with the
    registry's own explanation for any other.
    """
    if response.status not in statuses:
        raise response.error(error_text(response.content))
    return response


def challenge(header: str) -> tuple[str, dict[str, str]]:
    """The scheme of a WWW-Authenticate header, in lower case, and its parameters."""
    kind, _, rest = header.partition(" ")
    return kind.lower(), dict(PARAMETER.findall(rest))


def digest(headers: Mapping[str, str]) -> str:
    """The digest in a response's headers; empty where there is no valid one."""
    found = headers.get("Docker-Content-Digest", "")
    return found if DIGEST.fullmatch(found) else ""


def media_type(headers: Mapping[str, str]) -> str:
    """The media type of a response; empty where there is no valid one."""
    found = headers.get("Content-Type", "").partition(";")[0].strip()
    return found if MEDIA_TYPE.fullmatch(found) else ""


def upload_address(response: Response, source: str) -> str:
    """The address of a blob's upload ("POST then PUT").  Raises ``RegistryError``."""
    named = response.headers.get("Location", "")
    return _address(response, named, f"the upload address of {source}")


def next_page(response: Response, source: str) -> str | None:
    """The next page of a list (RFC 8288), or None.

    Raises ``RegistryError`` where it is on another host.
    """
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
