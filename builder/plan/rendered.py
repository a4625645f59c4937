"""A plan with its Dockerfile: the key of its image, and the image's references, tags and labels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from builder.families.layout import LABEL_BASE, LABEL_KEY
from builder.plan.inputs import BasePlan, Plan
from builder.platforms import Platform

FORMAT = 1
"""Version of the key's format: raise it when the same inputs result in another image."""


P = TypeVar("P", Plan, BasePlan, covariant=True)


@dataclass(frozen=True)
class _Rendered(Generic[P]):
    """A plan with its Dockerfile, and the base that it extends."""

    plan: P
    text: str
    base: BaseImage | None

    @cached_property
    def key(self) -> str:
        """sha256 (hex) over everything that decides the image."""
        decided = {
            "format": FORMAT,
            "inputs": self.plan.inputs(),
            "dockerfile": self.text,
            "base": self.base.key if self.base else None,
            **self._more(),
        }
        canonical = json.dumps(decided, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def _more(self) -> dict[str, str]:
        """The keys of other images that decide this one."""
        return {}

    @property
    def short_key(self) -> str:
        """The first 12 digits of the key, as tags contain them."""
        return self.key[:12]


@dataclass(frozen=True)
class BaseImage(_Rendered[BasePlan]):
    """A base with its Dockerfile; ``base`` is the one that it extends.

    Each of its stages is an image of the engine.
    """

    @property
    def references(self) -> Mapping[str, str]:
        """The engine's name of each stage; the key is part of the tag."""
        name = f"builder-base/{self.plan.name}"
        return {stage: f"{name}:{stage}-{self.short_key}" for stage in self.plan.stages}

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its images."""
        return {LABEL_BASE: self.plan.name, LABEL_KEY: self.key}

    def chain(self) -> Iterator[BaseImage]:
        """This base, the one that it extends, and so on."""
        below: BaseImage | None = self
        while below is not None:
            yield below
            below = below.base

    def suite(self) -> str | None:
        """The Debian suite of its root, or None."""
        roots = (below.plan.recipe.root for below in self.chain())
        return next((str(root.suite) for root in roots if root is not None), None)


@dataclass(frozen=True)
class EngineImage(_Rendered[Plan]):
    """An engine's plan with its Dockerfile.

    ``repository`` is that of the image, with the user's namespace.
    """

    base: BaseImage
    repository: str
    tools: BaseImage | None = None
    """The base in whose root the entrypoint is compiled; None: in the base's stage devel."""

    def _more(self) -> dict[str, str]:
        return {"tools": self.tools.key} if self.tools else {}

    def bases(self) -> Iterator[BaseImage]:
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
        return f"{self.plan.recipe.version}-{self.short_key}"

    @property
    def platform(self) -> Platform:
        """The platform that it is for: "linux/amd64"."""
        return self.plan.platforms.image

    @property
    def title(self) -> str:
        """For people: the recipe's name, with the platform where it has several."""
        several = len(self.plan.recipe.platform) > 1
        return f"{self.plan.name} ({self.platform})" if several else self.plan.name

    @property
    def tag_suffix(self) -> str:
        """What its tags end in but for the immutable one: see ``Recipe.tag_suffix``."""
        return self.plan.recipe.tag_suffix(self.platform)

    @property
    def references(self) -> tuple[str, ...]:
        """The image's names in the engine, the one with the immutable tag first."""
        tags = [f"{tag}{self.tag_suffix}" for tag in self.plan.recipe.image.tags]
        return tuple(f"{self.repository}:{tag}" for tag in (self.immutable_tag, *tags))

    @property
    def candidate(self) -> str:
        """The image's name until its verdict is good."""
        return f"{self.repository}:unverified-{self.short_key}"

    @property
    def labels(self) -> dict[str, str]:
        """The labels that follow from the recipe, and the key."""
        return self.plan.labels() | {LABEL_KEY: self.key}

    def suite(self) -> str | None:
        """The Debian suite of its bases' root, or None."""
        return self.base.suite()
