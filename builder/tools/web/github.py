"""GitHub's REST API: what it knows of a pull request that git does not.

https://docs.github.com/en/rest/pulls/pulls#get-a-pull-request, API version 2022-11-28.  Whatever
keeps it from answering (no network, a rate limit, no such page) is no error: git knows the rest.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from pydantic import ValidationError

from builder.tools.web.client import Client
from builder.tools.web.errors import WebError
from builder.tools.web.json_model import JsonModel

SECONDS = 15.0  # for the whole answer
LARGEST = 4 << 20  # bytes: a pull request's text is part of the answer
ADDRESS = re.compile(
    r"(?:https?|ssh|git)://(?:[^/@]*@)?github\.com/([A-Za-z0-9-]+)/([A-Za-z0-9._-]+?)(?:\.git)?/?"
)


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull request as GitHub sees it: "open" or "closed", when and as what it was merged."""

    title: str
    state: str
    merged_at: str
    merge_commit: str
    base_ref: str


class _Base(JsonModel):
    ref: str


class _Answer(JsonModel):
    title: str
    state: str
    merged_at: str | None = None
    merge_commit_sha: str | None = None
    base: _Base


def pull_request(api: str, url: str, number: int) -> PullRequest | None:
    """Ask the API at ``api`` for a pull request of the repository at ``url``.

    None where the repository is not GitHub's, or the API does not answer.  The token, where
    GITHUB_TOKEN or GH_TOKEN has one, only raises the rate limit.
    """
    found = ADDRESS.fullmatch(url)
    if found is None:
        return None
    headers = {
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
    }
    token = (os.environ.get("GITHUB_TOKEN") or os.environ.get("GH_TOKEN") or "").strip()
    if token and token.isascii() and token.isprintable():
        headers["Authorization"] = f"Bearer {token}"
    address = f"{api.rstrip('/')}/repos/{found[1]}/{found[2]}/pulls/{number}"
    try:
        answer = Client().request("GET", address, headers=headers, limit=LARGEST, whole=SECONDS)
    except WebError:
        return None
    return parsed(answer.content) if answer.good else None


def parsed(content: bytes) -> PullRequest | None:
    """What GitHub answers of a pull request; None where that is damaged."""
    try:
        told = _Answer.model_validate_json(content)
    except ValidationError:
        return None
    return PullRequest(
        told.title,
        told.state,
        told.merged_at or "",
        told.merge_commit_sha or "",
        told.base.ref,
    )
