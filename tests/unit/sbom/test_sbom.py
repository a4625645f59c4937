"""All documents of all recipes: valid, complete, reproducible, and free of the build machine."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from builder import sbom
from builder.plan.inputs import Plan
from builder.plan.rendered import BaseImage, EngineImage
from builder.sbom.debian import Dpkg
from support.bills import (
    CREATED,
    DPKG,
    ENGINES,
    of_catalog,
    record_of,
    texts,
)
from support.environment import REPOSITORY


@pytest.mark.parametrize("dpkg", [DPKG, None], ids=["packages", "none"])
@pytest.mark.parametrize("name", ENGINES)
def test_every_document_is_valid(name: str, dpkg: Dpkg | None) -> None:
    found = texts(name, dpkg)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(found[sbom.CYCLONEDX]) is None
    references = re.findall('"bom-ref": "(.*)"', found[sbom.CYCLONEDX])
    assert len(references) == len(set(references))
    parsed = JsonLikeDictParser().parse(json.loads(found[sbom.SPDX]))
    assert [each.validation_message for each in validate_full_spdx_document(parsed)] == []


@pytest.mark.parametrize("name", ENGINES)
def test_every_pin_and_every_patch_is_in_both(name: str) -> None:
    recipe = tomllib.loads((REPOSITORY / "recipes" / f"{name}.toml").read_text())
    documents = (texts(name)[sbom.CYCLONEDX], texts(name)[sbom.SPDX])
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
    below: EngineImage | BaseImage | None = of_catalog(name)
    while below is not None:
        wheels |= {file.sha256 for files in below.plan.packages.values() for file in files}
        below = below.base
    for document in documents:
        assert {pin for pin in pins | wheels if pin not in document} == set()
        assert {why for why in reasons if json.dumps(why) not in document} == set()
    applied = [
        each
        for each in json.loads(documents[1])["relationships"]
        if each["relationshipType"] == "PATCH_APPLIED"
    ]
    assert len(applied) == len(reasons)


def test_one_image_has_one_text_and_another_image_another_number() -> None:
    made = of_catalog("atomic-b8995")
    first, again = (sbom.documents(made, record_of(made), DPKG) for _ in range(2))
    assert first == again
    other = sbom.documents(made, record_of(made, digest="sha256:" + "cd" * 32), DPKG)
    assert isinstance(made.plan, Plan)
    patched, *others = made.plan.patches
    reworded = patched.patch.model_copy(update={"why": "another reason"})
    plan = replace(made.plan, patches=(replace(patched, patch=reworded), *others))
    same_image = sbom.documents(replace(made, plan=plan), record_of(made), DPKG)
    all_three = (first, other, same_image)
    numbers = {json.loads(each[sbom.CYCLONEDX])["serialNumber"] for each in all_three}
    spaces = {json.loads(each[sbom.SPDX])["documentNamespace"] for each in all_three}
    assert (len(numbers), len(spaces)) == (3, 3), "another text is another document"
    assert json.loads(first[sbom.CYCLONEDX])["metadata"]["timestamp"] == CREATED
    assert json.loads(first[sbom.SPDX])["creationInfo"]["created"] == "2026-11-21T13:58:33Z"


@pytest.mark.parametrize("name", ENGINES)
def test_nothing_is_of_this_machine(name: str) -> None:
    for text in texts(name).values():
        for private in (str(REPOSITORY), str(Path.home()), "/somewhere/private", "file://"):
            assert private not in text
