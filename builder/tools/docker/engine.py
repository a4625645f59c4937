"""Docker: the engine, and the images that it keeps.

python-on-whales asks and tags; saving and running go through calls of our own, for what it lacks:
a stream of what comes, a time limit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from builder.errors import BuildError, FetchError, GoneError, UntriedError, WorldError
from builder.tools import archives
from builder.tools.files import full_disk, mentions_full_disk

if TYPE_CHECKING:
    from python_on_whales import DockerClient


# As containerd's resolver words it.
GONE = re.compile(
    r"not found|manifest unknown|no match for platform|pull access denied|does not exist",
    re.IGNORECASE,
)
INSTALL_HINT = (
    "on Debian or Ubuntu as root, ./farm installs it; elsewhere install Docker with buildx"
)


@dataclass(frozen=True, slots=True)
class Engine:
    """What the engine says of itself."""

    version: str
    architecture: str
    """As ``uname -m`` names it."""
    root: Path
    driver: str
    runtimes: tuple[str, ...]
    containerd_store: bool


@dataclass(frozen=True, slots=True)
class Image:
    """An image of the engine; ``digest`` is that of its manifest."""

    digest: str
    labels: dict[str, str]
    platform: str


@cache
def executable() -> str:
    """The first ``docker`` on PATH whose buildx plugin answers.

    A client without the plugin may stand before one with it.  Raises ``WorldError``.
    """
    found = []
    for folder in os.get_exec_path():
        path = shutil.which("docker", path=folder)
        if path and path not in found:
            found.append(path)
            if _answers([path, "buildx", "version"]):
                return path
    if found:
        raise WorldError("docker has no buildx plugin", f"tried: {', '.join(found)}", INSTALL_HINT)
    raise WorldError("there is no docker on this machine", hint=INSTALL_HINT)


def _answers(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@cache
def client() -> DockerClient:
    """python-on-whales on the executable with buildx."""
    from python_on_whales import DockerClient

    return DockerClient(client_call=[executable()])


def buildx_version() -> str:
    """``github.com/docker/buildx 0.13.1 ...``; raises ``WorldError``."""
    done = subprocess.run(
        [executable(), "buildx", "version"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


@cache
def context() -> str:
    """The name of Docker's context: of the engine, and of the buildx builder that is the engine."""
    done = subprocess.run(
        [executable(), "context", "show"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "default"


@cache
def engine() -> Engine:
    """What the engine says of itself, asked once; raises ``WorldError`` when it does not answer."""
    return ask_engine()


def ask_engine() -> Engine:
    """Ask the engine what it is, also again; raises ``WorldError`` when it does not answer."""
    from python_on_whales.exceptions import DockerException

    try:
        info: Any = client().system.info()
    except DockerException as error:
        raise WorldError(
            "the Docker engine does not answer",
            (error.stderr or "").strip().splitlines()[-1] if error.stderr else "",
            "start it (`systemctl start docker`, or run ./farm as root)",
        ) from error
    if info.server_version is None:
        raise WorldError(
            "the Docker engine does not answer",
            "; ".join(info.server_errors or []),
            "start it (`systemctl start docker`, or run ./farm as root)",
        )
    status: dict[str, str] = dict(info.driver_status or [])
    return Engine(
        version=info.server_version,
        architecture=info.architecture or "",
        root=Path(info.docker_root_dir or "/var/lib/docker"),
        driver=info.driver or "",
        runtimes=tuple(sorted(info.runtimes or {})),
        containerd_store=status.get("driver-type", "").startswith("io.containerd.snapshotter"),
    )


def image(reference: str) -> Image | None:
    """The image of that name in the engine, or None; raises ``WorldError``."""
    found = inspect_image(reference)
    if found is None:
        return None
    labels = (found.get("Config") or {}).get("Labels") or {}
    return Image(found["Id"], dict(labels), f"{found['Os']}/{found['Architecture']}")


def inspect_image(reference: str) -> dict[str, Any] | None:
    """All that the engine says of an image (docker image inspect), or None where it has none.

    It is asked once: another user may remove the image at any time.  Raises ``WorldError``.
    """
    done = subprocess.run(
        [executable(), "image", "inspect", reference], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout)[0]
        return found
    if "no such image" in done.stderr.lower():
        return None
    engine()  # names the reason where the engine is gone
    raise WorldError(f"cannot inspect the image {reference}", done.stderr.strip())


def image_names(pattern: str) -> list[str]:
    """The names of the engine's images that are like ``pattern``, newest image first."""
    command = [executable(), "image", "ls", "--filter", f"reference={pattern}"]
    command += ["--format", "{{.Repository}}:{{.Tag}}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def require_in_registry(reference: str, timeout: float) -> None:
    """Raise ``GoneError`` where a registry answers and does not have an image, ``FetchError``
    where it does not answer."""
    done = _asked_of_registry(reference, timeout)
    if done is None:
        raise FetchError(f"no registry answers for {reference}")
    if done.returncode != 0:
        kind = GoneError if GONE.search(done.stderr) else FetchError
        raise kind(f"no registry gives {reference}", done.stderr.strip().removeprefix("ERROR: "))


def registry_config(reference: str, platform: str, timeout: float) -> dict[str, Any]:
    """How a registry's image of one platform ("linux/amd64") starts: the "config" of the OCI image
    configuration.  Raises ``FetchError`` where no registry tells."""
    done = _asked_of_registry(reference, timeout, "{{json .Image}}")
    if done is None or done.returncode != 0:
        said = done.stderr.strip().removeprefix("ERROR: ") if done else "no answer in time"
        raise FetchError(f"no registry tells how {reference} starts", said)
    told = json.loads(done.stdout)
    # Of an index buildx tells every platform, of a manifest the image alone.
    found = told if "rootfs" in told else told.get(platform)
    if found is None:
        raise FetchError(f"{reference} is no image for {platform}", ", ".join(told))
    config: dict[str, Any] = found.get("config") or {}
    return config


def _asked_of_registry(
    reference: str, timeout: float, what: str = "{{json .Manifest}}"
) -> subprocess.CompletedProcess[str] | None:
    """What buildx says of an image of a registry, as JSON; None: not in time."""
    command = [executable(), "buildx", "imagetools", "inspect", f"--builder={context()}"]
    command += ["--format", what, reference]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        return None


def pull(reference: str, platform: str) -> None:
    """Have the engine fetch an image for one platform.

    Raises ``GoneError`` where the registry does not have it, or not for that platform,
    ``FetchError`` where it does not answer.
    """
    command = [executable(), "pull", "--quiet", f"--platform={platform}", reference]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    said = done.stderr.strip()
    kind = GoneError if GONE.search(said) else FetchError
    raise kind(f"cannot pull {reference}", said)


def tag(reference: str, new: str) -> None:
    """Give an image another name; raises ``WorldError`` where the engine does not have it."""
    command = [executable(), "image", "tag", reference, new]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise WorldError(
            f"the engine cannot name {reference} {new}",
            done.stderr.strip(),
            "somebody else may have removed the image: build again",
        )


def untag(reference: str) -> None:
    """Take a name away; the image goes with its last name.  Absence is no error."""
    subprocess.run([executable(), "image", "rm", reference], capture_output=True, check=False)


def load(archive: Path) -> None:
    """Have the engine take the image of an OCI archive, under the name that stands in it.

    Raises ``SpaceError`` where its disk is full, ``WorldError`` where it does not take it.
    """
    command = [executable(), "image", "load", "--quiet", f"--input={archive}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    said = done.stderr.strip()
    if mentions_full_disk(said):
        raise full_disk(f"the engine was loading the image that was built: {said}", engine().root)
    raise WorldError("the engine does not take the image that was built", said)


def layout(reference: str, folder: Path) -> str:
    """Unpack an image into ``folder`` as an OCI image layout, for who cannot see the engine's.

    Gives its digest there: the engine's.  Raises ``WorldError`` where the engine cannot give it.
    """
    found = image(reference)
    if found is None:
        raise WorldError(f"the engine lost the image {reference}", hint="build again")
    try:
        with saved(reference) as stream:
            archives.unpack_stream(stream, folder)
    except (FetchError, UntriedError) as error:
        raise WorldError(f"the engine does not give {reference}", error.why) from error
    return found.digest


@contextmanager
def saved(reference: str) -> Iterator[IO[bytes]]:
    """An image as a tar of its OCI layout, as it comes out of ``docker image save``.

    Raises ``UntriedError`` when the engine could not give all of it.
    """
    command = [executable(), "image", "save", reference]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said) as process,
    ):
        assert process.stdout is not None
        try:
            yield process.stdout
            while process.stdout.read(1 << 20):
                pass  # the end of a tar is not the end of the stream
        except (FetchError, UntriedError) as error:
            # What was cut off cannot be read; the engine knows why it was.
            _check_saved(process, reference, said, error)
            raise
        finally:
            process.stdout.close()
            if process.poll() is None:
                process.terminate()
        _check_saved(process, reference, said, None)


def _check_saved(
    process: subprocess.Popen[bytes], reference: str, said: IO[bytes], error: Exception | None
) -> None:
    try:
        status = process.wait(5)
    except subprocess.TimeoutExpired:
        return
    if status > 0:
        said.seek(0)
        why = said.read().decode(errors="replace").strip()
        raise UntriedError(f"cannot read the image {reference}", why) from error


def registry_digest(reference: str, timeout: float) -> str | None:
    """The digest that a registry has for a tag, or None when it does not answer in time."""
    done = _asked_of_registry(reference, timeout)
    if done is None or done.returncode != 0:
        return None
    try:
        return str(json.loads(done.stdout)["digest"])
    except (ValueError, KeyError) as error:
        raise BuildError(f"buildx gave no digest for {reference}", done.stdout) from error
