"""Lock files: the exact files of PyPI that a build and a runtime are made of.

A lock is TOML beside the recipes: ``python`` names the interpreter's version, and each
``[[build]]`` or ``[[runtime]]`` table one file by name, version and sha256.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict, Field, model_validator

from builder.recipes.fields import Model, PythonProject, Sha256, Version
from builder.recipes.parse import read_model


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

    @model_validator(mode="after")
    def _of_something(self) -> Lock:
        if not self.build and not self.runtime:
            raise ValueError("lists no file")
        return self


def read(file: Path) -> Lock:
    """Read a lock file; raises ``RecipeError`` when it is absent or not a lock."""
    return read_model(file, Lock)
