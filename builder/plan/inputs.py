"""Every input of an engine's image, or of a base's, resolved: the types, sources and patches."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from builder.core.errors import FetchError, RecipeError
from builder.core.json_model import JsonModel, first_error
from builder.core.names import github_page
from builder.core.platforms import Architecture, Platform
from builder.engines import families
from builder.engines.family import PackagePaths, StagePackages
from builder.recipes import locks, schema
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.locks import DebianFile, DebianLock, PinnedFile
from builder.recipes.patches import AddPatch, FilePatch, Patch, ScriptPatch

# The Debian packages of a plan: from its lock, or the newest ones of the day.

AnyEntry = Entry[schema.Recipe] | Entry[schema.BaseRecipe]


@dataclass(frozen=True, slots=True)
class DebianPackages:
    """The Debian packages of all stages; ``as_of`` is the date of their lock, if they have one."""

    installs: tuple[StagePackages, ...] = ()
    as_of: datetime | None = None
    suite: str = ""

    @property
    def files(self) -> tuple[DebianFile, ...]:
        """All locked files, each once."""
        return tuple(dict.fromkeys(file for each in self.installs for file in each.files or ()))

    @property
    def locked(self) -> bool:
        """Whether the versions of all packages are known; also where there are none."""
        unknown = any(each.packages or not each.below for each in self.installs)
        return self.as_of is not None or not unknown

    @property
    def stages(self) -> Mapping[str, StagePackages]:
        """The stages that install something, for the template."""
        found = (each for each in self.installs if each.files or each.files is None)
        return {each.stage: each for each in found if each.files or each.packages}

    def inputs(self) -> dict[str, list[list[str]]]:
        """The inputs that decide the locked files, as JSON data; the Dockerfile has the others."""
        return {
            "-".join(filter(None, each.key)): [file.inputs for file in each.files]
            for each in self.installs
            if each.files is not None
        }


def one_of(recipe: schema.Recipe, platform: Platform | None) -> Platform:
    """The platform of one image of a recipe; raises ``RecipeError`` where it is not clear."""
    first, *others = recipe.platform
    if platform is None and others:
        raise RecipeError(
            f"{recipe.name} has images for {' and '.join(recipe.platform)}",
            hint=f"name one of them: --platform {first}",
        )
    if platform is not None and platform not in recipe.platform:
        raise RecipeError(
            f"{recipe.name} has no image for {platform}",
            f"its platform is {' and '.join(recipe.platform)}",
            "add it to `platform` in the recipe, or choose another platform",
        )
    return platform or first


def suite_of(catalog: Catalog, base: str | None) -> str | None:
    """The suite of the Debian root below ``base``; None where there is none."""
    recipes = (catalog.base(name).recipe for name in catalog.chain(base))
    return next((str(recipe.root.suite) for recipe in recipes if recipe.root is not None), None)


def lock_file(entry: AnyEntry) -> Path | None:
    """The file of the lock that a recipe or a base names, or None."""
    debian = entry.recipe.debian
    return entry.file.parent / debian.lock if debian is not None and debian.lock else None


def debian_packages(
    entry: AnyEntry, wanted: Sequence[StagePackages], suite: str | None
) -> DebianPackages:
    """The packages of the stages ``wanted``; a wrong lock is a ``RecipeError``."""
    file = lock_file(entry)
    if file is None:
        return DebianPackages(tuple(wanted))
    lock = locks.read(file, entry.name)
    if lock.suite != suite:
        raise _unfit(entry, f"it has packages of {lock.suite}, and the base is {suite}")
    installs = tuple(replace(each, files=locked_files(entry, lock, each)) for each in wanted)
    return DebianPackages(installs, lock.as_of, lock.suite)


def locked_files(
    entry: AnyEntry, lock: DebianLock, wanted: StagePackages
) -> tuple[DebianFile, ...]:
    """The files of a stage in the lock of an entry, which must be made for the same packages."""
    install = next((each for each in lock.install if each.key == wanted.key), None)
    if install is None:
        cross = f" for {wanted.foreign}" if wanted.foreign else ""
        raise _unfit(entry, f"it has no stage {wanted.stage} on {wanted.architecture}{cross}")
    if tuple(install.packages) != wanted.packages:
        asked = ", ".join(wanted.packages)
        raise _unfit(entry, f"its stage {wanted.stage} was made for other packages than {asked}")
    return tuple(install.files)


def _unfit(entry: AnyEntry, why: str) -> RecipeError:
    return RecipeError(
        f"the Debian lock of {entry.name} does not fit",
        hint=f"`builder pin lock {entry.name}` makes it anew",
        problems=(entry.problem(("debian", "lock"), why),),
    )


# The identity of a source tree: a hash over the properties that git records of a directory.

IGNORED = {".git", "__pycache__", ".DS_Store"}


def tree_files(root: Path) -> Iterator[Path]:
    """Every file and link below ``root``, sorted, without files that never belong to a source."""
    for folder, names, found in os.walk(root):
        names[:] = sorted(name for name in names if name not in IGNORED)
        links = [name for name in names if (Path(folder) / name).is_symlink()]
        for name in sorted([*found, *links]):
            if name not in IGNORED:
                yield Path(folder) / name


def identity(root: Path) -> str:
    """sha256 (hex) over the path, the kind, the executable bit and the content of every file."""
    total = hashlib.sha256()
    for file in tree_files(root):
        name = file.relative_to(root).as_posix()
        mode = file.lstat().st_mode
        if stat.S_ISLNK(mode):
            target, end = file.readlink(), file.parent / file.readlink()
            try:
                inside = end.resolve().is_relative_to(root.resolve())
            except RuntimeError as error:  # Python before 3.13: the link leads to itself
                raise FetchError(f"{end} is a broken link", str(error)) from error
            if target.is_absolute() or not inside:
                raise FetchError(f"{file} links to {target}, outside its tree")
            kind, content = "link", os.fsencode(target)
        elif stat.S_ISREG(mode):
            kind = "program" if mode & stat.S_IXUSR else "file"
            with file.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").digest()
        else:
            raise FetchError(f"{file} is neither a file nor a link")
        head = f"{kind}\0{name}\0{len(content)}\0".encode("utf-8", "surrogateescape")
        total.update(head + content)
    return total.hexdigest()


class LocalTree(NamedTuple):
    """A directory of this repository; ``identity`` as ``identity`` gives it."""

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
    """A file of PyPI; the source is the directory ``root`` in it."""

    file: PinnedFile
    root: str
    texts_only: bool = False  # without shared objects and archives: only texts can be patched
    below: str = ""  # directory of the tree that has these files; empty: its root


class Installed(NamedTuple):
    """A Python project that the base has installed; ``version`` may contain ``*``."""

    name: str
    version: str


SourceChoice = LocalTree | GitCommit | PypiFile | Installed  # the source of an engine


def identified(source: SourceChoice) -> tuple[str, str]:
    """What identifies a source in keys, and the part of it that is taken; empty: all."""
    match source:
        case LocalTree():
            return source.identity, ""
        case GitCommit():
            return source.commit, "" if source.submodules else "without submodules"
        case PypiFile(root=folder):
            return source.file.sha256, "" if folder == "." else folder
        case Installed():
            return source.version, ""


@dataclass(frozen=True, slots=True)
class PlannedPatch:
    """A patch, resolved: ``url`` is the repository of its commits, ``content`` a file's bytes."""

    patch: Patch
    url: str = ""
    content: bytes = b""
    scope: PackagePaths | None = None  # what is taken of a whole diff; None: all
    recipe: str = ""  # the name of its recipe

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
        apart = {"why", "drop_when", "upstream", "probe", "no_probe", "git"}
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


class BootstrappedRoot(NamedTuple):
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


# The lock of an image: a catalog of all that the image was made of, and of nothing else.

LOCK = "lock.json"
"""Stands beside ``recipes/`` in a lock; ``dockerfiles/`` has ``NAME.Dockerfile``, rendered, for the
image and each base: a template is a program, and a lock may be a stranger's."""
Key = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Lock(JsonModel):
    """What the files of a lock leave open."""

    format: Literal[1] = 1
    key: Key
    recipe_key: Key  # ``Plan.recipe_key``
    build: Architecture  # that compiled
    platform: Platform  # of the image
    roots: dict[str, str]
    """By the lowest bases: the digest of the image that it starts from, or "mmdebstrap"."""
    builder: str
    commit: str
    """The version of builder that pushed the image, and its commit; empty: not known."""


def lock_at(root: Path) -> Lock | None:
    """The lock that a catalog is; None: it is an ordinary one.  Raises ``RecipeError``."""
    file = root / LOCK
    try:
        return Lock.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        why = first_error(error) if isinstance(error, ValidationError) else str(error)
        raise RecipeError(f"{file} is no lock of format 1", why) from error


def where(source: schema.Source) -> str:
    """The origin of a source, for people."""
    match source:
        case schema.PathSource(path=path):
            return path
        case schema.GitSource(git=url):
            return url
        case schema.PypiSource(pypi=name):
            return f"pypi:{name}"
        case schema.InstalledSource(installed=name):
            return f"{name} of the base"


def resolve_source(recipe: schema.Recipe, root: Path) -> SourceChoice:
    """The source of a recipe; paths are below ``root``, the repository."""
    source = recipe.source
    match source:
        case schema.PathSource(path=path):
            return LocalTree(root / path, identity(root / path))
        case schema.GitSource():
            return GitCommit(source.git, source.commit, source.submodules, source.submodule)
        case schema.PypiSource(pypi=name, version=version, sha256=digest, root=folder):
            file, family = PinnedFile(name, version, digest), families.ENGINES[recipe.family]
            texts_only = family.package_paths is not None
            return PypiFile(file, folder, texts_only=texts_only, below=family.package_root)
        case schema.InstalledSource(installed=name):
            if recipe.overlay is None:
                raise RecipeError(
                    f"{recipe.name} does not say which package it patches",
                    hint="add [overlay] with the package and its version",
                )
            return Installed(name, recipe.overlay.version)


def resolve_patches(entry: Entry[schema.Recipe], root: Path) -> tuple[PlannedPatch, ...]:
    """The patches of a recipe, with the contents of patch files of ``root/patches``."""
    source = entry.recipe.source
    home = source.git if isinstance(source, schema.GitSource) else ""
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
        # The paths of a script or of added files are the target's.
        cut = None if isinstance(patch, ScriptPatch | AddPatch) else scope
        found.append(PlannedPatch(patch, url, content, cut, entry.name))
    return tuple(found)
