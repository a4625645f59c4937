"""Options of pytest.  The fixtures are plugins in support/.

Tests that share names of images, or the compiler cache, are of one xdist_group: they never run side
by side.
"""

from __future__ import annotations

import pytest

pytest_plugins = [
    "support.environment",
    "support.commands",
    "support.images",
    "support.small_root",
    "support.cuda_tools",
    "support.registries",
    "support.overlaid",
    "support.publishing",
    "support.prunes",
    "support.farms",
    "support.shelves",
    "support.mirrored",
    "support.nightly_world",
    "support.machines",
    "support.variants",
    "support.patch_bench",
    "support.patch_wards",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine", action="store_true", help="also compile real engines (half an hour)"
    )
    parser.addoption(
        "--kills", type=int, default=8, help="number of kills of a build and a push (20: 5 minutes)"
    )
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--engine"):
        return
    chosen = [item for item in items if item.get_closest_marker("engine") is None]
    left = [item for item in items if item.get_closest_marker("engine") is not None]
    config.hook.pytest_deselected(items=left)
    items[:] = chosen
