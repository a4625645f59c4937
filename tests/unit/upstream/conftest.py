"""Fixtures of a bisect without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.bisects import Farm
from support.commands import Builder
from support.upstreams import Upstream


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return Upstream(tmp_path / "eng")


@pytest.fixture
def farm(
    catalog: Path,
    upstream: Upstream,
    tmp_path: Path,
    builder: Builder,
    monkeypatch: pytest.MonkeyPatch,
) -> Farm:
    monkeypatch.setenv("BUILDER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    return Farm(catalog, upstream, builder)
