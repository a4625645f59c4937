"""The Debian root of a base, made by mmdebstrap."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from builder.errors import FetchError, WorldError
from builder.plan.inputs import BootstrappedRoot
from builder.platforms import Architecture
from builder.tools.files import full_disk, mentions_full_disk
from builder.tools.log import Log

PATH_EXCLUDES = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")
PATH_INCLUDES = ("/usr/share/doc/*/copyright",)


def bootstrap(
    root: BootstrappedRoot,
    architectures: Sequence[Architecture],
    work: Path,
    sources: Path | None,
    log: Log,
) -> tuple[Path, ...]:
    """Make a Debian root in ``work`` for each architecture; return the tars.

    ``sources`` is a file with the apt sources of this machine, if it has any.  Raises
    ``WorldError`` without mmdebstrap, ``FetchError`` if it fails.
    """
    made = []
    for architecture in architectures:
        target = work / f"rootfs-{architecture}.tar"
        _mmdebstrap(root, architecture, target, sources, log)
        made.append(target)
    return tuple(made)


def _mmdebstrap(
    root: BootstrappedRoot, architecture: str, target: Path, sources: Path | None, log: Log
) -> None:
    if shutil.which("mmdebstrap") is None:
        raise WorldError(
            "the Debian root needs mmdebstrap, or a registry",
            "mmdebstrap is not installed",
            "./farm installs it on Debian and Ubuntu if it runs as root; or set debian_root = "
            '"registry" if this machine reaches one',
        )
    log(f"mmdebstrap makes the Debian root ({root.suite}, {architecture})")
    command = ["mmdebstrap", "--variant=minbase", "--format=tar", f"--arch={architecture}"]
    command += [f"--include={package}" for package in root.packages]
    command += [f"--dpkgopt=path-exclude={path}" for path in PATH_EXCLUDES]
    command += [f"--dpkgopt=path-include={path}" for path in PATH_INCLUDES]
    if sources is not None:
        # The machine's mirror must not be part of the image; builds get it as a secret.
        clean = 'rm -f "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*'
        command += [f"--customize-hook={clean}"]
    command += [root.suite, str(target), *([str(sources)] if sources else [])]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"SOURCE_DATE_EPOCH": "0", "TMPDIR": str(target.parent)},
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        if mentions_full_disk(done.stderr):
            raise full_disk(f"mmdebstrap was writing to {target.parent}", target.parent)
        errors = [line for line in lines if line.startswith("E:")] or lines[-5:]
        raise FetchError(
            f"mmdebstrap could not make the Debian root {root.suite}",
            "\n".join(errors),
            "check that this machine reaches a Debian mirror (apt-get update)",
        )
