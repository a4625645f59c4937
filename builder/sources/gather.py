"""The inputs of a plan as files on this machine: a clean source tree, wheels, a Debian root.

All of them are verified here; the build fetches only Debian packages that have no lock, signed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder.core import archives, farm
from builder.core.errors import FetchError, GoneError, PatchError, WorldError
from builder.core.files import full_disk, link, mentions_full_disk, workspace
from builder.core.log import Log
from builder.core.platforms import Architecture
from builder.core.remote_file import PartialReadError
from builder.core.settings import Servers
from builder.core.web import stored
from builder.docker import buildx
from builder.engines.family import is_lfs_pointer
from builder.engines.layout import LAYOUT
from builder.plan import inputs
from builder.plan.inputs import (
    OF_THIS_MACHINE,
    BootstrappedRoot,
    GitCommit,
    Installed,
    LocalTree,
    PypiFile,
    SourceChoice,
)
from builder.plan.plan import AnyPlan, Plan
from builder.recipes.locks import DebianFile
from builder.recipes.patches import PickPatch, PullPatch
from builder.sources import apt, git, npm, pypi
from builder.sources.git import EMPTY_TREE, NoTreeError
from builder.sources.mirrors import Repositories, submodule_urls
from builder.sources.patches import PatchContext, apply_all, pieces

# A source as a tree: of git's objects if it is patched or pinned by commit, else of files.


def tree_of(source: SourceChoice, repositories: Repositories, work: Path) -> str:
    """The source as a tree of the scratch repository, submodules in their places.

    ``work`` is an empty directory.  Raises ``FetchError``.
    """
    if isinstance(source, GitCommit):
        return repositories.tree(
            source.url, source.commit, submodules=source.submodules, moved=source.moved
        )
    folder = work / "files"
    _unpack(source, repositories.cache, folder, repositories.log, offline=repositories.offline)
    return _stored(source, folder, repositories)


def _stored(source: SourceChoice, folder: Path, repositories: Repositories) -> str:
    try:
        tree = repositories.scratch.tree_from(folder)
    except NoTreeError as error:
        raise FetchError(
            "git cannot store the source, so it cannot be patched", str(error)
        ) from error
    shutil.rmtree(folder)
    if isinstance(source, PypiFile) and source.below:
        return repositories.scratch.with_submodules(EMPTY_TREE, {source.below: tree})
    return tree


def tree_to_try(source: SourceChoice, repositories: Repositories, work: Path) -> tuple[str, str]:
    """The tree of a source to try patches on, never to build from, and a note of its origin.

    Only the text files of a wheel that is not in the cache are fetched; the whole wheel is, if the
    index serves no parts, or other contents than the wheel's RECORD names.  Raises ``FetchError``.
    """
    if not isinstance(source, PypiFile) or repositories.offline:
        return tree_of(source, repositories, work), ""
    file, folder = source.file, work / "files"
    texts = source.texts_only and source.root == "."
    if texts and stored(repositories.cache / "pypi" / file.sha256) is None:
        try:
            pypi.fetch_text_files(file, folder, repositories.log)
        except PartialReadError as error:
            repositories.log(f"{file.name} {file.version} is fetched as a whole: {error}")
            shutil.rmtree(folder, ignore_errors=True)
        else:
            note = (
                f"{file.name} {file.version} was read in part: each file has the hash in the "
                "wheel's own RECORD; a build verifies the sha256 of the whole wheel"
            )
            return _stored(source, folder, repositories), note
    return tree_of(source, repositories, work), ""


def _unpack(
    source: LocalTree | PypiFile | Installed,
    cache: Path,
    target: Path,
    log: Log,
    *,
    offline: bool,
) -> None:
    """Write a source other than a commit to the new directory ``target``.

    A wheel's own directory, or an sdist's below its single top directory.
    """
    if isinstance(source, Installed):
        raise FetchError(
            f"the files of {source.name} in the base are unknown before it is built",
            hint="name a wheel (pypi) or a commit (git) as the source",
        )
    if isinstance(source, LocalTree):
        for file in inputs.tree_files(source.path):
            copy = target / file.relative_to(source.path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy, follow_symlinks=False)
        if inputs.identity(target) != source.identity:
            raise FetchError(f"{source.path} changed while it was read", hint="run the build again")
        return
    folder = target.with_name(f"{target.name}-unpacked")
    try:
        _, part = _unpacked(source, cache, folder, log, offline=offline)
        part.rename(target)
        if (link := target / ".git").is_file():  # of a submodule: it leads out of the tree
            link.unlink()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unpacked(
    source: PypiFile, cache: Path, folder: Path, log: Log, *, offline: bool
) -> tuple[Path, Path]:
    """A file of PyPI, unpacked into the new ``folder``: its top directory, and the source in it."""
    (archive,) = pypi.fetch([source.file], cache, log, offline=offline)
    archives.unpack(archive, folder, texts_only=source.texts_only)
    top = folder
    if not archive.name.endswith(".whl"):
        inside = [path for path in folder.iterdir() if path.is_dir()]
        if len(inside) != 1:
            raise FetchError(f"{archive.name} is not an sdist", "it has no single top directory")
        top = inside[0]
    part = archives.subdirectory_of(top, source.root, archive.name)
    for file in part.rglob(".git"):
        if file.is_file() and file.parent != part:  # of a submodule below: it leads out of the tree
            file.unlink()
    return top, part


@dataclass(frozen=True, slots=True)
class Vendored:
    """The source in an sdist as a tree of the scratch repository, and what the sdist says of it.

    ``url`` is the submodule's in the sdist's .gitmodules.  ``commit`` is the one whose tree this
    is, by the commit object that the sdist contains.  Empty: the sdist does not say it.
    """

    tree: str
    url: str
    commit: str


def vendored(source: PypiFile, repositories: Repositories, work: Path) -> Vendored:
    """The source in an sdist, which is fetched whole; ``work`` is a directory.

    Raises ``FetchError``.
    """
    scratch, log, offline = repositories.scratch, repositories.log, repositories.offline
    folder = work / f"sdist-{source.file.sha256}"
    try:
        top, part = _unpacked(source, repositories.cache, folder, log, offline=offline)
        modules = folder / "modules"
        modules.mkdir()
        if (top / ".gitmodules").is_file():
            shutil.copyfile(top / ".gitmodules", modules / ".gitmodules")
        url = submodule_urls(scratch, scratch.tree_from(modules)).get(source.root, "")
        tree = scratch.tree_from(part)
        return Vendored(tree, url.removesuffix(".git"), _commit_of(part, top, tree, scratch))
    except NoTreeError as error:
        hint = "name the directory of the source in it: root"
        raise FetchError(f"{source.root} of the sdist is no tree", str(error), hint) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _commit_of(part: Path, top: Path, tree: str, scratch: git.Scratch) -> str:
    """The commit of a tree, by the repository of the submodule in an sdist."""
    link = part / ".git"
    text = link.read_text("utf-8", "replace") if link.is_file() else ""
    folder = (part / text.removeprefix("gitdir:").strip()).resolve()
    head = folder / "HEAD"
    if not folder.is_relative_to(top.resolve()) or not head.is_file():
        return ""
    commit = head.read_text("utf-8", "replace").strip()
    if not git.COMMIT.fullmatch(commit):
        return ""
    there = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(folder / "objects")}
    try:
        content, _ = git.run(scratch.folder, "cat-file", "commit", commit, environment=there)
    except git.GitError:
        return ""
    named = hashlib.sha1(b"commit %d\0" % len(content) + content, usedforsecurity=False)
    whole = named.hexdigest() == commit and content.startswith(f"tree {tree}\n".encode())
    return commit if whole else ""


# The overlay of a patched tree: only the files that changed, and the hash of each old one.

NO_OBJECT = "0" * 40
EXECUTABLE = "100755"
FILES = frozenset({"000000", "100644", EXECUTABLE})  # git's modes: none, file, executable


def write_overlay(
    repositories: Repositories,
    trees: tuple[str, str],
    root: str,
    starts: Mapping[str, Any],
    target: Path,
) -> None:
    """Write the difference of two trees, before and after, to the new directory ``target``.

    The image has the directory ``root`` of the trees (empty: all) beside its packages.
    ``manifest.json`` lists path, sha256 before and after (null: no file), and ``executable`` if
    that changes; ``files`` holds the new files; ``starts.json`` the base's entrypoint and command.
    Raises ``PatchError`` for a change of a symbolic link or a submodule, or outside ``root``.
    """
    scratch, (old, new), prefix = repositories.scratch, trees, f"{root}/" if root else ""
    manifest = []
    for before, after in scratch.changes(old, new) if old != new else ():
        if not {before.mode, after.mode} <= FILES:
            raise PatchError(
                f"{after.path} is not a file before and after the patch",
                "an overlay has only files",
            )
        if not after.path.startswith(prefix):
            raise PatchError(
                f"{after.path} is outside of {prefix}",
                f"an overlay has installed files only, which the repository has in {prefix}",
                "correct `to` or `edits` in the recipe",
            )
        path = after.path.removeprefix(prefix)
        change: dict[str, Any] = {"path": path}
        for side, item in (("before", before), ("after", after)):
            content = scratch.read(item.object) if item.object != NO_OBJECT else None
            change[side] = None if content is None else hashlib.sha256(content).hexdigest()
        manifest.append(change)
        if content is not None:
            if EXECUTABLE in {before.mode, after.mode} and before.mode != after.mode:
                change["executable"] = after.mode == EXECUTABLE
            file = target / "files" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    (target / "files").mkdir(parents=True, exist_ok=True)
    (target / "manifest.json").write_text(json.dumps(manifest, indent=2))
    (target / "starts.json").write_text(json.dumps(starts))


# The build context: the Dockerfile, named contexts, secrets and build arguments.
#
# While an engine is compiled, the PTX that nvcc writes on the way to machine code is kept: in the
# step that compiles, dockerfiles/scripts/ptxas is mounted over the toolkit's ``ptxas``.  The
# script ``counted`` runs the command of that step, and prints how many objects the compiler cache
# had. Neither changes a byte of the image, so they are no part of the plan: the key has the
# Dockerfile without them.

WRAPPERS = "wrappers"  # the named context of both scripts
SCRIPTS = ("ptxas", "counted")
BUILD_STAGE = re.compile(r"^FROM (.*\bbase-devel) AS build$", re.MULTILINE)
COMPILE = re.compile(r'^(RUN .*)\["/inside/jobs", ', re.MULTILINE)
MOUNTS = (
    f"--mount=type=bind,from={WRAPPERS},source=ptxas,target={LAYOUT.cuda}/bin/ptxas "
    f"--mount=type=bind,from={WRAPPERS},source=counted,target=/counted "
    f"--mount=type=bind,from=toolkit,source={LAYOUT.cuda}/bin,target=/toolkit "
)


@dataclass(frozen=True, slots=True)
class BuildContext:
    """A build context that ``docker buildx build`` takes.

    ``named`` are directories, or where images of the base are found; ``platforms`` ("linux/amd64")
    are by stage that becomes an image.  ``epoch`` is the time of the newest input, in seconds since
    1970: the time of the image.
    """

    folder: Path
    named: Mapping[str, str]
    secrets: Mapping[str, Path]
    build_arguments: Mapping[str, str]
    platforms: Mapping[str, tuple[str, ...]]
    epoch: int

    @property
    def created(self) -> str:
        """The same as RFC 3339."""
        return datetime.fromtimestamp(self.epoch, UTC).isoformat()

    def arguments(self, stage: str) -> list[str]:
        """The options of ``docker buildx build`` for a stage, the context's path last."""
        platforms = ",".join(self.platforms[stage])
        options = [f"--platform={platforms}", f"--file={self.folder / 'Dockerfile'}"]
        options += [f"--build-context={name}={where}" for name, where in self.named.items()]
        options += [
            f"--secret={buildx.fields(f'id={name}', f'src={path}')}"
            for name, path in self.secrets.items()
        ]
        options += [f"--build-arg={name}={value}" for name, value in self.build_arguments.items()]
        return [*options, str(self.folder)]


def keeping_ptx(plan: AnyPlan, work: Path) -> tuple[str, dict[str, str]]:
    """The Dockerfile of a plan that keeps PTX and counts, and the named context that it needs.

    The context is made below ``work``.  A plan that compiles with no nvcc is left as it is.
    """
    if not plan.has_nvcc:
        return plan.text, {}
    text, stages = BUILD_STAGE.subn(r"FROM \1 AS toolkit\n\g<0>", plan.text)
    text, steps = COMPILE.subn(rf'\g<1>{MOUNTS}["/counted", "/inside/jobs", ', text)
    if not (stages and steps):
        return plan.text, {}
    folder = work / WRAPPERS
    folder.mkdir()
    for name in SCRIPTS:
        script = folder / name
        script.write_bytes((farm.installed() / "dockerfiles/scripts" / name).read_bytes())
        script.chmod(0o755)
    return text, {WRAPPERS: str(folder)}


# The Debian root of a base, made by mmdebstrap.

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
        suite, origin = "", [apt.repository(debs)]  # no suite: that is its only repository
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


# The inputs of a plan, laid out.

LARGEST_POINTER = 1024  # bytes: git-lfs's docs/spec.md


@dataclass(frozen=True, slots=True)
class GatherOptions:
    """Where and how inputs are gathered; ``offline`` fetches nothing.

    ``image`` is the engine's image, in which scripts of patches run.  ``base_start`` has the
    ``entrypoint`` and ``command`` of the base, for an overlay; ``bases`` its images by stage, as
    ``--build-context`` takes them; ``arguments`` are build arguments.  ``epoch`` is the time of
    the base, in seconds since 1970: a source that is a newer commit has its own.
    """

    cache: Path
    log: Log
    image: str | None = None
    offline: bool = False
    debian: Servers = field(default_factory=Servers)
    base_start: Mapping[str, Any] = field(default_factory=dict)
    bases: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    epoch: int = 0


def fetch(plan: AnyPlan, options: GatherOptions) -> None:
    """Fetch the files of ``plan`` that have a digest into the cache; raises ``FetchError``."""
    for locked in plan.packages.values():
        pypi.fetch(locked, options.cache, options.log, offline=options.offline)
    _debs_of(plan, options)


def fetch_commits(plan: Plan, options: GatherOptions) -> None:
    """Fetch the commits of ``plan`` that are pins into the cache: of its source and its patches.

    Raises ``FetchError``; ``PatchError`` for a pull request or a range that is no branch.
    """
    cache, log = options.cache, options.log
    with (
        workspace(cache) as work,
        closing(Repositories(cache, work, log, offline=options.offline)) as repositories,
    ):
        if isinstance(plan.source, GitCommit):
            repositories.pin(plan.source.url, plan.source.commit)
        context = PatchContext(repositories, work, None, options.log)
        for each in plan.patches:
            if isinstance(each.patch, PullPatch | PickPatch):
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
        files = pypi.fetch(locked, options.cache, log, offline=options.offline)
        folders[context] = _together(files, work / context)
    if isinstance(plan, Plan):
        make = _overlay if plan.family.package_paths else _source
        folders["source"], committed = make(plan, options, work)
        epoch = max(epoch, committed)
        if page := plan.family.page(plan.recipe):
            lock = folders["source"] / "tree" / page / npm.LOCK
            pins = lock.read_bytes() if lock.is_file() and not lock.is_symlink() else None
            found = npm.read(pins, plan.platforms.build)
            npm.fetch(found, options.cache, log, offline=options.offline)
            folders["build-packages"] = npm.lay_out(found, options.cache, work / "build-packages")
    folders |= _fetch_debs(plan, options, work)
    secrets = _apt_sources(plan, options, work)
    folder = work / "context"
    folder.mkdir()
    if isinstance(plan.root, BootstrappedRoot):
        sources = secrets.get("apt-sources")
        for install in plan.debian.installs:
            locked_debs = work / install.context / install.architecture
            debs = locked_debs if install.files is not None else None
            root = bootstrap(plan.root, install.architecture, work, log, sources=sources, debs=debs)
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


def _fetch_debs(plan: AnyPlan, options: GatherOptions, work: Path) -> dict[str, Path]:
    """The locked packages: a directory for each context, and in it for each architecture.

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
    stages = (install for install in packages.stages.values() if install.files is not None)
    return {install.context: work / install.context for install in stages}


def _debs_of(plan: AnyPlan, options: GatherOptions) -> dict[DebianFile, Path]:
    packages = plan.debian
    if packages.as_of is None:
        return {}
    archive = apt.archive_of(packages.suite, options.debian)
    files, cache, log = packages.files, options.cache, options.log
    try:
        found = apt.fetch(files, packages.as_of, archive, cache, log, offline=options.offline)
    except GoneError as error:
        hint = f"`builder pin lock {plan.name}` locks the packages of today"
        raise GoneError(error.what, error.why, hint) from error
    return dict(zip(files, found, strict=True))


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
        link(file, folder / file.name)
    return folder


def source_of(plan: Plan, options: GatherOptions, work: Path) -> tuple[Path, int]:
    """The patched source tree of a plan that compiles one, below the directory ``work``; and the
    time of its commit (0: it has none).  Raises like ``gather``."""
    context, committed = _source(plan, options, work)
    return context / "tree", committed


def _source(plan: Plan, options: GatherOptions, work: Path) -> tuple[Path, int]:
    """A context with the tree in a subdirectory, where its .dockerignore has no effect; and the
    time of its commit (0: it has none)."""
    context = work / "source"
    context.mkdir()
    target = context / "tree"
    committed = 0
    if not isinstance(plan.source, GitCommit) and not plan.patches:
        _unpack(plan.source, options.cache, target, options.log, offline=options.offline)
    else:
        with _patched(plan, options, work) as (repositories, _, patched, committed):
            repositories.scratch.export(patched, target)
    _require_contents(plan, target, options.log)
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
        write_overlay(repositories, (tree, patched), root, starts, target)
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
            tree = tree_of(plan.source, repositories, work)
            if isinstance(plan.source, GitCommit):
                committed = repositories.scratch.time_of(plan.source.commit)
        context = PatchContext(repositories, work, options.image, options.log)
        yield repositories, tree, apply_all(context, tree, plan.patches), committed
