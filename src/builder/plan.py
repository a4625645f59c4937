"""A recipe with every input resolved: what exactly the image will be made of.

A plan is made without fetching anything and holds everything that decides the image.  Its base
is a plan as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any, Literal

from builder import families, trees
from builder.catalogue import Catalogue, Entry
from builder.errors import RecipeError
from builder.lock import Locked
from builder.platforms import Platforms
from builder.schema import (
    AddPatch,
    ArchiveSource,
    BaseRecipe,
    FilePatch,
    GitSource,
    InstalledSource,
    Patch,
    PathSource,
    PickPatch,
    PullPatch,
    PypiSource,
    Recipe,
    ScriptPatch,
    Source,
)
from builder.scopes import Scope

SCRIPTS = package_files("builder") / "inside"


@dataclass(frozen=True, slots=True)
class SourceTree:
    """A directory of this repository; ``identity`` as ``trees.identity`` gives it."""

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
class Released:
    """A file of PyPI; the source is ``subdirectory`` of what it holds."""

    file: Locked
    subdirectory: str
    texts_only: bool = False
    """Without shared objects and archives: only texts can be patched."""


@dataclass(frozen=True, slots=True)
class Installed:
    """What the base has installed of a Python project; ``version`` may hold ``*``."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Archive:
    """A tar or zip file by URL and sha256 (hex); the source is ``subdirectory`` in it."""

    url: str
    sha256: str
    subdirectory: str


SourceChoice = SourceTree | GitCommit | Released | Archive | Installed


@dataclass(frozen=True, slots=True)
class PlannedPatch:
    """A patch, resolved: ``url`` is the repository of its commits, ``content`` a file's bytes."""

    patch: Patch
    url: str = ""
    content: bytes = b""
    scope: Scope | None = None
    """What of a whole repository's diff is taken; None: all."""

    @property
    def name(self) -> str:
        """For people: "pull 6", "file tma.patch"."""
        return self.patch.name

    def inputs(self) -> dict[str, Any]:
        """What of it decides the tree, as JSON data: the reasons and the URL do not."""
        apart = {"why", "drop_when", "upstream", "probe", "git"}
        data: dict[str, Any] = self.patch.model_dump(mode="json", exclude=apart)
        for kind in ("pick", "script", "add"):
            for name in ("git", "seconds"):
                data.get(kind, {}).pop(name, None)
        if not data.get("pick", {}).get("without", True):
            del data["pick"]["without"]
        if self.scope is not None:
            told = json.dumps(asdict(self.scope), sort_keys=True)
            data["scope"] = hashlib.sha256(told.encode()).hexdigest()
        if self.content:
            data["sha256"] = hashlib.sha256(self.content).hexdigest()
        return data


@dataclass(frozen=True, slots=True)
class RegistryRoot:
    """The Debian root is a registry image, pinned by digest."""

    image: str
    digest: str
    way: Literal["registry"] = "registry"


@dataclass(frozen=True, slots=True)
class BootstrappedRoot:
    """The Debian root is made by mmdebstrap from the distribution's packages."""

    suite: str
    as_of: str
    packages: tuple[str, ...]
    way: Literal["mmdebstrap"] = "mmdebstrap"


RootChoice = RegistryRoot | BootstrappedRoot


@dataclass(frozen=True, slots=True)
class BasePlan:
    """A base, resolved."""

    recipe: BaseRecipe
    file: Path
    platforms: Platforms
    packages: Mapping[str, tuple[Locked, ...]]
    scripts: Mapping[str, str]
    """sha256 of each script that its stages run."""
    root: RootChoice | None
    base: BasePlan | None

    @property
    def name(self) -> str:
        """The base's name."""
        return self.recipe.name

    @property
    def family(self) -> families.BaseFamily:
        """How it is made."""
        return families.BASES[self.recipe.family]

    @property
    def stages(self) -> Mapping[str, str]:
        """The stages that become images, and the compression of their layers."""
        return self.family.STAGES

    def inputs(self) -> dict[str, Any]:
        """Everything but the Dockerfile and the base that decides the image, as JSON data."""
        return {
            **_common_inputs(self),
            "root": _root_inputs(self.root),
        }

    def variables(self) -> Mapping[str, Any]:
        """What the template sees."""
        return {
            "recipe": self.recipe,
            "root": self.root,
            "packages": self.packages,
            "platforms": self.platforms,
            **self.family.variables(self.recipe, self.platforms),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """An engine's image, resolved."""

    recipe: Recipe
    file: Path
    platforms: Platforms
    source: SourceChoice
    patches: tuple[PlannedPatch, ...]
    packages: Mapping[str, tuple[Locked, ...]]
    scripts: Mapping[str, str]
    base: BasePlan

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.recipe.name

    @property
    def family(self) -> families.EngineFamily:
        """How it is made."""
        return families.ENGINES[self.recipe.family]

    @property
    def stages(self) -> Mapping[str, str]:
        """The stage that becomes the image, and the compression of its layers."""
        return {"image": "gzip"}

    @property
    def source_identity(self) -> str:
        """The revision: a commit, or the sha256 of a tree or of a file."""
        match self.source:
            case SourceTree(identity=identity):
                return identity
            case GitCommit(commit=commit):
                return commit
            case Released(file=file):
                return file.sha256
            case Archive(sha256=digest):
                return digest
            case Installed(version=version):
                return version

    def inputs(self) -> dict[str, Any]:
        """Everything but the Dockerfile and the base that decides the image, as JSON data."""
        return {
            **_common_inputs(self),
            "source": self.source_identity,
            "source_part": _part_of(self.source),
            "patches": [patch.inputs() for patch in self.patches],
            "labels": self.labels(),
        }

    def labels(self) -> dict[str, str]:
        """Labels that follow from the recipe: OCI image annotations, and our own."""
        recipe = self.recipe
        labels = {
            "org.opencontainers.image.title": recipe.engine,
            "org.opencontainers.image.description": recipe.summary,
            "org.opencontainers.image.version": recipe.version,
            "org.opencontainers.image.revision": self.source_identity,
            "org.opencontainers.image.source": recipe.url or where(recipe.source),
            "org.opencontainers.image.licenses": recipe.license,
            "builder.recipe": recipe.name,
            "builder.architectures": " ".join(recipe.cuda.arch),
        }
        if recipe.url:
            labels["org.opencontainers.image.url"] = recipe.url
        applied = [patch.name for patch in self.patches if patch.patch.expect == "applies"]
        applied += [f"at start: {' '.join(step.run)}" for step in recipe.start]
        if applied:
            labels["builder.patches"] = ", ".join(applied)
        return labels

    def variables(self) -> Mapping[str, Any]:
        """What the template sees."""
        return {
            "recipe": self.recipe,
            "packages": self.packages,
            "platforms": self.platforms,
            **self.family.variables(self.recipe, self.platforms),
        }


def _part_of(source: SourceChoice) -> str:
    """What of the source is taken, where it is not all of it."""
    match source:
        case GitCommit(submodules=False):
            return "without submodules"
        case Released(subdirectory=folder) | Archive(subdirectory=folder) if folder != ".":
            return folder
    return ""


def where(source: Source) -> str:
    """Where a source comes from, for people."""
    match source:
        case PathSource(path=path):
            return path
        case GitSource(git=url) | ArchiveSource(archive=url):
            return url
        case PypiSource(pypi=name):
            return f"pypi:{name}"
        case InstalledSource(installed=name):
            return f"{name} of the base"


def _common_inputs(plan: Plan | BasePlan) -> dict[str, Any]:
    return {
        "name": plan.name,
        "platforms": [plan.platforms.build, plan.platforms.target],
        "packages": {
            context: [[file.name, file.version, file.sha256] for file in found]
            for context, found in plan.packages.items()
        },
        "scripts": dict(plan.scripts),
    }


def _root_inputs(root: RootChoice | None) -> Any:
    if isinstance(root, RegistryRoot):
        return {"digest": root.digest}
    if isinstance(root, BootstrappedRoot):
        return {"suite": root.suite, "as_of": root.as_of, "packages": root.packages}
    return None


def _scripts(names: tuple[str, ...]) -> dict[str, str]:
    return {name: hashlib.sha256((SCRIPTS / name).read_bytes()).hexdigest() for name in names}


def bootstrapped_root(recipe: BaseRecipe) -> BootstrappedRoot:
    """The root that mmdebstrap would make for this base."""
    assert recipe.root is not None
    return BootstrappedRoot(recipe.root.suite, recipe.root.as_of, tuple(recipe.root.packages))


def _need_stages(entry: Entry[Any], base: BasePlan, *stages: str) -> None:
    missing = [stage for stage in stages if stage not in base.stages]
    if missing:
        message = f"{base.name} has no stage {' and no stage '.join(missing)} to stand on"
        raise RecipeError(
            f"{entry.name} cannot stand on {base.name}",
            problems=(entry.problem(("base",), message),),
        )


def plan_base(catalogue: Catalogue, name: str, platforms: Platforms, root: RootChoice) -> BasePlan:
    """Resolve a base and what it stands on.

    Raises ``RecipeError`` when one of them is wrong.
    """
    entry = catalogue.base(name)
    recipe = entry.recipe
    assert recipe is not None
    family = families.BASES[recipe.family]
    below = plan_base(catalogue, recipe.base, platforms, root) if recipe.base else None
    if below is not None:
        _need_stages(entry, below, *family.STANDS_ON)
    return BasePlan(
        recipe=recipe,
        file=entry.file,
        platforms=platforms,
        packages=family.packages(recipe, entry.file.parent, platforms),
        scripts=_scripts(family.SCRIPTS),
        root=root if recipe.root or recipe.published else None,
        base=below,
    )


def plan(
    catalogue: Catalogue, entry: Entry[Recipe], platforms: Platforms, root: RootChoice
) -> Plan:
    """Resolve an engine's recipe; ``root`` is the Debian root that its bases stand on.

    Raises ``RecipeError`` when a file that the recipe names is wrong, ``FetchError`` when the
    source tree of an in-repo engine is not there.
    """
    assert entry.recipe is not None
    recipe = complete(entry.recipe)
    family = families.ENGINES[recipe.family]
    base = plan_base(catalogue, recipe.base, platforms, root)
    _need_stages(entry, base, *family.STANDS_ON)
    return Plan(
        recipe=recipe,
        file=entry.file,
        platforms=platforms,
        source=resolve_source(recipe, catalogue.root),
        patches=resolve_patches(entry, catalogue.root),
        packages=family.packages(recipe, entry.file.parent, platforms),
        scripts=_scripts(family.SCRIPTS),
        base=base,
    )


def complete(recipe: Recipe) -> Recipe:
    """A recipe with what its family knows."""
    return families.ENGINES[recipe.family].complete(recipe)


def resolve_source(recipe: Recipe, root: Path) -> SourceChoice:
    """Where a recipe's source is, with paths below ``root``, the repository.

    Raises ``FetchError`` when the tree of an in-repo engine is not there.
    """
    source = recipe.source
    match source:
        case PathSource(path=path):
            return SourceTree(root / path, trees.identity(root / path))
        case GitSource():
            return GitCommit(source.git, source.commit, source.submodules, source.submodule)
        case PypiSource(pypi=name, version=version, sha256=digest, subdirectory=folder):
            laid_over = families.ENGINES[recipe.family].scope(recipe) is not None
            return Released(Locked(name, version, digest), folder, texts_only=laid_over)
        case ArchiveSource(archive=url, sha256=digest, subdirectory=folder):
            return Archive(url, digest, folder)
        case InstalledSource(installed=name):
            assert recipe.overlay is not None
            return Installed(name, recipe.overlay.version)


def resolve_patches(entry: Entry[Recipe], root: Path) -> tuple[PlannedPatch, ...]:
    """The patches of a recipe, with the contents of those that are files of ``root/patches``.

    Raises ``RecipeError`` when such a file cannot be read.
    """
    assert entry.recipe is not None
    source = entry.recipe.source
    home = source.git if isinstance(source, GitSource) else ""
    scope = families.ENGINES[entry.recipe.family].scope(entry.recipe)
    found = []
    for index, patch in enumerate(entry.recipe.patch):
        match patch:
            case FilePatch(file=name):
                content = _patch_file(entry, index, root / "patches" / name)
                found.append(PlannedPatch(patch, content=content, scope=scope))
            case PullPatch():
                found.append(PlannedPatch(patch, patch.git or home, scope=scope))
            case PickPatch(pick=pick):
                found.append(PlannedPatch(patch, pick.git or home, scope=scope))
            case ScriptPatch(script=script):
                found.append(PlannedPatch(patch, script.git))
            case AddPatch(add=add):
                found.append(PlannedPatch(patch, add.git))
    return tuple(found)


def _patch_file(entry: Entry[Recipe], index: int, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}"
        problem = entry.problem(("patch", index, "file"), message)
        raise RecipeError(f"a patch of {entry.name} is not there", problems=(problem,)) from error
