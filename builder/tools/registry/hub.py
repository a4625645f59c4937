"""Docker Hub's own API: what the registry protocol cannot do there.

https://docs.docker.com/reference/api/hub/latest/ (2-beta) has the login, the tags with their
pages, and the limits.  It has neither how a description is written nor how a tag is deleted:
those are done as Docker's own clients do them, by the newer path (docker/hub-mcp) and, where that
is not there, by the older one (docker/actions-toolkit, docker/hub-tool).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from builder.errors import FetchError, RegistryError
from builder.tools.registry import hub_responses
from builder.tools.registry.credentials import HUB, Login, login_for
from builder.tools.registry.hub_responses import Grant, Shown, TagPage
from builder.tools.web.client import Answer, Client
from builder.tools.web.errors import WebError, cause
from builder.tools.web.retry import RetryPolicy

SHORT = 100
"""Characters of a short description: a longer one is answered with 400."""
FULL = 25_000
"""Bytes of a full description, which is Markdown: likewise."""
PAGE = 100  # tags: the most that a page may have
LARGEST_PAGE = 16 << 20  # bytes: the images of 100 tags
MOST_PAGES = 1000
ABSENT = frozenset({404, 405})
SCOPE = (
    "it takes a personal access token with the scopes Read, Write and Delete, of somebody who "
    "administers the repository: set DOCKERHUB_USERNAME and DOCKERHUB_TOKEN"
)


class Hub:
    """Docker Hub at ``api`` ("https://hub.docker.com"), as whoever the login says.

    Repositories are named by their path, NAMESPACE/NAME.  ``say`` gets a line where it has to
    wait.  A failure that may pass (429, 5xx, a broken connection) is tried again within a bound
    and ends in ``FetchError``; another one raises ``RegistryError`` at once.
    """

    def __init__(self, api: str, log: Callable[[str], None]) -> None:
        self._api = api.rstrip("/")
        self._client = Client()
        self._retry = RetryPolicy("Docker Hub", log)
        self._login: Login | None = None
        self._token = ""

    def describe(self, repository: str, short: str, full: str) -> None:
        """Write the two descriptions of a repository: at most ``SHORT`` characters, and Markdown
        of at most ``FULL`` bytes.  Then look whether Docker Hub has them."""
        body = {"description": short, "full_description": full}
        answer = self._either("PATCH", repository, "", body)
        if answer.good:
            answer = self._either("GET", repository, "")
        if not answer.good:
            raise self._refused(answer, f"describe {repository}")
        shown = hub_responses.checked(Shown, answer.content)
        for sent, there in ((short, shown.description), (full, shown.full_description)):
            if (there or "").split() != sent.split():
                raise RegistryError(
                    f"Docker Hub took the description of {repository}, and shows another one",
                    f"{len(sent)} characters were sent, {len(there or '')} are shown",
                    f"look at https://hub.docker.com/r/{repository}, and try again",
                )

    def tags(self, repository: str) -> list[str]:
        """All tags, sorted; none where there is no such repository."""
        namespace, name = _parts(repository)
        path = f"/v2/namespaces/{namespace}/repositories/{name}/tags"
        found: set[str] = set()
        for page in range(1, MOST_PAGES + 1):
            answer = self._authorized("GET", f"{path}?page={page}&page_size={PAGE}")
            if answer.status == 404:
                break
            if not answer.good:
                raise self._refused(answer, f"list the tags of {repository}")
            listed = hub_responses.checked(TagPage, answer.content)
            found.update(listed.names)
            if not listed.names or not listed.next:
                break
        return sorted(found)

    def delete_tag(self, repository: str, tag: str) -> bool:
        """Delete a tag, and no other that leads to the same image; whether it was there."""
        answer = self._either("DELETE", repository, f"/tags/{tag}")
        if answer.status == 404:
            return False
        if not answer.good:
            raise self._refused(answer, f"delete the tag {tag} of {repository}")
        return True

    def _either(self, method: str, repository: str, rest: str, body: Any = None) -> Answer:
        """The answer of the newer path, or of the older one where that is not there."""
        namespace, name = _parts(repository)
        answer = self._authorized(
            method, f"/v2/namespaces/{namespace}/repositories/{name}{rest}", body
        )
        if answer.status in ABSENT:
            answer = self._authorized(method, f"/v2/repositories/{namespace}/{name}{rest}/", body)
        return answer

    def _authorized(self, method: str, path: str, body: Any = None) -> Answer:
        """An answer to somebody who is logged in; a token lives for ten minutes."""
        fresh = not self._token
        if fresh:
            self._token = self._log_in()
        answer = self._ask(method, path, body)
        if answer.status == 401 and not fresh:
            self._token = self._log_in()
            answer = self._ask(method, path, body)
        return answer

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
        answer = self._ask("POST", "/v2/auth/token", body)
        if answer.status != 200:
            raise self._refused(answer, "log in")
        return hub_responses.checked(Grant, answer.content).access_token

    def _ask(self, method: str, path: str, body: Any) -> Answer:
        """An answer that will not be another one for being asked for again."""

        def once() -> Answer:
            headers = {"Accept": "application/json"}
            if self._token:
                headers["Authorization"] = f"Bearer {self._token}"
            if body is not None:
                headers["Content-Type"] = "application/json"
            answer = self._client.request(
                method,
                self._api + path,
                headers=headers,
                data=None if body is None else json.dumps(body).encode(),
                limit=LARGEST_PAGE,
            )
            failure = answer.error(hub_responses.error_text(answer.content))
            if not answer.good and failure.temporary:
                raise failure
            return answer

        what = f"{method} {path.partition('?')[0]}"
        try:
            return self._retry.call(once)
        except WebError as error:
            if not error.temporary:
                raise RegistryError(
                    f"Docker Hub's answer cannot be used: {what}", error.why
                ) from error
            raise FetchError(
                f"Docker Hub {error.outcome}: {what}",
                cause(error),
                "try again later: finished changes are not repeated",
            ) from error

    def _refused(self, answer: Answer, what: str) -> RegistryError:
        status, why = answer.status, answer.error(hub_responses.error_text(answer.content)).why
        who = self._login.user if self._login else "access without a login"
        if status == 401:
            return RegistryError(f"Docker Hub: authentication failed as {who}: {what}", why, SCOPE)
        if status == 403:
            return RegistryError(f"{who} has no permission on Docker Hub: {what}", why, SCOPE)
        if status in ABSENT:
            return RegistryError(
                f"Docker Hub has nothing to {what}, or does not show it to {who}",
                why,
                "`builder push` makes the repository; check the namespace (BUILDER_NAMESPACE)",
            )
        return RegistryError(f"Docker Hub refuses: {what}", why)


def _parts(repository: str) -> tuple[str, str]:
    namespace, _, name = repository.partition("/")
    if not namespace or not name or "/" in name:
        raise RegistryError(
            f"{repository} is no repository of Docker Hub's",
            "there they are called NAMESPACE/NAME",
            "check BUILDER_NAMESPACE, and image.repository in the recipe",
        )
    return namespace, name
