"""Docker Hub's own API: descriptions and the deletion of tags, which the registry protocol lacks.

https://docs.docker.com/reference/api/hub/latest/ (2-beta) documents the login, the list of tags
and the limits, but not how a description is written or a tag is deleted.  Docker's own clients send
these requests: the newer path (docker/hub-mcp) and, where it does not exist, the
older one (docker/actions-toolkit, docker/hub-tool).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, StringConstraints, ValidationError
from pydantic_core import from_json

from builder.core.errors import FetchError, RegistryError
from builder.core.json_model import JsonModel, first_error
from builder.core.retry import RetryPolicy
from builder.core.web import Client, Follow, Response
from builder.core.web_errors import WebError, cause
from builder.docker.engine import HUB
from builder.publish.credentials import Login, login_for
from builder.publish.responses import TAG, Token

SHORT = 100
"""Bytes of a short description; the response to a longer one is 400.

peter-evans/dockerhub-description has the same limit (src/main.ts, SHORT_DESCRIPTION_MAX_BYTES)."""
FULL = 25_000
"""Bytes of a full description, which is Markdown; likewise."""
PAGE = 100  # tags: the maximum of a page
LARGEST_PAGE = 16 << 20  # bytes: the images of 100 tags
MOST_PAGES = 1000
ABSENT = frozenset({404, 405})
DELETED = frozenset({200, 202, 204, 404})  # undocumented
SCOPE = (
    "use a personal access token with the scopes Read, Write and Delete, of a user who "
    "administers the repository: set DOCKERHUB_USERNAME and DOCKERHUB_TOKEN"
)


Model = TypeVar("Model", bound=BaseModel)


class Grant(JsonModel):
    """The token of a login ("Create access token")."""

    access_token: Token


class _Tag(JsonModel):
    name: Annotated[str, StringConstraints(pattern=TAG)]


class TagPage(JsonModel):
    """A page of tags ("List repository tags"); ``next`` is the address of the following one."""

    results: list[_Tag] | None = None
    next: str | None = None


class Shown(JsonModel):
    """The descriptions of a repository ("Get repository")."""

    description: str | None = None
    full_description: str | None = None


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
        if response.status == 200:
            response = self._either("GET", repository, "")
        if response.status != 200:
            raise self._error(response, f"describe {repository}")
        shown = checked(Shown, response.content)
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
            if response.status != 200:
                raise self._error(response, f"list the tags of {repository}")
            listed = checked(TagPage, response.content)
            found.update(tag.name for tag in listed.results or ())
            if not listed.results or not listed.next:
                break
        return sorted(found)

    def delete_tag(self, repository: str, tag: str) -> None:
        """Delete a tag if it exists, and no other tag of the same image."""
        response = self._either("DELETE", repository, f"/tags/{tag}")
        if response.status not in DELETED:
            raise self._error(response, f"delete the tag {tag} of {repository}")

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
        if self._token:
            response = self._ask(method, path, body)
            if response.status != 401:
                return response
        self._log_in()
        return self._ask(method, path, body)

    def _log_in(self) -> None:
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
        self._token = checked(Grant, response.content).access_token

    def _ask(self, method: str, path: str, body: Any) -> Response:
        """A response that a retry would not change."""

        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["Content-Type"] = "application/json"

        def once() -> Response:
            response = self._client.request(
                method,
                self._api + path,
                headers=headers,
                data=None if body is None else json.dumps(body).encode(),
                limit=LARGEST_PAGE,
                follow=Follow.SAME_HOST,
            )
            failure = response.error(error_text(response.content))
            if failure.temporary:
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
        status, why = response.status, response.error(error_text(response.content)).why
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


def checked(model: type[Model], content: bytes) -> Model:
    """Parse the JSON of a good response as that model.  Raises ``FetchError``."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise FetchError(
            "a response of Docker Hub is damaged, or is not from Docker Hub",
            first_error(error),
            "check BUILDER_HUB_API, and the proxy; try again",
        ) from None


def error_text(content: bytes) -> str:
    """The error in a response; empty where it cannot be read.

    Docker Hub has ``message`` or ``detail``, and an error for each field.
    """
    try:
        found = from_json(content)
        text = found.get("message") or found.get("detail") or ""
        fields = (found.get("errinfo") or {}).get("fielderrors") or {}
        parts = [str(text), *(f"{name}: {wrong}" for name, wrong in fields.items())]
    except (ValueError, AttributeError, TypeError):
        return ""
    return ": ".join(filter(None, parts))[:1000]
