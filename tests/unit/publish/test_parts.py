"""The parts of an image: wheels, Debian packages, bases, and what is not listed."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

from builder.core.platforms import Platforms
from builder.publish import sbom
from builder.publish.sbom import parse_dpkg
from builder.publish.verdicts import SLSA
from builder.recipes import locks
from builder.recipes.locks import PinnedFile
from support.bills import (
    DPKG,
    engine_of,
    faults,
    in_catalog,
    of_catalog,
    package,
    purl,
    relations,
    spdx,
    spdx_of,
    texts,
    unlisted,
)
from support.environment import REPOSITORY


def test_what_only_took_part_in_the_build_is_not_shipped() -> None:
    shipped = {"nvidia-cublas", "nvidia-cuda-runtime", "libc6", "cuda-13.0", "healthcheck.c"}
    left = {"nvidia-cuda-nvcc", "nvidia-nvvm", "g++", "cmake", "jobs"}
    found = relations(spdx("llama-cpp-python-0.3.36"))
    assert {found[name] for name in shipped | {"fastapi"}} == {"CONTAINS", "DESCENDANT_OF"}
    assert {found[name] for name in left | {"scikit_build_core"}} == {"BUILD_DEPENDENCY_OF"}


def test_an_image_of_wheels_has_its_own_cublas_and_not_the_bases() -> None:
    """As ``parts.wheels`` lists them: by name, an SPDX document may have two."""
    found = [
        (part.version, part.shipped)
        for part in sbom.wheels(of_catalog("vllm-0.20.2-wheel"), base_shipped=True)
        if part.name == "nvidia-cublas"
    ]
    assert sorted(found) == [("13.1.0.3", False), ("13.1.0.3", True)]


def test_a_wheel_of_both_the_build_and_the_image_is_listed_once_and_shipped() -> None:
    found = of_catalog("llama-cpp-python-0.3.36")
    both = (PinnedFile("both", "1.0", "12" * 32),)
    for contexts in (["build-wheels", "runtime-wheels"], ["runtime-wheels", "build-wheels"]):
        made = replace(found, packages=dict.fromkeys(contexts, both))
        document = spdx_of(made)
        assert package(document, "both")["versionInfo"] == "1.0"
        assert relations(document)["both"] == "CONTAINS"


def test_of_a_cross_build_the_targets_libraries_are_in_the_image() -> None:
    made = of_catalog("hello-sm120-0.1.0", Platforms("arm64"))
    document = spdx_of(made)
    role = relations(document)
    found = {
        name: (role[name], package(document, name)["checksums"][0]["checksumValue"])
        for name in ("nvidia-cublas", "nvidia-cuda-nvcc")
    }
    wheels = tomllib.loads((REPOSITORY / "recipes/bases/cuda-13.0.toml").read_text())["wheel"]
    pinned = {wheel["name"]: wheel["sha256"] for wheel in wheels}
    assert found == {
        "nvidia-cublas": ("CONTAINS", pinned["nvidia-cublas"]["amd64"]),
        "nvidia-cuda-nvcc": ("BUILD_DEPENDENCY_OF", pinned["nvidia-cuda-nvcc"]["arm64"]),
    }
    lock = locks.read(REPOSITORY / "recipes/bases/locks/cuda-13.0.debian.toml", "cuda-13.0")
    files = {(file.name, file.architecture): file for each in lock.install for file in each.files}
    cmake, file = package(document, "cmake"), files["cmake", "arm64"]
    assert purl(cmake) == f"pkg:deb/debian/cmake@{file.version}?arch=arm64&distro=debian-13"
    assert cmake["checksums"] == [{"algorithm": "SHA256", "checksumValue": file.sha256}]
    assert "?arch=amd64&" in purl(package(document, "libcpp-httplib-dev"))
    assert "?arch=all&" in purl(package(document, "nlohmann-json3-dev"))


def test_the_wheel_that_is_patched_is_the_engine_and_is_listed_once() -> None:
    document = spdx("vllm-0.20.2-wheel")
    assert package(document, "vllm") == engine_of(document)


def test_the_base_that_compiles_the_entrypoint_is_a_part_that_is_not_shipped() -> None:
    made = of_catalog("vllm-0.20.2")
    assert made.tools is not None
    document = spdx("vllm-0.20.2")
    role, base = relations(document), package(document, "debian-trixie-gcc")
    assert base["versionInfo"] == made.tools.short_key
    assert f"builder:key: {made.tools.key}" in base["comment"]
    assert (role["debian-trixie-gcc"], role["gcc"]) == ("BUILD_DEPENDENCY_OF",) * 2
    assert role["vllm-openai-0.20.2"] == "DESCENDANT_OF"
    gcc = "pkg:deb/debian/gcc@4:14.2.0-1?arch=amd64&distro=trixie"
    assert purl(package(document, "gcc")) == gcc
    statement = json.loads(texts("vllm-0.20.2")[SLSA])
    named = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert f"debian-trixie-gcc {made.tools.short_key}" in {each["name"] for each in named}


def test_debian_packages_are_those_that_are_installed() -> None:
    assert [(each.name, each.version, each.source) for each in DPKG.packages] == [
        ("ca-certificates", "20250419", "ca-certificates"),
        ("libc6", "2.41-12+deb13u1", "glibc"),
        ("libgcc-s1", "1:14.2.0-19+b1", "gcc-14"),
    ]
    gcc = package(spdx("hello-sm120-0.1.0"), "libgcc-s1")
    url = "pkg:deb/debian/libgcc-s1@1:14.2.0-19%2Bb1?arch=amd64&distro=debian-13"
    assert purl(gcc) == f"{url}&upstream=gcc-14%4014.2.0-19"
    assert gcc["sourceInfo"] == "built package from: gcc-14 14.2.0-19"
    assert parse_dpkg("", "").packages == ()


def test_contents_that_are_not_listed_are_named() -> None:
    assert unlisted(spdx("hello-sm120-0.1.0")) == []
    document = spdx("hello-sm120-0.1.0", None)
    (gap,) = unlisted(document)
    assert "the image has no dpkg database" in gap
    assert gap in document["comment"]
    assert relations(document)["libgomp1"] == "CONTAINS"
    # Somebody else's image: its own parts are not known.
    (gap,) = unlisted(spdx("vllm-0.20.2"))
    assert gap == "vllm/vllm-openai:v0.20.2: only its Debian packages are listed"
    # A file alone, from scratch: no base is in it, and no package.
    alone = spdx("hami-core-pr188", None)
    assert unlisted(alone) == []
    assert [name for name, role in relations(alone).items() if role == "CONTAINS"] == ["hami-core"]


def test_a_range_of_commits(tmp_path: Path) -> None:
    text = (REPOSITORY / "recipes" / "hello-sm120-0.1.0.toml").read_text()
    after, to = "56" * 20, "78" * 20
    source = f'git = "https://github.com/me/hello"\ncommit = "{after}"\n'
    pick = f'pick = {{ after = "{after}", to = "{to}", git = "https://github.com/me/hello" }}'
    source += f'[[patch]]\n{pick}\nwhy = "it greets nobody"\n'
    made = in_catalog(
        tmp_path,
        "hello-sm120-0.1.0",
        text.replace('path = "engines/hello-sm120"\n', source),
    )
    document = spdx_of(made)
    assert faults(document) == []
    (pick,) = [each for each in document["packages"] if each.get("versionInfo") == to]
    assert pick["downloadLocation"] == f"https://github.com/me/hello/compare/{after}...{to}.diff"
