"""Where the layers of a build are kept."""

from __future__ import annotations

from builder.images.session import BuildOptions
from builder.images.stages import layer_cache
from builder.settings import Settings
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
    options = BuildOptions(chosen, offline=offline)
    return layer_cache(found.base if base else found, options, stage, anew=anew)


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
