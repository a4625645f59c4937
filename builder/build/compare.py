"""Two images of the engine or of a registry, directories or files, compared by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from builder.build.lookup import REFERENCE, Images
from builder.build.session import BuildSession
from builder.core.errors import UsageError, WorldError
from builder.core.files import workspace
from builder.core.platforms import Platform
from builder.docker import engine as docker
from builder.docker.blobs import Blobs, blobs_of
from builder.image.compare import compare_images
from builder.image.files import FileTree, compare_trees
from builder.image.image import damage_reported, platforms_of
from builder.image.image_tree import read_image
from builder.image.results import Comparison
from builder.image.tree import read_files

Source = Path | Blobs
"""A directory or a file; or the blobs of an image."""

AMD64: Platform = "linux/amd64"
PATH_STARTS = ("/", "./", "../", "~")
"""Beginnings of a path that no name of a recipe or of an image has."""


def compare_named(
    session: BuildSession, before: str, after: str, platform: Platform | None = None
) -> Comparison:
    """Compare two images, directories or files by their names.

    A name is a recipe, a path of this machine (also of an OCI image layout), or an image: of the
    engine, else of a registry, which is pulled and removed again.  ``platform``: the image that is
    compared where there are several; None: the image for linux/amd64, else the first one.

    Raises ``UsageError`` where one is a file and the other one is not, and where neither is an
    image with platforms; ``WorldError`` where there is no such thing, or not for the platform;
    ``FetchError`` where a registry does not give an image; ``UntriedError`` where an image is
    damaged; ``SpaceError`` where the files that differ do not fit into the cache directory.
    """
    session.settings.require_directories()
    with workspace(session.settings.cache_dir) as work, ExitStack() as stack:
        old = stack.enter_context(_found(session, before, work, platform))
        new = stack.enter_context(_found(session, after, work, platform))
        if isinstance(old, Blobs) and isinstance(new, Blobs):
            return compare_images((before, old), (after, new), work)
        if platform and isinstance(old, Path) and isinstance(new, Path):
            raise UsageError(
                "--platform is for images", hint=f"neither {before} nor {after} is an image"
            )
        _require_alike(before, old, after, new)
        return compare_trees(_tree(before, old), _tree(after, new), work)


def _require_alike(before: str, old: Source, after: str, new: Source) -> None:
    files = [isinstance(each, Path) and not each.is_dir() for each in (old, new)]
    if files[0] != files[1]:
        file, other = (before, after) if files[0] else (after, before)
        raise UsageError(
            f"{file} is a file, and {other} is not",
            hint="compare two files, or two of images and directories",
        )


def _tree(name: str, source: Source) -> FileTree:
    return read_files(source) if isinstance(source, Path) else read_image(name, source)


@contextmanager
def _found(
    session: BuildSession, name: str, work: Path, platform: Platform | None
) -> Iterator[Source]:
    """The image, directory or file of a name; an image that was pulled is removed afterwards."""
    path = Path(name).expanduser()
    with ExitStack() as stack:
        if not Images(session).is_recipe(name) and path.exists():
            found: Source = _layout(path) or path
        elif name.startswith(PATH_STARTS):
            raise WorldError(f"there is no file or directory {name}")
        else:
            stack.enter_context(pulled_if_remote(session, name, platform or AMD64))
            image = Images(session).named(name, platform)
            found = blobs_of(image.reference, work, image.digest)
        yield _for_platform(name, found, platform) if platform else found


def _for_platform(name: str, source: Source, platform: Platform) -> Source:
    """The same source, read for this platform."""
    if isinstance(source, Path):
        return source
    with damage_reported():
        there = platforms_of(source)
    if platform not in there:
        raise WorldError(
            f"{name} has no image for {platform}",
            f"it is there for {', '.join(there)}",
            f"`docker pull --platform {platform} NAME` gets the image of a registry",
        )
    return replace(source, platform=platform)


def _layout(folder: Path) -> Blobs | None:
    """The image of a directory in the OCI image layout (image-spec, image-layout.md), or None."""
    index = folder / "index.json"
    if not (folder / "oci-layout").is_file() or not index.is_file():
        return None
    try:
        return Blobs(folder / "blobs" / "sha256", dict(json.loads(index.read_bytes())))
    except (ValueError, TypeError) as error:
        raise WorldError(f"{index} cannot be read", f"it is no JSON object: {error}") from error


@contextmanager
def pulled_if_remote(
    session: BuildSession, name: str, platform: Platform = AMD64
) -> Iterator[None]:
    """Keep an image in the engine that only a registry can have; it is removed afterwards.

    Nothing is done where the name is another one.
    """
    if not _is_remote(session, name):
        yield
        return
    session.log(f"Docker does not have {name}: pulling it")
    with docker.pulled(name, platform):
        yield


def _is_remote(session: BuildSession, name: str) -> bool:
    """Whether a name can only mean an image of a registry: ``OWNER/NAME``, ``NAME:TAG``."""
    if Images(session).is_recipe(name) or not REFERENCE.fullmatch(name):
        return False
    return bool({"/", ":"} & {*name}) and docker.image(name) is None
