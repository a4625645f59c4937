"""The Docker engine and its images.

python-on-whales makes the calls.  Functions that start the executable themselves say why.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import FetchError, GoneError, WorldError
from builder.tools.files import full_disk, mentions_full_disk

if TYPE_CHECKING:
    from python_on_whales import DockerClient
    from python_on_whales.components.system.models import SystemInfo
    from python_on_whales.exceptions import DockerException

# As containerd's resolver words it.
GONE = re.compile(
    r"not found|manifest unknown|no match for platform|pull access denied|does not exist",
    re.IGNORECASE,
)
GONE_HINT = "check the name and the tag; a private image needs a login: `docker login REGISTRY`"
UNREACHED_HINT = (
    "check the network and the login (`docker login REGISTRY`), then run the same command again"
)
INSTALL_HINT = (
    "on Debian or Ubuntu as root, ./farm installs it; elsewhere install Docker with buildx"
)
START_HINT = "start it (`systemctl start docker`, or run ./farm as root)"


@dataclass(frozen=True, slots=True)
class Engine:
    """The properties of the engine (``docker info``)."""

    version: str
    architecture: str
    """As ``uname -m`` names it."""
    root: Path
    driver: str
    runtimes: tuple[str, ...]
    containerd_store: bool
    cdi: tuple[Path, ...] = ()
    """Directories with specifications of devices (CDI); empty where that is not enabled."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image of the engine (``docker image inspect``)."""

    reference: str
    """What it was found by."""
    digest: str
    """Of its manifest."""
    platform: str
    names: frozenset[str]
    """All its names in the engine."""
    digests: frozenset[str]
    """Its own, and those that registries gave it."""
    layers: int
    config: Mapping[str, Any]
    """The "config" of its OCI image configuration."""
    epoch: int = 0
    """When it was created by its configuration, in seconds since 1970; 0: not known."""

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        return dict(self.config.get("Labels") or {})


@cache
def executable() -> str:
    """The first ``docker`` on PATH whose buildx plugin works.

    A client without the plugin may come before one that has it.  Raises ``WorldError``.
    """
    found = []
    for folder in os.get_exec_path():
        path = shutil.which("docker", path=folder)
        if path and path not in found:
            found.append(path)
            if _has_buildx(path):
                return path
    if found:
        raise WorldError("docker has no buildx plugin", f"tried: {', '.join(found)}", INSTALL_HINT)
    raise WorldError("there is no docker on this machine", hint=INSTALL_HINT)


def _has_buildx(client: str) -> bool:
    """Whether a client has a buildx plugin that works.

    ``docker info`` names the plugins, and most commands need its answer for the engine too; the
    plugin itself is started only where it is not named.
    """
    plugins = (_info(client).get("ClientInfo") or {}).get("Plugins") or []
    named = any(each.get("Name") == "buildx" and not each.get("Err") for each in plugins)
    return named or _works([client, "buildx", "version"])


@cache
def _info(client: str) -> dict[str, Any]:
    """The JSON of ``docker info``: of the client, and of the engine where it answers.

    Our own call: python-on-whales gives nothing of the client where no engine answers.  Empty
    where the client gives no JSON within 20 seconds.
    """
    command = [client, "system", "info", "--format", "{{json .}}"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=20)
        found = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _works(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@cache
def client() -> DockerClient:
    """python-on-whales with the executable that has buildx.  Raises ``WorldError``."""
    from python_on_whales import DockerClient

    return DockerClient(client_call=[executable()])


def reason(error: DockerException) -> str:
    """What the docker executable printed about a failure."""
    return (error.stderr or "").strip()


def buildx_version() -> str:
    """``github.com/docker/buildx 0.13.1 ...``.  Raises ``WorldError``."""
    from python_on_whales.exceptions import DockerException

    try:
        return client().buildx.version().strip()
    except DockerException as error:
        raise WorldError("buildx does not run", reason(error), INSTALL_HINT) from error


@cache
def context() -> str:
    """The current Docker context; the buildx builder of that name is the engine itself.

    Our own call, for clients that do not name it in ``docker info``: python-on-whales fails on
    contexts whose metadata holds more than strings, which Docker allows (docker/cli,
    cli/command/context.go).  Raises ``WorldError``.
    """
    named = (_info(executable()).get("ClientInfo") or {}).get("Context")
    if named:
        return str(named)
    done = subprocess.run(
        [executable(), "context", "show"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "default"


@cache
def engine() -> Engine:
    """The properties of the engine, asked once.  Raises ``WorldError`` where it does not answer."""
    from python_on_whales.components.system.models import SystemInfo

    found = _info(executable())
    return _properties(SystemInfo(**found)) if found.get("ServerVersion") else ask_engine()


def ask_engine() -> Engine:
    """The properties of the engine, asked now.  Raises ``WorldError`` where it does not answer."""
    from python_on_whales.exceptions import DockerException

    try:
        info = client().system.info()
    except DockerException as error:
        lines = reason(error).splitlines()
        why = lines[-1] if lines else ""
        raise WorldError("Docker does not answer", why, START_HINT) from error
    if not info.server_version:  # clients before 27 exit with 0, and name the errors
        why = "; ".join(_info(executable()).get("ServerErrors") or [])
        raise WorldError("Docker does not answer", why, START_HINT)
    return _properties(info)


def _properties(info: SystemInfo) -> Engine:
    status: dict[str, str] = dict(info.driver_status or [])
    return Engine(
        version=info.server_version or "",
        architecture=info.architecture or "",
        root=Path(info.docker_root_dir or "/var/lib/docker"),
        driver=info.driver or "",
        runtimes=tuple(sorted(info.runtimes or {})),
        containerd_store=status.get("driver-type", "").startswith("io.containerd.snapshotter"),
        cdi=tuple(Path(each) for each in _info(executable()).get("CDISpecDirs") or []),
    )


def image(reference: str) -> Image | None:
    """The image of that name in the engine, or None.  Raises ``WorldError``.

    None also where another user removes it at this moment.  Our own call: the models of
    python-on-whales leave out fields of the image's configuration that they do not name.
    """
    done = subprocess.run(
        [executable(), "image", "inspect", reference], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return _read(reference, json.loads(done.stdout)[0])
    if "no such image" in done.stderr.lower():
        return None
    raise _not_inspected(reference, done.stderr.strip())


def _read(reference: str, found: Mapping[str, Any]) -> Image:
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


def _not_inspected(reference: str, why: str) -> WorldError:
    """The error of a failed inspection; raises that of the engine where it does not answer."""
    ask_engine()
    return WorldError(f"cannot inspect the image {reference}", why)


def image_names(pattern: str) -> list[str]:
    """The names of the engine's images that match ``pattern``, newest image first.

    Our own call: python-on-whales lists images as a set, and inspects each for its names.
    """
    command = [executable(), "image", "ls", "--filter", f"reference={pattern}"]
    command += ["--format", "{{.Repository}}:{{.Tag}}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def pull(reference: str, platform: str) -> None:
    """Pull an image for one platform.

    Raises ``GoneError`` where the registry does not have it, or not for that platform,
    ``FetchError`` where it does not answer.
    """
    from python_on_whales.exceptions import DockerException

    try:
        client().image.pull(reference, quiet=True, platform=platform)
    except DockerException as error:
        what, why = f"cannot pull {reference}", reason(error)
        if GONE.search(why):
            raise GoneError(what, why, GONE_HINT) from error
        raise FetchError(what, why, UNREACHED_HINT) from error


def tag(reference: str, new: str) -> None:
    """Give an image another name.  Raises ``WorldError`` where the engine does not have it."""
    from python_on_whales.exceptions import DockerException

    try:
        client().image.tag(reference, new)
    except DockerException as error:
        raise WorldError(
            f"Docker cannot tag {reference} as {new}",
            reason(error),
            "another user may have removed the image: build again",
        ) from error


def untag(reference: str) -> None:
    """Remove a name of an image, and the image with its last name.  Absence is no error."""
    from python_on_whales.exceptions import DockerException

    with suppress(DockerException):
        client().image.remove(reference)


def load(archive: Path, name: str) -> None:
    """Load the image of an OCI archive into the engine, under its ``name`` in the archive.

    An image that has the name until then is kept to the end.  Without that, no container started
    from 2 of 40 images that were loaded over one with the same layers while other containers were
    removed: it seems that containerd removes a layer before the new image counts as its user.
    Raises ``SpaceError`` where the engine's disk is full, ``WorldError`` where it refuses.
    """
    from python_on_whales.exceptions import DockerException

    replaced = f"{name}-replaced"
    with suppress(WorldError):  # mostly there is none
        tag(name, replaced)
    try:
        client().image.load(archive, quiet=True)
    except DockerException as error:
        why = reason(error)
        if mentions_full_disk(why):
            root = engine().root
            raise full_disk(f"Docker was loading the new image: {why}", root) from error
        raise WorldError("Docker cannot load the new image", why) from error
    finally:
        untag(replaced)
