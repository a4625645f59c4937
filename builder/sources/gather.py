"""A plan's inputs become files on this machine: a clean source tree, wheels, a Debian root.

Everything is verified here; nothing is fetched later but Debian's signed packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.errors import FetchError, WorldError
from builder.patches.context import PatchContext
from builder.patches.series import apply_all
from builder.plan.inputs import BasePlan, BootstrappedRoot, GitCommit, Plan
from builder.platforms import Platforms
from builder.sources import checkout, overlay
from builder.tools import apt
from builder.tools.files import full_disk, mentions_full_disk
from builder.tools.git.repositories import Repositories
from builder.tools.git.repository import EMPTY_TREE
from builder.tools.log import Log
from builder.tools.python import pypi

PATH_EXCLUDES = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")
PATH_INCLUDES = ("/usr/share/doc/*/copyright",)


@dataclass(frozen=True, slots=True)
class Sources:
    """Directories by the name that the Dockerfile's FROM and --mount lines know them by."""

    folders: Mapping[str, Path]
    roots: tuple[Path, ...] = ()
    """Tars of the Debian root, one a platform, where mmdebstrap made them."""
    apt_sources: Path | None = field(default=None)
    """deb822 text: where this machine gets Debian's packages."""


@dataclass(frozen=True, slots=True)
class Materials:
    """What inputs are gathered with: the cache, the engine's image that scripts of patches run
    in (None: none is there), whether nothing may be fetched, and how the base starts."""

    cache: Path
    log: Log
    image: str | None = None
    offline: bool = False
    starts: Mapping[str, Any] = field(default_factory=dict)
    """``entrypoint`` and ``command`` of the base, for what is laid over it."""


def gather(plan: Plan | BasePlan, suite: str | None, materials: Materials, work: Path) -> Sources:
    """Fetch, verify, unpack and patch what ``plan`` names below the directory ``work``.

    ``suite`` is that of the Debian root, where there is one.  Raises ``FetchError`` for what
    cannot be had or is not what was pinned, ``PatchError`` for a patch that does not fit,
    ``WorldError`` for a tool that is missing.
    """
    log = materials.log
    folders: dict[str, Path] = {}
    if plan.scripts:
        folders["inside"] = _scripts(plan, work / "inside")
    for context, locked in plan.packages.items():
        folders[context] = _together(
            pypi.fetch(locked, materials.cache, log, offline=materials.offline), work / context
        )
    if isinstance(plan, Plan):
        make = _overlay if plan.family.extends_base else _source
        folders["source"] = make(plan, materials, work)
    sources = apt.sources_for(suite) if suite else None
    apt_sources = None
    if sources is not None:
        apt_sources = work / "apt.sources"
        apt_sources.write_text(sources)
    roots: tuple[Path, ...] = ()
    if isinstance(plan, BasePlan) and isinstance(plan.root, BootstrappedRoot):
        roots = _bootstrap_all(plan.root, plan.platforms, work, apt_sources, log)
    return Sources(folders, roots, apt_sources)


def _bootstrap_all(
    root: BootstrappedRoot, platforms: Platforms, work: Path, sources: Path | None, log: Log
) -> tuple[Path, ...]:
    made = []
    for architecture in platforms.both:
        target = work / f"rootfs-{architecture}.tar"
        _bootstrap(root, architecture, target, sources, log)
        made.append(target)
    return tuple(made)


def _scripts(plan: Plan | BasePlan, folder: Path) -> Path:
    folder.mkdir()
    for name in plan.scripts:
        target = folder / name
        target.write_bytes((plan.dockerfiles / "scripts" / name).read_bytes())
        target.chmod(0o755)
    return folder


def _together(files: list[Path], folder: Path) -> Path:
    folder.mkdir()
    for file in files:
        try:
            os.link(file, folder / file.name)
        except OSError:
            shutil.copyfile(file, folder / file.name)
    return folder


def _source(plan: Plan, materials: Materials, work: Path) -> Path:
    """A context whose only entry is the tree: a .dockerignore of the tree must not thin it."""
    context = work / "source"
    context.mkdir()
    target = context / "tree"
    cache, log, offline = materials.cache, materials.log, materials.offline
    if not isinstance(plan.source, GitCommit) and not plan.patches:
        checkout.unpack(plan.source, cache, target, log, offline=offline)
        return context

    def write(repositories: Repositories, _: str, patched: str) -> None:
        shutil.rmtree(target, ignore_errors=True)
        repositories.scratch.export(patched, target)

    _patched(plan, materials, work, write)
    return context


def _overlay(plan: Plan, materials: Materials, work: Path) -> Path:
    """What patches change of an installed package; where there are none nothing is fetched."""
    target = work / "source"

    def write(repositories: Repositories, tree: str, patched: str) -> None:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        overlay.write(repositories, tree, patched, materials.starts, target)

    _patched(plan, materials, work, write)
    return target


def _patched(
    plan: Plan,
    materials: Materials,
    work: Path,
    write: Callable[[Repositories, str, str], None],
) -> None:
    """Have ``write`` told the tree of the source and what the patches make of it.

    Where a mirror turns out to be damaged, once more.  What is laid over an installed package
    needs no source where nothing patches it.
    """
    repositories = Repositories(materials.cache, work, materials.log, offline=materials.offline)
    context = PatchContext(repositories, work, materials.image, materials.log)

    def make() -> None:
        tree = EMPTY_TREE
        if plan.patches or not plan.family.extends_base:
            tree = checkout.tree_of(plan.source, repositories, work)
        write(repositories, tree, apply_all(context, tree, plan.patches))

    repositories.repairing(make)


def _bootstrap(
    root: BootstrappedRoot, architecture: str, target: Path, sources: Path | None, log: Log
) -> None:
    if shutil.which("mmdebstrap") is None:
        raise WorldError(
            "the Debian root needs mmdebstrap, or a registry",
            "mmdebstrap is not installed",
            "on Debian or Ubuntu as root ./farm installs it; or set debian_root = "
            '"registry" where one can be reached',
        )
    log(f"mmdebstrap makes the Debian root ({root.suite}, {architecture})")
    command = ["mmdebstrap", "--variant=minbase", "--format=tar", f"--arch={architecture}"]
    command += [f"--include={package}" for package in root.packages]
    command += [f"--dpkgopt=path-exclude={path}" for path in PATH_EXCLUDES]
    command += [f"--dpkgopt=path-include={path}" for path in PATH_INCLUDES]
    if sources is not None:
        # The machine's mirror is no part of the image; builds get it as a secret.
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
