"""The docker client, the engine and its images.

The client is python-on-whales, and beside it three functions that start the executable:
docs/development.md, Rules, says which does what.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from builder.core import errors
from builder.core.files import full_disk, mentions_full_disk
from builder.core.parallel import output_of

if TYPE_CHECKING:
    from python_on_whales import DockerClient

INSTALL_HINT = (
    "on Debian or Ubuntu as root, ./farm installs it; elsewhere install Docker with buildx"
)
INFO_TIMEOUT = 20.0  # seconds
MOST_OUTPUT = 1 << 20  # bytes that are kept of the beginning of an output, and of its end
BLOCK = 1 << 16


class LateError(errors.UntriedError):
    """The client was stopped because it did not end in time."""


class Finished(NamedTuple):
    """An exit status and an output, both streams together."""

    status: int
    output: str


@cache
def executable() -> str:
    """The first ``docker`` on PATH whose buildx plugin works.

    A client without the plugin may come before a client with it.  Raises ``WorldError``.
    """
    paths = (shutil.which("docker", path=folder) for folder in os.get_exec_path())
    found = list(dict.fromkeys(path for path in paths if path))
    for path in found:
        if _has_buildx(path):
            return path
    if found:
        raise errors.WorldError(
            "docker has no buildx plugin", f"tried: {', '.join(found)}", INSTALL_HINT
        )
    raise errors.WorldError("there is no docker on this machine", hint=INSTALL_HINT)


def _has_buildx(path: str) -> bool:
    """Whether a client has a buildx plugin that works.

    ``docker info`` names the plugins, and most commands need its answer for the engine too; the
    plugin itself is started only where it is not named.
    """
    plugins = (_info(path).get("ClientInfo") or {}).get("Plugins") or []
    if any(each.get("Name") == "buildx" and not each.get("Err") for each in plugins):
        return True
    try:
        return _run([path, "buildx", "version"], INFO_TIMEOUT).returncode == 0
    except (OSError, LateError):
        return False


@cache
def _info(path: str) -> dict[str, Any]:
    """The JSON of ``docker info``, asked once: of the client, and of an engine that answers.

    Empty where the client gives no JSON within 20 seconds.
    """
    command = [path, "system", "info", "--format", "{{json .}}"]
    try:
        return json_object(_run(command, INFO_TIMEOUT).stdout)
    except (OSError, LateError):
        return {}


def json_object(text: str) -> dict[str, Any]:
    """A JSON object; empty for any other text."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@cache
def whales() -> DockerClient:
    """python-on-whales with the executable that has buildx.  Raises ``WorldError``."""
    from python_on_whales import DockerClient

    return DockerClient(client_call=[executable()])


def call(*arguments: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run docker to its end, whatever its exit status.

    Raises ``LateError`` where that takes more than ``timeout`` seconds.
    """
    return _run([executable(), *arguments], timeout)


def _run(command: list[str], timeout: float | None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise _late(command, error.timeout) from error


def _late(command: list[str], timeout: float) -> LateError:
    what = f"docker {' '.join(command[1:3])} did not end"
    return LateError(what, f"stopped after {timeout:.0f} s")


def output(*arguments: str, timeout: float, most: int = MOST_OUTPUT) -> Finished:
    """Run docker to its end; keep ``most`` bytes of the output's beginning, and of its end.

    Raises ``LateError`` where that takes more than ``timeout`` seconds.
    """
    with stream(*arguments, stderr=subprocess.STDOUT, timeout=timeout) as process:
        printed = output_of(process)
        head, tail = printed.read(most), b""
        while block := printed.read(BLOCK):
            tail = (tail + block)[-most:]
        process.wait()
    return Finished(process.returncode, (head + tail).decode(errors="replace"))


@contextmanager
def stream(
    *arguments: str,
    stdin: int = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    bufsize: int = -1,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Docker with a pipe from its standard output; killed where it still runs after the body.

    Raises ``LateError`` where it ran for ``timeout`` seconds: then it is killed, which ends its
    output.
    """
    late = threading.Event()
    command = [executable(), *arguments]
    with subprocess.Popen(
        command, bufsize=bufsize, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, env=env
    ) as process:

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(timeout or 0, end)
        if timeout is not None:
            timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            process.kill()
    if late.is_set():
        raise _late(command, timeout or 0)


HUB = "docker.io"
# As containerd's resolver and authorizer, and registries, word it: a 401 or 403; no such image;
# no response.
REFUSED = re.compile(
    r"authorization failed|may require authorization|: 40[13] |(?<!permission )denied|unauthorized|"
    r"requested access|insufficient_scope|no basic auth",
    re.IGNORECASE,
)
GONE = re.compile(
    r"(?<!file )not found|manifest unknown|name unknown|no match for platform|no matching manifest|"
    r"does not exist",
    re.IGNORECASE,
)
SILENT = re.compile(r"failed to do request|no response|timeout|dial tcp|\bEOF\b|deadline", re.I)
UNTRUSTED_HINT = (
    "Docker does not trust the certificate: put its authority's at "
    "/etc/docker/certs.d/REGISTRY/ca.crt"
)
TAG_ATTEMPTS = 10
START_HINT = "start it (`systemctl start docker`, or run ./farm as root)"
DENIED = "permission denied"
DENIED_HINT = "run it as root, or join the group: `usermod -aG docker $USER`, and log in again"


class Engine(NamedTuple):
    """The properties of the engine (``docker info``)."""

    version: str
    architecture: str
    """As ``uname -m`` names it."""
    root: Path
    driver: str
    runtimes: tuple[str, ...]
    containerd_store: bool
    host: str = ""
    """The name of its machine."""
    cdi: tuple[Path, ...] = ()
    """Directories with specifications of devices (CDI); empty where that is not enabled."""

    @property
    def has_nvidia_runtime(self) -> bool:
        """Whether it gives containers GPUs by NVIDIA's runtime."""
        return "nvidia" in self.runtimes

    @property
    def has_nvidia_cdi(self) -> bool:
        """Whether its CDI directories describe GPUs of NVIDIA's: nvidia-ctk writes nvidia.yaml."""
        return any(any(folder.glob("nvidia*")) for folder in self.cdi)


@dataclass(frozen=True, slots=True)
class Image:
    """An image of the engine (``docker image inspect``)."""

    reference: str
    """The name or the digest that was asked for."""
    digest: str
    """Its manifest's."""
    platform: str
    names: frozenset[str]
    """All its names in the engine."""
    digests: frozenset[str]
    """Its own digest, and digests that registries gave it."""
    layers: int
    config: Mapping[str, Any]
    """The "config" of its OCI image configuration."""
    epoch: int = 0
    """When it was created by its configuration, in seconds since 1970; 0: not known."""

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        return dict(self.config.get("Labels") or {})


def refused(work: Callable[..., object], *arguments: Any, **options: Any) -> str | None:
    """What the docker executable prints where python-on-whales fails; None where it does not."""
    from python_on_whales.exceptions import DockerException

    try:
        work(*arguments, **options)
    except DockerException as error:
        return (error.stderr or "").strip()
    return None


def buildx_version() -> str:
    """``github.com/docker/buildx 0.13.1 ...``.  Raises ``WorldError``."""
    done = call("buildx", "version")
    if done.returncode != 0:
        raise errors.WorldError("buildx does not run", done.stderr.strip(), INSTALL_HINT)
    return done.stdout.strip()


@cache
def context() -> str:
    """The current Docker context; the buildx builder of that name is the engine itself.

    Not every client names it in ``docker info``.  Raises ``WorldError``.
    """
    named = (_info(executable()).get("ClientInfo") or {}).get("Context")
    return str(named or call("context", "show").stdout.strip() or "default")


@cache
def engine() -> Engine:
    """The properties of the engine, asked once.  Raises ``WorldError`` where it does not answer."""
    found = _info(executable())
    return _properties(found) if found.get("ServerVersion") else ask_engine()


def ask_engine() -> Engine:
    """The properties of the engine, asked now.  Raises ``WorldError`` where it does not answer."""
    done = call("system", "info", "--format={{json .}}")
    found = json_object(done.stdout)
    if done.returncode != 0 or not found.get("ServerVersion"):
        # Clients before 27 exit with 0, and name the errors.
        lines = done.stderr.strip().splitlines()
        why = "; ".join(found.get("ServerErrors") or lines[-1:])
        if DENIED in why.lower():
            raise errors.WorldError("this user may not use Docker", why, DENIED_HINT)
        raise errors.WorldError("Docker does not answer", why, START_HINT)
    return _properties(found)


def _properties(found: Mapping[str, Any]) -> Engine:
    status = {each[0]: each[1] for each in found.get("DriverStatus") or []}
    return Engine(
        version=found.get("ServerVersion") or "",
        architecture=found.get("Architecture") or "",
        root=Path(found.get("DockerRootDir") or "/var/lib/docker"),
        driver=found.get("Driver") or "",
        runtimes=tuple(sorted(found.get("Runtimes") or {})),
        containerd_store=status.get("driver-type", "").startswith("io.containerd.snapshotter"),
        host=found.get("Name") or "",
        cdi=tuple(Path(each) for each in found.get("CDISpecDirs") or []),
    )


def image(reference: str) -> Image | None:
    """The image of that name in the engine, or None.  Raises ``WorldError``.

    None also where another user removes it at this moment.
    """
    done = call("image", "inspect", reference)
    if done.returncode != 0:
        if "no such image" in done.stderr.lower():
            return None
        ask_engine()  # raises where it does not answer
        raise errors.WorldError(f"cannot inspect the image {reference}", done.stderr.strip())
    found = json.loads(done.stdout)[0]
    others = [name.partition("@")[2] for name in found.get("RepoDigests") or []]
    return Image(
        reference,
        found["Id"],
        f"{found['Os']}/{found['Architecture']}",
        frozenset(found.get("RepoTags") or []),
        frozenset([found["Id"], *others]),
        len(found["RootFS"].get("Layers") or []),
        found.get("Config") or {},
        epoch_of(found.get("Created")),
    )


def layers_here(wanted: Sequence[str]) -> int:
    """How many of an image's lowest layers (diff IDs) an image of the engine has.

    With the containerd store, a pull fetches none of these.  The classic store fetches a layer all
    the same where it does not know its compressed digest: of images that were built here, or whose
    compression differs.  Tried with Docker 26.1: studies/measurements.md.
    """
    names = call("image", "ls", "--all", "--quiet", "--no-trunc").stdout.split()
    if not wanted or not names:
        return 0
    form = "--format={{json .RootFS.Layers}}"
    found = call("image", "inspect", form, *dict.fromkeys(names)).stdout.splitlines()
    pairs = [zip(json.loads(each) or [], wanted, strict=False) for each in found]
    return max(
        (len([*takewhile(lambda pair: pair[0] == pair[1], each)]) for each in pairs), default=0
    )


def epoch_of(created: str | None) -> int:
    """The property ``created`` of an image configuration (RFC 3339) in seconds since 1970.

    0 where it is missing, earlier, or no such text.
    https://github.com/opencontainers/image-spec/blob/main/config.md
    """
    try:
        found = datetime.fromisoformat(created or "")
    except ValueError:
        return 0
    return max(0, int(found.timestamp())) if found.tzinfo else 0


def image_names(pattern: str) -> list[str]:
    """The names of the engine's images that match ``pattern``, newest image first."""
    template = "--format={{.Repository}}:{{.Tag}}"
    return call("image", "ls", f"--filter=reference={pattern}", template).stdout.splitlines()


def image_digests(repository: str) -> list[str]:
    """The identities of the engine's images with a tag or a digest in a repository, newest first;
    one with several tags several times."""
    return call("image", "ls", "--no-trunc", "--quiet", repository).stdout.split()


def pull(reference: str, platform: str) -> None:
    """Pull an image for one platform; raises like ``refusal``."""
    why = refused(whales().image.pull, reference, quiet=True, platform=platform)
    if why is not None:
        found = refusal(reference, why)
        found.what, found.why = f"cannot pull {reference}", f"{found.what}\n{found.why}"
        raise found


def split(repository: str) -> tuple[str, str]:
    """The registry and the path of a repository's name, by Docker's rules.

    https://github.com/distribution/reference: a name without a host is on Docker Hub, and a name of
    one part is an official image.
    """
    first, slash, rest = repository.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first, rest
    return HUB, repository if slash else f"library/{repository}"


def refusal(reference: str, why: str) -> errors.BuilderError:
    """The error for what Docker or buildx prints about an image of a registry.

    ``GoneError`` where the registry does not have it, or not for that platform, ``RegistryError``
    where it refuses the login, ``FetchError`` where it fails or does not answer.
    """
    registry, path = split(reference)
    repository = re.split("[:@]", path)[0]
    text = why.replace(f"/{repository}", "/")  # a name may have such words
    if REFUSED.search(text):  # before GONE: "does not exist or may require authorization"
        return errors.RegistryError(
            f"{registry} refuses to give {reference} with this login",
            why,
            "check the name, because a registry may answer like that where there is no such "
            f"image; for a private one: `docker login{'' if registry == HUB else f' {registry}'}`",
        )
    if GONE.search(text) and not SILENT.search(text):
        return errors.GoneError(
            f"{registry} has no {reference}",
            why,
            "check the name and the tag: it may have been deleted there",
        )
    if "x509" in text:
        what = f"{registry}: no secure connection: {reference}"
        return errors.FetchError(what, why, UNTRUSTED_HINT)
    verb = "does not answer" if SILENT.search(text) else "fails"
    hint = "check the network, or try again later"
    return errors.FetchError(f"{registry} {verb}: {reference}", why, hint)


@contextmanager
def pulled(reference: str, platform: str = "linux/amd64") -> Iterator[None]:
    """Keep an image of a registry in the engine; an image that was not there is removed afterwards.

    Raises like ``pull``.
    """
    was_there = image(reference) is not None
    if not was_there:
        pull(reference, platform)
    try:
        yield
    finally:
        if not was_there:
            untag(reference)


def tag(reference: str, new: str) -> None:
    """Give an image another name, also where another command gives that name at the same time.

    With containerd's image store Docker replaces a name in two steps, remove and create: a second
    client's tag between them fails with "already exists" (moby ``daemon/containerd/image_tag.go``).
    Raises ``WorldError`` where the engine does not have the image.
    """
    why: str | None = ""
    for _ in range(TAG_ATTEMPTS):
        why = refused(whales().image.tag, reference, new)
        if why is None:
            return
        if "already exists" not in why:
            break
    hint = "another user may have removed the image: build again"
    raise errors.WorldError(f"Docker cannot tag {reference} as {new}", why or "", hint)


def untag(reference: str) -> str:
    """Remove a name of an image, and the image with its last name; why the engine refuses, or
    nothing.  Absence is no error."""
    why = refused(whales().image.remove, reference) or ""
    return "" if "no such image" in why.lower() else why


def load(archive: Path, name: str) -> None:
    """Load the image of an OCI archive into the engine, under its ``name`` in the archive.

    An image that has the name until then is kept to the end.  Without that, no container started
    from 2 of 40 images that were loaded over one with the same layers while other containers were
    removed: it seems that containerd removes a layer before the new image counts as its user.
    Raises ``SpaceError`` where the engine's disk is full, ``WorldError`` where it refuses.
    """
    replaced = f"{name}-replaced"
    with suppress(errors.WorldError):  # mostly there is none
        tag(name, replaced)
    try:
        why = refused(whales().image.load, archive, quiet=True)
    finally:
        untag(replaced)
    if why is None:
        return
    if mentions_full_disk(why):
        raise full_disk(f"Docker was loading the new image: {why}", engine().root)
    raise errors.WorldError("Docker cannot load the new image", why)
