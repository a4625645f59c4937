"""The Hugging Face Hub: files, addresses; by its own client the user's token and the cache.

That client reads its variables (HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE ...)
when it is imported.  Importing it takes 0.3 s, so functions do it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from pydantic import Field, StringConstraints, ValidationError

from builder.core.downloads import PATIENT
from builder.core.errors import FetchError
from builder.core.json_model import JsonModel
from builder.core.names import require_writable_names
from builder.core.web import Client, Follow
from builder.core.web_errors import WebError

LARGEST_FILE = 1 << 50  # bytes
LARGEST_LIST = 64 << 20  # bytes of a list of files
BLOCK = 1 << 20
OFFLINE = "HF_HUB_OFFLINE is set"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository: its path, size in bytes, and sha256 where the Hub tells it."""

    path: str
    size: int
    sha256: str | None = None


class _LargeFile(JsonModel):
    sha256: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


class _ListedFile(JsonModel):
    rfilename: str
    size: Annotated[int, Field(ge=0, le=LARGEST_FILE)]
    lfs: _LargeFile | None = None


class _Repository(JsonModel):
    siblings: list[_ListedFile]


def endpoint() -> str:
    """The URL of the Hub."""
    from huggingface_hub import constants

    return constants.ENDPOINT


def address(repository: str, path: str, revision: str | None = None) -> str:
    """The URL of a file.  Raises ``FetchError`` where no repository has such a name."""
    from huggingface_hub import hf_hub_url

    try:
        return hf_hub_url(repository, path, revision=revision)
    except ValueError as error:
        what = f"the Hugging Face Hub has no repository {repository}"
        raise FetchError(what, str(error), "check the name of the repository") from error


def authorization(url: str) -> dict[str, str]:
    """The header with the user's token for the Hub; empty for other servers, and without one.

    Raises ``FetchError`` where the token cannot be read, or a CI server refuses to exchange it.
    """
    if not url.startswith(f"{endpoint()}/"):
        return {}
    from huggingface_hub import get_token

    try:
        token = get_token()
    except Exception as error:  # whatever the login of the user needs
        raise FetchError("cannot read the token for the Hugging Face Hub", str(error)) from error
    return {"Authorization": f"Bearer {token}"} if token else {}


def files(repository: str, revision: str | None = None) -> list[HubFile]:
    """The files of a repository; one request, not repeated.

    Raises ``FetchError`` where the Hub does not answer, does not have the repository, or lists
    names that no file can have.
    """
    what = f"cannot list the files of {repository} on the Hugging Face Hub"
    url = f"{endpoint()}/api/models/{quote(repository)}"
    url += f"/revision/{quote(revision, safe='')}" if revision else ""
    try:
        _require_online()
        response = Client().request(
            "GET",
            f"{url}?blobs=true",
            headers=authorization(url),
            limit=LARGEST_LIST,
            follow=Follow.ANYWHERE,
        )
        response.require(200)
        listed = [
            HubFile(each.rfilename, each.size, each.lfs.sha256 if each.lfs else None)
            for each in _Repository.model_validate_json(response.content).siblings
        ]
    except ValidationError as error:
        raise FetchError(what, "its answer is not a list of files") from error
    except WebError as error:
        raise FetchError(what, error.why, next_step(repository, error)) from error
    require_writable_names([each.path for each in listed], repository)
    return listed


def cached(repository: str, revision: str | None = None, *, whole: bool = False) -> Path | None:
    """The snapshot of a repository in the client's cache; None where it has none.

    ``whole``: and where it is known that files are missing in it.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import IncompleteSnapshotError

    try:
        found = snapshot_download(repository, revision=revision, local_files_only=True)
    except IncompleteSnapshotError as error:
        return None if whole else Path(error.snapshot_path)
    except (OSError, ValueError):  # not there, or damaged
        return None
    return Path(found)


def receive(
    url: str, there: int, size: int, write: Callable[[bytes], None], begin_anew: Callable[[], None]
) -> None:
    """Write the bytes of a file after the first ``there``.

    Where the server begins anew, ``begin_anew`` is called before.  Raises ``FetchError`` where the
    Hub gives files of that size in another way alone, ``WebError`` where the server fails or stops.
    """
    from huggingface_hub import constants

    _require_online()
    if size > constants.MAX_HTTP_DOWNLOAD_SIZE and not there:
        raise FetchError(
            f"cannot download {url}",
            "the Hub gives files of more than 50 GB only through Xet",
            "download it with `hf download`, then run the same command again",
        )
    if there == size:
        return
    headers = authorization(url) | ({"Range": f"bytes={there}-"} if there else {})
    with Client().open("GET", url, headers=headers, **PATIENT) as opened:
        opened.require(200, 206 if there else 200)
        if opened.status == 200 and there:
            begin_anew()
            there = 0
        elif there and not opened.headers.get("Content-Range", "").startswith(f"bytes {there}-"):
            why = "the server gives another range than the requested one"
            raise WebError(why, temporary=False)
        for block in opened.blocks():
            write(block)
            there += len(block)
    if there < size:
        raise WebError("the server closed the connection within its response")


def next_step(repository: str, error: WebError) -> str:
    """What to do about an error of the Hub; empty where only the reason helps."""
    if error.why == OFFLINE:
        return "unset it"
    if error.status in {401, 403}:
        page = f"{endpoint()}/{repository}"
        return f"accept the conditions at {page} if it has any, and set HF_TOKEN to your token"
    return "check the name of the repository" if error.status == 404 else ""


def _require_online() -> None:
    from huggingface_hub import is_offline_mode

    if is_offline_mode():
        raise WebError(OFFLINE, temporary=False)
