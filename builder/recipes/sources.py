"""The source of an engine, and how newer versions of it are found."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, Tag, model_validator

from builder.recipes.fields import (
    PLAIN,
    TAG_GLOB,
    Commit,
    GitUrl,
    Model,
    PythonProject,
    Ref,
    Sha256,
    TreePath,
    Version,
    by_only_key,
)


class PathSource(Model):
    """A tree of this repository."""

    path: TreePath
    """Directory of the source, relative to the catalog's repository."""


class PypiSource(Model):
    """An sdist or a wheel from PyPI, by name, version and digest."""

    pypi: PythonProject
    """Project name on PyPI."""
    version: Version
    """Release."""
    sha256: Sha256
    """sha256 of the file."""
    subdirectory: TreePath = "."
    """Directory of the source inside the file (without the top directory of an sdist)."""


class GitSource(Model):
    """A commit of a git repository."""

    git: GitUrl
    """URL of the repository; git's own configuration may rewrite it."""
    ref: Ref | None = None
    """Tag or branch, for people: the commit decides."""
    commit: Commit
    """The commit: 40 hex digits."""
    submodules: bool = True
    """Whether to fetch submodules."""
    submodule: dict[TreePath, GitUrl] = {}
    """New URL of a submodule that has moved, by path."""

    @model_validator(mode="after")
    def _require_submodules(self) -> GitSource:
        if self.submodule and not self.submodules:
            raise ValueError("submodule has no use where submodules = false")
        return self


class InstalledSource(Model):
    """A package that the base has installed: nothing is fetched, and nothing can be patched."""

    installed: PythonProject
    """Name of the Python project."""


SOURCES = ("git", "path", "pypi", "installed")

Source = Annotated[
    Annotated[GitSource, Tag("git")]
    | Annotated[PathSource, Tag("path")]
    | Annotated[PypiSource, Tag("pypi")]
    | Annotated[InstalledSource, Tag("installed")],
    by_only_key("source", SOURCES),
]


PublishedImage = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][A-Za-z0-9._/:-]*:[\w.-]+$"), PLAIN
]


class Track(Model):
    """How to find newer versions upstream, for updates, patch checks and nightly runs."""

    tag: Annotated[str, StringConstraints(pattern=TAG_GLOB), PLAIN] | None = None
    """Newest tag that matches this glob ("b[0-9]*"); numbers compare as numbers. `[0-9]*` is one
    number, dots included: "v[0-9]*" does not match v1.0.0-beta."""
    branch: Ref | None = None
    """Head of this branch."""
    image: PublishedImage | None = None
    """Digest of this tag of a published image, which the base uses."""
    channel: Annotated[Version, StringConstraints(max_length=40)] | None = None
    """Moving tag that each successful nightly run moves."""
    limit: Annotated[int, Field(ge=1, le=365)] = 3
    """Days that a channel may be behind its upstream."""
    still: Annotated[int, Field(ge=1, le=3650)] = 180
    """Days without anything new upstream before a channel counts as still."""

    @model_validator(mode="after")
    def _require_one_upstream(self) -> Track:
        if sum(kind is not None for kind in (self.tag, self.branch, self.image)) != 1:
            raise ValueError("needs exactly one of: tag, branch, image")
        return self
