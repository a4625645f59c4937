"""Where the layers of a build are kept, and how they are compressed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from builder.build.build import ActiveBuild, layer_cache
from builder.build.log import BuildLog
from builder.cli.session import BuildProgress
from builder.core.settings import Settings
from builder.plan.plan import Plan
from support.catalogs import rendered
from support.environment import REPOSITORY


def cached(
    name: str,
    stage: str = "image",
    *,
    base: bool = False,
    anew: bool = False,
    offline: bool = False,
) -> str:
    """Where the layers of a recipe, or of its base, are kept."""
    found = rendered(REPOSITORY, name)
    chosen = Settings(layer_cache="r.example/farm/cache")
    active = ActiveBuild(chosen, BuildProgress(), BuildLog(Path(os.devnull)), offline)
    return layer_cache(found.base if base else found, stage, active, anew=anew)


def test_layers_are_kept_where_making_them_again_takes_longer_than_fetching_them() -> None:
    assert cached("hello-sm120") == "r.example/farm/cache:hello-sm120-0.1.0"
    assert cached("hello-sm120", "devel", base=True) == "r.example/farm/cache:cuda-13.0-devel"
    assert cached("hello-sm120", "runtime", base=True) == "r.example/farm/cache:cuda-13.0-runtime"
    # Laid over gigabytes that somebody else publishes, in seconds.
    assert cached("vllm-0.20.2") == ""
    assert cached("vllm-0.20.2", "runtime", base=True) == ""


def test_nothing_is_asked_of_a_registry_offline_and_nothing_useless_is_kept() -> None:
    assert cached("hello-sm120", offline=True) == ""
    assert cached("hello-sm120", "devel", base=True, offline=True) == ""
    assert cached("hello-sm120", anew=True) == ""
    assert cached("hello-sm120", "devel", base=True, anew=True) == ""


def packed(name: str, compression: str) -> Plan:
    """A recipe of this repository with layers of that compression."""
    found = rendered(REPOSITORY, name)
    recipe = found.recipe
    image = recipe.image.model_copy(update={"compression": compression})
    return replace(found, recipe=recipe.model_copy(update={"image": image}))


@pytest.mark.parametrize(
    ("name", "compression", "anew"),
    [
        ("hello-sm120", "gzip", False),
        ("hello-sm120", "zstd", True),
        ("vllm-0.20.2-wheel", "zstd", True),  # a base of our own, of wheels
        ("vllm-0.20.2", "zstd", False),  # gigabytes that somebody else publishes
    ],
)
def test_layers_of_our_own_bases_are_of_the_kind_of_the_image(
    name: str, compression: str, *, anew: bool
) -> None:
    found = packed(name, compression)
    assert found.stages == {"image": compression}
    assert found.compresses_base is anew
