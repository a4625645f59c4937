"""Options of pytest, and which tests run side by side.  The fixtures are plugins in support/."""

from __future__ import annotations

import pytest

pytest_plugins = [
    "support.environment",
    "support.commands",
    "support.images",
    "support.registries",
    "support.overlaid",
    "support.publishing",
    "support.machines",
    "support.variants",
    "support.patch_wards",
]
OF_THE_REGISTRY = {
    *("test_bake", "test_kills", "test_machines", "test_nights"),
    *("test_overlay", "test_prune", "test_publish", "test_registry"),
    *("test_signing", "test_start", "test_status", "test_verified"),
    "test_vllm",
}
"""They stand on one image of somebody else's, or hold the locks of the nights."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine", action="store_true", help="also compile real engines (half an hour)"
    )
    parser.addoption(
        "--kills", type=int, default=8, help="so often a build or a push is killed (20: 5 minutes)"
    )
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads what this marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        lane = _lane(item)
        if lane:
            item.add_marker(pytest.mark.xdist_group(lane))
    if config.getoption("--engine"):
        return
    chosen = [item for item in items if item.get_closest_marker("engine") is None]
    left = [item for item in items if item.get_closest_marker("engine") is not None]
    config.hook.pytest_deselected(items=left)
    items[:] = chosen


def _lane(item: pytest.Item) -> str:
    """Tests of one lane never run side by side; empty: a test may run beside any other."""
    if item.path.stem in OF_THE_REGISTRY:
        return "registry"
    return "engine" if item.get_closest_marker("docker") is not None else ""
