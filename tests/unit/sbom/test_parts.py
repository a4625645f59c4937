"""The parts of an image: wheels, Debian packages, bases, and what is not listed."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from builder import sbom
from builder.platforms import Platforms
from builder.recipes import debian_lock
from builder.recipes.lockfile import PinnedFile
from builder.sbom.debian import parse
from support.bills import (
    DPKG,
    cyclonedx,
    engine_of,
    in_catalog,
    of_catalog,
    properties,
    record_of,
    scopes,
    spdx,
    texts,
)
from support.environment import REPOSITORY


def test_what_only_took_part_in_the_build_is_not_shipped() -> None:
    shipped = {"nvidia-cublas", "nvidia-cuda-runtime", "libc6", "cuda-13.0", "healthcheck"}
    left = {"nvidia-cuda-nvcc", "nvidia-nvvm", "g++", "cmake", "jobs"}
    document = cyclonedx("llama-cpp-python-0.3.36")
    found = scopes(document)
    assert {found[name] for name in shipped | {"fastapi"}} == {"required"}
    assert {found[name] for name in left | {"scikit_build_core"}} == {"excluded"}
    names = {each["SPDXID"]: each["name"] for each in spdx("llama-cpp-python-0.3.36")["packages"]}
    relations = spdx("llama-cpp-python-0.3.36")["relationships"]
    built_with = {
        names[each["spdxElementId"]]
        for each in relations
        if each["relationshipType"] == "BUILD_DEPENDENCY_OF"
    }
    assert built_with == {name for name, scope in found.items() if scope == "excluded"}
    (image,) = [
        each
        for each in document["dependencies"]
        if each["ref"] == document["metadata"]["component"]["bom-ref"]
    ]
    required = {each["bom-ref"] for each in document["components"] if each["scope"] == "required"}
    assert set(image["dependsOn"]) == required


def test_a_wheel_of_both_the_build_and_the_image_is_listed_once_and_shipped() -> None:
    found = of_catalog("llama-cpp-python-0.3.36")
    both = (PinnedFile("both", "1.0", "12" * 32),)
    for contexts in (["build-wheels", "runtime-wheels"], ["runtime-wheels", "build-wheels"]):
        plan = replace(found.plan, packages=dict.fromkeys(contexts, both))
        made = replace(found, plan=plan)
        document = json.loads(sbom.documents(made, record_of(made), DPKG)[sbom.CYCLONEDX])
        wheels = [each for each in document["components"] if each["name"] == "both"]
        assert [each["scope"] for each in wheels] == ["required"]


def test_of_a_cross_build_the_targets_libraries_are_in_the_image() -> None:
    made = of_catalog("hello-sm120-0.1.0", Platforms("arm64"))
    document = json.loads(sbom.documents(made, record_of(made), DPKG)[sbom.CYCLONEDX])
    found = {
        each["name"]: (each["scope"], each["hashes"][0]["content"])
        for each in document["components"]
        if each["name"] in {"nvidia-cublas", "nvidia-cuda-nvcc"}
    }
    wheels = tomllib.loads((REPOSITORY / "recipes/bases/cuda-13.0.toml").read_text())["wheel"]
    pinned = {wheel["name"]: wheel["sha256"] for wheel in wheels}
    assert found == {
        "nvidia-cublas": ("required", pinned["nvidia-cublas"]["amd64"]),
        "nvidia-cuda-nvcc": ("excluded", pinned["nvidia-cuda-nvcc"]["arm64"]),
    }
    lock = debian_lock.read(REPOSITORY / "recipes/bases/locks/cuda-13.0.debian.toml", "cuda-13.0")
    files = {(file.name, file.architecture): file for each in lock.install for file in each.files}
    (cmake,) = [each for each in document["components"] if each["name"] == "cmake"]
    file = files["cmake", "arm64"]
    assert cmake["purl"] == f"pkg:deb/debian/cmake@{file.version}?arch=arm64&distro=debian-13"
    assert cmake["hashes"] == [{"alg": "SHA-256", "content": file.sha256}]
    purls = {each["name"]: each["purl"] for each in document["components"]}
    assert "?arch=amd64&" in purls["libcpp-httplib-dev"]
    assert "?arch=all&" in purls["nlohmann-json3-dev"]


def test_the_wheel_that_is_patched_is_the_engine_and_is_listed_once() -> None:
    document = cyclonedx("vllm-0.20.2-wheel")
    assert [each["type"] for each in document["components"] if each["name"] == "vllm"] == [
        "application"
    ]


def test_the_base_that_compiles_the_entrypoint_is_a_part_that_is_not_shipped() -> None:
    made = of_catalog("vllm-0.20.2")
    assert made.tools is not None
    document = cyclonedx("vllm-0.20.2")
    found = {each["name"]: each for each in document["components"]}
    base = found["debian-trixie-gcc"]
    assert (base["version"], base["scope"]) == (made.tools.short_key, "excluded")
    assert ("builder:key", made.tools.key) in properties(base)
    assert found["vllm-openai-0.20.2"]["scope"] == "required"
    assert (found["gcc"]["scope"], found["gcc"]["purl"]) == (
        "excluded",
        "pkg:deb/debian/gcc@4:14.2.0-1?arch=amd64&distro=trixie",
    )
    statement = json.loads(texts("vllm-0.20.2")[sbom.PROVENANCE])
    named = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert f"debian-trixie-gcc {made.tools.short_key}" in {each["name"] for each in named}


def test_debian_packages_are_those_that_are_installed() -> None:
    assert [(each.name, each.version, each.source) for each in DPKG.packages] == [
        ("ca-certificates", "20250419", "ca-certificates"),
        ("libc6", "2.41-12+deb13u1", "glibc"),
        ("libgcc-s1", "1:14.2.0-19+b1", "gcc-14"),
    ]
    (gcc,) = [
        each for each in cyclonedx("hello-sm120-0.1.0")["components"] if each["name"] == "libgcc-s1"
    ]
    assert gcc["purl"] == "pkg:deb/debian/libgcc-s1@1:14.2.0-19%2Bb1?arch=amd64&distro=debian-13"
    assert ("builder:source", "gcc-14 14.2.0-19") in properties(gcc)
    assert parse("", "").packages == ()


def test_contents_that_are_not_listed_are_named() -> None:
    def completeness(document: dict[str, Any]) -> str:
        image = document["metadata"]["component"]["bom-ref"]
        (found,) = [each for each in document["compositions"] if each["assemblies"] == [image]]
        return str(found["aggregate"])

    assert completeness(cyclonedx("hello-sm120-0.1.0")) == "complete"
    unlisted = cyclonedx("hello-sm120-0.1.0", None)
    assert completeness(unlisted) == "incomplete"
    assert any(name == "builder:gap" for name, _ in properties(unlisted["metadata"]["component"]))
    assert scopes(unlisted)["libgomp1"] == "required"
    document = spdx("hello-sm120-0.1.0", None)
    assert any(each["relatedSpdxElement"] == "NOASSERTION" for each in document["relationships"])
    # Somebody else's image: its own parts are not known.
    assert completeness(cyclonedx("vllm-0.20.2")) == "incomplete"
    # A file alone, from scratch: no base is in it, and no package.
    alone = cyclonedx("hami-core-pr188", None)
    assert completeness(alone) == "complete"
    assert [name for name, scope in scopes(alone).items() if scope == "required"] == ["hami-core"]


def test_an_archive_and_a_range_of_commits(tmp_path: Path) -> None:
    text = (REPOSITORY / "recipes" / "hello-sm120-0.1.0.toml").read_text()
    digest, after, to = "34" * 32, "56" * 20, "78" * 20
    source = f'archive = "https://example.org/hello-1.tar.gz"\nsha256 = "{digest}"\n'
    pick = f'pick = {{ after = "{after}", to = "{to}", git = "https://github.com/me/hello" }}'
    source += f'[[patch]]\n{pick}\nwhy = "it greets nobody"\n'
    made = in_catalog(
        tmp_path,
        "hello-sm120-0.1.0",
        text.replace('path = "engines/hello-sm120"\n', source),
    )
    found = sbom.documents(made, record_of(made), DPKG)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(found[sbom.CYCLONEDX]) is None
    engine = engine_of(json.loads(found[sbom.CYCLONEDX]))
    assert engine["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert engine["externalReferences"] == [
        {"type": "distribution", "url": "https://example.org/hello-1.tar.gz"}
    ]
    assert engine["purl"] == (
        f"pkg:generic/hello-sm120@0.1.0?checksum=sha256:{digest}"
        "&download_url=https://example.org/hello-1.tar.gz"
    )
    (patch,) = engine["pedigree"]["patches"]
    assert patch["diff"]["url"] == f"https://github.com/me/hello/compare/{after}...{to}.diff"
    packages = {each["name"]: each for each in json.loads(found[sbom.SPDX])["packages"]}
    assert packages["hello-sm120"]["downloadLocation"] == "https://example.org/hello-1.tar.gz"
