"""Checks whether this machine can build, and advises on missing parts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from builder.core.errors import BuilderError
from builder.core.files import nearest_existing
from builder.core.settings import Servers, Settings
from builder.docker import engine as docker
from builder.docker import gpus
from builder.docker.containers import TOOLKIT
from builder.engines.layout import OLDEST_DRIVERS
from builder.sources import apt, git

ENOUGH_DISK = 30.0  # GiB: base 6, build tree and layers of an engine 12, the rest as reserve
SUITE = "trixie"  # any suite does: a mirror of Debian has all suites
ENOUGH_MEMORY = 6.0  # GiB: two nvcc jobs


@dataclass(frozen=True, slots=True)
class Finding:
    """One property of the machine.

    ``missing`` prevents builds; ``could`` is optional, or only needed for some uses.
    """

    what: str
    state: Literal["has", "could", "missing"]
    found: str
    advice: str = ""


def examine(settings: Settings) -> Iterator[Finding]:
    """Check everything; also works without an engine."""
    yield from _engine()
    yield _driver()
    yield from _builders()
    yield _git()
    yield _memory()
    yield _cores()
    yield _disk("disk of the cache", settings.cache_dir)
    yield _debian_packages(settings.debian_servers)
    yield _root_tools(settings.debian_mirror)
    yield _logins()


def _engine() -> Iterator[Finding]:
    try:
        yield Finding("buildx", "has", f"{docker.buildx_version()} ({docker.executable()})")
    except BuilderError as error:
        yield Finding("buildx", "missing", f"{error.what}. {error.why}", error.hint)
        return
    try:
        engine = docker.engine()
    except BuilderError as error:
        yield Finding("engine", "missing", f"{error.what}. {error.why}", error.hint)
        return
    yield Finding(
        "engine", "has", f"Docker {engine.version}, {engine.driver}, linux/{engine.architecture}"
    )
    if engine.containerd_store:
        yield Finding("image store", "has", "containerd: images keep their registry digests")
    else:
        yield Finding(
            "image store",
            "missing",
            "the classic store, which has no manifest digests",
            'put {"features": {"containerd-snapshotter": true}} into /etc/docker/daemon.json',
        )
    yield _disk("disk of Docker", engine.root)
    if engine.has_nvidia_runtime:
        yield Finding("GPU runtime", "has", "nvidia")
    else:
        yield Finding(
            "GPU runtime",
            "could",
            f"none among {', '.join(engine.runtimes)}",
            f"not needed for builds; to run on a GPU here, {TOOLKIT}",
        )


def _driver() -> Finding:
    """NVIDIA's driver: no build needs it."""
    try:
        found = gpus.read(gpus.on_host())
    except BuilderError as error:
        why = f"{error.what}: {error.why}" if error.why else error.what
        return Finding("NVIDIA driver", "could", why, "only needed to run an engine on a GPU")
    if not found:
        return Finding("NVIDIA driver", "could", "it lists no GPU", "check nvidia-smi")
    names = ", ".join(gpu.name for gpu in found)
    driver = min(filter(None, (gpu.driver for gpu in found)), key=gpus.version_numbers, default="")
    if not driver:
        return Finding("NVIDIA driver", "could", f"version not known: {names}", "check nvidia-smi")
    newest = max(OLDEST_DRIVERS)
    if not gpus.is_older(driver, OLDEST_DRIVERS[newest]):
        return Finding("NVIDIA driver", "has", f"{driver}: {names}")
    needed = ", ".join(
        f"CUDA {cuda} needs {oldest} or newer" for cuda, oldest in sorted(OLDEST_DRIVERS.items())
    )
    return Finding("NVIDIA driver", "could", f"{driver}: {names}", f"of the images, {needed}")


def _builders() -> Iterator[Finding]:
    try:
        done = docker.call("buildx", "ls")
    except BuilderError:
        return
    lines = [line for line in done.stdout.splitlines()[1:] if line and line[0] not in " \\"]
    names = [" ".join(line.split()[:2]) for line in lines]
    yield Finding("buildx builders", "has" if names else "missing", "; ".join(names) or done.stderr)


def _git() -> Finding:
    found = git.version()
    wanted = ".".join(map(str, git.OLDEST))
    advice = f"sources and patches need git {wanted} or later: apt-get install git"
    name = ".".join(map(str, found)) if found else "not installed"
    if found is None or found < git.OLDEST:
        return Finding("git", "missing", name, advice)
    return Finding("git", "has", name)


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    found = f"{total:.1f} GiB"
    if total < ENOUGH_MEMORY:
        return Finding("memory", "could", found, "an nvcc job takes about 3 GiB: use --jobs 1")
    return Finding("memory", "has", found)


def _cores() -> Finding:
    count = os.cpu_count() or 1
    advice = "compiling an engine takes half an hour or more" if count < 4 else ""
    return Finding("cores", "could" if advice else "has", str(count), advice)


def _disk(what: str, folder: Path) -> Finding:
    free = shutil.disk_usage(nearest_existing(folder)).free / 2**30
    found = f"{free:.1f} GiB free at {folder}"
    if free < ENOUGH_DISK:
        advice = f"an engine needs up to {ENOUGH_DISK:.0f} GiB: `docker system df`"
        return Finding(what, "could" if free > ENOUGH_DISK / 3 else "missing", found, advice)
    return Finding(what, "has", found)


def _debian_packages(servers: Servers) -> Finding:
    """Where Debian packages come from that are not in the cache; nothing is asked."""
    what, sources = "Debian packages", apt.sources_at(SUITE, servers.mirror)
    if not sources:
        return Finding(
            what,
            "could",
            f"from {servers.snapshot} alone: this machine has no package sources of Debian",
            "BUILDER_DEBIAN_MIRROR names a mirror; `builder pin mirror` downloads them in advance",
        )
    # An address may have a password in it.
    hosts = (urlsplit(uri).netloc.rpartition("@")[2] for each in sources for uri in each.uris)
    whose = "BUILDER_DEBIAN_MIRROR" if servers.mirror else "this machine's sources"
    names = ", ".join(dict.fromkeys(hosts))
    return Finding(what, "has", f"from {names} ({whose}), else from {servers.snapshot}")


def _root_tools(mirror: str) -> Finding:
    path = shutil.which("mmdebstrap")
    if not path:
        advice = "only needed without a registry: apt-get install mmdebstrap"
        return Finding("mmdebstrap", "could", "not installed", advice)
    known = bool(apt.sources_at(SUITE, mirror))
    source = "the mirror of Debian packages" if known else "its default mirror"
    return Finding("mmdebstrap", "has", f"{path}, with {source}")


def _logins() -> Finding:
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        config = {}
    names = sorted({*config.get("auths", {}), *config.get("credHelpers", {})})
    if config.get("credsStore"):
        names.append(f"logins in {config['credsStore']}")
    if names:
        return Finding("registry login", "has", ", ".join(names))
    return Finding("registry login", "could", "none", "only needed to push: docker login")
