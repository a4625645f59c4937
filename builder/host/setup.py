"""Sets up a new machine: the Docker engine with buildx, git, and mmdebstrap.

Run by ``./farm`` as ``python -m builder.host.setup``.  Every step is announced, and an
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from builder.errors import BuilderError, WorldError
from builder.tools.apt import sources as apt
from builder.tools.docker import client
from builder.tools.docker import engine as docker

SOCKET = Path("/var/run/docker.sock")
DAEMON_JSON = Path("/etc/docker/daemon.json")
ENGINE_LOG = Path("/var/log/dockerd.log")
# Growth of the heap, in percent, between two runs of Go's garbage collector in dockerd and
# containerd: with Go's own 100 they spend a tenth of their time in it, on heaps of tens of MB.
GARBAGE = "400"
PACKAGES = ("docker.io", "docker-cli", "docker-buildx", "containerd")
# bookworm's docker.io is 20.10 and has no buildx. These four of trixie need no newer libc.
NEWER_SUITE = "trixie"
NEWER_TOOLS = ("cosign", "docker-compose")  # bookworm has no cosign, and the old Compose
QUADLET = Path("/usr/local/libexec/podman/quadlet")
PROGRAMS = {
    "podman": "/usr/libexec/podman/quadlet",
    "docker-compose": "/usr/libexec/docker/cli-plugins/docker-compose",
    "docker-compose-v2": "/usr/libexec/docker/cli-plugins/docker-compose",
}
"""The program of a package that does not have its name."""
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


def engine_answers() -> bool:
    """Whether an engine answers."""
    try:
        docker.engine()
    except BuilderError:
        return False
    return True


def has_buildx() -> bool:
    """Whether a docker with the buildx plugin is on PATH."""
    client.executable.cache_clear()
    client.whales.cache_clear()
    try:
        client.executable()
    except WorldError:
        return False
    return True


def _may_install() -> str | None:
    """The distribution's ID if this process may install its packages, else None."""
    distribution = apt.os_release().get("ID", "")
    return distribution if distribution in {"debian", "ubuntu"} and os.geteuid() == 0 else None


@cache
def read_package_lists() -> None:
    """Have apt read the distribution's package lists, once; raises ``WorldError``."""
    log("reading the package lists")
    run(["apt-get", "-qq", "update"], "apt-get update")


def install_engine(distribution: str) -> None:
    """Install Docker and buildx from the distribution's packages."""
    codename = apt.os_release().get("VERSION_CODENAME", "")
    read_package_lists()
    if distribution == "debian" and codename == "bookworm":
        _install_newer(NEWER_SUITE, PACKAGES)
    else:
        packages = ["docker.io", "docker-buildx"]
        log(f"installing {' '.join(packages)}")
        run([*INSTALL, *packages], "installing Docker")


INSTALL = ("apt-get", "-qq", "install", "--yes", "--no-install-recommends")


def _install_newer(suite: str, packages: Sequence[str]) -> None:
    """Install packages of a newer suite, without adding the suite to apt's configuration."""
    with _downloaded(suite, packages) as debs:
        log("installing them with their dependencies")
        run([*INSTALL, *map(str, debs)], f"installing {packages[0]}")


def _install_quadlet() -> None:
    """Take Podman's generator alone: Podman itself needs a newer libc than bookworm has."""
    with _downloaded(NEWER_SUITE, ["podman"]) as debs, tempfile.TemporaryDirectory() as folder:
        run(["dpkg-deb", "--extract", str(debs[0]), folder], "unpacking podman")
        QUADLET.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(f"{folder}/usr/libexec/podman/quadlet", QUADLET)


@contextmanager
def _downloaded(suite: str, packages: Sequence[str]) -> Iterator[list[Path]]:
    sources = apt.sources_for(suite)
    if sources is None:
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
        options = [
            f"-oDir::Etc::SourceList={folder / 'suite.sources'}",
            "-oDir::Etc::SourceParts=/dev/null",
            f"-oDir::State::Lists={folder / 'lists'}",
            f"-oDir::Cache::Archives={folder / 'archives'}",
            f"-oDir::Cache::pkgcache={folder / 'pkgcache'}",
            f"-oDir::Cache::srcpkgcache={folder / 'srcpkgcache'}",
            "-oAPT::Sandbox::User=root",
        ]
        log(f"downloading {' '.join(packages)} from {suite}")
        run(["apt-get", "-qq", *options, "update"], f"apt-get update of {suite}")
        fetch = f'cd {folder / "debs"} && exec "$@"'
        run(
            ["sh", "-c", fetch, "fetch", "apt-get", "-qq", *options, "download", *packages],
            f"downloading packages from {suite}",
        )
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


def configure_engine() -> None:
    """Write the settings of a new engine, unless it has some."""
    if DAEMON_JSON.exists():
        return
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
    """Start the engine and wait until it answers; raises ``WorldError`` if it does not."""
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
        if SOCKET.exists() and engine_answers():
            return
        if started is not None and started.poll() is not None:
            break
        time.sleep(0.3)
    tail = ENGINE_LOG.read_text(errors="replace").splitlines()[-8:] if ENGINE_LOG.exists() else []
    raise WorldError(
        "Docker does not start"
        if started is not None and started.poll() is not None
        else f"Docker did not answer within {START_TIMEOUT:.0f} s",
        "\n".join(tail),
        f"see {ENGINE_LOG} or `journalctl -u docker`",
    )


def set_up(for_tests: bool) -> None:
    """Install and start the engine; install git and mmdebstrap where possible.

    ``for_tests`` adds programs for the tests: docker-registry, cosign, Docker Compose,
    Podman's Quadlet, and g++ and make for the PTX interpreter.
    """
    distribution = _may_install()
    if not has_buildx():
        if distribution is None:
            raise WorldError(
                "there is no docker with buildx on this machine",
                "it can only be installed as root on Debian or Ubuntu",
                "install Docker Engine and its buildx plugin, then run this again",
            )
        install_engine(distribution)
        configure_engine()
        if not has_buildx():
            raise WorldError("docker buildx does not work after the installation")
    if not engine_answers():
        if distribution is None:
            docker.engine()  # raises with a hint
        if shutil.which("dockerd") is None and not Path("/usr/sbin/dockerd").exists():
            install_engine(str(distribution))
            configure_engine()
        start_engine()
    if distribution is not None:
        _install_tools(distribution, for_tests)


def _install_tools(distribution: str, for_tests: bool) -> None:
    """Install missing programs, each from the package of the same name."""
    tools = ["git", "mmdebstrap", *(["docker-registry", "g++", "make"] if for_tests else [])]
    if for_tests:  # Ubuntu has no cosign
        tools += NEWER_TOOLS if distribution == "debian" else ["docker-compose-v2"]
        tools += [] if QUADLET.exists() else ["podman"]
    missing = [tool for tool in tools if shutil.which(PROGRAMS.get(tool, tool)) is None]
    if not missing:
        return
    log(f"installing {' '.join(missing)}")
    read_package_lists()
    newer = [tool for tool in missing if tool in NEWER_TOOLS]
    if apt.os_release().get("VERSION_CODENAME", "") == "bookworm":
        if "podman" in missing:
            _install_quadlet()
        missing = [tool for tool in missing if tool not in {*newer, "podman"}]
        if newer:
            _install_newer(NEWER_SUITE, newer)
    if missing:
        run([*INSTALL, *missing, "debian-archive-keyring"], f"installing {missing[0]}")


def main() -> None:
    """Set up the machine; on failure exit with the error's code and message."""
    try:
        set_up(for_tests="--for-tests" in sys.argv[1:])
    except BuilderError as error:
        log("\n  ".join(str(error).splitlines()))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
