"""The interpreter as a fixture."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxlab.build import build
from ptxlab.interpreter import Library


@pytest.fixture(scope="session")
def built() -> Path:
    """The directory with ``libptx.so`` and the program ``ptx``."""
    return build()


@pytest.fixture(scope="session")
def library(built: Path) -> Library:
    return Library(built / "libptx.so")
