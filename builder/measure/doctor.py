"""Checks whether this machine can build, and advises on missing parts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from builder.core.errors import BuilderError, WorldError
from builder.core.files import nearest_existing, require_writable
from builder.core.settings import Servers, Settings
from builder.docker import engine as docker
from builder.docker import gpus
from builder.docker.containers import TOOLKIT
from builder.engines.layout import FIRST_DRIVERS, OLDEST_DRIVERS
from builder.sources import apt, git

ENOUGH_DISK = 30.0  # GiB: base 6, build tree and layers of an engine 12, the rest as reserve
SUITE = "trixie"  # any suite does: a mirror of Debian has all suites
ENOUGH_MEMORY = 6.0  # GiB: two nvcc jobs


State = Literal["ok", "optional", "missing"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One property of the machine.

    ``missing`` prevents builds; ``optional`` is not needed, or only for some uses.
    """

    what: str
    state: State
    found: str
    advice: str = ""
    no_gpu: str = ""  # why engines cannot run on a GPU here, or not all of them; empty: no reason


def can_build(findings: Sequence[Finding]) -> str:
    """ "yes", or "no" with what is missing."""
    lacking = [f"{each.what}: {each.found}" for each in findings if each.state == "missing"]
    return f"no: {'; '.join(lacking)}" if lacking else "yes"


def can_run(findings: Sequence[Finding]) -> str:
    """ "yes", or "no" with the first reason: without a GPU the others say nothing."""
    why = next((each.no_gpu for each in findings if each.no_gpu), "")
    return f"no, because {why}" if why else "yes"


def examine(settings: Settings) -> Iterator[Finding]:
    """Check everything; also works without an engine."""
    yield _driver()
    yield from _engine()
    yield from _builders()
    yield _git()
    yield from _machine()
    for what, folder in (("cache", settings.cache_dir), ("state", settings.state_dir)):
        yield _directory(what, folder)
    yield _debian_packages(settings.debian_servers)
    yield _root_tools(settings.debian_mirror)
    yield _logins()


def _engine() -> Iterator[Finding]:
    try:
        yield Finding("buildx", "ok", f"{docker.buildx_version()} ({docker.executable()})")
    except BuilderError as error:
        yield _no_engine("buildx", error)
        return
    try:
        engine = docker.engine()
    except BuilderError as error:
        yield _no_engine("engine", error)
        return
    yield Finding(
        "engine", "ok", f"Docker {engine.version}, {engine.driver}, linux/{engine.architecture}"
    )
    if engine.containerd_store:
        yield Finding("image store", "ok", "containerd: images keep their registry digests")
    else:
        yield Finding(
            "image store",
            "missing",
            "the classic store, which has no manifest digests",
            'put {"features": {"containerd-snapshotter": true}} into /etc/docker/daemon.json',
        )
    yield _disk("disk of Docker", engine.root)
    if engine.has_nvidia_runtime or engine.has_nvidia_cdi:
        yield Finding("GPU runtime", "ok", "nvidia" if engine.has_nvidia_runtime else "CDI")
    else:
        yield Finding(
            "GPU runtime",
            "optional",
            f"none among {', '.join(engine.runtimes)}",
            f"not needed for builds; to run on a GPU here, {TOOLKIT}",
            "Docker has no NVIDIA runtime",
        )


def _no_engine(what: str, error: BuilderError) -> Finding:
    found = ": ".join(filter(None, (error.what, error.why)))
    return Finding(what, "missing", found, error.hint, error.what)


def _driver() -> Finding:
    what = "NVIDIA driver"
    try:
        found = gpus.read(gpus.on_host())
    except BuilderError as error:
        why = f"{error.what}: {error.why}" if error.why else error.what
        return Finding(what, "optional", why, "only needed to run an engine on a GPU", error.what)
    if not found:
        return Finding(what, "optional", "it lists no GPU", "check nvidia-smi", "it lists no GPU")
    names = ", ".join(gpu.name for gpu in found)
    driver = min(filter(None, (gpu.driver for gpu in found)), key=gpus.version_numbers, default="")
    if not driver:
        why = "the version of the driver is not known"
        return Finding(what, "optional", f"{why}: {names}", "check nvidia-smi", why)
    text = f"{driver}: {names}"
    majors = {gpu.capability.partition(".")[0] for gpu in found}
    if not majors & {"", *map(str, FIRST_DRIVERS)}:
        why = "the images are for RTX 50xx and cards of the same generation"
        return Finding(what, "optional", text, why, f"{why}, and this machine has {names}")
    if not gpus.is_older(driver, OLDEST_DRIVERS[max(OLDEST_DRIVERS)]):
        return Finding(what, "ok", text)
    needed = ", ".join(
        f"CUDA {cuda} needs {oldest} or newer" for cuda, oldest in sorted(OLDEST_DRIVERS.items())
    )
    needs = f"of the images, {needed}"
    return Finding(what, "optional", text, needs, f"the driver is {driver}: {needs}")


def _builders() -> Iterator[Finding]:
    try:
        done = docker.call("buildx", "ls")
    except BuilderError:
        return
    lines = [line for line in done.stdout.splitlines()[1:] if line and line[0] not in " \\"]
    names = [" ".join(line.split()[:2]) for line in lines]
    yield Finding("buildx builders", "ok" if names else "missing", "; ".join(names) or done.stderr)


def _git() -> Finding:
    found = git.version()
    wanted = ".".join(map(str, git.OLDEST))
    advice = f"sources and patches need git {wanted} or later: apt-get install git"
    name = ".".join(map(str, found)) if found else "not installed"
    if found is None or found < git.OLDEST:
        return Finding("git", "missing", name, advice)
    return Finding("git", "ok", name)


def _machine() -> Iterator[Finding]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    advice = "an nvcc job takes about 3 GiB: use --jobs 1" if total < ENOUGH_MEMORY else ""
    yield Finding("memory", "optional" if advice else "ok", f"{total:.1f} GiB", advice)
    count = os.cpu_count() or 1
    advice = "compiling an engine takes half an hour or more" if count < 4 else ""
    yield Finding("cores", "optional" if advice else "ok", str(count), advice)


def _directory(what: str, folder: Path) -> Finding:
    hint = f"set BUILDER_{what.upper()}_DIR to a directory that you can write to"
    try:
        require_writable(folder, hint)
    except WorldError as error:
        return Finding(f"{what} directory", "missing", error.why, error.hint)
    return _disk(f"disk of the {what}", folder)


def _disk(what: str, folder: Path) -> Finding:
    free = shutil.disk_usage(nearest_existing(folder)).free / 2**30
    found = f"{free:.1f} GiB free at {folder}"
    if free < ENOUGH_DISK:
        advice = f"an engine needs up to {ENOUGH_DISK:.0f} GiB: `builder clean` frees some"
        return Finding(what, "optional" if free > ENOUGH_DISK / 3 else "missing", found, advice)
    return Finding(what, "ok", found)


def _debian_packages(servers: Servers) -> Finding:
    """Where Debian packages come from that are not in the cache; nothing is asked."""
    what, sources = "Debian packages", apt.sources_at(SUITE, servers.mirror)
    if not sources:
        return Finding(
            what,
            "optional",
            f"from {servers.snapshot} alone: this machine has no package sources of Debian",
            "BUILDER_DEBIAN_MIRROR names a mirror; `builder pin mirror` downloads them in advance",
        )
    # An address may have a password in it.
    hosts = (urlsplit(uri).netloc.rpartition("@")[2] for each in sources for uri in each.uris)
    whose = "BUILDER_DEBIAN_MIRROR" if servers.mirror else "this machine's sources"
    names = ", ".join(dict.fromkeys(hosts))
    return Finding(what, "ok", f"from {names} ({whose}), else from {servers.snapshot}")


def _root_tools(mirror: str) -> Finding:
    path = shutil.which("mmdebstrap")
    if not path:
        advice = "only needed without a registry: apt-get install mmdebstrap"
        return Finding("mmdebstrap", "optional", "not installed", advice)
    known = bool(apt.sources_at(SUITE, mirror))
    source = "the mirror of Debian packages" if known else "its default mirror"
    return Finding("mmdebstrap", "ok", f"{path}, with {source}")


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
        return Finding("registry login", "ok", ", ".join(names))
    return Finding("registry login", "optional", "none", "only needed to push: docker login")
