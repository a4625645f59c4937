"""How a registry is reached and asked: names, certificates, logins, and another try.

A failure that may pass is tried again, within a bound, and not before the time that the registry
asks for; another one is an error at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from builder.errors import FetchError, RegistryError
from builder.tools.registry import responses
from builder.tools.registry.auth import Authorization
from builder.tools.registry.credentials import HUB
from builder.tools.web.client import Answer, Client, loopback, origin
from builder.tools.web.errors import WebError, cause
from builder.tools.web.http_time import seconds_since
from builder.tools.web.retry import RetryPolicy

HUB_HOST = "registry-1.docker.io"
CERTIFICATES = Path("/etc/docker/certs.d")


def split(repository: str) -> tuple[str, str]:
    """Registry and path of a repository's name, as Docker reads it.

    https://github.com/distribution/reference: without a host it is Docker Hub's, and a name of one
    part is one of its official images.
    """
    first, slash, rest = repository.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first, rest
    return HUB, repository if slash else f"library/{repository}"


def certificate_of(registry: str) -> Path | None:
    """The authority of a registry's certificate, where it is one's own: as Docker is told of it.

    https://docs.docker.com/engine/security/certificates/; an engine without root looks below the
    user's configuration (moby, registry/config_unix.go).
    """
    for folder in (CERTIFICATES, user_config_path("docker") / "certs.d"):
        file = folder / registry / "ca.crt"
        if file.is_file():
            return file
    return None


class Transport:
    """One repository of a registry, asked over HTTP; ``say`` gets a line where it has to wait.

    ``ahead``: the seconds that this machine's clock was before the registry's at its last answer,
    negative where it was behind.
    """

    def __init__(self, name: str, log: Callable[[str], None], token_hosts: Collection[str]) -> None:
        self._name = name
        self._registry, self._path = split(name)
        host = HUB_HOST if self._registry == HUB else self._registry
        certificate = certificate_of(self._registry)
        plain = certificate is None and loopback(re.sub(r":\d+$", "", host).strip("[]"))
        self._base = f"{'http' if plain else 'https'}://{host}/v2/{self._path}/"
        self._client = Client(certificate)
        self._authorization = Authorization(self._registry, self._base, self._client, token_hosts)
        self._retry = RetryPolicy(self._registry, log)
        self.ahead = 0.0

    def server_responded(self) -> None:
        """Take note that an upload makes progress: it is not given up yet."""
        self._retry.server_responded()

    def ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **bounds: Any
    ) -> Answer | None:
        """An answer; None for 404."""
        answer = self.retried(
            lambda: self.once(method, path, headers, **bounds), f"{method} {path}", missing=True
        )
        return None if answer.status == 404 else answer

    def retried(
        self,
        work: Callable[[], Answer],
        what: str,
        *,
        missing: bool = False,
        uploads: bool = False,
    ) -> Answer:
        """An answer that is good; a failure that may pass is tried again."""

        def good() -> Answer:
            answer = work()
            if answer.good or (answer.status == 404 and missing):
                return answer
            raise answer.error(responses.error_text(answer.content))

        try:
            return self._retry.call(lambda: self._naming_others(good))
        except WebError as error:
            if not error.temporary:
                raise self._refused(error, what) from error
            hint = "try again later" + (": finished uploads are not repeated" if uploads else "")
            raise FetchError(
                f"{self._registry} {error.outcome}: {what}", cause(error), hint
            ) from error

    def _naming_others(self, work: Callable[[], Answer]) -> Answer:
        """Do it; where a host fails that the registry names, say which one."""
        try:
            return work()
        except WebError as error:
            if error.url and not self._authorization.concerns(error.url):
                error.why = f"{origin(error.url)[1]}: {error.why}"
            raise

    def once(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        push: bool = False,
        content: Callable[[], Any] = lambda: None,
        **bounds: Any,
    ) -> Answer:
        """One request, and one more where the registry asks for a login or a token."""
        url = path if path.startswith(("http://", "https://")) else self._base + path
        actions = f"pull{',push' if push else ''}{',delete' if method == 'DELETE' else ''}"
        scope = f"repository:{self._path}:{actions}"
        for again in (False, True):
            sent = dict(headers or {}) | self._authorization.header(url, scope)
            answer = self._client.request(method, url, headers=sent, data=content(), **bounds)
            if not self._authorization.concerns(answer.url):
                # It gets no login: whoever the registry names may ask for nothing.
                if answer.status in {401, 403}:
                    why = f"{origin(answer.url)[1]}, which it names for this, answers "
                    raise WebError(f"{why}{answer.status} {answer.reason}", temporary=False)
                break
            self.ahead = seconds_since(answer.headers.get("Date", "")) or 0.0
            if answer.status != 401 or again or not self._authorization.answered(answer, scope):
                break
        return answer

    def _refused(self, error: WebError, what: str) -> RegistryError:
        """What a registry refuses, or answers beside the rules."""
        user = self._authorization.user
        if error.untrusted:
            return RegistryError(
                f"{self._registry}: no safe connection: {what}",
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
                "check the namespace (BUILDER_NAMESPACE) and what the token allows",
            )
        hint = "check the repository's name and the tag" if error.status in {400, 404} else ""
        return RegistryError(f"{self._registry} refuses: {what}", error.why, hint)
