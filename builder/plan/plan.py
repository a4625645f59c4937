"""A plan: everything that decides an image, its Dockerfile, its key, and the image's names."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from builder import families
from builder.families import entrypoint
from builder.families.layout import (
    LABEL_ARCHITECTURES,
    LABEL_BASE,
    LABEL_KEY,
    LABEL_PATCHES,
    LABEL_RECIPE,
)
from builder.plan.debian import DebianPackages
from builder.plan.dockerfile import link_lints, rendered
from builder.plan.inputs import (
    OF_THIS_MACHINE,
    Archive,
    BootstrappedRoot,
    GitCommit,
    Installed,
    PlannedPatch,
    PypiFile,
    RegistryRoot,
    RootChoice,
    SourceChoice,
    SourceTree,
    where,
)
from builder.platforms import Architecture, Platform, Platforms
from builder.recipes.lockfile import PinnedFile
from builder.recipes.schema import BaseRecipe, Recipe

FORMAT = 1
"""Version of the key's format: raise it when the same inputs result in another image."""


@dataclass(frozen=True, kw_only=True)
class _Planned(ABC):
    """What the plans of a base and of an engine have in common."""

    file: Path
    """The recipe's."""
    platforms: Platforms
    packages: Mapping[str, tuple[PinnedFile, ...]]
    dockerfiles: Path
    """Directory of the templates, and of the scripts in ``scripts/``."""
    scripts: Mapping[str, str]
    """sha256 (hex) of each script that its stages run."""
    base: BasePlan | None
    """The base that it extends."""
    tools: BasePlan | None = None
    """The base in whose root the entrypoint is compiled; None: in the stage devel of ``base``."""
    debian: DebianPackages = field(default_factory=DebianPackages)

    @property
    @abstractmethod
    def name(self) -> str:
        """The recipe's name."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The Dockerfile; raises ``RecipeError`` when it breaks one of our rules."""

    @cached_property
    def key(self) -> str:
        """sha256 (hex) over everything that decides the image.  Raises like ``text``."""
        decided = {
            "format": FORMAT,
            "inputs": self.inputs(),
            "dockerfile": self.text,
            "base": self.base.key if self.base else None,
            **({"tools": self.tools.key} if self.tools else {}),
        }
        canonical = json.dumps(decided, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def require_acceptable(self) -> None:
        """Raise ``RecipeError`` where its Dockerfile, or a base's, breaks one of our rules."""
        _ = self.key  # renders each of them

    @property
    def short_key(self) -> str:
        """The first 12 digits of the key, as tags contain them."""
        return self.key[:12]

    def inputs(self) -> dict[str, Any]:
        """Everything that decides the image besides the Dockerfile and the bases, as JSON data."""
        return {
            "name": self.name,
            "platforms": [self.platforms.build, self.platforms.target],
            "packages": {
                context: [[file.name, file.version, file.sha256] for file in found]
                for context, found in self.packages.items()
            },
            "scripts": dict(self.scripts),
            **({"debian": self.debian.inputs()} if self.debian.as_of else {}),
        }


@dataclass(frozen=True, kw_only=True)
class BasePlan(_Planned):
    """A base, resolved; each of its stages becomes an image of the engine."""

    recipe: BaseRecipe
    root: RootChoice | None

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
        """The newest date of Debian packages of this base and those below it, in seconds since
        1970; 0: none is known.

        For a root without a lock, the date is 00:00 UTC of its day.
        """
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

    @property
    def references(self) -> Mapping[str, str]:
        """The engine's name of each stage; the key is part of the tag."""
        name = f"builder-base/{self.name}"
        return {stage: f"{name}:{stage}-{self.short_key}" for stage in self.stages}

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its images."""
        return {LABEL_BASE: self.name, LABEL_KEY: self.key}

    def chain(self) -> Iterator[BasePlan]:
        """This base, the one that it extends, and so on."""
        below: BasePlan | None = self
        while below is not None:
            yield below
            below = below.base

    @property
    def suite(self) -> str | None:
        """The Debian suite of its root, or None."""
        roots = (below.recipe.root for below in self.chain())
        return next((str(root.suite) for root in roots if root is not None), None)

    @cached_property
    def text(self) -> str:
        """The Dockerfile; raises ``RecipeError`` when it breaks one of our rules."""
        variables = {
            "recipe": self.recipe,
            "root": self.root,
            "packages": self.packages,
            "debian": self.debian.stages,
            "platforms": self.platforms,
            "epoch": self.epoch,
            **self.family.variables(self.recipe, self.platforms),
        }
        return rendered(self.name, self.dockerfiles, self.family.template, variables)

    def inputs(self) -> dict[str, Any]:
        """As for every plan, and the root."""
        return {**super().inputs(), "root": _root_inputs(self.root)}


@dataclass(frozen=True, kw_only=True)
class Plan(_Planned):
    """An engine's image, resolved: what it is made of, and the names that it will have."""

    recipe: Recipe
    repository: str
    """The image's repository, with the user's namespace."""
    source: SourceChoice
    patches: tuple[PlannedPatch, ...]
    entrypoint: Mapping[str, str]
    """sha256 (hex) of each source file of the entrypoint; none: the image is not started."""
    base: BasePlan

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.recipe.name

    @property
    def platform(self) -> Platform:
        """The platform that the image is for: "linux/amd64"."""
        return self.platforms.image

    @property
    def title(self) -> str:
        """For people: the recipe's name, with the platform where it has several."""
        several = len(self.recipe.platform) > 1
        return f"{self.name} ({self.platform})" if several else self.name

    @property
    def epoch(self) -> int:
        """The date of its base, or of its own Debian lock if that is newer; seconds since 1970."""
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
    def suite(self) -> str | None:
        """The Debian suite of its bases' root, or None."""
        return self.base.suite

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

    def bases(self) -> Iterator[BasePlan]:
        """The bases that its stages begin with."""
        yield self.base
        if self.tools is not None:
            yield self.tools

    @property
    def base_references(self) -> Mapping[str, str]:
        """The engine's name of each stage that its own stages begin with."""
        return {
            stage: name
            for base in reversed([*self.bases()])
            for stage, name in base.references.items()
        }

    @property
    def immutable_tag(self) -> str:
        """``VERSION-KEY12``: no other image ever gets this tag."""
        return f"{self.recipe.version}-{self.short_key}"

    @property
    def tag_suffix(self) -> str:
        """What its tags end in but for the immutable one: see ``Recipe.tag_suffix``."""
        return self.recipe.tag_suffix(self.platform)

    @property
    def references(self) -> tuple[str, ...]:
        """The image's names in the engine, the one with the immutable tag first."""
        tags = [f"{tag}{self.tag_suffix}" for tag in self.recipe.image.tags]
        return tuple(f"{self.repository}:{tag}" for tag in (self.immutable_tag, *tags))

    @property
    def candidate(self) -> str:
        """The image's name until its verdict is good."""
        return f"{self.repository}:unverified-{self.short_key}"

    @property
    def labels(self) -> dict[str, str]:
        """The labels that follow from the recipe, and the key."""
        return self._recipe_labels() | {LABEL_KEY: self.key}

    def _recipe_labels(self) -> dict[str, str]:
        """OCI image annotations, and our own."""
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

    @cached_property
    def text(self) -> str:
        """The Dockerfile; raises ``RecipeError`` when it breaks one of our rules."""
        variables = {
            "recipe": self.recipe,
            "packages": self.packages,
            "debian": self.debian.stages,
            "platforms": self.platforms,
            "epoch": self.epoch,
            "needs": list(entrypoint.needs(self.recipe, self.code, self.base.cuda)),
            **self.family.template_variables(self.recipe, self.platforms),
        }
        return rendered(
            self.name,
            self.dockerfiles,
            self.family.template,
            variables,
            lambda text: link_lints(text, self.recipe, self.family.no_vmm),
        )

    def inputs(self) -> dict[str, Any]:
        """As for every plan, and the source, its patches, the entrypoint and the labels."""
        compression = self.recipe.image.compression
        return {
            **super().inputs(),
            "source": self.source_identity,
            "source_part": _part_of(self.source),
            "patches": [patch.inputs() for patch in self.patches],
            "entrypoint": dict(self.entrypoint),
            "labels": self._recipe_labels(),
            # The keys of older images do not name gzip.
            **({} if compression == "gzip" else {"compression": compression}),
        }


def _part_of(source: SourceChoice) -> str:
    """The part of the source that is taken; empty: all of it."""
    match source:
        case GitCommit(submodules=False):
            return "without submodules"
        case PypiFile(subdirectory=folder) | Archive(subdirectory=folder) if folder != ".":
            return folder
    return ""


def _root_inputs(root: RootChoice | None) -> Any:
    if isinstance(root, RegistryRoot):
        return {"digest": root.digest}
    if isinstance(root, BootstrappedRoot):
        made = {"suite": root.suite, "as_of": root.as_of, "packages": root.packages}
        return made | {"without": OF_THIS_MACHINE}
    return None
