"""An engine and its changes in the SPDX document."""

from __future__ import annotations

import hashlib

from builder.publish.attachments import SPDX
from support.bills import (
    DIGEST,
    engine_of,
    of_catalog,
    package,
    provenance,
    purl,
    relations,
    spdx,
    texts,
)
from support.environment import REPOSITORY


def test_a_pull_request_is_applied_to_the_engine() -> None:
    before = "2e81dc5f634501c744b69a65a8eeb84ba42e82ee"
    after = "2374b99c16937cf00d327c93b1d2d12d708d4f30"
    home = "https://github.com/AtomicBot-ai/atomic-llama-cpp-turboquant"
    document = spdx("atomic-b8995")
    engine, pull = engine_of(document), package(document, "pull 6")
    assert purl(engine) == f"pkg:github/atomicbot-ai/atomic-llama-cpp-turboquant@{before}"
    assert engine["downloadLocation"] == f"git+{home}@{before}"
    assert (pull["homepage"], pull["versionInfo"]) == (f"{home}/pull/6", after)
    assert pull["downloadLocation"] == f"{home}/compare/{before}...{after}.diff"
    applied, *_ = [
        (each["spdxElementId"], each["relatedSpdxElement"])
        for each in document["relationships"]
        if each["relationshipType"] == "PATCH_APPLIED"
    ]
    assert applied == (pull["SPDXID"], engine["SPDXID"])
    definition = provenance("atomic-b8995")["predicate"]["buildDefinition"]
    assert [(each["uri"], each["digest"]) for each in definition["resolvedDependencies"][:2]] == [
        (f"git+{home}@{commit}", {"gitCommit": commit}) for commit in (before, after)
    ]


def test_an_engine_out_of_an_sdist_says_where_it_is_in_it_and_what_its_page_is_made_of() -> None:
    comment = engine_of(spdx("llama-cpp-0.5.0-dev"))["comment"]
    assert "builder:root: vendor/llama.cpp" in comment
    assert "builder:page: built out of the packages of tools/ui/package-lock.json" in comment


def test_a_file_of_ours_has_its_digest_and_one_that_is_absent_is_only_an_input() -> None:
    file = REPOSITORY / "patches" / "vllm-0.19-fla-tma.patch"
    patch = package(spdx("vllm-0.19.1"), f"file {file.name}")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert patch["checksums"] == [{"algorithm": "SHA256", "checksumValue": digest}]
    assert "patch_tolist_cudagraph" not in texts("vllm-0.19.1")[SPDX]
    predicate = provenance("vllm-0.19.1")["predicate"]
    applied = {
        each["name"]: each["annotations"]["builder_applied"]
        for each in predicate["buildDefinition"]["resolvedDependencies"]
        if each["annotations"]["builder_kind"] == "patch"
    }
    assert applied == {
        f"file {file.name}": True,
        "script patches/patch_tolist_cudagraph.py": False,
    }


def test_a_step_at_every_start_is_a_patch_and_needs_the_script_that_runs_it() -> None:
    found = relations(spdx("vllm-0.20.0-genesis"))
    assert [found[name] for name in found if name.startswith("at start: ")] == ["PATCH_APPLIED"]
    assert found["start.py"] == "CONTAINS"
    assert relations(spdx("vllm-0.20.2"))["start.py"] == "BUILD_DEPENDENCY_OF"


def test_the_image_has_its_gpus_and_key() -> None:
    image = spdx("beellama-0.1.1")["packages"][0]
    key = of_catalog("beellama-0.1.1").key
    assert {"builder:architectures: 120", f"builder:key: {key}"} <= {*image["comment"].split("\n")}
    assert purl(image).startswith(f"pkg:oci/beellama-0.1.1@{DIGEST}?")
