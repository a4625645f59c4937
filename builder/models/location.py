"""Where a model is: a file of this machine, a URL, or REPO:FILE of the Hugging Face Hub.

The Hub's files are at ``ENDPOINT/REPO/resolve/main/FILE``; the variables are those of the Hub's own
client: HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH and HF_HOME (huggingface_hub, "Environment variables").
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote, unquote, urlsplit

from builder.errors import FetchError
from builder.tools.log import Log
from builder.tools.web.errors import cause
from builder.tools.web.remote_file import PartialReadError, RemoteFile
from builder.tools.web.retry import RetryPolicy

if TYPE_CHECKING:
    from requests import PreparedRequest, Response
    from requests.auth import AuthBase

ENDPOINT = "https://huggingface.co"
# Hub documentation, "Repositories": OWNER/NAME of letters, digits and . _ -
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
ON_THE_HUB = re.compile(rf"({REPOSITORY.pattern}):([^\s:]+)")
EXAMPLE = "unsloth/Qwen3.6-27B-GGUF:Qwen3.6-27B-UD-Q3_K_XL.gguf"
# llama-gguf-split names the parts of a model so.
PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
UNSAFE = re.compile(r"[^A-Za-z0-9._+-]")


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream at the beginning of a file, whose ``size`` is in bytes."""

    stream: BinaryIO
    size: int


@dataclass(frozen=True, slots=True)
class Location:
    """A file: ``place`` is a path, or a URL.  ``shown`` is what messages call it."""

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
        return UNSAFE.sub("_", path.rsplit("/", 1)[-1]) or "model.gguf"

    def part(self, number: int, count: int) -> Location:
        """The file of another part of a split model, counted from 1."""
        new = f"-{number:05}-of-{count:05}.gguf"
        return replace(self, place=PART.sub(new, self.place), shown=PART.sub(new, self.shown))

    @contextmanager
    def opened(self, log: Log = lambda _: None) -> Iterator[Opened]:
        """Open it for reading from its beginning; of a remote one, only what is read is fetched.

        ``log`` gets a line before each retry of a request.  Raises ``FetchError`` where it cannot
        be read, or not in parts.
        """
        if not self.remote:
            with _local(self) as found:
                yield found
            return
        import requests

        with requests.Session() as session:
            if token := token_for(self.place):
                session.auth = bearer(token)
            try:
                server = urlsplit(self.place).netloc.rpartition("@")[2]
                file = RemoteFile(
                    session, self.place, forwards=True, retries=lambda: RetryPolicy(server, log)
                )
                yield Opened(io.BufferedReader(file, 1 << 20), file.size)
            except PartialReadError as error:
                raise FetchError(
                    f"cannot read the header of {self.shown}",
                    str(error),
                    "download the file, and name it: --model FILE",
                ) from error
            except requests.RequestException as error:
                raise refused(self, error) from error


def is_url(text: str) -> bool:
    """Whether a model is named by a URL."""
    return text.startswith(("http://", "https://"))


def endpoint() -> str:
    """The URL of the Hub."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or ENDPOINT


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
    url = f"{endpoint()}/{found[1]}/resolve/main/{quote(found[2])}"
    return Location(url, text, found[1])


def _nowhere(text: str, file: Path) -> FetchError:
    """The error of a text that names no model, by what it looks like."""
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
def _local(location: Location) -> Iterator[Opened]:
    file = Path(location.place)
    try:
        with file.open("rb") as stream:
            yield Opened(stream, file.stat().st_size)
    except OSError as error:
        raise FetchError(f"cannot read {location.shown}", error.strerror or str(error)) from error


def token_for(url: str) -> str:
    """The user's token for the Hub; empty for other servers, and where there is none."""
    if not url.startswith(f"{endpoint()}/"):
        return ""
    if named := os.environ.get("HF_TOKEN", "").strip():
        return named
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    file = Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def bearer(token: str) -> AuthBase:
    """Authentication with a token; ``requests`` drops it where another host is redirected to."""
    from requests.auth import AuthBase

    class Bearer(AuthBase):
        def __call__(self, request: PreparedRequest) -> PreparedRequest:
            request.headers["Authorization"] = f"Bearer {token}"
            return request

    return Bearer()


def access(repository: str) -> str:
    """The next step where the Hub refuses a repository."""
    page = f"{endpoint()}/{repository}"
    return f"accept the conditions at {page} if it has any, and set HF_TOKEN to your token"


def refused(location: Location, error: Exception) -> FetchError:
    """The error of a response, with the Hub's own reason (X-Error-Message) and the next step."""
    response: Response | None = getattr(error, "response", None)
    why, hint = cause(error), "check the URL and the network"
    if location.repository:
        hint = "check the network; HF_ENDPOINT may name a mirror of the Hub"
    if response is not None:
        stated = response.headers.get("X-Error-Message", "")
        why = f"{why}: {stated}" if stated else why
        if response.status_code in {401, 403} and location.repository:
            hint = access(location.repository)
        elif response.status_code == 404:
            names = "the names of the repository and of the file"
            hint = f"check {names if location.repository else 'the URL'}"
    return FetchError(f"cannot fetch {location.shown}", why, hint)
