"""Where models are: files of this machine, URLs, REPO:FILE of the Hugging Face Hub; downloads.

The range reader that reads headers is builder's own: the file system of the Hub's client reads
URLs of the Hub alone, and needs a request more for each file.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, BinaryIO
from urllib.parse import quote, unquote, urlsplit

from pydantic import AliasPath, Field, ValidationError

from builder.checks.server import mounts_of
from builder.core import sizes
from builder.core.errors import BusyError, FetchError, WorldError
from builder.core.files import full_disk, is_disk_full, own_file, require_space, require_writable
from builder.core.json_model import JsonModel
from builder.core.log import Log
from builder.core.names import PART, renamed, require_writable_names, why_not_writable
from builder.core.remote_file import PartialReadError, RemoteFile
from builder.core.web import PATIENT, Client, Follow, RetryPolicy, WebError, cause
from builder.presets import service
from builder.presets.schema import DIRECTORY, ModelFile
from builder.presets.service import Files, Mount, Run

# The Hugging Face Hub: files, addresses; by its own client the user's token and the cache.
#
# That client reads its variables (HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE
# ...) when it is imported.  Importing it takes 0.3 s, so functions do it.

LARGEST_FILE = 1 << 50  # bytes
LARGEST_LIST = 64 << 20  # bytes of a list of files
BLOCK = 1 << 20
OFFLINE = "HF_HUB_OFFLINE is set"


class HubFile(JsonModel):
    """A file of a repository."""

    path: str = Field(alias="rfilename")
    size: Annotated[int, Field(ge=0, le=LARGEST_FILE)]  # bytes
    sha256: str | None = Field(
        None, pattern="^[0-9a-f]{64}$", validation_alias=AliasPath("lfs", "sha256")
    )


class _Repository(JsonModel):
    siblings: list[HubFile]


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
    """The header with the user's token for the Hub; empty for other servers, and without one."""
    if not url.startswith(f"{endpoint()}/"):
        return {}
    from huggingface_hub import get_token

    try:
        token = get_token()
    except Exception as error:  # whatever the login of the user needs
        raise FetchError("cannot read the token for the Hugging Face Hub", str(error)) from error
    return {"Authorization": f"Bearer {token}"} if token else {}


def hub_files(repository: str, revision: str | None = None) -> list[HubFile]:
    """The files of a repository; one request, not repeated."""
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
        listed = _Repository.model_validate_json(response.content).siblings
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
class Location:
    """A file: ``place`` is a path, or a URL.  ``shown`` is its name in messages."""

    place: str
    shown: str
    repository: str = ""  # its repository on the Hub; empty where it is elsewhere

    @property
    def remote(self) -> bool:
        """Whether it is not on this machine."""
        return self.place.startswith(("http://", "https://"))

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
    def opened(self, log: Log = lambda _: None) -> Iterator[tuple[BinaryIO, int]]:
        """Open it for reading from its beginning, with its size in bytes; a remote file is fetched
        as far as it is read.

        ``log`` gets a line before each retry of a request.  Raises ``FetchError`` where it cannot
        be read, or not in parts.
        """
        if not self.remote:
            try:
                with Path(self.place).open("rb") as stream:
                    yield stream, Path(self.place).stat().st_size
            except OSError as error:
                what = f"cannot read {self.shown}"
                raise FetchError(what, error.strerror or str(error)) from error
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
            yield io.BufferedReader(file, 1 << 20), file.size
        except PartialReadError as error:
            raise FetchError(
                f"cannot read the header of {self.shown}",
                str(error),
                "download the file, and name it: --model FILE",
            ) from error
        except WebError as error:
            raise refused(self, error) from error


def on_the_hub(repository: str, path: str, revision: str | None = None) -> Location:
    """A file of a repository.  Raises ``FetchError`` where no repository has such a name."""
    url = address(repository, path, revision)
    return Location(url, f"{repository}:{path}", repository)


def locate(text: str) -> Location:
    """The place of a model that a user named; a file that exists wins over REPO:FILE."""
    if (given := Location(text, text)).remote:
        return given
    file = Path(text).expanduser()
    if file.is_file():
        return Location(str(file.absolute()), text)
    found = ON_THE_HUB.fullmatch(text)
    if found is None:
        raise _nowhere(text, file)
    return on_the_hub(found[1], found[2])


def _nowhere(text: str, file: Path) -> FetchError:
    what = f"there is no model {text}"
    if file.is_dir():
        return FetchError(what, "it is a directory", "name a .gguf file in it")
    if "://" in text:
        return FetchError(what, "only URLs of http and https are read", "download the file first")
    why = "it is neither a file, nor a URL, nor REPO:FILE of the Hugging Face Hub"
    if REPOSITORY.fullmatch(text):
        return FetchError(what, why, f"a repository is named with its file: {text}:FILE.gguf")
    return FetchError(what, why, f"for example {EXAMPLE}")


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


# Downloads of models: resumed where they were cut, and checked.
#
# The bytes go to ``FILE.part`` beside the target, which appears when its size and its sha256 are
# right.  A run that is stopped leaves the part for the next one.
#
# ``hf_hub_download`` is not used: since version 1.18 of huggingface_hub it gives each run a file
# of its own and removes it on failure, so that a model of 17 GB begins anew after Ctrl-C (issue
# 4196 of its repository); it compares no sha256, and only warns where the disk has no room.

RESERVE = 1.0  # GiB that stay free on the disk
Progress = Callable[[str, int, int], None]
"""Gets the name of a file, the bytes that are there, and its size."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """A file to download."""

    location: Location
    name: str  # its path in the repository
    target: Path
    size: int
    sha256: str | None = None  # None: only the size is checked

    @property
    def part(self) -> Path:
        """The file of an unfinished download."""
        return self.target.with_name(f"{self.target.name}{PART}")

    @property
    def left(self) -> int:
        """Bytes that are still to come."""
        if self.target.is_file():
            return 0
        try:
            return max(self.size - self.part.lstat().st_size, 0)
        except FileNotFoundError:
            return self.size


def download(fetches: Sequence[Fetch], directory: Path, progress: Progress) -> None:
    """Download the files that are not there; each appears when it is complete.

    Raises ``SpaceError`` before the first byte where the disk has no room for all of them,
    ``FetchError`` where the server fails or gives other bytes, ``BusyError`` where another run
    downloads the same file.
    """
    require_writable(directory, "set BUILDER_MODELS_DIR to a directory that you can write to")
    left = sum(each.left for each in fetches)
    require_space(directory, left / 2**30 + (RESERVE if left else 0), "the download of the model")
    for fetch in fetches:
        if not fetch.target.is_file():
            _download(fetch, progress)


def _download(fetch: Fetch, progress: Progress) -> None:
    if fetch.target.is_dir():
        hint = "move it away, then run the same command again"
        raise WorldError(f"cannot write to {fetch.target}", "it is a directory", hint)
    with own_file(fetch.part) as part:
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            what = f"another run downloads {fetch.location.shown}"
            raise BusyError(what, hint="wait until it has ended") from error
        try:
            if fetch.target.is_file():  # of another run, which had the lock until now
                fetch.part.unlink(missing_ok=True)
                return
            _Transfer(fetch, part, progress).run()
        except WebError as error:
            raise refused(fetch.location, error) from error
        except OSError as error:
            if not is_disk_full(error):
                raise
            raise full_disk(f"writing {fetch.part}", fetch.part.parent) from error
        finally:
            if fetch.size and os.fstat(part.fileno()).st_size == 0:
                fetch.part.unlink(missing_ok=True)
        os.fsync(part.fileno())
        fetch.part.replace(fetch.target)


class _Transfer:
    def __init__(self, fetch: Fetch, part: BinaryIO, progress: Progress) -> None:
        self._fetch, self._part, self._progress = fetch, part, progress
        self._policy = RetryPolicy()
        self._digest, self._there = hashlib.sha256(), 0

    def run(self) -> None:
        self._part.seek(0)
        while block := self._part.read(BLOCK):
            self._count(block)
        if self._there > self._fetch.size:
            self._begin_anew()
        self._policy.call(self._receive)
        found = self._digest.hexdigest()
        if self._fetch.sha256 not in {None, found}:
            raise self._wrong(f"expected sha256 {self._fetch.sha256}, got {found}")

    def _begin_anew(self) -> None:
        self._part.truncate(0)
        self._digest, self._there = hashlib.sha256(), 0

    def _receive(self) -> None:
        from huggingface_hub import constants

        _require_online()
        url, there = self._fetch.location.place, self._there
        if self._fetch.size > constants.MAX_HTTP_DOWNLOAD_SIZE and not there:
            raise FetchError(
                f"cannot download {url}",
                "the Hub gives files of more than 50 GB only through Xet",
                "download it with `hf download`, then run the same command again",
            )
        if there == self._fetch.size:
            return
        headers = authorization(url) | ({"Range": f"bytes={there}-"} if there else {})
        with Client().open("GET", url, headers=headers, **PATIENT) as opened:
            opened.require(200, 206 if there else 200)
            given = opened.headers.get("Content-Range", "")
            if opened.status == 200 and there:
                self._begin_anew()
            elif there and not given.startswith(f"bytes {there}-"):
                why = "the server gives another range than the requested one"
                raise WebError(why, temporary=False)
            for block in opened.blocks():
                if self._there + len(block) > self._fetch.size:
                    raise self._wrong(f"it is larger than {self._fetch.size} bytes")
                self._part.write(block)
                self._count(block)
                self._policy.server_responded()
        if self._there < self._fetch.size:
            raise WebError("the server closed the connection within its response")
        self._part.flush()

    def _count(self, block: bytes) -> None:
        self._digest.update(block)
        self._there += len(block)
        self._progress(self._fetch.name, self._there, self._fetch.size)

    def _wrong(self, why: str) -> FetchError:
        self._fetch.part.unlink(missing_ok=True)
        return FetchError(
            f"{self._fetch.location.shown} is not the file that the Hub lists",
            why,
            "the download was removed: try again; if it fails again, the server, or a proxy, "
            "alters the file",
        )


# The models of a run, and the missing ones.

CACHE = "/hub"  # the cache of the Hub's own client in a container


@dataclass(frozen=True, slots=True)
class Missing:
    """A model that is not on this machine."""

    place: str
    file: ModelFile
    directory: Path
    fetches: tuple[Fetch, ...] = ()  # its files on the Hub; empty where they are not known
    why: str = ""

    @property
    def size(self) -> int:
        """Bytes to download; 0 where they are not known."""
        return sum(each.size for each in self.fetches)

    @property
    def task(self) -> str:
        """What has to be done for it, in a line."""
        return f"download {self.file.shown}: {sizes.shown(self.size)} to {self.directory}"

    def commands(self, target: str) -> str:
        """How to get it: the commands of builder and of the Hub's own client."""
        option = f"--{self.place}"
        if self.file.repository is None:
            return f"the preset names no repository: give the file with {option} FILE"
        known = [each.name for each in self.fetches] or [self.file.file or ""]
        command = self.file.download(str(self.directory), [*filter(None, known)])
        return f"`builder run {target} --yes`, or {command}, or {option} FILE"


@dataclass(frozen=True, slots=True)
class Located:
    """The paths of a run's models, and the faults of the others."""

    files: Files
    missing: list[Missing]
    unusable: Mapping[str, FetchError]
    """Why a given file cannot be used, by ``model``, ``draft`` and ``mmproj``."""

    @property
    def lacking(self) -> list[str]:
        """The places without a file."""
        return [*(each.place for each in self.missing), *self.unusable]


def located(run: Run, directory: Path, given: Mapping[str, Path]) -> Located:
    """The models of a run on this machine, and the missing ones.

    A given file comes first, then the models directory, then the cache of the Hub's own client.
    The Hub is asked for the files of a missing one.
    """
    wanted = run.preset.files if run.preset else {}
    found, missing, unusable = [], [], {}
    for place, path in given.items():
        try:
            found.append(given_files({place: path}))
        except FetchError as error:
            unusable[place] = error
    for place, file in wanted.items():
        if place in given:
            continue
        here = _in_directory(place, file, directory) or _in_cache(place, file)
        if here is not None:
            found.append(here)
        else:
            missing.append(_missing(place, file, directory))
    return Located(joined(*found), missing, unusable)


def _in_directory(place: str, file: ModelFile, directory: Path) -> Files | None:
    found = service.in_directory(file, directory)
    if found is None:
        return None
    if not found.resolve().is_relative_to(directory.resolve()):
        return given_files({place: found})  # a link that leads out of the mounted directory
    path = f"{DIRECTORY}/{found.relative_to(directory).as_posix()}"
    return Files({place: path}, (Mount(str(directory), DIRECTORY),))


def _in_cache(place: str, file: ModelFile) -> Files | None:
    if file.repository is None:
        return None
    snapshot = cached(file.repository, file.revision, whole=file.whole)
    names = service.complete(file, service.names_below(snapshot)) if snapshot else []
    if snapshot is None or not names:
        return None
    if not file.whole:
        return given_files({place: snapshot / names[0]})
    folder = snapshot.parents[1]  # the snapshot has links to the blobs beside it
    inside = f"{CACHE}/{folder.name}"
    path = f"{inside}/{snapshot.relative_to(folder).as_posix()}"
    return Files({place: path}, (Mount(str(folder), inside),))


def _missing(place: str, file: ModelFile, directory: Path) -> Missing:
    repository, fetches = file.repository, []
    if repository is None:
        return Missing(place, file, directory)
    try:
        listed = {each.path: each for each in hub_files(repository, file.revision)}
        names = service.chosen(file, listed)
        for name in sorted(names, key=lambda name: name in service.CONFIGURATIONS):
            there = listed[name]
            stated = file.sha256 if len(names) == 1 else None
            if stated and there.sha256 and stated != there.sha256:
                why = f"the preset has sha256 {stated}, the Hub {there.sha256}"
                why = f"{repository}:{name} is not the file of the preset: {why}"
                return Missing(place, file, directory, why=why)
            location = on_the_hub(repository, name, file.revision)
            target = directory / repository / name
            fetches.append(Fetch(location, name, target, there.size, stated or there.sha256))
    except FetchError as error:
        return Missing(place, file, directory, why=f"{error.what}: {error.why}")
    why = "" if names else f"{repository} does not have it"
    return Missing(place, file, directory, tuple(fetches), why)


def given_files(given: Mapping[str, Path]) -> Files:
    """Files or directories that the user named, each mounted under its own name.

    An underscore stands for a colon, which Kubernetes does not allow in the path of a mount.
    """
    places, mounts = {}, []
    for place, path in given.items():
        file = path.expanduser().absolute()
        if not file.exists():
            hint = f"name an existing one: --{place} FILE"
            raise FetchError(f"there is no file {path}", hint=hint)
        if not str(file.resolve()).isprintable():  # also what is no UTF-8: surrogates
            why = "its name has characters that cannot be written"
            raise FetchError(f"cannot mount {path}", why, "rename it")
        places[place] = f"/{place}/{file.name}".replace(":", "_")
        mounts += [
            Mount(str(host), inside.replace(":", "_"), host.is_file())
            for inside, host in mounts_of(f"/{place}", file).items()
        ]
    return Files(places, tuple(mounts))


def joined(*groups: Files) -> Files:
    """All files together."""
    return Files(
        {place: path for each in groups for place, path in each.places.items()},
        tuple(dict.fromkeys(mount for each in groups for mount in each.mounts)),
        tuple(line for each in groups for line in each.missing),
        tuple(line for each in groups for line in each.incomplete),
    )
