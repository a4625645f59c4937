"""Where a model is: a file of this machine, a URL, or REPO:FILE of the Hugging Face Hub.

The range reader that reads headers is builder's own: the file system of the Hub's client reads
URLs of the Hub alone, and needs a request more for each file.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from builder.core.errors import FetchError
from builder.core.log import Log
from builder.core.names import why_not_writable
from builder.core.remote_file import PartialReadError, RemoteFile
from builder.core.retry import RetryPolicy
from builder.core.web import Client
from builder.core.web_errors import WebError, cause
from builder.presets import hub
from simulator.split_models import renamed

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
                headers=hub.authorization(self.place),
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
    url = hub.address(repository, path, revision)
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
        hint = hub.next_step(location.repository, error) or hint
    return FetchError(f"cannot fetch {location.shown}", cause(error), hint)
