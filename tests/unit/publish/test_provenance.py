"""SLSA provenance: complete, and silent about what is unknown."""

from __future__ import annotations

import json
import re

import pytest

from builder.publish import attachments
from builder.publish.attachments import LOCAL, builder_uri
from builder.publish.verdicts import SLSA
from support.bills import DPKG, ENGINES, of_catalog, provenance, record_of


@pytest.mark.parametrize("name", ENGINES)
def test_provenance_has_what_its_specification_asks_for(name: str) -> None:
    statement = provenance(name)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["subject"] == [{"name": f"me/{name}", "digest": {"sha256": "ab" * 32}}]
    definition = statement["predicate"]["buildDefinition"]
    made = of_catalog(name)
    assert definition["externalParameters"]["recipe"] == name
    assert definition["internalParameters"]["key"] == made.key
    assert not definition["externalParameters"].keys() & definition["internalParameters"].keys()
    known = {"name", "uri", "digest", "annotations"}
    for each in definition["resolvedDependencies"]:
        assert each.keys() <= known
        assert each.get("uri") or each.get("digest"), "a descriptor without either is none"
        assert all(
            re.fullmatch("[0-9a-f]{40,64}", value) for value in each.get("digest", {}).values()
        )
    details = statement["predicate"]["runDetails"]
    assert details["builder"]["id"] == LOCAL
    assert details["metadata"] == {
        "startedOn": "2026-11-21T13:58:33Z",
        "finishedOn": "2026-11-21T13:59:34Z",
    }


def test_unknown_times_are_left_out() -> None:
    made = of_catalog("hello-sm120-0.1.0")
    began = {"startedOn": "2026-11-21T13:58:33Z"}
    for record, expected in (
        (record_of(made, seconds={"smoke": 3.0}), began),
        (record_of(made, seconds={}, created="2026-11-21T15:58:33+02:00"), began),
        (record_of(made, created=""), {}),
    ):
        document = json.loads(attachments.documents_of(made, record, DPKG)[SLSA])
        assert document["predicate"]["runDetails"]["metadata"] == expected


def test_a_workflow_of_github_is_the_builder() -> None:
    workflow = "me/farm/.github/workflows/nightly.yml@refs/heads/main"
    environment = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_WORKFLOW_REF": workflow}
    assert builder_uri(environment) == f"https://github.com/{workflow}"
    assert builder_uri({}) == LOCAL
    made = of_catalog("hello-sm120-0.1.0")
    document = json.loads(
        attachments.documents_of(made, record_of(made), DPKG, builder_uri(environment))[SLSA]
    )
    assert document["predicate"]["runDetails"]["builder"]["id"] == f"https://github.com/{workflow}"
