"""The pedigree of an engine, and what a CycloneDX document says of its parts."""

from __future__ import annotations

import base64

from builder import sbom
from support.bills import (
    DIGEST,
    cyclonedx,
    engine_of,
    of_catalog,
    properties,
    provenance,
    scopes,
    spdx,
    texts,
)
from support.environment import REPOSITORY


def test_a_pull_request_is_the_engines_pedigree() -> None:
    before = "2e81dc5f634501c744b69a65a8eeb84ba42e82ee"
    after = "2374b99c16937cf00d327c93b1d2d12d708d4f30"
    home = "https://github.com/AtomicBot-ai/atomic-llama-cpp-turboquant"
    purl = f"pkg:github/atomicbot-ai/atomic-llama-cpp-turboquant@{before}"
    engine = engine_of(cyclonedx("atomic-b8995"))
    assert engine["purl"] == purl
    (ancestor,) = engine["pedigree"]["ancestors"]
    assert ancestor["purl"] == purl
    assert "pedigree" not in ancestor
    (commit,) = engine["pedigree"]["commits"]
    assert (commit["uid"], commit["url"]) == (after, f"{home}/pull/6")
    (patch,) = engine["pedigree"]["patches"]
    assert patch["type"] == "cherry-pick"
    assert patch["diff"]["url"] == f"{home}/compare/{before}...{after}.diff"
    assert patch["resolves"][0]["references"] == [f"{home}/pull/6"]
    dependencies = provenance("atomic-b8995")["predicate"]["buildDefinition"][
        "resolvedDependencies"
    ]
    assert [(each["uri"], each["digest"]) for each in dependencies[:2]] == [
        (f"git+{home}@{commit}", {"gitCommit": commit}) for commit in (before, after)
    ]
    document = spdx("atomic-b8995")
    (package,) = [each for each in document["packages"] if each["name"] == "pull 6"]
    assert package["homepage"] == f"{home}/pull/6"
    assert package["versionInfo"] == after
    (relation,) = [
        each for each in document["relationships"] if each["relationshipType"] == "PATCH_APPLIED"
    ]
    (patched,) = [
        each for each in document["packages"] if each["SPDXID"] == relation["relatedSpdxElement"]
    ]
    assert patched["downloadLocation"] == f"git+{home}@{before}"


def test_a_file_of_ours_has_its_text_and_one_that_is_absent_is_only_an_input() -> None:
    (patch,) = engine_of(cyclonedx("vllm-0.19.1"))["pedigree"]["patches"]
    assert patch["type"] == "unofficial"
    text = (REPOSITORY / "patches" / "vllm-0.19-fla-tma.patch").read_bytes()
    assert base64.b64decode(patch["diff"]["text"]["content"]) == text
    assert "patch_tolist_cudagraph" not in texts("vllm-0.19.1")[sbom.CYCLONEDX]
    assert "patch_tolist_cudagraph" not in texts("vllm-0.19.1")[sbom.SPDX]
    predicate = provenance("vllm-0.19.1")["predicate"]
    applied = {
        each["name"]: each["annotations"]["builder_applied"]
        for each in predicate["buildDefinition"]["resolvedDependencies"]
        if each["annotations"]["builder_kind"] == "patch"
    }
    assert applied == {
        "file vllm-0.19-fla-tma.patch": True,
        "script patches/patch_tolist_cudagraph.py": False,
    }


def test_a_step_at_every_start_is_a_monkey_patch() -> None:
    patches = engine_of(cyclonedx("vllm-0.20.0-genesis"))["pedigree"]["patches"]
    assert sorted(patch["type"] for patch in patches) == ["monkey", "unofficial", "unofficial"]
    assert scopes(cyclonedx("vllm-0.20.0-genesis"))["start.py"] == "required"
    assert scopes(cyclonedx("vllm-0.20.2"))["start.py"] == "excluded"


def test_the_image_has_its_gpus_and_key() -> None:
    image = cyclonedx("beellama-0.1.1")["metadata"]["component"]
    key = of_catalog("beellama-0.1.1").key
    assert {("builder:architectures", "120"), ("builder:key", key)} <= properties(image)
    assert image["purl"].startswith(f"pkg:oci/beellama-0.1.1@{DIGEST}?")
