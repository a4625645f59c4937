"""All documents of all recipes: valid, complete, reproducible, and free of the build machine."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from builder.plan.plan import BasePlan, Plan
from builder.publish.attachments import SPDX, documents_of
from builder.publish.sbom import Dpkg
from support.bills import DPKG, ENGINES, faults, of_catalog, record_of, spdx, texts
from support.catalogs import document_of
from support.environment import REPOSITORY


@pytest.mark.parametrize("dpkg", [DPKG, None], ids=["packages", "none"])
@pytest.mark.parametrize("name", ENGINES)
def test_every_bill_is_valid(name: str, dpkg: Dpkg | None) -> None:
    document = spdx(name, dpkg)
    assert faults(document) == []
    identifiers = [each["SPDXID"] for each in document["packages"]]
    assert len(identifiers) == len(set(identifiers))


@pytest.mark.parametrize("name", ENGINES)
def test_every_pin_and_every_patch_is_in_the_bill(name: str) -> None:
    recipe = document_of(name)
    document = texts(name)[SPDX]
    source = recipe["source"]
    pins = {source[key] for key in ("commit", "sha256", "path") if key in source}
    reasons = {step["why"] for step in recipe.get("start", [])}
    for patch in recipe.get("patch", []):
        if patch.get("expect") == "absent":
            continue
        reasons.add(patch["why"])
        kinds = (patch, patch.get("pick", {}), patch.get("script", {}), patch.get("add", {}))
        commits = {kind.get(key) for kind in kinds for key in ("base", "head", "commit", "to")}
        pins |= {commit for commit in commits if commit and re.fullmatch("[0-9a-f]{40}", commit)}
    wheels = set()
    below: Plan | BasePlan | None = of_catalog(name)
    while below is not None:
        wheels |= {file.sha256 for files in below.packages.values() for file in files}
        below = below.base
    assert {pin for pin in pins | wheels if pin not in document} == set()
    assert {why for why in reasons if json.dumps(why) not in document} == set()
    applied = [
        each
        for each in json.loads(document)["relationships"]
        if each["relationshipType"] == "PATCH_APPLIED"
    ]
    assert len(applied) == len(reasons)


def test_one_image_has_one_text_and_another_image_another_number() -> None:
    made = of_catalog("atomic-b8995")
    first, again = (documents_of(made, record_of(made), DPKG) for _ in range(2))
    assert first == again
    other = documents_of(made, record_of(made, digest="sha256:" + "cd" * 32), DPKG)
    patched, *others = made.patches
    reworded = patched.patch.model_copy(update={"why": "another reason"})
    same = replace(made, patches=(replace(patched, patch=reworded), *others))
    same_image = documents_of(same, record_of(made), DPKG)
    bills = [json.loads(each[SPDX]) for each in (first, other, same_image)]
    assert len({bill["documentNamespace"] for bill in bills}) == 3, "another text, another document"
    assert bills[0]["creationInfo"]["created"] == "2026-11-21T13:58:33Z"


@pytest.mark.parametrize("name", ENGINES)
def test_nothing_is_of_this_machine(name: str) -> None:
    for text in texts(name).values():
        for private in (str(REPOSITORY), str(Path.home()), "/somewhere/private", "file://"):
            assert private not in text
