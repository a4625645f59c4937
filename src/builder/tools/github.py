"""GitHub's REST API: what it knows of a pull request that git does not.

https://docs.github.com/en/rest/pulls/pulls#get-a-pull-request, API version 2022-11-28.  Whatever
keeps it from answering (no network, a rate limit, no such page) is no error: git knows the rest.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

TIMEOUT = 15.0  # seconds
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


def pull_request(api: str, url: str, number: int) -> PullRequest | None:
    """Ask the API at ``api`` for a pull request of the repository at ``url``.

    None where the repository is not GitHub's, or the API does not answer.  The token, where
    GITHUB_TOKEN or GH_TOKEN has one, only raises the rate limit.
    """
    found = ADDRESS.fullmatch(url)
    if found is None:
        return None
    import requests

    headers = {
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
    }
    token = os.environ.get("GITHUB_TOKEN") or os.environ.get("GH_TOKEN")
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        answer = requests.get(
            f"{api.rstrip('/')}/repos/{found[1]}/{found[2]}/pulls/{number}",
            headers=headers,
            timeout=TIMEOUT,
        )
        answer.raise_for_status()
        told = answer.json()
        return PullRequest(
            title=str(told["title"]),
            state=str(told["state"]),
            merged_at=str(told.get("merged_at") or ""),
            merge_commit=str(told.get("merge_commit_sha") or ""),
            base_ref=str(told["base"]["ref"]),
        )
    except (requests.RequestException, ValueError, KeyError, TypeError):
        return None
