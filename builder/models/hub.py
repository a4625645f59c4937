"""The Hugging Face Hub, asked by its own client: files, addresses, the user's token, the cache.

The client reads its variables (HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE ...)
when it is imported.  Importing it takes 0.3 s, so functions do it.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Annotated, BinaryIO, cast

from pydantic import Field, StringConstraints
from pydantic.dataclasses import dataclass

from builder.errors import FetchError
from builder.tools.file_names import require_writable_names
from builder.tools.web.client import READ_TIMEOUT
from builder.tools.web.errors import WebError, connection_error

LARGEST_FILE = 1 << 50  # bytes
BLOCK = 1 << 20
OFFLINE = "HF_HUB_OFFLINE is set"
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository: its path, size in bytes, and sha256 where the Hub tells it.

    Raises ``ValueError`` where the Hub gives something else.
    """

    path: str
    size: Annotated[int, Field(ge=0, le=LARGEST_FILE)]
    sha256: Sha256 | None = None


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

    _prepare()
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
    from huggingface_hub import HfApi

    _prepare()
    try:
        found = HfApi(library_name="builder").model_info(
            repository, revision=revision, files_metadata=True, timeout=READ_TIMEOUT
        )
        listed = [
            HubFile(each.rfilename, cast(int, each.size), each.lfs.sha256 if each.lfs else None)
            for each in found.siblings or []
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FetchError(what, "its answer is not a list of files") from error
    except Exception as error:
        failed = failure(error)
        raise FetchError(what, failed.why, next_step(repository, failed)) from error
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


def receive(url: str, sink: BinaryIO, there: int, size: int) -> None:
    """Write the bytes of a file after the first ``there``; the client continues after a cut.

    Where the server begins anew, so does the client: it truncates ``sink``.  Raises ``FetchError``
    where the client refuses the size, and the errors of ``sink``; ``failure`` explains others.
    """
    from huggingface_hub import constants
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils.tqdm import silent_tqdm

    _prepare()
    if size > constants.MAX_HTTP_DOWNLOAD_SIZE and not there:
        raise FetchError(
            f"cannot download {url}",
            "the Hub gives files of more than 50 GB only through Xet",
            "download it with `hf download`, then run the same command again",
        )
    http_get(
        url,
        sink,
        resume_size=there,
        headers=authorization(url),
        expected_size=size,
        tqdm_class=silent_tqdm,
    )


def failure(error: Exception) -> WebError:
    """Why the client had no answer, in plain words."""
    for each in (error, error.__cause__):
        if isinstance(each, WebError):
            return each
    return connection_error(error)


def next_step(repository: str, error: WebError) -> str:
    """What to do about an error of the Hub; empty where only the reason helps."""
    if error.why == OFFLINE:
        return "unset it"
    if error.status in {401, 403}:
        page = f"{endpoint()}/{repository}"
        return f"accept the conditions at {page} if it has any, and set HF_TOKEN to your token"
    return "check the name of the repository" if error.status == 404 else ""


def _prepare() -> None:
    """Make the client ask as builder does, send no telemetry, print nothing, keep received bytes.

    Its requests raise ``WebError``.
    """
    from huggingface_hub import constants

    _replace_transport()
    constants.HF_HUB_DISABLE_TELEMETRY = True
    constants.DOWNLOAD_CHUNK_SIZE = BLOCK  # else a cut response loses up to its last 10 MiB
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


@cache
def _replace_transport() -> None:
    from huggingface_hub import is_offline_mode, set_client_factory

    from builder.tools.web.httpx_client import HttpxClient

    def require_online(_: object) -> None:
        if is_offline_mode():
            raise WebError(OFFLINE, temporary=False)

    set_client_factory(lambda: HttpxClient(event_hooks={"request": [require_online]}))
