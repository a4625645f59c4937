"""Lock files: the exact files of PyPI that a build and a runtime are made of.

A lock is TOML beside the recipes: ``python`` names the interpreter's version, and each
``[[build]]`` or ``[[runtime]]`` table one file by name, version and sha256.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, model_validator

from builder.recipes.parse import read_model
from builder.recipes.schema.fields import Model, PythonProject, Sha256, Version


@dataclass(frozen=True, slots=True, order=True)
class PinnedFile:
    """One file on PyPI; ``sha256`` (hex) decides which of the version's files it is."""

    name: str
    version: str
    sha256: str


class _LockedFile(Model):
    name: PythonProject
    version: Version
    sha256: Sha256

    def pinned(self) -> PinnedFile:
        return PinnedFile(self.name, self.version, self.sha256)


class _Lock(Model):
    python: Version
    build: list[_LockedFile] = Field(default_factory=list)
    runtime: list[_LockedFile]

    @model_validator(mode="after")
    def _of_something(self) -> _Lock:
        if not self.build and not self.runtime:
            raise ValueError("lists no file")
        return self


@dataclass(frozen=True, slots=True)
class Lock:
    """The contents of a lock file."""

    python: str
    build: tuple[PinnedFile, ...]
    runtime: tuple[PinnedFile, ...]


def read(file: Path) -> Lock:
    """Read a lock file; raises ``RecipeError`` when it is absent or not a lock."""
    parsed = read_model(file, _Lock)
    return Lock(
        parsed.python,
        tuple(entry.pinned() for entry in parsed.build),
        tuple(entry.pinned() for entry in parsed.runtime),
    )
