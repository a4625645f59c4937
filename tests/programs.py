"""Installs what the tests need beside Docker; `./farm test` runs it after `builder.measure.setup`.

These are docker-registry, cosign, Docker Compose, Podman's Quadlet, and g++ and make for the PTX
interpreter; and cosign 3 and oras, for tests of what strangers read, which skip without them.  As
root on Debian or Ubuntu, each comes from the package of its name; elsewhere the tests that need one
say so.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from builder.measure.setup import (
    NEWER_SUITE,
    downloaded,
    install,
    install_newer,
    is_bookworm,
    may_install,
    reported,
    run,
)

QUADLET = Path("/usr/local/libexec/podman/quadlet")
COMPOSE = "/usr/libexec/docker/cli-plugins/docker-compose"
STRANGERS = Path("/usr/local/libexec/builder-tests")
"""Has cosign 3 and oras: Debian has them in unstable alone, and the cosign of PATH is 2."""
PROGRAMS = {
    "podman": "/usr/libexec/podman/quadlet",
    "docker-compose": COMPOSE,
    "docker-compose-v2": COMPOSE,
}
"""The program of a package that does not have its name."""


def install_missing() -> None:
    """Install the missing programs; raises ``WorldError``."""
    distribution = may_install()
    if distribution is None:
        return
    # Ubuntu has no cosign.
    newer = ["cosign", "docker-compose"] if distribution == "debian" else ["docker-compose-v2"]
    tools = ["docker-registry", "g++", "make", *newer, *([] if QUADLET.exists() else ["podman"])]
    missing = [tool for tool in tools if shutil.which(PROGRAMS.get(tool, tool)) is None]
    if is_bookworm():  # it has no cosign, and the old Compose
        if "podman" in missing:
            install_quadlet()
        if found := [tool for tool in newer if tool in missing]:
            install_newer(*found)
        missing = [tool for tool in missing if tool not in {*newer, "podman"}]
    if missing:
        install(*missing)
    if distribution == "debian" and not (STRANGERS / "oras").exists():
        take("sid", ["cosign", "oras"], STRANGERS)


def install_quadlet() -> None:
    """Take Podman's generator alone: Podman itself needs a newer libc than bookworm has."""
    take(NEWER_SUITE, ["podman"], QUADLET.parent, "usr/libexec/podman/quadlet")


def take(suite: str, packages: list[str], to: Path, *files: str) -> None:
    """Copy programs out of packages; default: the programs with the names of the packages."""
    with downloaded(*packages, suite=suite) as found, tempfile.TemporaryDirectory() as folder:
        for package in found:
            run(["dpkg-deb", "--extract", str(package), folder], f"unpacking {package.name}")
        to.mkdir(parents=True, exist_ok=True)
        for file in files or [f"usr/bin/{name}" for name in packages]:
            shutil.copy2(f"{folder}/{file}", to)


if __name__ == "__main__":
    reported(install_missing)
