"""Sets up a new machine: the Docker engine with buildx, git, and mmdebstrap.

Run by ``./farm`` as ``python -m builder.measure.setup``.  Every step is announced, and an
installed part is left alone.  As root on Debian or Ubuntu it installs the distribution's
packages and starts the engine; on other machines it says what to install.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from builder.core.errors import BuilderError, WorldError
from builder.docker import engine as docker
from builder.sources import apt

SOCKET = Path("/var/run/docker.sock")
DAEMON_JSON = Path("/etc/docker/daemon.json")
ENGINE_LOG = Path("/var/log/dockerd.log")
# Growth of the heap, in percent, between two runs of Go's garbage collector in dockerd and
# containerd: with Go's own 100 they spend a tenth of their time in it, on heaps of tens of MB.
GARBAGE = "400"
PACKAGES = ("docker.io", "docker-cli", "docker-buildx", "containerd")
INSTALL = ("apt-get", "-qq", "install", "--yes", "--no-install-recommends")
NEWER_SUITE = "trixie"
"""The suite that bookworm takes Docker from: its own is 20.10 and has no buildx.  The four packages
need no newer libc."""
PID_FILES = {
    "dockerd": Path("/var/run/docker.pid"),
    "containerd": Path("/var/run/docker/containerd/containerd.pid"),
}
START_TIMEOUT = 60.0  # seconds


def log(message: str) -> None:
    """Announce a step on standard error."""
    sys.stderr.write(f"farm: {message}\n")
    sys.stderr.flush()


def run(command: Sequence[str], what: str) -> None:
    """Run a command; raises ``WorldError`` with its last lines if it fails."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode != 0:
        raise WorldError(f"{what} failed", "\n".join(done.stdout.strip().splitlines()[-12:]))


def _engine_answers() -> bool:
    try:
        docker.engine()
    except BuilderError:
        return False
    return True


def _has_buildx() -> bool:
    docker.executable.cache_clear()
    docker.whales.cache_clear()
    try:
        docker.executable()
    except WorldError:
        return False
    return True


def _package_of_docker() -> str:
    path = shutil.which("docker")
    if path is None:
        return ""
    command = ["dpkg-query", "--search", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.partition(":")[0]


def may_install() -> str | None:
    """The distribution's ID if this process may install its packages, else None."""
    distribution = apt.os_release().get("ID", "")
    return distribution if distribution in {"debian", "ubuntu"} and os.geteuid() == 0 else None


def is_bookworm() -> bool:
    """Whether this machine has Debian 12."""
    return apt.os_release().get("VERSION_CODENAME", "") == "bookworm"


@cache
def _read_package_lists() -> None:
    log("reading the package lists")
    run(["apt-get", "-qq", "update"], "apt-get update")


def install(*packages: str) -> None:
    """Install packages of the distribution; raises ``WorldError``."""
    log(f"installing {' '.join(packages)}")
    _read_package_lists()
    run([*INSTALL, *packages], f"installing {packages[0]}")


def install_newer(*packages: str) -> None:
    """Install packages of ``NEWER_SUITE``, without adding it to apt's configuration."""
    _read_package_lists()
    with downloaded(*packages) as files:
        log("installing them with their dependencies")
        run([*INSTALL, *map(str, files)], f"installing {packages[0]}")


@contextmanager
def downloaded(*packages: str, suite: str = NEWER_SUITE) -> Iterator[list[Path]]:
    """The files of packages of a suite, within this context; raises ``WorldError``."""
    sources = apt.deb822(apt.debian_sources(suite))
    if not sources:
        raise WorldError(
            "no apt source of this machine could be read",
            "searched /etc/apt/sources.list and /etc/apt/sources.list.d",
            "install Docker with buildx manually",
        )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "suite.sources").write_text(sources)
        for part in ("lists/partial", "archives/partial", "debs"):
            (folder / part).mkdir(parents=True)
        places = {
            "Etc::SourceList": "suite.sources",
            "State::Lists": "lists",
            "Cache::Archives": "archives",
            "Cache::pkgcache": "pkgcache",
            "Cache::srcpkgcache": "srcpkgcache",
        }
        options = [f"-oDir::{name}={folder / place}" for name, place in places.items()]
        options += ["-oDir::Etc::SourceParts=/dev/null", "-oAPT::Sandbox::User=root"]
        apt_get = ["apt-get", "-qq", *options]
        log(f"downloading {' '.join(packages)} from {suite}")
        run([*apt_get, "update"], f"apt-get update of {suite}")
        fetch = ["sh", "-c", f'cd {folder / "debs"} && exec "$@"', "fetch", *apt_get, "download"]
        run([*fetch, *packages], f"downloading packages from {suite}")
        yield sorted((folder / "debs").glob("*.deb"))


def engine_settings(disk: int) -> str:
    """The daemon.json of a new engine; ``disk`` is the size of its disk in bytes.

    Images are stored in containerd, which keeps their OCI digests.  Above a tenth of the disk,
    BuildKit deletes layers and build contexts; compiler caches only above a fifth.  What was unused
    for longest goes first.  BuildKit's own rules delete a compiler cache after 48 hours without a
    build (https://docs.docker.com/build/cache/garbage-collection/).  With one rule for everything,
    it goes as soon as the layers of a running build alone exceed the limit (seen with Docker 28.2):
    an image of wheels has more than 25 GB of them.
    """
    tenth, fifth = f"{disk // 10}B", f"{disk // 5}B"
    policy = [
        {"filter": ["type=regular"], "keepStorage": tenth, "all": True},
        {"filter": ["type=source.local"], "keepStorage": tenth, "all": True},
        {"keepStorage": fifth, "all": True},
    ]
    settings = {
        "features": {"containerd-snapshotter": True},
        "builder": {"gc": {"enabled": True, "policy": policy}},
    }
    return json.dumps(settings) + "\n"


def _install_engine(distribution: str) -> None:
    if distribution == "debian" and is_bookworm():
        install_newer(*PACKAGES)
    else:
        install("docker.io", "docker-buildx")
    if not DAEMON_JSON.exists():
        log(f"writing {DAEMON_JSON}: images are stored in containerd")
        DAEMON_JSON.parent.mkdir(parents=True, exist_ok=True)
        DAEMON_JSON.write_text(engine_settings(shutil.disk_usage("/var/lib").total))


def remove_stale_pid(name: str, pid_file: Path) -> None:
    """Remove a pid file if it is a link, or if its process is gone, a zombie, or another program.

    A killed engine leaves its pid file behind, and a new one refuses to start while any process
    has that number (proc(5) for the fields).  Through a link, the engine would write to its target.
    """
    if pid_file.is_symlink():
        pid_file.unlink()
    try:
        status = Path(f"/proc/{int(pid_file.read_text())}/status").read_text()
    except (OSError, ValueError):
        status = ""
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    if fields.get("Name") != name or fields.get("State", "").startswith("Z"):
        pid_file.unlink(missing_ok=True)


def start_engine() -> None:
    """Start the engine and wait until it answers."""
    started: subprocess.Popen[bytes] | None = None
    if Path("/run/systemd/system").is_dir():
        log("starting docker.service")
        run(["systemctl", "start", "docker"], "starting docker.service")
    else:
        program = shutil.which("dockerd") or "/usr/sbin/dockerd"
        log(f"starting {program} (log: {ENGINE_LOG})")
        for name, pid_file in PID_FILES.items():
            remove_stale_pid(name, pid_file)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with open(ENGINE_LOG, "ab", opener=lambda name, _: os.open(name, flags, 0o640)) as output:
            started = subprocess.Popen(
                [program],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd="/",
                env=os.environ | {"GOGC": GARBAGE},
            )
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if SOCKET.exists() and _engine_answers():
            return
        if started is not None and started.poll() is not None:
            break
        time.sleep(0.3)
    ended = started is not None and started.poll() is not None
    tail = ENGINE_LOG.read_text(errors="replace").splitlines()[-8:] if ENGINE_LOG.exists() else []
    raise WorldError(
        "Docker does not start" if ended else f"Docker did not answer within {START_TIMEOUT:.0f} s",
        "\n".join(tail),
        f"see {ENGINE_LOG} or `journalctl -u docker`",
    )


def set_up() -> None:
    """Install and start the engine; install git and mmdebstrap where possible."""
    distribution = may_install()
    if not _has_buildx():
        if distribution is None:
            raise WorldError(
                "there is no docker with buildx on this machine",
                "it can only be installed as root on Debian or Ubuntu",
                "install Docker Engine and its buildx plugin, then run this again",
            )
        if _package_of_docker().startswith("docker-ce"):
            raise WorldError(
                "docker has no buildx plugin",
                "it is from Docker's own packages, which Debian's and Ubuntu's would replace",
                "`apt-get install docker-buildx-plugin`, then run this again",
            )
        _install_engine(distribution)
        if not _has_buildx():
            raise WorldError("docker buildx does not work after the installation")
    if not _engine_answers():
        if distribution is None:
            docker.engine()  # raises with a hint
        if shutil.which("dockerd") is None and not Path("/usr/sbin/dockerd").exists():
            _install_engine(str(distribution))
        start_engine()
    missing = [tool for tool in ("git", "mmdebstrap") if shutil.which(tool) is None]
    if distribution is not None and missing:
        install(*missing, "debian-archive-keyring")


def reported(step: Callable[[], None]) -> None:
    """Take a step; on failure exit with the error's code and message."""
    try:
        step()
    except BuilderError as error:
        log("\n  ".join(str(error).splitlines()))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    reported(set_up)
