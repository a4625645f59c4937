"""Docker Hub's own API: descriptions and the deletion of tags, which the registry protocol lacks.

https://docs.docker.com/reference/api/hub/latest/ (2-beta) documents the login, the list of tags
and the limits, but not how a description is written or a tag is deleted.  Those requests are the
ones of Docker's own clients: the newer path (docker/hub-mcp) and, where it does not exist, the
older one (docker/actions-toolkit, docker/hub-tool).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from builder.errors import FetchError, RegistryError
from builder.tools.registry import hub_responses
from builder.tools.registry.credentials import HUB, Login, login_for
from builder.tools.registry.hub_responses import Grant, Shown, TagPage
from builder.tools.web.client import Client, Response
from builder.tools.web.errors import WebError, cause
from builder.tools.web.retry import RetryPolicy

SHORT = 100
"""Bytes of a short description; the response to a longer one is 400.

peter-evans/dockerhub-description has the same limit (src/main.ts, SHORT_DESCRIPTION_MAX_BYTES)."""
FULL = 25_000
"""Bytes of a full description, which is Markdown; likewise."""
PAGE = 100  # tags: the maximum of a page
LARGEST_PAGE = 16 << 20  # bytes: the images of 100 tags
MOST_PAGES = 1000
ABSENT = frozenset({404, 405})
SCOPE = (
    "use a personal access token with the scopes Read, Write and Delete, of a user who "
    "administers the repository: set DOCKERHUB_USERNAME and DOCKERHUB_TOKEN"
)


class Hub:
    """Docker Hub at ``api`` ("https://hub.docker.com"), with the login for it.

    Repositories are named by their path, NAMESPACE/NAME.  ``log`` gets a line before a wait.  A
    temporary failure (429, 5xx, a broken connection) is retried and ends in ``FetchError``; any
    other raises ``RegistryError`` at once.
    """

    def __init__(self, api: str, log: Callable[[str], None]) -> None:
        self._api = api.rstrip("/")
        self._client = Client()
        self._retry = RetryPolicy("Docker Hub", log)
        self._login: Login | None = None
        self._token = ""

    def describe(self, repository: str, short: str, full: str) -> None:
        """Write the two descriptions of a repository, then verify that Docker Hub has them.

        ``short`` has at most ``SHORT`` characters, ``full`` is Markdown of at most ``FULL`` bytes.
        """
        body = {"description": short, "full_description": full}
        response = self._either("PATCH", repository, "", body)
        if response.ok:
            response = self._either("GET", repository, "")
        if not response.ok:
            raise self._error(response, f"describe {repository}")
        shown = hub_responses.checked(Shown, response.content)
        for sent, there in ((short, shown.description), (full, shown.full_description)):
            if (there or "").split() != sent.split():
                raise RegistryError(
                    f"Docker Hub accepted the description of {repository}, but shows another one",
                    f"{len(sent)} characters were sent, {len(there or '')} are shown",
                    f"look at https://hub.docker.com/r/{repository}, and try again",
                )

    def tags(self, repository: str) -> list[str]:
        """All tags, sorted; none where the repository does not exist."""
        namespace, name = _parts(repository)
        path = f"/v2/namespaces/{namespace}/repositories/{name}/tags"
        found: set[str] = set()
        for page in range(1, MOST_PAGES + 1):
            response = self._authorized("GET", f"{path}?page={page}&page_size={PAGE}")
            if response.status == 404:
                break
            if not response.ok:
                raise self._error(response, f"list the tags of {repository}")
            listed = hub_responses.checked(TagPage, response.content)
            found.update(listed.names)
            if not listed.names or not listed.next:
                break
        return sorted(found)

    def delete_tag(self, repository: str, tag: str) -> bool:
        """Delete a tag, and no other tag of the same image; whether it existed."""
        response = self._either("DELETE", repository, f"/tags/{tag}")
        if response.status == 404:
            return False
        if not response.ok:
            raise self._error(response, f"delete the tag {tag} of {repository}")
        return True

    def _either(self, method: str, repository: str, rest: str, body: Any = None) -> Response:
        """The response of the newer path, or of the older one where that does not exist."""
        namespace, name = _parts(repository)
        response = self._authorized(
            method, f"/v2/namespaces/{namespace}/repositories/{name}{rest}", body
        )
        if response.status in ABSENT:
            response = self._authorized(method, f"/v2/repositories/{namespace}/{name}{rest}/", body)
        return response

    def _authorized(self, method: str, path: str, body: Any = None) -> Response:
        """The response to a request with a token; a token is valid for ten minutes."""
        fresh = not self._token
        if fresh:
            self._token = self._log_in()
        response = self._ask(method, path, body)
        if response.status == 401 and not fresh:
            self._token = self._log_in()
            response = self._ask(method, path, body)
        return response

    def _log_in(self) -> str:
        """A token ("Create access token")."""
        self._token = ""
        self._login = login_for(HUB)
        if self._login is None:
            raise RegistryError(
                "Docker Hub: login required",
                hint="docker login, or set DOCKERHUB_USERNAME and DOCKERHUB_TOKEN",
            )
        body = {"identifier": self._login.user, "secret": self._login.password}
        response = self._ask("POST", "/v2/auth/token", body)
        if response.status != 200:
            raise self._error(response, "log in")
        return hub_responses.checked(Grant, response.content).access_token

    def _ask(self, method: str, path: str, body: Any) -> Response:
        """A response that a retry would not change."""

        def once() -> Response:
            headers = {"Accept": "application/json"}
            if self._token:
                headers["Authorization"] = f"Bearer {self._token}"
            if body is not None:
                headers["Content-Type"] = "application/json"
            response = self._client.request(
                method,
                self._api + path,
                headers=headers,
                data=None if body is None else json.dumps(body).encode(),
                limit=LARGEST_PAGE,
            )
            failure = response.error(hub_responses.error_text(response.content))
            if not response.ok and failure.temporary:
                raise failure
            return response

        what = f"{method} {path.partition('?')[0]}"
        try:
            return self._retry.call(once)
        except WebError as error:
            if not error.temporary:
                raise RegistryError(
                    f"Docker Hub's response cannot be used: {what}",
                    error.why,
                    "check BUILDER_HUB_API, and the proxy",
                ) from error
            raise FetchError(
                f"Docker Hub {error.outcome}: {what}",
                cause(error),
                "try again later: finished changes are not repeated",
            ) from error

    def _error(self, response: Response, what: str) -> RegistryError:
        status, why = (
            response.status,
            response.error(hub_responses.error_text(response.content)).why,
        )
        who = self._login.user if self._login else "access without a login"
        if status == 401:
            return RegistryError(f"Docker Hub: authentication failed as {who}: {what}", why, SCOPE)
        if status == 403:
            return RegistryError(f"{who} has no permission on Docker Hub: {what}", why, SCOPE)
        if status in ABSENT:
            return RegistryError(
                f"Docker Hub cannot {what}: not found, or not visible to {who}",
                why,
                "`builder push` creates the repository; check the namespace (BUILDER_NAMESPACE)",
            )
        return RegistryError(f"Docker Hub refuses: {what}", why)


def _parts(repository: str) -> tuple[str, str]:
    namespace, _, name = repository.partition("/")
    if not namespace or not name or "/" in name:
        raise RegistryError(
            f"{repository} is not the name of a Docker Hub repository",
            "it must be NAMESPACE/NAME",
            "check BUILDER_NAMESPACE, and image.repository in the recipe",
        )
    return namespace, name
