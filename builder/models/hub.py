"""The files of a repository on the Hugging Face Hub, with their sizes and digests.

``GET ENDPOINT/api/models/REPO/tree/REVISION?recursive=true`` lists them; a file in Git LFS has its
sha256 as ``lfs.oid`` (huggingface_hub, ``HfApi.list_repo_tree`` and ``BlobLfsInfo``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from builder.errors import FetchError
from builder.models.location import Location, access, endpoint, token_for
from builder.tools.web.client import Client, Response
from builder.tools.web.errors import WebError
from builder.tools.web.json_model import JsonModel, first_error

LARGEST_LIST = 16 << 20  # bytes


class _Lfs(JsonModel):
    oid: str


class _Entry(JsonModel):
    type: str
    path: str
    size: int
    lfs: _Lfs | None = None


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository: its path, size in bytes, and sha256 where the Hub tells it."""

    path: str
    size: int
    sha256: str | None = None


def files(repository: str, revision: str | None = None) -> list[HubFile]:
    """The files of a repository; one request, not repeated.

    Raises ``FetchError`` where the Hub does not answer, or does not have the repository.
    """
    address = f"{endpoint()}/api/models/{repository}/tree/{revision or 'main'}?recursive=true"
    token = token_for(address)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    what = f"cannot list the files of {repository} on the Hugging Face Hub"
    try:
        response = Client().request("GET", address, headers=headers, limit=LARGEST_LIST)
        if not response.ok:
            raise response.error(response.headers.get("X-Error-Message", ""))
    except WebError as error:
        raise FetchError(what, error.why, _next_step(repository, error.status)) from error
    return [
        HubFile(entry.path, entry.size, entry.lfs.oid if entry.lfs else None)
        for entry in _entries(response, what)
        if entry.type == "file" and _is_inside(entry.path)
    ]


def location(repository: str, path: str, revision: str | None = None) -> Location:
    """Where a file of a repository is fetched from."""
    url = f"{endpoint()}/{repository}/resolve/{revision or 'main'}/{quote(path)}"
    return Location(url, f"{repository}:{path}", repository)


def cached(repository: str, revision: str | None = None) -> Path | None:
    """The snapshot of a repository in the cache of the Hub's own client; None where it has none.

    ``HF_HUB_CACHE/models--OWNER--NAME/snapshots/REVISION``; ``refs/main`` holds the revision that
    was fetched last (huggingface_hub, "Understand caching").
    """
    folder = _cache() / f"models--{repository.replace('/', '--')}"
    try:
        wanted = revision or (folder / "refs" / "main").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    snapshot = folder / "snapshots" / wanted
    return snapshot if wanted and "/" not in wanted and snapshot.is_dir() else None


def _cache() -> Path:
    """HF_HUB_CACHE, else ``hub`` in HF_HOME, else in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{base}/huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()


def _entries(response: Response, what: str) -> list[_Entry]:
    try:
        return TypeAdapter(list[_Entry]).validate_json(response.content)
    except ValidationError as error:
        raise FetchError(what, f"its answer is not a list of files: {first_error(error)}") from None


def _is_inside(path: str) -> bool:
    """Whether a path stays below the directory that it is written to."""
    return not path.startswith("/") and ".." not in path.split("/")


def _next_step(repository: str, status: int) -> str:
    if status in {401, 403}:
        return access(repository)
    return "check the name of the repository" if status == 404 else ""
