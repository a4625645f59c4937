"""Where a model is: a file of this machine, a URL, or REPO:FILE of the Hugging Face Hub.

The range reader that reads headers is builder's own: the file system of the Hub's client reads
URLs of the Hub alone, and needs a request more for each file.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, BinaryIO
from urllib.parse import quote, unquote, urlsplit

from pydantic import Field, StringConstraints, ValidationError

from builder.core.errors import FetchError
from builder.core.json_model import JsonModel
from builder.core.log import Log
from builder.core.names import require_writable_names, why_not_writable
from builder.core.remote_file import PartialReadError, RemoteFile
from builder.core.web import PATIENT, Client, Follow, RetryPolicy, WebError, cause
from simulator.gguf import renamed

# The Hugging Face Hub: files, addresses; by its own client the user's token and the cache.
#
# That client reads its variables (HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE
# ...) when it is imported.  Importing it takes 0.3 s, so functions do it.

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


def hub_files(repository: str, revision: str | None = None) -> list[HubFile]:
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


# Locations.

# Hub documentation, "Repositories": OWNER/NAME of letters, digits and . _ -
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
ON_THE_HUB = re.compile(rf"({REPOSITORY.pattern}):([^\s:]+)")
EXAMPLE = "unsloth/Qwen3.6-27B-GGUF:Qwen3.6-27B-UD-Q3_K_XL.gguf"
UNSAFE = re.compile(r"[^A-Za-z0-9._+-]")


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A stream at the beginning of a file, whose ``size`` is in bytes."""

    stream: BinaryIO
    size: int


@dataclass(frozen=True, slots=True)
class Location:
    """A file: ``place`` is a path, or a URL.  ``shown`` is its name in messages."""

    place: str
    shown: str
    repository: str = ""
    """Its repository on the Hub; empty where it is elsewhere."""

    @property
    def remote(self) -> bool:
        """Whether it is not on this machine."""
        return is_url(self.place)

    @property
    def name(self) -> str:
        """Its file name, of letters, digits and . _ + - alone."""
        path = unquote(urlsplit(self.place).path) if self.remote else self.place
        name = UNSAFE.sub("_", path.rsplit("/", 1)[-1])
        return "model.gguf" if why_not_writable(name) else name

    def part(self, number: int, count: int) -> Location:
        """The file of another part of a split model, counted from 1."""
        place, shown = (renamed(each, number, count) for each in (self.place, self.shown))
        return replace(self, place=place, shown=shown)

    @contextmanager
    def opened(self, log: Log = lambda _: None) -> Iterator[OpenedModel]:
        """Open it for reading from its beginning; a remote file is fetched as far as it is read.

        ``log`` gets a line before each retry of a request.  Raises ``FetchError`` where it cannot
        be read, or not in parts.
        """
        if not self.remote:
            with _local(self) as found:
                yield found
            return
        try:
            server = urlsplit(self.place).netloc.rpartition("@")[2]
            file = RemoteFile(
                Client(),
                self.place,
                headers=authorization(self.place),
                forwards=True,
                retries=lambda: RetryPolicy(server, log),
            )
            yield OpenedModel(io.BufferedReader(file, 1 << 20), file.size)
        except PartialReadError as error:
            raise FetchError(
                f"cannot read the header of {self.shown}",
                str(error),
                "download the file, and name it: --model FILE",
            ) from error
        except WebError as error:
            raise refused(self, error) from error


def is_url(text: str) -> bool:
    """Whether a model is named by a URL."""
    return text.startswith(("http://", "https://"))


def on_the_hub(repository: str, path: str, revision: str | None = None) -> Location:
    """A file of a repository.  Raises ``FetchError`` where no repository has such a name."""
    url = address(repository, path, revision)
    return Location(url, f"{repository}:{path}", repository)


def locate(text: str) -> Location:
    """The place of a model that a user named.

    A file that exists wins over REPO:FILE.  Raises ``FetchError`` where it is neither.
    """
    if is_url(text):
        return Location(text, text)
    file = Path(text).expanduser()
    if file.is_file():
        return Location(str(file.absolute()), text)
    found = ON_THE_HUB.fullmatch(text)
    if found is None:
        raise _nowhere(text, file)
    return on_the_hub(found[1], found[2])


def _nowhere(text: str, file: Path) -> FetchError:
    """The error of a text that names no model, by the form of the text."""
    what = f"there is no model {text}"
    if file.is_dir():
        return FetchError(what, "it is a directory", "name a .gguf file in it")
    if "://" in text:
        return FetchError(what, "only URLs of http and https are read", "download the file first")
    why = "it is neither a file, nor a URL, nor REPO:FILE of the Hugging Face Hub"
    if REPOSITORY.fullmatch(text):
        return FetchError(what, why, f"a repository is named with its file: {text}:FILE.gguf")
    return FetchError(what, why, f"for example {EXAMPLE}")


@contextmanager
def _local(location: Location) -> Iterator[OpenedModel]:
    file = Path(location.place)
    try:
        with file.open("rb") as stream:
            yield OpenedModel(stream, file.stat().st_size)
    except OSError as error:
        raise FetchError(f"cannot read {location.shown}", error.strerror or str(error)) from error


def refused(location: Location, error: WebError) -> FetchError:
    """The error of a request, with the next step."""
    hint = "check the URL and the network"
    if location.repository:
        hint = "check the network; HF_ENDPOINT may name a mirror of the Hub"
    if error.status == 404:
        names = "the names of the repository and of the file"
        hint = f"check {names if location.repository else 'the URL'}"
    elif location.repository:
        hint = next_step(location.repository, error) or hint
    return FetchError(f"cannot fetch {location.shown}", cause(error), hint)
