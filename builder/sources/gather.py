"""The inputs of a plan as files on this machine: a clean source tree, wheels, a Debian root.

All of them are verified here; the build fetches only Debian packages that have no lock, signed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.core.errors import FetchError, GoneError
from builder.core.files import workspace
from builder.core.log import Log
from builder.core.settings import Servers
from builder.engines.tree import is_lfs_pointer
from builder.plan.debian import DebianPackages
from builder.plan.inputs import BootstrappedRoot, GitCommit
from builder.plan.plan import AnyPlan, Plan
from builder.recipes.locks import DebianFile
from builder.recipes.patches import PickPatch, PullPatch
from builder.sources import apt as debs
from builder.sources import checkout, overlay, pypi
from builder.sources import sources as apt
from builder.sources.apt import archive_of
from builder.sources.bootstrap import bootstrap
from builder.sources.context import BuildContext, keeping_ptx
from builder.sources.patches import apply_all, pieces
from builder.sources.patches_context import PatchContext
from builder.sources.repositories import Repositories
from builder.sources.repository import EMPTY_TREE

LARGEST_POINTER = 1024  # bytes: git-lfs's docs/spec.md


@dataclass(frozen=True, slots=True)
class GatherOptions:
    """Where and how inputs are gathered.

    ``image`` is the engine's image, in which scripts of patches run; None if there is none.
    ``offline`` fetches nothing.
    """

    cache: Path
    log: Log
    image: str | None = None
    offline: bool = False
    debian: Servers = field(default_factory=Servers)
    """The servers of Debian packages."""
    base_start: Mapping[str, Any] = field(default_factory=dict)
    """``entrypoint`` and ``command`` of the base, for an overlay."""
    bases: Mapping[str, str] = field(default_factory=dict)
    """The images of the base by stage, as ``--build-context`` takes them."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Build arguments."""
    epoch: int = 0
    """The time of the base, in seconds since 1970; a source that is a newer commit has its own."""


def fetch(plan: AnyPlan, options: GatherOptions) -> None:
    """Fetch the files of ``plan`` that have a digest into the cache: wheels and Debian packages.

    Raises ``FetchError``.
    """
    for locked in plan.packages.values():
        pypi.fetch(locked, options.cache, options.log, offline=options.offline)
    _debs_of(plan, options)


def fetch_commits(plan: Plan, options: GatherOptions) -> None:
    """Fetch the commits of ``plan`` that are pins into the cache: of its source and its patches.

    Raises ``FetchError``; ``PatchError`` for a pull request or a range that is no branch.
    """
    with (
        workspace(options.cache) as work,
        closing(
            Repositories(options.cache, work, options.log, offline=options.offline)
        ) as repositories,
    ):
        if isinstance(plan.source, GitCommit):
            repositories.pin(plan.source.url, plan.source.commit)
        context = PatchContext(repositories, work, None, options.log)
        pinned = [each for each in plan.patches if isinstance(each.patch, PullPatch | PickPatch)]
        for each in pinned:
            list(pieces(context, each, ""))


def gather(plan: AnyPlan, options: GatherOptions, work: Path) -> BuildContext:
    """The build context of ``plan``: its inputs fetched, verified, unpacked and patched.

    It is made below the directory ``work``, which is empty.

    Raises ``FetchError`` for an input that cannot be fetched or differs from its pin,
    ``PatchError`` for a patch that does not fit, ``WorldError`` for a missing tool.
    """
    log = options.log
    folders: dict[str, Path] = {}
    epoch = options.epoch
    if plan.scripts:
        folders["inside"] = _copied(plan.dockerfiles / "scripts", plan.scripts, work / "inside")
    if plan.entrypoint:
        folders["entrypoint-source"] = _copied(
            plan.dockerfiles / "entrypoint", plan.entrypoint, work / "entrypoint-source"
        )
    for context, locked in plan.packages.items():
        folders[context] = _together(
            pypi.fetch(locked, options.cache, log, offline=options.offline), work / context
        )
    if isinstance(plan, Plan):
        make = _overlay if plan.family.package_paths else _source
        folders["source"], committed = make(plan, options, work)
        epoch = max(epoch, committed)
    for install in plan.debian.stages.values():
        if install.files is not None:
            folders[install.context] = work / install.context
    _fetch_debs(plan, options, work)
    secrets = _apt_sources(plan, options, work)
    folder = work / "context"
    folder.mkdir()
    if isinstance(plan.root, BootstrappedRoot):
        for root in _roots(plan.root, plan.debian, secrets.get("apt-sources"), work, log):
            root.rename(folder / root.name)
    text, wrapper = keeping_ptx(plan, work)
    (folder / "Dockerfile").write_text(text)
    named = {name: str(path) for name, path in folders.items()} | wrapper
    named |= {f"base-{stage}": where for stage, where in options.bases.items()}
    arguments = {**options.arguments, "SOURCE_DATE_EPOCH": str(epoch)}
    platforms = {
        stage: tuple(f"linux/{name}" for name in plan.architectures(stage)) for stage in plan.stages
    }
    return BuildContext(folder, named, secrets, arguments, platforms, epoch)


def _apt_sources(plan: AnyPlan, options: GatherOptions, work: Path) -> dict[str, Path]:
    """The apt sources of this machine, a deb822 file, where some packages are not locked."""
    if not plan.suite or plan.debian.locked:
        return {}
    sources = apt.deb822(apt.sources_at(plan.suite, options.debian.mirror))
    if not sources:
        return {}
    file = work / "apt.sources"
    file.write_text(sources)
    return {"apt-sources": file}


def _fetch_debs(plan: AnyPlan, options: GatherOptions, work: Path) -> None:
    """Lay out the locked packages: a directory for each context, and in it for each architecture.

    An architecture names the machine that installs them, which may have packages of another.
    """
    packages = plan.debian
    if not packages.locked:
        options.log(
            f"{plan.name} installs the Debian packages of today: `builder pin lock {plan.name}` "
            "records them, so that the image can be built again"
        )
    paths = _debs_of(plan, options)
    for install in packages.installs:
        folder = work / install.context / install.architecture
        folder.parent.mkdir(exist_ok=True)
        _together([paths[file] for file in install.files or ()], folder)


def _debs_of(plan: AnyPlan, options: GatherOptions) -> dict[DebianFile, Path]:
    packages = plan.debian
    if packages.as_of is None:
        return {}
    archive = archive_of(packages.suite, options.debian)
    files, cache, log = packages.files, options.cache, options.log
    try:
        found = debs.fetch(files, packages.as_of, archive, cache, log, offline=options.offline)
    except GoneError as error:
        hint = f"`builder pin lock {plan.name}` locks the packages of today"
        raise GoneError(error.what, error.why, hint) from error
    return dict(zip(files, found, strict=True))


def _roots(
    root: BootstrappedRoot,
    packages: DebianPackages,
    apt_sources: Path | None,
    work: Path,
    log: Log,
) -> Iterator[Path]:
    for install in packages.installs:
        folder = (
            work / install.context / install.architecture if install.files is not None else None
        )
        yield bootstrap(root, install.architecture, work, log, sources=apt_sources, debs=folder)


def _copied(source: Path, names: Iterable[str], folder: Path) -> Path:
    folder.mkdir()
    for name in names:
        target = folder / name
        target.write_bytes((source / name).read_bytes())
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


def source_of(plan: Plan, options: GatherOptions, work: Path) -> tuple[Path, int]:
    """The patched source tree of a plan that compiles one, below the directory ``work``; and the
    time of its commit, in seconds since 1970 (0: it has none).

    Raises like ``gather``.
    """
    context, committed = _source(plan, options, work)
    return context / "tree", committed


def _source(plan: Plan, options: GatherOptions, work: Path) -> tuple[Path, int]:
    """A context with the tree in a subdirectory, where its .dockerignore has no effect; and the
    time of its commit (0: it has none)."""
    context = work / "source"
    context.mkdir()
    target = context / "tree"
    cache, log, offline = options.cache, options.log, options.offline
    if not isinstance(plan.source, GitCommit) and not plan.patches:
        checkout.unpack(plan.source, cache, target, log, offline=offline)
        return context, 0
    with _patched(plan, options, work) as (repositories, _, patched, committed):
        repositories.scratch.export(patched, target)
    _require_contents(plan, target, log)
    return context, committed


def _require_contents(plan: Plan, tree: Path, log: Log) -> None:
    """Name the files of a tree that are pointers of Git LFS: nothing here asks its server.

    Raises ``FetchError`` where the engine needs one of them.
    """
    files = {str(path.relative_to(tree)): path for path in tree.rglob("*")}
    pointers = {
        name
        for name, path in files.items()
        if path.is_file()
        and not path.is_symlink()
        and path.stat().st_size <= LARGEST_POINTER
        and is_lfs_pointer(path.read_text("utf-8", "replace"))
    }
    if not pointers:
        return
    named = ", ".join(sorted(pointers)[:3]) + (", ..." if len(pointers) > 3 else "")
    log(f"{len(pointers)} files of {plan.name} are pointers of Git LFS, without contents: {named}")
    lost = [message for _, message in plan.family.absent(plan.recipe, files.keys() - pointers)]
    if lost:
        raise FetchError(
            f"the source of {plan.name} lacks the contents of files",
            "\n".join([*lost, f"pointers of Git LFS are no contents: {named}"]),
            "take a commit, or a source, that has the files themselves",
        )


def _overlay(plan: Plan, options: GatherOptions, work: Path) -> tuple[Path, int]:
    """The files of an installed package that patches change, and the time of the commit (0: there
    is none); without patches nothing is fetched."""
    target = work / "source"
    target.mkdir()
    root, starts = plan.family.package_root, options.base_start
    with _patched(plan, options, work) as (repositories, tree, patched, committed):
        overlay.write(repositories, (tree, patched), root, starts, target)
    return target, committed


@contextmanager
def _patched(
    plan: Plan, options: GatherOptions, work: Path
) -> Iterator[tuple[Repositories, str, str, int]]:
    """The tree of the source, the patched tree, and the time of its commit (0: it has none).

    An overlay without patches needs no source.
    """
    repositories = Repositories(options.cache, work, options.log, offline=options.offline)
    with closing(repositories):
        tree, committed = EMPTY_TREE, 0
        if plan.patches or not plan.family.package_paths:
            tree = checkout.tree_of(plan.source, repositories, work)
            if isinstance(plan.source, GitCommit):
                committed = repositories.scratch.time_of(plan.source.commit)
        context = PatchContext(repositories, work, options.image, options.log)
        yield repositories, tree, apply_all(context, tree, plan.patches), committed
