"""The format of a base, and the JSON Schemas of both formats."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints, field_validator, model_validator

from builder.core.platforms import Architecture, Platforms
from builder.recipes.descriptions import described
from builder.recipes.fields import (
    CAPABILITY,
    CUDA_VERSION,
    PLAIN,
    DebianPackage,
    Digest,
    License,
    Model,
    Name,
    Sha256,
    Text,
    TreePath,
    Version,
)
from builder.recipes.schema import Build, Requirement
from builder.recipes.sources import PublishedImage


class Packages(Model):
    """Debian packages."""

    packages: list[DebianPackage] = []
    """Debian packages; "libssl-dev:target" is for the image's architecture."""
    cross: dict[Architecture, list[DebianPackage]] = {}
    """More packages to compile with for another architecture, by that architecture."""

    def crossing(self, platforms: Platforms) -> list[str]:
        """Its ``cross`` packages, if the build is a cross build."""
        return self.cross.get(platforms.target, []) if platforms.cross else []


class Root(Packages):
    """Where the Debian root comes from."""

    suite: Name
    """Release of Debian: "trixie"."""
    image: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._/:-]*$"), PLAIN]
    """The registry image to start from, with its tag."""
    digest: Digest | None = None
    """Digest of that image; without it, each build asks the registry and logs the result."""
    as_of: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$"), PLAIN] | None = None
    """Date of the package set where it has no lock, not in the future; change it to get newer
    packages."""

    @field_validator("as_of")
    @classmethod
    def _require_past(cls, value: str | None) -> str | None:
        """Refuse a date that no files can have yet; somewhere it may be tomorrow already."""
        if value is None:
            return value
        try:
            day = date.fromisoformat(value)
        except ValueError as error:
            raise ValueError("there is no such day") from error
        today = datetime.now(UTC).date()
        if day > today + timedelta(days=1):
            raise ValueError(f"is in the future: today is {today}, says the clock of this machine")
        return value


class Published(Model):
    """An image that another project publishes."""

    image: PublishedImage
    """With its tag."""
    digest: Digest | None = None
    """Digest of that image; without it, each build asks the registry and logs the result."""
    note: Text | None = None
    """Why it is not pinned."""
    cuda: Annotated[str, StringConstraints(pattern=CUDA_VERSION), PLAIN] | None = None
    """Version of CUDA that its project or its tag states: "13.0"."""

    @model_validator(mode="after")
    def _require_digest_or_note(self) -> Published:
        if self.digest is None and self.note is None:
            raise ValueError("a tag can move: give its digest, or the reason why not in note")
        return self


class BaseDebian(Model):
    """The Debian packages of a base."""

    lock: TreePath
    """Lock file of the packages of its stages and their dependencies, relative to the file of the
    base; ``builder pin lock`` makes it. Without it, each build installs the newest versions."""


class Stage(Packages):
    """One stage of a CUDA base."""

    libraries: list[Annotated[str, StringConstraints(pattern=r"^lib[A-Za-z0-9_+-]+$"), PLAIN]] = []
    """CUDA libraries to ship: "libcudart", ..."""


class Wheel(Model):
    """A wheel of the CUDA toolkit, for each platform by digest."""

    name: Name
    """Project name on PyPI."""
    version: Version
    """Release."""
    library: bool = False
    """True: contains libraries that are linked and shipped, so the target's wheel is needed too."""
    sha256: dict[Architecture, Sha256]
    """sha256 of the wheel, by platform."""


class DeadLibrary(Model):
    """A library of which no card of the image runs anything."""

    path: TreePath
    """Its path below the packages: "sgl_kernel/flash_ops.abi3.so"."""
    why: Text
    """Why the engine does not need it."""


class BasePython(Model):
    """The Python packages of a base."""

    lock: TreePath
    """Lock file of the wheels, relative to the file of the base."""
    requirements: Annotated[list[Requirement], Field(min_length=1)]
    """Requirements that ``builder pin lock`` resolves: "vllm==0.20.2"."""
    unchecked: Text | None = None
    """Why ``pip check`` may fail; default: it must pass."""
    capabilities: list[Annotated[str, StringConstraints(pattern=CAPABILITY), PLAIN]] = []
    """Compute capabilities of the cards that the image is for: device code that none of them runs
    is removed from all packages except NVIDIA's. Default: all code stays."""
    dead: list[DeadLibrary] = []
    """Libraries without any code for these cards: all their device code is removed, too."""
    nvcc: bool = False
    """Compile CUDA code when the image runs: CUDA_HOME is the toolkit of the wheels, which
    ``requirements`` name: "cuda-toolkit[nvcc]"."""


CUDA_RUNTIME = "nvidia-cuda-runtime"
"""The wheel of CUDA's runtime; for CUDA 12 its name ends in ``-cu12``."""


class BaseRecipe(Model):
    """A base: images to compile in and to run on."""

    name: Name
    """Name of the base, and of the file."""
    summary: Text
    """Description of the base, one line."""
    license: License
    """SPDX license expression."""
    family: Name
    """Family that builds the base: "debian-root", "cuda-wheels", ..."""
    base: Name | None = None
    """Base that it extends."""
    notes: list[Text] = []
    """Known problems, also of related bases."""
    root: Root | None = None
    published: Published | None = None
    python: BasePython | None = None
    devel: Stage = Stage()
    runtime: Stage = Stage()
    debian: BaseDebian | None = None
    wheel: list[Wheel] = []
    build: Build = Build()

    @property
    def cuda(self) -> str | None:
        """``13.0``: the version of the wheel of CUDA's runtime, or the published image's; None:
        not known."""
        if self.published is not None:
            return self.published.cuda
        named = {CUDA_RUNTIME, f"{CUDA_RUNTIME}-cu12"}
        versions = [wheel.version for wheel in self.wheel if wheel.name in named]
        return ".".join(versions[0].split(".")[:2]) if versions else None


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a format: of ``Recipe``, ``BaseRecipe``, or another model."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **described(model.model_json_schema(), Model),
    }
