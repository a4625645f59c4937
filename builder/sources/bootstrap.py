"""The Debian root of a base, made by mmdebstrap."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from builder.core.errors import FetchError, WorldError
from builder.core.files import full_disk, mentions_full_disk
from builder.core.log import Log
from builder.core.platforms import Architecture
from builder.plan.inputs import OF_THIS_MACHINE, BootstrappedRoot
from builder.sources import index

PATH_EXCLUDES = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")
PATH_INCLUDES = ("/usr/share/doc/*/copyright",)
WITHOUT_SOURCES = 'rm -f "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*'

FOREIGN = "apt-get install arch-test qemu-user-static: this machine must run that architecture"
REACHES = "check that this machine reaches a Debian mirror (apt-get update), then build again"


def bootstrap(
    root: BootstrappedRoot,
    architecture: Architecture,
    work: Path,
    log: Log,
    *,
    sources: Path | None = None,
    debs: Path | None = None,
) -> Path:
    """Make a Debian root in ``work``; return the tar.

    It has exactly the packages of the directory ``debs``; without it, the newest, which a file with
    apt ``sources`` of this machine may name.  Raises ``WorldError`` without mmdebstrap,
    ``FetchError`` if it fails.
    """
    target = work / f"rootfs-{architecture}.tar"
    if shutil.which("mmdebstrap") is None:
        raise WorldError(
            "the Debian root needs mmdebstrap, or a registry",
            "mmdebstrap is not installed",
            "./farm installs it on Debian and Ubuntu if it runs as root; or set debian_root = "
            '"registry" if this machine reaches one',
        )
    log(f"mmdebstrap makes the Debian root ({root.suite}, {architecture})")
    packages: Iterable[str] = root.packages
    suite, origin = root.suite, [str(sources)] if sources else []
    if debs is not None:
        packages = (deb.name.split("_")[0] for deb in sorted(debs.glob("*.deb")))
        suite, origin = "", [index.repository(debs)]  # no suite: that is its only repository
    command = ["mmdebstrap", "--variant=minbase", "--format=tar", f"--arch={architecture}"]
    command += [f"--include={package}" for package in packages]
    if origin:
        # The machine's mirror must not be part of the image; builds get it as a secret.
        command.append(f"--customize-hook={WITHOUT_SOURCES}")
    command += [f"--dpkgopt=path-exclude={path}" for path in PATH_EXCLUDES]
    command += [f"--dpkgopt=path-include={path}" for path in PATH_INCLUDES]
    command += [f'--customize-hook=rm -f "$1"/{name}' for name in OF_THIS_MACHINE]
    command += [suite, str(target), *origin]
    status, stderr = _run(command, work)
    if status != 0:
        lines = stderr.strip().splitlines()
        if mentions_full_disk(stderr):
            raise full_disk(f"mmdebstrap was writing to {work}", work)
        errors = [line for line in lines if line.startswith("E:")] or lines[-5:]
        raise FetchError(
            f"mmdebstrap could not make the Debian root {root.suite} for {architecture}",
            "\n".join(errors),
            FOREIGN if "arch-test" in stderr else REACHES,
        )
    return target


def _run(command: Sequence[str], work: Path) -> tuple[int, str]:
    """Run mmdebstrap in ``work``; its exit status, and its standard error.

    It mounts /proc and /sys in the root.  On an interrupt it is waited for until it has unmounted
    them: its processes get one signal, as from a terminal, so they have a process group of their
    own.  Under load it has left its mounts, when interrupted and when it failed.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"SOURCE_DATE_EPOCH": "0", "TMPDIR": str(work)},
        process_group=0,
    ) as process:
        try:
            _, errors = process.communicate()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.communicate()
            raise
        finally:
            _unmount(work)
    return process.returncode, errors


def _unmount(folder: Path) -> None:
    for line in reversed(Path("/proc/mounts").read_text("utf-8").splitlines()):
        place = line.split()[1].encode().decode("unicode_escape")  # proc_pid_mounts(5)
        if Path(place).is_relative_to(folder):
            subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)
