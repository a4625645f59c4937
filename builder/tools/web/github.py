"""GitHub's REST API: the properties of a pull request that git does not have.

https://docs.github.com/en/rest/pulls/pulls#get-a-pull-request, API version 2022-11-28.  A failure
(no network, a rate limit, no such page) is no error: git has the rest.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from pydantic import ValidationError

from builder.tools.web.client import Client, Follow
from builder.tools.web.errors import WebError
from builder.tools.web.json_model import JsonModel

SECONDS = 15.0  # for the whole response
LARGEST = 4 << 20  # bytes: the response has the pull request's text
ADDRESS = re.compile(
    r"(?:https?|ssh|git)://(?:[^/@]*@)?github\.com/([A-Za-z0-9-]+)/([A-Za-z0-9._-]+?)(?:\.git)?/?"
)


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull request; ``state`` is "open" or "closed", the merge is empty where there is none."""

    title: str
    state: str
    merged_at: str
    merge_commit: str
    base_ref: str


class _Base(JsonModel):
    ref: str


class _Response(JsonModel):
    title: str
    state: str
    merged_at: str | None = None
    merge_commit_sha: str | None = None
    base: _Base


def pull_request(api: str, url: str, number: int) -> PullRequest | None:
    """A pull request of the repository at ``url``, from the API at ``api``.

    None where the repository is not on GitHub, or the API does not answer.  A token in GITHUB_TOKEN
    or GH_TOKEN only raises the rate limit.
    """
    match = ADDRESS.fullmatch(url)
    if match is None:
        return None
    headers = {
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
    }
    token = (os.environ.get("GITHUB_TOKEN") or os.environ.get("GH_TOKEN") or "").strip()
    if token and token.isascii() and token.isprintable():
        headers["Authorization"] = f"Bearer {token}"
    address = f"{api.rstrip('/')}/repos/{match[1]}/{match[2]}/pulls/{number}"
    try:
        response = Client().request(
            "GET",
            address,
            headers=headers,
            limit=LARGEST,
            total_timeout=SECONDS,
            follow=Follow.SAME_HOST,  # a repository that was renamed
        )
    except WebError:
        return None
    return parsed(response.content) if response.status == 200 else None


def parsed(content: bytes) -> PullRequest | None:
    """The pull request in a response; None where the response is damaged."""
    try:
        found = _Response.model_validate_json(content)
    except ValidationError:
        return None
    return PullRequest(
        found.title,
        found.state,
        found.merged_at or "",
        found.merge_commit_sha or "",
        found.base.ref,
    )
