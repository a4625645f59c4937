"""A recipe's images: one for each of its platforms."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from builder.build.lookup import contract_of
from builder.core.errors import RecipeError
from builder.engines.layout import LABEL_ARCHITECTURES
from builder.plan.plan import Plan
from builder.plan.resolver import Resolver
from builder.recipes.probes import LibraryProbe
from support.catalogs import load
from support.environment import REPOSITORY

BOTH = REPOSITORY / "recipes/llama-cpp-b9831.toml"
SMALL = REPOSITORY / "recipes/hello-sm120-0.1.0.toml"
ARM64 = """[cuda.arm64]
arch = ["121"]     # GB10, the GPU of a DGX Spark; ggml's cmake makes 121a of it
"""
OPTION = '[[probe]]\noption = "--spec-type"\n'


def resolver(root: Path = REPOSITORY) -> Resolver:
    return Resolver(load(root), "amd64", "mmdebstrap", namespace="me")


def codes(plan: Plan) -> list[str]:
    probes = plan.recipe.probe
    return [
        code for each in probes if isinstance(each, LibraryProbe) for code in each.architectures
    ]


@pytest.fixture(autouse=True)
def engines(catalog: Path) -> None:
    (catalog / "engines").symlink_to(REPOSITORY / "engines")


def changed(catalog: Path, file: Path, *replaced: tuple[str, str]) -> None:
    """Change a recipe of a catalog."""
    text = file.read_text()
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    (catalog / "recipes" / file.name).write_text(text)


def test_each_platform_has_an_image_of_its_own() -> None:
    amd64, arm64 = resolver().plans("llama-cpp-b9831")
    assert (amd64.platform, arm64.platform) == ("linux/amd64", "linux/arm64")
    assert amd64.key != arm64.key
    assert (codes(amd64), codes(arm64)) == (["sm_120a"], ["sm_121a"])
    assert (amd64.code, arm64.code) == (
        ["sm_120a"],
        ["sm_121a"],
    )
    assert "-DCMAKE_CUDA_ARCHITECTURES=120" in amd64.text
    assert "-DCMAKE_CUDA_ARCHITECTURES=121" in arm64.text
    assert arm64.labels[LABEL_ARCHITECTURES] == "121"
    assert contract_of(amd64) != contract_of(arm64)
    assert resolver().resolve("llama-cpp-b9831", "linux/arm64").key == arm64.key


def test_the_plain_tags_are_those_of_amd64() -> None:
    amd64, arm64 = resolver().plans("llama-cpp-b9831")
    assert amd64.references == (
        f"me/llama-cpp:b9831-{amd64.short_key}",
        "me/llama-cpp:b9831",
    )
    assert arm64.references == (
        f"me/llama-cpp:b9831-{arm64.short_key}",
        "me/llama-cpp:b9831-arm64",
    )


def test_the_only_platform_has_the_plain_tags(catalog: Path) -> None:
    changed(
        catalog,
        SMALL,
        ('"cuda-13.0"', '"cuda-13.0"\nplatform = ["linux/arm64"]'),
        ('["120"]', '["121"]'),
    )
    plan = resolver(catalog).resolve("hello-sm120")
    assert plan.platform == "linux/arm64"
    assert plan.recipe.cuda.arch == ["121"]
    assert plan.references[1] == "me/hello-sm120:0.1.0"


def test_the_image_for_amd64_does_not_depend_on_the_other(catalog: Path) -> None:
    """A recipe that gets a second platform keeps its key, and the verdict on its image."""
    changed(catalog, BOTH)
    shutil.copytree(REPOSITORY / "patches", catalog / "patches")
    before = resolver(catalog).resolve("llama-cpp-b9831", "linux/amd64")
    changed(catalog, BOTH, (', "linux/arm64"', ""), (ARM64, ""))
    after = resolver(catalog).resolve("llama-cpp-b9831")
    assert after.key == before.key
    assert contract_of(after) == contract_of(before)


def test_which_image_is_meant_must_be_clear() -> None:
    with pytest.raises(RecipeError, match="has images for linux/amd64 and linux/arm64") as caught:
        resolver().resolve("llama-cpp-b9831")
    assert "--platform linux/amd64" in str(caught.value)
    with pytest.raises(RecipeError, match=r"hello-sm120-0\.1\.0 has no image for linux/arm64"):
        resolver().resolve("hello-sm120", "linux/arm64")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"linux/arm64"]', '"linux/amd64"]', "platform names a platform twice"),
        (ARM64, "", "the image for linux/arm64 needs [cuda.arm64]"),
        ('"linux/amd64", "linux/arm64"', '"linux/arm64"', "[cuda.arm64] is for a recipe with two"),
        (
            f'"linux/amd64", "linux/arm64"]|{ARM64}|{OPTION}',
            f'"linux/arm64"]||{OPTION}platform = "linux/amd64"\n',
            "a probe is for linux/amd64, which platform does not name",
        ),
    ],
)
def test_platforms_code_and_probes_agree(old: str, new: str, message: str, catalog: Path) -> None:
    changed(catalog, BOTH, *zip(old.split("|"), new.split("|"), strict=True))
    with pytest.raises(RecipeError) as caught:
        resolver(catalog).plans("llama-cpp-b9831")
    assert message in str(caught.value)
