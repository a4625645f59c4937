"""Every input of an engine's image, or of a base's, resolved: the types, sources and patches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from builder.core.address import github_page
from builder.core.errors import RecipeError
from builder.engines import families
from builder.engines.package_paths import PackagePaths
from builder.plan import tree_hash
from builder.recipes.catalog import Entry
from builder.recipes.lockfile import PinnedFile
from builder.recipes.patches import AddPatch, FilePatch, Patch, ScriptPatch
from builder.recipes.schema import Recipe
from builder.recipes.sources import GitSource, InstalledSource, PathSource, PypiSource, Source


@dataclass(frozen=True, slots=True)
class LocalTree:
    """A directory of this repository; ``identity`` as ``tree_hash.identity`` gives it."""

    path: Path
    identity: str


@dataclass(frozen=True, slots=True)
class GitCommit:
    """A commit (40 hex digits) of a repository: git's own identity of the tree.

    ``moved`` has the URLs of submodules that are not where .gitmodules says, by path.
    """

    url: str
    commit: str
    submodules: bool = True
    moved: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PypiFile:
    """A file of PyPI; the source is ``subdirectory`` in it."""

    file: PinnedFile
    subdirectory: str
    texts_only: bool = False
    """Without shared objects and archives: only texts can be patched."""
    below: str = ""
    """Directory of the tree that has these files; empty: its root."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A Python project that the base has installed; ``version`` may contain ``*``."""

    name: str
    version: str


SourceChoice = LocalTree | GitCommit | PypiFile | Installed
"""The source of an engine."""


def identified(source: SourceChoice) -> tuple[str, str]:
    """What identifies a source in keys, and the part of it that is taken; empty: all."""
    match source:
        case LocalTree():
            return source.identity, ""
        case GitCommit():
            return source.commit, "" if source.submodules else "without submodules"
        case PypiFile(subdirectory=folder):
            return source.file.sha256, "" if folder == "." else folder
        case Installed():
            return source.version, ""


@dataclass(frozen=True, slots=True)
class PlannedPatch:
    """A patch, resolved: ``url`` is the repository of its commits, ``content`` a file's bytes."""

    patch: Patch
    url: str = ""
    content: bytes = b""
    scope: PackagePaths | None = None
    """The paths that are taken from the diff of a whole repository; None: all."""
    recipe: str = ""
    """The name of its recipe."""

    @property
    def name(self) -> str:
        """For people: "pull 6", "file tma.patch"."""
        return self.patch.name

    @property
    def page(self) -> str:
        """Its page on GitHub; empty where there is none."""
        page = self.patch.origin.page
        return github_page(self.url, page) if page else ""

    def inputs(self) -> dict[str, Any]:
        """The values that decide the patched tree, as JSON data: the reasons and the URL do not."""
        apart = {"why", "drop_when", "upstream", "probe", "git"}
        data: dict[str, Any] = self.patch.model_dump(mode="json", exclude=apart)
        data |= {"fuzz": 0, "three_way": False}  # keys outlive these fields
        for kind in ("pick", "script", "add"):
            for name in ("git", "seconds"):
                data.get(kind, {}).pop(name, None)
        if "script" in data:  # Keys outlive the names of fields.
            data["script"]["says"] = data["script"].pop("contains")
        if not data.get("pick", {}).get("without", True):
            del data["pick"]["without"]
        if self.scope is not None:
            scope = asdict(self.scope)
            if not self.scope.root:  # Keys are older than this field.
                del scope["root"]
            paths = json.dumps(scope, sort_keys=True)
            data["scope"] = hashlib.sha256(paths.encode()).hexdigest()
        if self.content:
            data["sha256"] = hashlib.sha256(self.content).hexdigest()
        return data


@dataclass(frozen=True, slots=True)
class RegistryRoot:
    """The Debian root is a registry image, pinned by digest."""

    image: str
    digest: str
    way: Literal["registry"] = "registry"

    def inputs(self) -> dict[str, Any]:
        """The values that decide the root, as JSON data."""
        return {"digest": self.digest}


OF_THIS_MACHINE = ("etc/hostname", "etc/resolv.conf")
"""Files that mmdebstrap copies into a root, and that are removed: Docker gives each container its
own (mmdebstrap(1), "SOURCE_DATE_EPOCH")."""


@dataclass(frozen=True, slots=True)
class BootstrappedRoot:
    """The Debian root is made by mmdebstrap from the distribution's packages."""

    suite: str
    as_of: str
    packages: tuple[str, ...]
    way: Literal["mmdebstrap"] = "mmdebstrap"

    def inputs(self) -> dict[str, Any]:
        """The values that decide the root, as JSON data."""
        made = {"suite": self.suite, "as_of": self.as_of, "packages": self.packages}
        return made | {"without": OF_THIS_MACHINE}


RootChoice = RegistryRoot | BootstrappedRoot


def where(source: Source) -> str:
    """The origin of a source, for people."""
    match source:
        case PathSource(path=path):
            return path
        case GitSource(git=url):
            return url
        case PypiSource(pypi=name):
            return f"pypi:{name}"
        case InstalledSource(installed=name):
            return f"{name} of the base"


def resolve_source(recipe: Recipe, root: Path) -> SourceChoice:
    """The source of a recipe; paths are below ``root``, the repository.

    Raises ``FetchError`` when the tree of an in-repo engine is not there.
    """
    source = recipe.source
    match source:
        case PathSource(path=path):
            return LocalTree(root / path, tree_hash.identity(root / path))
        case GitSource():
            return GitCommit(source.git, source.commit, source.submodules, source.submodule)
        case PypiSource(pypi=name, version=version, sha256=digest, subdirectory=folder):
            file, family = PinnedFile(name, version, digest), families.ENGINES[recipe.family]
            texts_only = family.package_paths is not None
            return PypiFile(file, folder, texts_only=texts_only, below=family.package_root)
        case InstalledSource(installed=name):
            if recipe.overlay is None:
                raise RecipeError(
                    f"{recipe.name} does not say which package it patches",
                    hint="add [overlay] with the package and its version",
                )
            return Installed(name, recipe.overlay.version)


def resolve_patches(entry: Entry[Recipe], root: Path) -> tuple[PlannedPatch, ...]:
    """The patches of a recipe, with the contents of patch files of ``root/patches``.

    Raises ``RecipeError`` when such a file cannot be read.
    """
    source = entry.recipe.source
    home = source.git if isinstance(source, GitSource) else ""
    scope = families.ENGINES[entry.recipe.family].package_paths
    found = []
    for index, patch in enumerate(entry.recipe.patch):
        url, content = patch.origin.git or home, b""
        if isinstance(patch, FilePatch):
            file, url = root / "patches" / patch.file, ""
            try:
                content = file.read_bytes()
            except OSError as error:
                message = f"cannot read {file}: {error.strerror}"
                problem = entry.problem(("patch", index, "file"), message)
                what = f"a patch of {entry.name} is missing"
                raise RecipeError(what, problems=(problem,)) from error
        of_its_own = isinstance(patch, ScriptPatch | AddPatch)  # its paths are the target's
        cut = None if of_its_own else scope
        found.append(PlannedPatch(patch, url, content, cut, entry.name))
    return tuple(found)
