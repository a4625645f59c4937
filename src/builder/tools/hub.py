"""Docker Hub's own API: what the registry protocol cannot do there.

https://docs.docker.com/reference/api/hub/latest/ (2-beta) has the login, the tags with their
pages, and the limits.  It has neither how a description is written nor how a tag is deleted:
those are done as Docker's own clients do them, by the newer path (docker/hub-mcp) and, where that
is not there, by the older one (docker/actions-toolkit, docker/hub-tool).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from builder.errors import FetchError, RegistryError
from builder.tools.credentials import HUB, Login, login_for
from builder.tools.downloads import retrying

if TYPE_CHECKING:
    from requests import Response

SHORT = 100
"""Characters of a short description: a longer one is answered with 400."""
FULL = 25_000
"""Bytes of a full description, which is Markdown: likewise."""
PAGE = 100  # tags: the most that a page may have
TIMEOUT = 60.0  # seconds without a byte
A_YEAR = 31_536_000.0  # seconds
ABSENT = frozenset({404, 405})
SCOPE = (
    "it takes a personal access token with the scopes Read, Write and Delete, of somebody who "
    "administers the repository: set DOCKERHUB_USERNAME and DOCKERHUB_TOKEN"
)


class Hub:
    """Docker Hub at ``api`` ("https://hub.docker.com"), as whoever the login says.

    Repositories are named by their path, NAMESPACE/NAME.  ``say`` is told where it has to wait.
    What may pass (429, 5xx, a broken connection) is tried again within a bound and ends in
    ``FetchError``; what will not raises ``RegistryError`` at once.
    """

    def __init__(self, api: str, say: Callable[[str], None]) -> None:
        import requests

        self._api = api.rstrip("/")
        self._say = say
        self._session = requests.Session()
        self._session.hooks["response"].append(self._in_seconds)
        self._login: Login | None = None
        self._token = ""

    def describe(self, repository: str, short: str, full: str) -> None:
        """Write the two descriptions of a repository: at most ``SHORT`` characters, and Markdown
        of at most ``FULL`` bytes."""
        body = {"description": short, "full_description": full}
        answer = self._either("PATCH", repository, "", body)
        if not answer.ok:
            raise self._refused(answer, f"describe {repository}")
        shown = str(_data(answer).get("full_description", full))
        if shown.split() != full.split():  # a redirect may have made a mere look of it
            raise RegistryError(
                f"Docker Hub took the description of {repository}, and shows another one",
                f"{len(full)} characters were sent, {len(shown)} are shown",
                f"look at https://hub.docker.com/r/{repository}, and try again",
            )

    def tags(self, repository: str) -> list[str]:
        """All tags, sorted; none where there is no such repository."""
        namespace, name = _parts(repository)
        path = f"/v2/namespaces/{namespace}/repositories/{name}/tags"
        found: list[str] = []
        page, more = 1, True
        while more:
            answer = self._authorized("GET", f"{path}?page={page}&page_size={PAGE}")
            if answer.status_code == 404:
                break
            if not answer.ok:
                raise self._refused(answer, f"list the tags of {repository}")
            told = _data(answer)
            names = [entry["name"] for entry in told.get("results") or []]
            found += names
            page, more = page + 1, bool(names and told.get("next"))
        return sorted(set(found))

    def delete_tag(self, repository: str, tag: str) -> bool:
        """Delete a tag, and no other that leads to the same image; whether it was there."""
        answer = self._either("DELETE", repository, f"/tags/{tag}")
        if answer.status_code == 404:
            return False
        if not answer.ok or answer.request.method != "DELETE":
            raise self._refused(answer, f"delete the tag {tag} of {repository}")
        return True

    def _either(self, method: str, repository: str, rest: str, body: Any = None) -> Response:
        """The answer of the newer path, or of the older one where that is not there."""
        namespace, name = _parts(repository)
        answer = self._authorized(
            method, f"/v2/namespaces/{namespace}/repositories/{name}{rest}", body
        )
        if answer.status_code in ABSENT:
            answer = self._authorized(method, f"/v2/repositories/{namespace}/{name}{rest}/", body)
        return answer

    def _authorized(self, method: str, path: str, body: Any = None) -> Response:
        """An answer to somebody who is logged in; a token lives for ten minutes."""
        fresh = not self._token
        if fresh:
            self._token = self._log_in()
        answer = self._ask(method, path, body)
        if answer.status_code == 401 and not fresh:
            self._token = self._log_in()
            answer = self._ask(method, path, body)
        return answer

    def _log_in(self) -> str:
        """A token ("Create access token")."""
        self._token = ""
        self._login = login_for(HUB)
        if self._login is None:
            raise RegistryError(
                "Docker Hub does nothing for somebody without a login",
                hint="docker login, or set DOCKERHUB_USERNAME and DOCKERHUB_TOKEN",
            )
        body = {"identifier": self._login.user, "secret": self._login.password}
        answer = self._ask("POST", "/v2/auth/token", body)
        token = _data(answer).get("access_token") if answer.status_code == 200 else None
        if not token:
            raise self._refused(answer, "log in")
        return str(token)

    def _ask(self, method: str, path: str, body: Any) -> Response:
        """An answer that will not be another one for being asked for again."""
        import requests

        def once() -> Response:
            headers = {"Accept": "application/json"}
            if self._token:
                headers["Authorization"] = f"Bearer {self._token}"
            answer = self._session.request(
                method,
                self._api + path,
                json=body,
                headers=headers,
                timeout=TIMEOUT,
                allow_redirects=bool(self._token),  # a secret goes nowhere else
            )
            if answer.status_code == 429 or answer.status_code >= 500:
                answer.raise_for_status()
            return answer

        try:
            return retrying(once)
        except requests.RequestException as error:
            answer = getattr(error, "response", None)
            raise FetchError(
                f"Docker Hub does not do what it is asked: {method} {path.partition('?')[0]}",
                f"{type(error).__name__}: {error}" if answer is None else _told(answer),
                "try again later: what is done already is not done twice",
            ) from error

    def _in_seconds(self, answer: Response, **_: Any) -> None:
        """Mend Retry-After, which Docker Hub has given as a point in time where HTTP has seconds
        (docker/hub-feedback#2459)."""
        value = answer.headers.get("Retry-After", "")
        if value.isdigit() and float(value) > A_YEAR:
            value = str(max(0, math.ceil(float(value) - time.time())))
            answer.headers["Retry-After"] = value
        if answer.status_code == 429 and value:
            self._say(f"Docker Hub: too many requests; it asks to wait for {value} s")

    def _refused(self, answer: Response, what: str) -> RegistryError:
        status, why = answer.status_code, _told(answer)
        who = self._login.user if self._login else "nobody"
        if status == 401:
            return RegistryError(f"Docker Hub does not let {who} in: {what}", why, SCOPE)
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


def _data(answer: Response) -> dict[str, Any]:
    """The JSON of a good answer; raises ``FetchError`` where it has none: something between us."""
    try:
        told = answer.json()
    except ValueError as error:
        raise FetchError(
            f"what answers at {answer.url} is not Docker Hub",
            f"{answer.headers.get('Content-Type', 'something')} came, where JSON was to come",
            "check BUILDER_HUB_API, and the proxy",
        ) from error
    return told if isinstance(told, dict) else {}


def _told(answer: Response) -> str:
    """What an answer says of an error: Docker Hub has ``message`` or ``detail``, and its fields."""
    text = f"{answer.status_code} {answer.reason}"
    try:
        told = answer.json()
        said = told.get("message") or told.get("detail") or ""
        fields = (told.get("errinfo") or {}).get("fielderrors") or {}
    except (ValueError, AttributeError):
        return text
    parts = [str(said), *(f"{name}: {wrong}" for name, wrong in fields.items())]
    return ": ".join([text, *filter(None, parts)])
