"""Debian locks: the exact packages that the stages of a base or of a recipe install.

A lock is TOML beside the recipes, made by ``builder pin lock``.  Each ``[[install]]`` is a stage on
one architecture, and lists every package that it adds to the stage below.  The lock has a digest of
its own data: a line that is lost or changed is noticed when the lock is read, not by dpkg in the
middle of a build.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
)

from builder.core.errors import RecipeError
from builder.recipes.catalog import parse, read_model, read_text
from builder.recipes.fields import (
    DEBIAN_FILE,
    DEBIAN_VERSION,
    PLAIN,
    DebianPackage,
    Model,
    Name,
    PythonProject,
    Sha256,
    Version,
)


class DebianFile(Model):
    """One package: its file in Debian's archives."""

    path: Annotated[str, StringConstraints(pattern=DEBIAN_FILE), PLAIN]
    version: Annotated[str, StringConstraints(pattern=DEBIAN_VERSION), PLAIN]
    size: Annotated[int, Field(ge=1)]
    sha256: Sha256

    @property
    def name(self) -> str:
        """The package's name."""
        return self.path.rpartition("/")[2].split("_")[0]

    @property
    def architecture(self) -> str:
        """ "amd64", "arm64", or "all"."""
        return self.path.removesuffix(".deb").rpartition("_")[2]

    @property
    def inputs(self) -> list[str]:
        """The values that decide the installed files, as JSON data."""
        return [self.name, self.version, self.architecture, self.sha256]


class Install(Model):
    """The packages of a stage on one architecture."""

    stage: Name
    architecture: Literal["amd64", "arm64"]
    foreign: Literal["amd64", "arm64"] | None = None
    """The other architecture whose packages it may have: the target of a cross build."""
    packages: list[DebianPackage]
    """The packages that were asked for."""
    files: list[DebianFile]
    """These packages and their dependencies, without the packages of the stage below."""

    @property
    def key(self) -> tuple[str, str, str | None]:
        """Stage and architectures: no two installs of a lock have the same."""
        return self.stage, self.architecture, self.foreign


class DebianLock(Model):
    """The contents of a lock file."""

    suite: Name
    as_of: AwareDatetime
    """Date of the package lists that it was made from."""
    install: Annotated[list[Install], Field(min_length=1)]
    sha256: Sha256
    """Covers the other fields."""

    @field_validator("sha256")
    @classmethod
    def _require_unchanged(cls, value: str, info: ValidationInfo) -> str:
        # A field that is invalid has a problem of its own, and is not in the data.
        if {"suite", "as_of", "install"} <= {*info.data} and value != _digest(info.data):
            raise ValueError("the lock has other data: a line was changed, added or removed")
        return value


def make(suite: str, as_of: datetime, install: Sequence[Install]) -> DebianLock:
    """A lock with its digest."""
    data = {"suite": suite, "as_of": as_of, "install": [*install]}
    return DebianLock.model_validate({**data, "sha256": _digest(data)})


def _digest(data: Mapping[str, Any]) -> str:
    installs = [each.model_dump(exclude_none=True) for each in data["install"]]
    fields = [data["suite"], int(data["as_of"].timestamp()), installs]
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def read(file: Path, name: str) -> DebianLock:
    """Read the lock file of the recipe or base ``name``.

    Raises ``RecipeError`` when it is absent, not a lock, or not as it was made.
    """
    hint = f"`builder pin lock {name}` makes it anew"
    if not file.exists():
        raise RecipeError(f"{name} has no lock file {file}", hint=hint)
    text = read_text(file)
    lock = _parsed(text)
    if lock is None:
        _, problems = parse(text, file, DebianLock)
        raise RecipeError(f"{file.name} is invalid", problems=problems, hint=hint)
    return lock


@lru_cache(maxsize=32)  # a plan reads each lock several times: up to 100 kB
def _parsed(text: str) -> DebianLock | None:
    return parse(text, Path(), DebianLock)[0]


def text_of(lock: DebianLock, name: str) -> str:
    """The text of a lock file; a package a line, so that a difference shows each."""
    return "\n".join(_lines(lock, name)) + "\n"


def _lines(lock: DebianLock, name: str) -> Iterator[str]:
    yield f"# Made by `builder pin lock {name}`; every package is taken by its digest."
    yield f'suite = "{lock.suite}"'
    yield f"as_of = {lock.as_of.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    yield f'sha256 = "{lock.sha256}"'
    for install in lock.install:
        yield "\n[[install]]"
        yield f'stage        = "{install.stage}"'
        yield f'architecture = "{install.architecture}"'
        if install.foreign is not None:
            yield f'foreign      = "{install.foreign}"'
        yield f"packages     = {json.dumps(install.packages)}"
        yield "files        = ["
        for file in install.files:
            yield (
                f'    {{ path = "{file.path}", version = "{file.version}", '
                f'size = {file.size}, sha256 = "{file.sha256}" }},'
            )
        yield "]"


# Lock files: the exact files of PyPI that a build and a runtime are made of.
#
# A lock is TOML beside the recipes: ``python`` names the interpreter's version, and each
# ``[[build]]`` or ``[[runtime]]`` table one file by name, version and sha256.


@dataclass(frozen=True, slots=True, order=True)
class PinnedFile:
    """One file on PyPI; ``sha256`` (hex) decides which of the version's files it is."""

    __pydantic_config__ = ConfigDict(extra="forbid", regex_engine="python-re")
    name: PythonProject
    version: Version
    sha256: Sha256


class Lock(Model):
    """The contents of a lock file."""

    python: Version
    build: tuple[PinnedFile, ...] = Field((), strict=False)
    runtime: tuple[PinnedFile, ...] = Field(strict=False)

    def _faults(self) -> Iterator[str]:
        if not self.build and not self.runtime:
            yield "lists no file"


def read_lock(file: Path) -> Lock:
    """Read a lock file; raises ``RecipeError`` when it is absent or not a lock."""
    return read_model(file, Lock)
