"""The Debian root of a base, made by mmdebstrap."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from builder.errors import FetchError, WorldError
from builder.plan.inputs import OF_THIS_MACHINE, BootstrappedRoot
from builder.platforms import Architecture
from builder.tools.apt import index
from builder.tools.files import full_disk, mentions_full_disk
from builder.tools.log import Log

PATH_EXCLUDES = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")
PATH_INCLUDES = ("/usr/share/doc/*/copyright",)
WITHOUT_SOURCES = 'rm -f "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*'

FOREIGN = "apt-get install arch-test qemu-user-static: this machine must run that architecture"
REACHES = "check that this machine reaches a Debian mirror (apt-get update), then build again"


def bootstrap(
    root: BootstrappedRoot, architecture: Architecture, work: Path, sources: Path | None, log: Log
) -> Path:
    """Make a Debian root of the newest packages in ``work``; return the tar.

    ``sources`` is a file with the apt sources of this machine, if it has any.  Raises
    ``WorldError`` without mmdebstrap, ``FetchError`` if it fails.
    """
    options = [f"--include={package}" for package in root.packages]
    if sources is not None:
        # The machine's mirror must not be part of the image; builds get it as a secret.
        options.append(f"--customize-hook={WITHOUT_SOURCES}")
    origin = [str(sources)] if sources else []
    return _mmdebstrap(root.suite, architecture, options, [root.suite], origin, work, log)


def bootstrap_locked(
    root: BootstrappedRoot, architecture: Architecture, debs: Path, work: Path, log: Log
) -> Path:
    """Make a Debian root of exactly the packages of a directory; raises like ``bootstrap``.

    mmdebstrap takes an empty suite: the directory is its only repository.
    """
    options = [f"--include={deb.name.split('_')[0]}" for deb in sorted(debs.glob("*.deb"))]
    options.append(f"--customize-hook={WITHOUT_SOURCES}")
    origin = [index.repository(debs)]
    return _mmdebstrap(root.suite, architecture, options, [""], origin, work, log)


def _mmdebstrap(
    suite: str,
    architecture: Architecture,
    options: Sequence[str],
    named: Sequence[str],
    sources: Sequence[str],
    work: Path,
    log: Log,
) -> Path:
    target = work / f"rootfs-{architecture}.tar"
    if shutil.which("mmdebstrap") is None:
        raise WorldError(
            "the Debian root needs mmdebstrap, or a registry",
            "mmdebstrap is not installed",
            "./farm installs it on Debian and Ubuntu if it runs as root; or set debian_root = "
            '"registry" if this machine reaches one',
        )
    log(f"mmdebstrap makes the Debian root ({suite}, {architecture})")
    command = ["mmdebstrap", "--variant=minbase", "--format=tar", f"--arch={architecture}"]
    command += options
    command += [f"--dpkgopt=path-exclude={path}" for path in PATH_EXCLUDES]
    command += [f"--dpkgopt=path-include={path}" for path in PATH_INCLUDES]
    command += [f'--customize-hook=rm -f "$1"/{name}' for name in OF_THIS_MACHINE]
    command += [*named, str(target), *sources]
    status, stderr = _run(command, work)
    if status != 0:
        lines = stderr.strip().splitlines()
        if mentions_full_disk(stderr):
            raise full_disk(f"mmdebstrap was writing to {work}", work)
        errors = [line for line in lines if line.startswith("E:")] or lines[-5:]
        raise FetchError(
            f"mmdebstrap could not make the Debian root {suite} for {architecture}",
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
    """Unmount all file systems below a directory."""
    for line in reversed(Path("/proc/mounts").read_text("utf-8").splitlines()):
        place = line.split()[1].encode().decode("unicode_escape")  # proc_pid_mounts(5)
        if Path(place).is_relative_to(folder):
            subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)
