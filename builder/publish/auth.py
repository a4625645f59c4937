"""Authorization at a registry: tokens, and which hosts get a login.

https://distribution.github.io/distribution/spec/auth/token/.  Only a 401 of the registry itself
counts: hosts that it redirects to get neither a login nor a token.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from urllib.parse import urlencode

from builder.core.address import is_loopback, origin, split_url
from builder.core.errors import RegistryError
from builder.core.web import Client, Follow, Response
from builder.core.web_errors import WebError
from builder.docker.engine import HUB
from builder.publish import responses
from builder.publish.credentials import Login, login_for

TOKEN_HOSTS = {HUB: "auth.docker.io", "registry.gitlab.com": "gitlab.com"}
"""Registries whose tokens another host issues: docs.docker.com/reference/api/registry/auth/, and
docs.gitlab.com/administration/packages/container_registry/."""


def may_name(registry: str, host: str) -> bool:
    """Whether a registry ("ghcr.io", "127.0.0.1:5000") may name a host for tokens.

    It may name itself; Docker Hub and GitLab name one known host; one of this machine names hosts
    of this machine.  A host of the same domain may be anyone's: whoever rents a registry at
    azurecr.io has a name there.
    """
    own = split_url(f"https://{registry}").hostname or ""
    here = is_loopback(own) and is_loopback(host)
    return here or host in {own, TOKEN_HOSTS.get(registry, own)}


class Authorization:
    """The login for one registry ("docker.io"), at ``base``, and its tokens.

    ``token_hosts``: other hosts that it may name for tokens, by the user's settings.
    """

    def __init__(
        self, registry: str, base: str, client: Client, token_hosts: Collection[str]
    ) -> None:
        self._registry = registry
        self._origin = origin(base)
        self._client = client
        self._token_hosts = token_hosts
        self._known: dict[str, str] = {}
        self.user = ""
        """The user of the login, once the registry has asked for one; empty without a login."""

    @cached_property
    def _login(self) -> Login | None:
        found = login_for(self._registry)
        self.user = found.user if found else ""
        return found

    def covers(self, url: str) -> bool:
        """Whether an address is on the registry itself."""
        return origin(url) == self._origin

    def header(self, url: str, scope: str) -> dict[str, str]:
        """The Authorization header of a request to the registry, where one is known."""
        known = self._known.get(scope)
        return {"Authorization": known} if known and self.covers(url) else {}

    def authorize(self, response: Response, scope: str) -> bool:
        """Respond to a 401; whether there is a login or token to repeat the request with.

        Raises ``RegistryError`` where the login would be sent without TLS or the token is damaged,
        ``WebError`` where the token server refuses.
        """
        kind, named = responses.challenge(response.headers.get("WWW-Authenticate", ""))
        login, value = self._login, ""
        if kind == "basic" and login:
            value = f"Basic {login.basic}"
        elif kind == "bearer":
            given = self._token(named.get("realm", ""), named.get("service", ""), scope)
            value = f"Bearer {given}" if given else ""
        if value:
            self._known[scope] = value
        return bool(value)

    def _token(self, realm: str, service: str, scope: str) -> str:
        outward = not self._require_safe(realm)
        query = urlencode({"service": service, "scope": scope})
        headers = {"Authorization": f"Basic {self._login.basic}"} if self._login else {}
        url = f"{realm}{'&' if '?' in realm else '?'}{query}"
        # A redirect would name a host that the registry did not name.
        response = self._client.request(
            "GET", url, headers=headers, follow=Follow.SAME_HOST, outward=outward
        )
        return responses.token(responses.required(response, 200), self._registry)

    def _require_safe(self, realm: str) -> bool:
        """Whether the registry may name a realm's host, or the user allows it.

        Raises ``RegistryError`` where it is not and there is a login to send; without one, any host
        may issue a token, but none on this machine.  Both are sent over TLS; without it only on
        this machine, for a registry on this machine.
        """
        try:
            parts = split_url(realm)
        except WebError as error:
            raise RegistryError(
                f"{self._registry} names an address for tokens that is not valid", error.why
            ) from None
        host = parts.hostname or ""
        here = self._origin[0] == "http" and is_loopback(host)
        if parts.username is not None or not (parts.scheme == "https" or here):
            secret = "login" if self._login else "token"
            raise RegistryError(
                f"{self._registry} wants the {secret} to be sent without TLS",
                f"its address for tokens is at {host}",
                "nothing was sent; check the registry, and the proxy before it",
            )
        allowed = may_name(self._registry, host) or host in self._token_hosts
        if self._login and not allowed:
            raise RegistryError(
                f"no login for {self._registry} is sent to {host}",
                "the registry names that host for tokens, and it is not the registry's own",
                f"nothing was sent; if that host is right, set BUILDER_TOKEN_HOSTS={host}",
            )
        return allowed
