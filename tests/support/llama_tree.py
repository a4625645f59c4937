"""A repository with the tree of llama.cpp's shape; a plugin of pytest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from identify.vendor.licenses import LICENSES

from support.environment import REPOSITORY
from support.upstreams import Upstream

TREE = REPOSITORY / "tests/data/trees/llama_shaped"
MIT = dict(LICENSES)["MIT"].replace("[year] [fullname]", "2026 T")


@pytest.fixture
def llama_tree(tmp_path: Path) -> Upstream:
    """Two commits: a tree without a license, then the license; no tag."""
    upstream = Upstream(tmp_path / "served" / "Mini_LLaMa.cpp")
    shutil.copytree(TREE, upstream.folder, dirs_exist_ok=True)
    upstream.record("one")
    upstream.commit("two", LICENSE=MIT, **{"README.md": "<img src=x>\n\n# Mini `LLaMa`, *small*\n"})
    return upstream
