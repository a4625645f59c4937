"""Known faults of upstream, as OpenVEX: mended by a patch, or accepted."""

from __future__ import annotations

import json
from typing import Any

from builder.publish.attachments import VEX, documents_of
from support.bills import DPKG, ENGINES, of_catalog, record_of


def document(name: str) -> dict[str, Any]:
    """The predicate of a recipe's image; empty where it has none."""
    made = of_catalog(name)
    text = documents_of(made, record_of(made), DPKG).get(VEX)
    statement = json.loads(text) if text else {"predicate": {}}
    assert not text or statement["predicateType"] == VEX
    found: dict[str, Any] = statement["predicate"]
    return found


def test_every_document_has_what_its_specification_asks_for() -> None:
    """OPENVEX-SPEC.md: the required fields, and what each status needs."""
    found = [(name, document(name)) for name in ENGINES]
    known = [(name, each) for name, each in found if each]
    assert known
    for name, each in known:
        assert each["@context"] == "https://openvex.dev/ns/v0.2.0"
        assert each["@id"].startswith("urn:uuid:")
        assert each["author"]
        assert each["timestamp"].endswith("Z")
        assert each["version"] == 1
        assert each["statements"]
        for statement in each["statements"]:
            assert statement["vulnerability"]["name"].count("#") == 1
            (product,) = statement["products"]
            assert product["@id"].startswith("pkg:oci/"), name
            assert statement["status"] in {"fixed", "affected"}
            assert statement["status"] == "fixed" or statement["action_statement"]
        assert document(name) == each, "the same image, the same document"


def test_a_patch_mends_and_an_exception_is_a_fault_that_stays() -> None:
    states = {
        (statement["vulnerability"]["name"], statement["status"])
        for name in ENGINES
        for statement in document(name).get("statements", ())
    }
    assert ("vllm-project/vllm#40807", "fixed") in states or (
        "ggml-org/llama.cpp#22155",
        "fixed",
    ) in states
    assert ("vllm-project/vllm#40923", "affected") in states
    assert document("hello-sm120-0.1.0") == {}
