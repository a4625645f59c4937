"""Requests to a registry: its name and certificate, authorization, retries, and errors.

A temporary failure is retried (``builder.core.retry``); any other is an error at once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from platformdirs import user_config_path

from builder.core import sizes
from builder.core.address import is_loopback, origin
from builder.core.errors import FetchError, RegistryError
from builder.core.http_time import seconds_since
from builder.core.retry import RetryPolicy
from builder.core.web import Client, Follow, Response
from builder.core.web_errors import WebError, cause
from builder.docker.engine import HUB, split
from builder.publish.auth import Authorization
from builder.publish.responses import required

HUB_HOST = "registry-1.docker.io"
CERTIFICATES = Path("/etc/docker/certs.d")


def certificate_of(registry: str) -> Path | None:
    """The file of the user's own certificate authority for a registry, or None.

    It is where Docker expects it (https://docs.docker.com/engine/security/certificates/); a
    rootless engine uses the user's configuration directory (moby, registry/config_unix.go).
    """
    for folder in (CERTIFICATES, user_config_path("docker") / "certs.d"):
        file = folder / registry / "ca.crt"
        if file.is_file():
            return file
    return None


class Transport:
    """Requests to one repository of a registry; ``log`` gets a line before a wait.

    ``ahead``: the seconds by which this machine's clock was ahead of the registry's at its last
    response; negative where it was behind.
    """

    def __init__(self, name: str, log: Callable[[str], None], token_hosts: Collection[str]) -> None:
        self._name = name
        self._registry, self._path = split(name)
        host = HUB_HOST if self._registry == HUB else self._registry
        certificate = certificate_of(self._registry)
        plain = certificate is None and is_loopback(re.sub(r":\d+$", "", host).strip("[]"))
        self._base = f"{'http' if plain else 'https'}://{host}/v2/{self._path}/"
        self._client = Client(certificate)
        try:
            self._authorization = Authorization(
                self._registry, self._base, self._client, token_hosts
            )
        except WebError as error:  # a port above 65535
            raise RegistryError(
                f"{self._registry} is no address of a registry: {name}",
                hint="correct the name: BUILDER_NAMESPACE is REGISTRY/ACCOUNT",
            ) from error
        self.log = log
        self.retry = RetryPolicy(self._registry, log)
        self.ahead = 0.0

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
            if error.url and not self._authorization.covers(error.url):
                error.why = f"{origin(error.url)[1]}: {error.why}"
            if not error.temporary:
                raise self._error(error, what) from error
            hint = "try again later" + (": finished uploads are not repeated" if uploads else "")
            raise FetchError(
                f"{self._registry} {error.outcome}: {what}", cause(error), hint
            ) from error

    def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        push: bool = False,
        content: Callable[[], Any] = lambda: None,
        **bounds: Any,
    ) -> Response:
        """One request, and one more where the registry wants a login or a token."""
        url = path if path.startswith(("http://", "https://")) else self._base + path
        actions = f"pull{',push' if push else ''}{',delete' if method == 'DELETE' else ''}"
        scope = f"repository:{self._path}:{actions}"
        for again in (False, True):
            sent = dict(headers or {}) | self._authorization.header(url, scope)
            response = self._client.request(
                method, url, headers=sent, data=content(), follow=Follow.ANYWHERE, **bounds
            )
            if not self._authorization.covers(response.url):
                # Hosts that the registry names get no login.
                if response.status in {401, 403}:
                    why = f"{origin(response.url)[1]}, which it names for this, responds "
                    raise WebError(f"{why}{response.status} {response.reason}", temporary=False)
                break
            self.ahead = seconds_since(response.headers.get("Date", "")) or 0.0
            refused = response.status == 401 and not again
            if not (refused and self._authorization.authorize(response, scope)):
                break
        return response

    def _error(self, error: WebError, what: str) -> RegistryError:
        """The error of a request that a retry does not help."""
        user = self._authorization.user
        if error.untrusted:
            return RegistryError(
                f"{self._registry}: no secure connection: {what}",
                error.why,
                "for a certificate authority of your own, put its certificate at "
                f"{CERTIFICATES / self._registry / 'ca.crt'}",
            )
        if error.status == 401:
            who = f"as {user}" if user else "without a login"
            hint = f"docker login{'' if self._registry == HUB else ' ' + self._registry}"
            if self._registry == HUB:
                hint += ", or set DOCKERHUB_USERNAME and DOCKERHUB_TOKEN"
            return RegistryError(
                f"{self._registry}: authentication failed {who}: {what}", error.why, hint
            )
        if error.status == 403:
            return RegistryError(
                f"{user or 'access without a login'} has no permission in {self._name}: {what}",
                error.why,
                "check the namespace (BUILDER_NAMESPACE) and the permissions of the token",
            )
        hint = "check the name of the repository and the tag" if error.status in {400, 404} else ""
        return RegistryError(f"{self._registry} refuses: {what}", error.why, hint)


LINE_EVERY = 10.0  # seconds between two lines about an upload


class UploadStream:
    """A file as a request's body, with lines about the progress; ``name`` is the blob's."""

    def __init__(self, stream: IO[bytes], size: int, transport: Transport, name: str) -> None:
        self._stream = stream
        self._size = size
        self._transport = transport
        self._name = name
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
