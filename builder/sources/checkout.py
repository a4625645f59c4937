"""A source as a tree: of git's objects if it is patched or pinned by commit, else of files."""

from __future__ import annotations

import shutil
from pathlib import Path

from builder.core import archives
from builder.core.errors import FetchError
from builder.core.log import Log
from builder.core.remote_file import PartialReadError
from builder.plan import tree_hash
from builder.plan.inputs import GitCommit, Installed, LocalTree, PypiFile, SourceChoice
from builder.sources import pypi
from builder.sources.repositories import Repositories
from builder.sources.repository import EMPTY_TREE
from builder.sources.scratch import NoTreeError


def tree_of(source: SourceChoice, repositories: Repositories, work: Path) -> str:
    """The source as a tree of the scratch repository, submodules in their places.

    ``work`` is an empty directory.  Raises ``FetchError``.
    """
    if isinstance(source, GitCommit):
        return repositories.tree(
            source.url, source.commit, submodules=source.submodules, moved=source.moved
        )
    folder = work / "files"
    unpack(source, repositories.cache, folder, repositories.log, offline=repositories.offline)
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
    texts = source.texts_only and source.subdirectory == "."
    if texts and pypi.cached(file, repositories.cache) is None:
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


def unpack(
    source: LocalTree | PypiFile | Installed,
    cache: Path,
    target: Path,
    log: Log,
    *,
    offline: bool,
) -> None:
    """Write a source other than a commit to the new directory ``target``."""
    match source:
        case LocalTree():
            _copy_tree(source, target)
        case PypiFile(file=file):
            (archive,) = pypi.fetch([file], cache, log, offline=offline)
            _unpack(archive, source, target)
        case Installed(name=name):
            raise FetchError(
                f"the files of {name} in the base are unknown before it is built",
                hint="name a wheel (pypi) or a commit (git) as the source",
            )


def _copy_tree(source: LocalTree, target: Path) -> None:
    for file in tree_hash.files(source.path):
        copy = target / file.relative_to(source.path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, copy, follow_symlinks=False)
    if tree_hash.identity(target) != source.identity:
        raise FetchError(f"{source.path} changed while it was read", hint="run the build again")


def _unpack(archive: Path, source: PypiFile, target: Path) -> None:
    """Write the source's directory of a wheel, or of an sdist below its single top directory."""
    folder = target.with_name(f"{target.name}-unpacked")
    try:
        archives.unpack(archive, folder, texts_only=source.texts_only)
        top = folder
        if not archive.name.endswith(".whl"):
            inside = [path for path in folder.iterdir() if path.is_dir()]
            if len(inside) != 1:
                raise FetchError(
                    f"{archive.name} is not an sdist", "it has no single top directory"
                )
            top = inside[0]
        archives.subdirectory_of(top, source.subdirectory, archive.name).rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
