"""The types of a plan: every input of an engine's image, or of a base's, resolved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from builder import families
from builder.families import entrypoint
from builder.families.layout import LABEL_ARCHITECTURES, LABEL_PATCHES, LABEL_RECIPE
from builder.families.package_paths import PackagePaths
from builder.plan.debian import DebianPackages
from builder.platforms import Architecture, Platforms
from builder.recipes.lockfile import PinnedFile
from builder.recipes.schema import (
    ArchiveSource,
    BaseRecipe,
    GitSource,
    InstalledSource,
    Patch,
    PathSource,
    PypiSource,
    Recipe,
    Source,
)


@dataclass(frozen=True, slots=True)
class SourceTree:
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
    """A file of PyPI; the source is ``subdirectory`` of what it holds."""

    file: PinnedFile
    subdirectory: str
    texts_only: bool = False
    """Without shared objects and archives: only texts can be patched."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A Python project that the base has installed; ``version`` may contain ``*``."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Archive:
    """A tar or zip file by URL and sha256 (hex); the source is ``subdirectory`` in it."""

    url: str
    sha256: str
    subdirectory: str


SourceChoice = SourceTree | GitCommit | PypiFile | Archive | Installed


@dataclass(frozen=True, slots=True)
class PlannedPatch:
    """A patch, resolved: ``url`` is the repository of its commits, ``content`` a file's bytes."""

    patch: Patch
    url: str = ""
    content: bytes = b""
    scope: PackagePaths | None = None
    """The paths that are taken from the diff of a whole repository; None: all."""

    @property
    def name(self) -> str:
        """For people: "pull 6", "file tma.patch"."""
        return self.patch.name

    def inputs(self) -> dict[str, Any]:
        """The values that decide the patched tree, as JSON data: the reasons and the URL do not."""
        apart = {"why", "drop_when", "upstream", "probe", "git"}
        data: dict[str, Any] = self.patch.model_dump(mode="json", exclude=apart)
        for kind in ("pick", "script", "add"):
            for name in ("git", "seconds"):
                data.get(kind, {}).pop(name, None)
        if "script" in data:  # Keys outlive the names of fields.
            data["script"]["says"] = data["script"].pop("contains")
        if not data.get("pick", {}).get("without", True):
            del data["pick"]["without"]
        if self.scope is not None:
            paths = json.dumps(asdict(self.scope), sort_keys=True)
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


RootChoice = RegistryRoot | BootstrappedRoot


@dataclass(frozen=True, slots=True)
class BasePlan:
    """A base, resolved."""

    recipe: BaseRecipe
    file: Path
    platforms: Platforms
    packages: Mapping[str, tuple[PinnedFile, ...]]
    dockerfiles: Path
    """Directory of the templates, and of the scripts in ``scripts/``."""
    scripts: Mapping[str, str]
    """sha256 of each script that its stages run."""
    root: RootChoice | None
    base: BasePlan | None
    debian: DebianPackages = field(default_factory=DebianPackages)

    @property
    def cuda(self) -> str | None:
        """The version of its CUDA, or of the base below: "13.0"; None: it is not known."""
        return self.recipe.cuda or (self.base.cuda if self.base else None)

    @property
    def name(self) -> str:
        """The base's name."""
        return self.recipe.name

    @property
    def family(self) -> families.BaseFamily:
        """The family that makes it."""
        return families.BASES[self.recipe.family]

    @property
    def stages(self) -> Mapping[str, str]:
        """The stages that become images, and the compression of their layers."""
        return self.family.stages

    def architectures(self, stage: str) -> tuple[Architecture, ...]:
        """The architectures that a stage is made for.

        ``devel`` compiles; a root is below both, but for one with a compiler of its own.
        """
        platforms, root = self.platforms, self.recipe.root
        if stage == "devel" or (root is not None and root.crossing(platforms)):
            return (platforms.build,)
        return platforms.both if stage == "root" else (platforms.target,)

    @property
    def epoch(self) -> int:
        """The newest date of Debian packages (of a root without a lock: 00:00 UTC of its day) of
        this base and those below it, in seconds since 1970; 0: none is known."""
        date = self.debian.as_of
        if self.recipe.root is not None and self.recipe.root.as_of is not None:
            date = datetime.fromisoformat(self.recipe.root.as_of).replace(tzinfo=UTC)
        own = int(date.timestamp()) if date is not None else 0
        return max(own, self.base.epoch if self.base else 0)

    @property
    def published_root(self) -> RegistryRoot | None:
        """The published image that it starts from; None: it starts from none."""
        is_published = self.recipe.published is not None
        return self.root if is_published and isinstance(self.root, RegistryRoot) else None

    def inputs(self) -> dict[str, Any]:
        """Everything that decides the image besides the Dockerfile and the base, as JSON data."""
        return {
            **_common_inputs(self),
            "root": _root_inputs(self.root),
        }

    def variables(self) -> Mapping[str, Any]:
        """The variables of its template."""
        return {
            "recipe": self.recipe,
            "root": self.root,
            "packages": self.packages,
            "debian": self.debian.stages,
            "platforms": self.platforms,
            "epoch": self.epoch,
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
    packages: Mapping[str, tuple[PinnedFile, ...]]
    dockerfiles: Path
    scripts: Mapping[str, str]
    entrypoint: Mapping[str, str]
    """sha256 of each source file of the entrypoint; none: the image is not started."""
    base: BasePlan
    tools: BasePlan | None
    """The base in whose root the entrypoint is compiled; None: in the stage devel of ``base``."""
    debian: DebianPackages = field(default_factory=DebianPackages)

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.recipe.name

    @property
    def epoch(self) -> int:
        """That of its base, or of its own Debian lock if that is newer."""
        date = self.debian.as_of
        return max(int(date.timestamp()) if date is not None else 0, self.base.epoch)

    @property
    def family(self) -> families.EngineFamily:
        """The family that makes it."""
        return families.ENGINES[self.recipe.family]

    @property
    def stages(self) -> Mapping[str, str]:
        """The stage that becomes the image, and the compression of its layers."""
        return {"image": self.recipe.image.compression}

    def architectures(self, stage: str) -> tuple[Architecture, ...]:  # noqa: ARG002
        """The architecture that the image is for."""
        return (self.platforms.target,)

    @property
    def code(self) -> list[str]:
        """The code that decides which cards run the engine: "sm_120a"."""
        return list(self.family.machine_code(self.recipe))

    @property
    def source_identity(self) -> str:
        """The revision: a commit, or the sha256 of a tree or of a file."""
        match self.source:
            case SourceTree(identity=identity):
                return identity
            case GitCommit(commit=commit):
                return commit
            case PypiFile(file=file):
                return file.sha256
            case Archive(sha256=digest):
                return digest
            case Installed(version=version):
                return version

    def inputs(self) -> dict[str, Any]:
        """Everything that decides the image besides the Dockerfile and the base, as JSON data."""
        return {
            **_common_inputs(self),
            "source": self.source_identity,
            "source_part": _part_of(self.source),
            "patches": [patch.inputs() for patch in self.patches],
            "entrypoint": dict(self.entrypoint),
            "labels": self.labels(),
            **_compression_inputs(self.recipe.image.compression),
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
            LABEL_RECIPE: recipe.name,
            LABEL_ARCHITECTURES: " ".join(recipe.cuda.arch),
        }
        if recipe.url:
            labels["org.opencontainers.image.url"] = recipe.url
        applied = [patch.name for patch in self.patches if patch.patch.expect == "applies"]
        applied += [f"at start: {' '.join(step.run)}" for step in recipe.start]
        if applied:
            labels[LABEL_PATCHES] = ", ".join(applied)
        return labels

    def variables(self) -> Mapping[str, Any]:
        """The variables of its template."""
        return {
            "recipe": self.recipe,
            "packages": self.packages,
            "debian": self.debian.stages,
            "platforms": self.platforms,
            "epoch": self.epoch,
            "needs": list(entrypoint.needs(self.recipe, self.code, self.base.cuda)),
            **self.family.template_variables(self.recipe, self.platforms),
        }


def _part_of(source: SourceChoice) -> str:
    """The part of the source that is taken; empty: all of it."""
    match source:
        case GitCommit(submodules=False):
            return "without submodules"
        case PypiFile(subdirectory=folder) | Archive(subdirectory=folder) if folder != ".":
            return folder
    return ""


def where(source: Source) -> str:
    """The origin of a source, for people."""
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
        **({"debian": plan.debian.inputs()} if plan.debian.as_of else {}),
    }


def _compression_inputs(compression: str) -> dict[str, str]:
    """The compression of an image's layers; the keys of older images do not name gzip."""
    return {} if compression == "gzip" else {"compression": compression}


def _root_inputs(root: RootChoice | None) -> Any:
    if isinstance(root, RegistryRoot):
        return {"digest": root.digest}
    if isinstance(root, BootstrappedRoot):
        made = {"suite": root.suite, "as_of": root.as_of, "packages": root.packages}
        return made | {"without": OF_THIS_MACHINE}
    return None
