"""Docker Hub's API as it is published, on loopback: logins, tokens, pages, limits, and refusals.

https://docs.docker.com/reference/api/hub/latest/; how it refuses a description is what people
report of it: 403 "insufficient scope" for a token that may not delete, 400 "Exceeded max number of
characters" for 25,000 and 100.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.loopback import Quiet, serving_with
from support.registries import Fault, Proxy

LONGEST = {"description": 100, "full_description": 25_000}
NEWER = re.compile(r"/v2/namespaces/([a-z0-9-]+)/repositories/([a-z0-9._-]+)(/.*)?")
OLDER = re.compile(r"/v2/repositories/([a-z0-9-]+)/([a-z0-9._-]+)(/.*)?")


@dataclass
class Page:
    """A repository: what its page says, and its tags."""

    description: str = ""
    full_description: str = ""
    tags: list[str] = field(default_factory=list)


@dataclass
class DockerHub(Proxy):
    """The state of it; ``users`` have secrets, and each secret has scopes.

    ``older``: descriptions and tags change by the older paths only.  ``limit``: requests that are
    answered before 429 comes once, which asks for a second, or gives a point in time as Docker Hub
    has done it (``as_date``).
    """

    users: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    pages: dict[str, Page] = field(default_factory=dict)
    older: bool = False
    limit: int | None = None
    as_date: bool = False
    lifetime: float = 600.0
    """Seconds that a token lives."""
    damaged: bytes | None = None
    """What is answered to whoever is logged in."""
    tokens: dict[str, tuple[str, set[str], float]] = field(default_factory=dict)

    def log_in(self, body: dict[str, Any]) -> tuple[int, Any]:
        scopes = self.users.get(body.get("identifier", ""), {}).get(body.get("secret", ""))
        if scopes is None:
            return 401, {"detail": "Incorrect authentication credentials"}
        token = secrets.token_hex(16)
        self.tokens[token] = (body["identifier"], scopes, time.monotonic() + self.lifetime)
        return 200, {"access_token": token}

    def answer(self, method: str, target: str, token: str, body: dict[str, Any]) -> tuple[int, Any]:
        parts = urlsplit(target)
        if (method, parts.path) == ("POST", "/v2/auth/token"):
            return self.log_in(body)
        user, scopes, until = self.tokens.get(token, ("", set(), 0.0))
        if time.monotonic() > until:
            return 401, {"message": "unauthorized", "errinfo": {}}
        found = NEWER.fullmatch(parts.path)
        changes = method in {"PATCH", "DELETE"}
        if found is None or (self.older and changes):
            found = OLDER.fullmatch(parts.path) if changes else None
        if found is None:
            return 404, {"message": "404: Page Not Found"}
        page = self.pages.get(f"{found[1]}/{found[2]}")
        if page is None:
            return 404, {"message": "object not found", "errinfo": {}}
        if changes and found[1] != user:
            return 403, {"message": "permission denied", "errinfo": {}}
        if changes and "delete" not in scopes:
            return 403, {"message": "access denied: insufficient scope", "errinfo": {}}
        return self.change(method, page, (found[3] or "").strip("/"), body, parts.query)

    def change(
        self, method: str, page: Page, rest: str, body: dict[str, Any], query: str
    ) -> tuple[int, Any]:
        kind, _, tag = rest.partition("/")
        if method == "PATCH" and not rest:
            return self.patch(page, body)
        if method == "DELETE" and kind == "tags" and tag:
            if tag not in page.tags:
                return 404, {"message": f"tag {tag} not found", "errinfo": {}}
            page.tags.remove(tag)
            return 204, None
        if method == "GET" and rest == "tags":
            return self.list_tags(page, parse_qs(query))
        if method == "GET" and not rest:
            return 200, {"full_description": page.full_description, "description": page.description}
        return 405, {"message": "405: Method Not Allowed"}

    def patch(self, page: Page, body: dict[str, Any]) -> tuple[int, Any]:
        wrong = {
            name: "Exceeded max number of characters"
            for name, most in LONGEST.items()
            if len(body.get(name, "").encode()) > most
        }
        if wrong:
            message = f"httperror 400: request had {len(wrong)} validation error"
            return 400, {"message": message, "errinfo": {"fielderrors": wrong}}
        for name in LONGEST.keys() & body.keys():
            setattr(page, name, body[name])
        return 200, {"full_description": page.full_description, "description": page.description}

    def list_tags(self, page: Page, query: dict[str, list[str]]) -> tuple[int, Any]:
        number = int(query.get("page", ["1"])[0])
        size = min(int(query.get("page_size", ["10"])[0]), 100)
        names = page.tags[(number - 1) * size : number * size]
        if not names and number > 1:
            return 404, {"message": "object not found", "errinfo": {}}
        more = f"https://hub.docker.com/v2/…?page={number + 1}&page_size={size}"
        return 200, {
            "count": len(page.tags),
            "next": more if number * size < len(page.tags) else None,
            "previous": None,
            "results": [{"name": name, "full_size": 1, "images": []} for name in names],
        }

    def limited(self) -> dict[str, str] | None:
        """The headers of a 429, where the limit is reached; the next minute begins with it."""
        if self.limit is None or len(self.requests) <= self.limit:
            return None
        self.limit = None
        after = str(int(time.time()) + 3) if self.as_date else "1"
        return {"X-RateLimit-Limit": "180", "X-RateLimit-Remaining": "0", "Retry-After": after}


@contextmanager
def docker_hub() -> Iterator[DockerHub]:
    class Handler(Quiet):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            request = f"{self.command} {self.path}"
            hub.requests.append(request)
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            limited, fault = hub.limited(), hub.next_fault(request)
            if limited is not None:
                self.send(429, {"detail": "Rate limit exceeded", "error": False}, limited)
            elif fault is not None and fault.what == "cut":
                self.close_connection = True
            elif fault is not None and isinstance(fault.what, int):
                self.send(fault.what, None, fault.headers)
            else:
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                body = json.loads(content) if content else {}
                status, value = hub.answer(self.command, self.path, token, body)
                self.send(status, value, {}, hub.damaged if token else None)

        def send(
            self, status: int, value: Any, headers: dict[str, str], instead: bytes | None = None
        ) -> None:
            content = b"" if value is None else json.dumps(value).encode()
            content = content if instead is None else instead
            self.send_response(status)
            for name, text in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = handle_one

    with serving_with(Handler) as address:
        hub = DockerHub(f"http://{address}")
        yield hub


__all__ = ["DockerHub", "Fault", "Page", "docker_hub"]
