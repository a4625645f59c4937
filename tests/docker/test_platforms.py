"""A recipe with two platforms: small images for both, each with code for its own cards.

The image for arm64 is compiled on amd64 and checked under qemu-user; its Debian root is installed
under emulation, which takes minutes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from builder.docker import buildx
from support.commands import Builder
from support.environment import REPOSITORY
from support.smoke_tests import docker

pytestmark = [pytest.mark.docker, pytest.mark.cross, pytest.mark.xdist_group("platforms")]

NAME = "hello-blackwell-0.1.0"
RECIPE = REPOSITORY / "tests/data/recipes" / f"{NAME}.toml"


@pytest.fixture(scope="module")
def names() -> str:
    return "builder-test/platforms"


@pytest.fixture(autouse=True)
def emulator(monkeypatch: pytest.MonkeyPatch, names: str) -> None:
    found = buildx.platforms_of()
    assert "linux/arm64" in found, f"install qemu-user-static: the engine runs {', '.join(found)}"
    monkeypatch.setenv("BUILDER_NAMESPACE", names)


@pytest.fixture
def farm(catalog: Path) -> Path:
    """A catalog with the recipe."""
    (catalog / "engines").symlink_to(REPOSITORY / "engines")
    copy(RECIPE, catalog / "recipes")
    return catalog


@pytest.fixture
def built(builder: Builder, farm: Path, made: set[str]) -> list[dict[str, Any]]:
    done = builder("build", NAME, "--json", "--catalog", farm)
    assert done.returncode == 0, done.stderr
    images: list[dict[str, Any]] = json.loads(done.stdout)["images"]
    made.update(name for image in images for name in image["references"])
    return images


def checks(image: dict[str, Any], kind: str) -> list[str]:
    return [each["found"] for each in image["verdict"]["checks"] if each["kind"] == kind]


def test_each_platform_has_a_verified_image(built: list[dict[str, Any]], names: str) -> None:
    assert [image["platform"] for image in built] == ["linux/amd64", "linux/arm64"]
    assert [image["way"] for image in built] == ["native", "cross"]
    states = {each["state"] for image in built for each in image["verdict"]["checks"]}
    assert states == {"passed", "skipped"}
    for image, suffix, code in zip(built, ("", "-arm64"), ("sm_120", "sm_121"), strict=True):
        own = f"{names}/hello-blackwell:0.1.0"
        assert image["references"] == [f"{own}-{image['key'][:12]}", f"{own}{suffix}"]
        platform = docker(
            "image", "inspect", "--format={{.Os}}/{{.Architecture}}", f"{own}{suffix}"
        )
        assert platform == image["platform"]
        shell = ["run", "--rm", f"--platform={platform}", "--entrypoint=/bin/sh", f"{own}{suffix}"]
        version = docker(*shell, "-c", "/opt/engine/bin/hello-server --version 2>&1")
        assert f"for {code}" in version
        assert any(code in found for found in checks(image, "library"))
    amd64, arm64 = built
    assert amd64["verdict"]["device"] is not None
    # It has served a model on the CPU; no card is simulated for it.
    (skipped,) = (each for each in arm64["verdict"]["checks"] if each["state"] == "skipped")
    assert skipped["found"] == "there are simulated cards for linux/amd64 only"
    assert checks(arm64, "serves")


def test_the_device_code_is_that_of_the_platform(
    builder: Builder, built: list[dict[str, Any]]
) -> None:
    for image, capability in zip(built, ("12.0", "12.1"), strict=True):
        arguments = ("--library", "libhello-cuda.so", "--capability", capability, "--json")
        done = builder("kernels", image["references"][0], *arguments)
        assert done.returncode == 0, done.stderr
        (library,) = json.loads(done.stdout)["libraries"]
        assert set(library["code"]) == {f"sm_{capability.replace('.', '')}"}


def test_one_bad_image_does_not_hide_the_good_one(
    builder: Builder, built: list[dict[str, Any]], farm: Path
) -> None:
    text = RECIPE.read_text()
    assert '["sm_121"]' in text
    (farm / "recipes" / RECIPE.name).write_text(text.replace('["sm_121"]', '["sm_90"]'))
    done = builder("build", NAME, "--json", "--catalog", farm)
    assert done.returncode == 7, done.stderr
    assert "1 of 2 images of hello-blackwell-0.1.0 failed" in done.stderr
    amd64, arm64 = json.loads(done.stdout)["images"]
    assert amd64["key"] == built[0]["key"]
    assert not amd64["built"]
    assert arm64["platform"] == "linux/arm64"
    assert "sm_90" in arm64["error"]


@pytest.mark.usefixtures("built")
def test_a_document_is_of_one_image(builder: Builder, farm: Path) -> None:
    several = builder("sbom", NAME, "--catalog", farm)
    assert several.returncode == 3
    assert "--platform linux/amd64" in several.stderr
    packages = builder("sbom", NAME, "--platform", "linux/arm64", "--catalog", farm).stdout
    assert re.search(r"pkg:deb/debian/libc6@[^\"]*arch=arm64", packages)
