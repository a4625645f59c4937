"""Options of pytest.  The fixtures are plugins in support/.

Tests that share names of images are of one xdist_group: they never run side by side.
"""

from __future__ import annotations

import gc

import pytest

pytest_plugins = [
    "support.cpu",
    "support.environment",
    "support.commands",
    "support.images",
    "support.ccaches",
    "support.small_root",
    "support.cuda_tools",
    "support.registries",
    "support.overlaid",
    "support.publishing",
    "support.sigstore",
    "support.platforms",
    "support.prunes",
    "support.hub_login",
    "support.farms",
    "support.shelves",
    "support.mirrored",
    "support.nightly_world",
    "support.machines",
    "support.variants",
    "support.patch_bench",
    "support.patch_wards",
    "support.simulators",
    "support.shaped_card",
    "support.llama_tree",
    "support.workflows",
    "support.lock_farm",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine", action="store_true", help="also compile real engines (half an hour)"
    )
    parser.addoption(
        "--browser", action="store_true", help="also visit the site in Chromium (20 seconds)"
    )
    parser.addoption(
        "--cross", action="store_true", help="also compile on emulated arm64 (fifteen minutes)"
    )
    parser.addoption(
        "--act", action="store_true", help="also run GitHub's workflows with act (half an hour)"
    )
    parser.addoption(
        "--kills", type=int, default=4, help="number of kills of a build and a push (20: 5 minutes)"
    )
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


LONGEST = (
    *("smoke", "llama", "overlaid", "nights", "pushed", "odd", "variant", "bisect"),
    "kills",
)
"""The groups that take longest begin first: the short tests fill what is left of the processes."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_turn)
    unwanted = [
        name for name in ("engine", "browser", "cross", "act") if not config.getoption(f"--{name}")
    ]
    left = [item for item in items if any(map(item.get_closest_marker, unwanted))]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def pytest_collection_finish() -> None:
    """No garbage collection visits what is imported."""
    gc.collect()
    gc.freeze()


def _turn(item: pytest.Item) -> int:
    group = item.get_closest_marker("xdist_group")
    name = group.args[0] if group is not None else ""
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)
