"""A plan: all inputs that decide an image, its Dockerfile, its key, and the image's names."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from builder.core.errors import RecipeError
from builder.core.platforms import Architecture, Platform, Platforms
from builder.engines import families, layout
from builder.engines.cmake import LINKER_FLAGS, link_directories
from builder.engines.layout import LAYOUT
from builder.engines.layout import needs as needs_entrypoint
from builder.plan.inputs import (
    DebianPackages,
    Lock,
    PlannedPatch,
    RegistryRoot,
    RootChoice,
    SourceChoice,
    identified,
    where,
)
from builder.recipes.catalog import read_text
from builder.recipes.locks import PinnedFile
from builder.recipes.schema import BaseRecipe, Recipe, Root


def exec_form(arguments: Iterable[object]) -> str:
    """A JSON array: the form of RUN, CMD, ENTRYPOINT and HEALTHCHECK that no shell reads."""
    return json.dumps([str(argument) for argument in arguments])


def quoted(value: object) -> str:
    """A double-quoted word for ENV, in which nothing is expanded."""
    return '"' + re.sub(r'([\\"$])', r"\\\1", str(value)) + '"'


@cache
def templates(folder: Path) -> Environment:
    """The templates of ``folder``; each is compiled once, and again if its file changes."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  (not HTML: see exec_form and quoted)
    )
    environment.globals["layout"] = LAYOUT
    environment.globals["entrypoint_command"] = layout.command
    environment.filters |= {"exec": exec_form, "quoted": quoted}
    return environment


def render_template(folder: Path, name: str, **variables: Any) -> str:
    """The text of a template of ``folder``; commands and values are written as data."""
    return templates(folder).get_template(name).render(**variables)


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile of ours, one a line: keyword and the rest."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return [(keyword, rest) for keyword, _, rest in (line.partition(" ") for line in lines)]


LONGEST_LINE = 65_535  # bytes: BuildKit's parser reads no longer ones

KEYWORDS = frozenset(
    "ADD ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK RUN USER WORKDIR".split()  # noqa: SIM905
)


def lints(text: str) -> Iterable[str]:
    """The violations of our rules for a rendered Dockerfile, by line."""
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"#\s*(syntax|escape|check)\s*=", line, re.IGNORECASE):
            yield f"line {number}: a parser directive would change, or fetch, the frontend"
        if len(line.encode()) > LONGEST_LINE:
            yield f"line {number}: longer than BuildKit reads ({LONGEST_LINE} bytes)"
    for keyword, rest in instructions(text):
        if keyword not in KEYWORDS:
            yield f"{keyword or rest!r}: not an instruction that our templates use"
        if rest.endswith("\\"):
            yield f"{keyword} {rest}: continues on the next line"
        options, bracket, _ = rest.partition("[")
        if keyword == "RUN" and not bracket:
            yield f"RUN {rest}: needs the JSON form, which no shell reads"
        if keyword == "RUN" and "--network=" not in options:
            yield f"RUN {rest}: lacks --network"
        elif keyword == "RUN" and "--network=none" not in options and "apt-get" not in rest:
            yield f"RUN {rest}: only Debian's packages are fetched while building"


def link_lints(text: str, recipe: Recipe, no_vmm: str | None) -> Iterable[str]:
    """The cmake calls of a rendered Dockerfile that cannot link.

    With ``vmm = true`` each needs the driver's stub, or the build fails at its last link; without
    it each needs the family's definition ``no_vmm``, where there is one.
    """
    option = re.compile(r"(?:-D|cmake\.define\.)(\w+)(?::\w+)?=(.*)", re.DOTALL)
    for keyword, rest in instructions(text):
        _, bracket, command = rest.partition("[")
        words = json.loads(bracket + command) if keyword == "RUN" and bracket else []
        configures = "-S" in words and "cmake" in words
        if not configures and not any("cmake.define." in word for word in words):
            continue
        given = {each[1]: each[2] for word in words if (each := option.match(word))}
        for name in LINKER_FLAGS:
            found = re.findall(r"(?<!\S)-Wl,-rpath-link,(\S+)", given.get(name, ""))
            named = ":".join(found).split(":")
            for folder in (each for each in link_directories(recipe) if each not in named):
                yield f"{name} of a cmake call has no -rpath-link to {folder}: the link would fail"
        if no_vmm is not None and not recipe.cuda.vmm and given.get(no_vmm) != "ON":
            yield f"a cmake call without {no_vmm}=ON would link the driver: [cuda] vmm is false"


FORMAT = 1  # version of the key's format: raise it when the same inputs result in another image


@dataclass(frozen=True, kw_only=True)
class AnyPlan(ABC):
    """The plan of an engine's image, ``Plan``, or of a base, ``BasePlan``."""

    recipe: Recipe | BaseRecipe
    family: families.BaseFamily | families.EngineFamily
    file: Path  # the recipe's
    platforms: Platforms
    packages: Mapping[str, tuple[PinnedFile, ...]]
    dockerfiles: Path  # directory of the templates, and of the scripts in ``scripts/``
    scripts: Mapping[str, str]  # sha256 (hex) of each script that its stages run
    base: BasePlan | None  # the base that it extends
    tools: BasePlan | None = None
    """The base in whose root the entrypoint is compiled; None: in the stage devel of ``base``."""
    debian: DebianPackages = field(default_factory=DebianPackages)
    root: RootChoice | None = None  # None: its stages start from ``base``
    lock: Lock | None = None  # of the image; its Dockerfiles are rendered already
    entrypoint: Mapping[str, str] = field(default_factory=dict)
    """sha256 (hex) of each source file of the entrypoint; none: the image is not started."""

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.recipe.name

    @property
    @abstractmethod
    def stages(self) -> Mapping[str, str]:
        """The stages that become images, and the compression of their layers."""

    def architectures(self, stage: str) -> tuple[Architecture, ...]:
        """The architectures that a stage is made for; ``devel`` of a base compiles."""
        platforms, root = self.platforms, self._debian_root
        if stage == "devel" or (root is not None and root.crossing(platforms)):
            return (platforms.build,)
        return platforms.both if stage == "root" else (platforms.target,)

    @property
    @abstractmethod
    def labels(self) -> dict[str, str]:
        """The labels that follow from the recipe, and the key."""

    def labels_of(self, created: str, base: str) -> dict[str, str]:  # noqa: ARG002
        """The labels of an image that was ``created`` then (RFC 3339), on a base of this digest."""
        return self.labels

    @property
    def extends_base(self) -> bool:
        """Whether the image is its base with files added or changed."""
        return isinstance(self.family, families.EngineFamily) and self.family.extends_base

    @property
    def worth_caching(self) -> bool:
        """Whether a registry may keep the layers of its steps: not of a published image, nor of an
        overlay, which is built in seconds and would keep its base's layers, too."""
        if isinstance(self.family, families.EngineFamily):
            return self.family.package_paths is None
        return isinstance(self.recipe, BaseRecipe) and self.recipe.published is None

    @property
    def has_nvcc(self) -> bool:
        """Whether its base has an image to compile in, with nvcc and ``ptxas``."""
        if self.base is None or "devel" not in self.base.stages:
            return False
        lists = (files for base in self.base.chain() for files in base.packages.values())
        return any(file.name == "nvidia-cuda-nvcc" for files in lists for file in files)

    @property
    def _debian_root(self) -> Root | None:
        return self.recipe.root if isinstance(self.recipe, BaseRecipe) else None

    @property
    def suite(self) -> str | None:
        """The Debian suite of its root, or None."""
        if self._debian_root is not None:
            return str(self._debian_root.suite)
        return self.base.suite if self.base else None

    @property
    def epoch(self) -> int:
        """The newest date of the Debian packages of this plan and its bases, in seconds since 1970:
        a lock's, else 00:00 UTC of the root's day; 0: none is known."""
        root, date = self._debian_root, self.debian.as_of
        if root is not None and root.as_of is not None:
            date = datetime.fromisoformat(root.as_of).replace(tzinfo=UTC)
        own = int(date.timestamp()) if date is not None else 0
        return max(own, self.base.epoch if self.base else 0)

    @cached_property
    def text(self) -> str:
        """The Dockerfile; ``RecipeError`` when it breaks one of our rules: a fault of the template,
        or of a value that should have been refused earlier."""
        text = self._rendered()
        if faults := [*lints(text), *self._faults(text)]:
            raise RecipeError(f"the Dockerfile of {self.name} is not acceptable", "\n".join(faults))
        return text

    def _rendered(self) -> str:
        if self.lock is not None:
            return read_text(self.dockerfiles / f"{self.name}.Dockerfile")
        variables = {
            "recipe": self.recipe,
            "packages": self.packages,
            "debian": self.debian.stages,
            "platforms": self.platforms,
            "epoch": self.epoch,
            **self._variables(),
        }
        return render_template(self.dockerfiles, self.family.template, **variables)

    @abstractmethod
    def _variables(self) -> dict[str, Any]: ...

    def _faults(self, text: str) -> Iterable[str]:  # noqa: ARG002
        return ()

    @cached_property
    def key(self) -> str:
        """sha256 (hex) over all inputs that decide the image.  Raises like ``text``."""
        decided = {
            "format": FORMAT,
            "inputs": self.inputs(),
            "dockerfile": self.text,
            "base": self.base.key if self.base else None,
            **({"tools": self.tools.key} if self.tools else {}),
        }
        canonical = json.dumps(decided, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def short_key(self) -> str:
        """The first 12 digits of the key, as tags contain them."""
        return self.key[:12]

    def require_acceptable(self) -> None:
        """Raise ``RecipeError`` where its Dockerfile, or a base's, breaks one of our rules."""
        _ = self.key  # renders each of them

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
class BasePlan(AnyPlan):
    """A base, resolved; each of its stages becomes an image of the engine."""

    recipe: BaseRecipe
    family: families.BaseFamily

    @property
    def cuda(self) -> str | None:
        """The version of its CUDA, or of the base below: "13.0"; None: it is not known."""
        return self.recipe.cuda or (self.base.cuda if self.base else None)

    @property
    def stages(self) -> Mapping[str, str]:
        """The stages that become images, and the compression of their layers."""
        return self.family.stages

    def opened(self) -> BasePlan:
        """The base without a digest that its recipe does not pin."""
        below = self.base.opened() if self.base else None
        source, root = self.recipe.published or self.recipe.root, self.root
        if source and source.digest is None and isinstance(root, RegistryRoot):
            root = replace(root, digest="")
        return replace(self, base=below, root=root)

    @property
    def references(self) -> Mapping[str, str]:
        """The engine's name of each stage; the key is part of the tag."""
        name = f"builder-base/{self.name}"
        return {stage: f"{name}:{stage}-{self.short_key}" for stage in self.stages}

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its images."""
        return {layout.LABEL_BASE: self.name, layout.LABEL_KEY: self.key}

    def chain(self) -> Iterator[BasePlan]:
        """This base, its own base, and so on."""
        below: BasePlan | None = self
        while below is not None:
            yield below
            below = below.base

    def _variables(self) -> dict[str, Any]:
        return {"root": self.root, **self.family.variables(self.recipe, self.platforms)}

    def inputs(self) -> dict[str, Any]:
        """As for every plan, and the root."""
        return {**super().inputs(), "root": self.root.inputs() if self.root else None}


@dataclass(frozen=True, kw_only=True)
class Plan(AnyPlan):
    """An engine's image, resolved: its inputs, and the names that it will have."""

    recipe: Recipe
    family: families.EngineFamily
    repository: str  # the image's repository, with the user's namespace
    source: SourceChoice
    patches: tuple[PlannedPatch, ...]
    base: BasePlan

    @property
    def platform(self) -> Platform:
        """The platform that the image is for: "linux/amd64"."""
        return self.platforms.image

    @property
    def title(self) -> str:
        """For people: the recipe's name, with the platform where it has several."""
        return f"{self.name} ({self.platform})" if len(self.recipe.platform) > 1 else self.name

    @property
    def stages(self) -> Mapping[str, str]:
        """The stage that becomes the image, and the compression of its layers."""
        return {"image": self.recipe.image.compression}

    @property
    def code(self) -> list[str]:
        """The code that decides which cards run the engine: "sm_120a"."""
        return list(self.family.machine_code(self.recipe))

    @property
    def compresses_base(self) -> bool:
        """Whether our base is compressed again, from gzip; a published one stays."""
        published = any(base.recipe.published is not None for base in self.base.chain())
        return self.recipe.image.compression != "gzip" and not published

    def bases(self) -> Iterator[BasePlan]:
        """The bases that its stages begin with."""
        yield self.base
        if self.tools is not None:
            yield self.tools

    @property
    def devel(self) -> str | None:
        """The engine's name of the image to compile in; None on a published image."""
        stages = (base.references.get("devel") for base in self.base.chain())
        return next(filter(None, stages), None)

    @property
    def base_references(self) -> Mapping[str, str]:
        """The engine's name of each stage that its own stages begin with."""
        bases = reversed([*self.bases()])
        return {stage: name for base in bases for stage, name in base.references.items()}

    @property
    def immutable_tag(self) -> str:
        """``VERSION-KEY12``: no other image ever gets this tag."""
        return f"{self.recipe.version}-{self.short_key}"

    @property
    def tag_suffix(self) -> str:
        """The end of its tags, except the immutable one."""
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

    @cached_property
    def recipe_key(self) -> str:
        """The key without the digests that the recipe leaves open: no registry has to be asked."""
        if self.lock is not None:
            return self.lock.recipe_key
        tools = self.tools.opened() if self.tools else None
        return replace(self, base=self.base.opened(), tools=tools).key

    @property
    def labels(self) -> dict[str, str]:
        """The labels that follow from the recipe, and the keys."""
        keys = {layout.LABEL_KEY: self.key}
        if self.recipe_key != self.key:
            keys[layout.LABEL_RECIPE_KEY] = self.recipe_key
        return self._recipe_labels() | keys

    def labels_of(self, created: str, base: str) -> dict[str, str]:
        """The labels of an image that was ``created`` then (RFC 3339), on a base of this digest;
        empty: on none."""
        made = self.labels | {layout.CREATED: created}
        if not base:
            return made
        return made | {layout.BASE_NAME: self.base_references["runtime"], layout.BASE_DIGEST: base}

    def _recipe_labels(self) -> dict[str, str]:
        recipe = self.recipe
        labels = {
            "org.opencontainers.image.title": recipe.engine,
            "org.opencontainers.image.description": recipe.summary,
            layout.VERSION: recipe.version,
            layout.REVISION: identified(self.source)[0],
            "org.opencontainers.image.source": recipe.url or where(recipe.source),
            "org.opencontainers.image.licenses": recipe.license,
            layout.LABEL_RECIPE: recipe.name,
            layout.LABEL_ARCHITECTURES: " ".join(recipe.cuda.arch),
        }
        if recipe.url:
            labels["org.opencontainers.image.url"] = recipe.url
        applied = [patch.name for patch in self.patches if patch.patch.expect == "applies"]
        applied += [f"at start: {' '.join(step.run)}" for step in recipe.start]
        if applied:
            labels[layout.LABEL_PATCHES] = ", ".join(applied)
        return labels

    def _variables(self) -> dict[str, Any]:
        instructions = self.family.instructions(self.recipe, self.platforms)
        needs = list(needs_entrypoint(self.recipe, self.code, self.base.cuda, instructions))
        return {"needs": needs, **self.family.variables(self.recipe, self.platforms)}

    def _faults(self, text: str) -> Iterable[str]:
        return link_lints(text, self.recipe, self.family.no_vmm)

    def inputs(self) -> dict[str, Any]:
        """As for every plan, and the source, its patches, the entrypoint and the labels."""
        compression, (source, part) = self.recipe.image.compression, identified(self.source)
        return {
            **super().inputs(),
            "source": source,
            "source_part": part,
            "patches": [patch.inputs() for patch in self.patches],
            "entrypoint": dict(self.entrypoint),
            "labels": self._recipe_labels(),
            # The keys of older images do not name gzip.
            **({} if compression == "gzip" else {"compression": compression}),
        }
