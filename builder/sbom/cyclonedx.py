"""A bill of materials as CycloneDX 1.6 JSON (https://cyclonedx.org/docs/1.6/json/).

The changes of the engine's source are its pedigree: ancestor, commits, and patches with their text
or its URL.  The library has no compositions: they are added to its output.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import (
    AttachedText,
    Encoding,
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import (
    Commit,
    Component,
    ComponentScope,
    ComponentType,
    Diff,
    Patch,
    PatchClassification,
    Pedigree,
)
from cyclonedx.model.issue import IssueClassification, IssueType, IssueTypeSource
from cyclonedx.model.license import LicenseExpression
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from builder import __version__
from builder.sbom.bill import Bill
from builder.sbom.changes import Change
from builder.sbom.parts import Kind, Part

TYPES: dict[Kind, ComponentType] = {
    "engine": ComponentType.APPLICATION,
    "python": ComponentType.LIBRARY,
    "debian": ComponentType.LIBRARY,
    "base": ComponentType.CONTAINER,
    "script": ComponentType.FILE,
}
PATCHES = {
    "pull": PatchClassification.CHERRY_PICK,
    "pick": PatchClassification.CHERRY_PICK,
    "file": PatchClassification.UNOFFICIAL,
    "script": PatchClassification.UNOFFICIAL,
    "add": PatchClassification.UNOFFICIAL,
    "start": PatchClassification.MONKEY,
}
"""The classification of each kind of change."""
FIRST = ("$schema", "bomFormat", "specVersion", "serialNumber", "version", "metadata")
"""Keys at the top of the document, for people."""

_BUILDER = Component(type=ComponentType.APPLICATION, name="builder", version=__version__)


def to_json(bill: Bill) -> str:
    """The document; equal bills give equal texts."""
    engine = _engine(bill)
    parts = [_component(part) for part in bill.parts]
    image = _image(bill)
    bom = Bom(
        serial_number=uuid5(NAMESPACE_URL, f"cyclonedx:{bill.fingerprint}"),
        metadata=BomMetaData(
            timestamp=bill.created,
            component=image,
            tools=ToolRepository(components=[_BUILDER]),
        ),
        components=[engine, *parts],
    )
    shipped = [made for made, part in zip(parts, bill.parts, strict=True) if part.shipped]
    bom.register_dependency(image, [engine, *shipped])
    document: dict[str, Any] = dict.fromkeys(FIRST)
    document |= json.loads(JsonV1Dot6(bom).output_as_string())
    document["compositions"] = [
        # The engine's source may contain third-party code, which is not searched for.
        {"aggregate": "incomplete" if bill.gaps else "complete", "assemblies": [bill.purl]},
        {"aggregate": "unknown", "assemblies": [bill.engine.identity]},
    ]
    return json.dumps(document, indent=2) + "\n"


def _image(bill: Bill) -> Component:
    return Component(
        type=ComponentType.CONTAINER,
        name=bill.repository,
        version=bill.tag,
        bom_ref=bill.purl,
        purl=PackageURL.from_string(bill.purl),
        hashes=[_sha256(bill.digest.removeprefix("sha256:"))],
        description=bill.summary,
        properties=[
            *_properties(bill.properties),
            *(Property(name="builder:gap", value=gap) for gap in bill.gaps),
        ],
    )


def _component(part: Part, pedigree: Pedigree | None = None) -> Component:
    kinds = ExternalReferenceType
    kind = kinds.VCS if part.origin.startswith("git+") else kinds.DISTRIBUTION
    return Component(
        type=TYPES[part.kind],
        name=part.name,
        version=part.version or None,
        bom_ref=part.identity,
        purl=PackageURL.from_string(part.purl),
        scope=ComponentScope.REQUIRED if part.shipped else ComponentScope.EXCLUDED,
        hashes=[_sha256(part.digest["sha256"])] if "sha256" in part.digest else (),
        licenses=[LicenseExpression(part.license)] if part.license else (),
        description=part.about or None,
        external_references=[ExternalReference(type=kind, url=XsUri(part.origin))]
        if part.origin
        else (),
        properties=_properties(part.all_properties),
        pedigree=pedigree,
    )


def _sha256(digest: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)


def _properties(values: Mapping[str, str]) -> list[Property]:
    return [Property(name=name, value=value) for name, value in values.items() if value]


def _engine(bill: Bill) -> Component:
    """The engine; a changed one has its unchanged source as ancestor."""
    if not bill.applied:
        return _component(bill.engine)
    before = _component(replace(bill.engine, about=""))
    before.bom_ref.value = f"{bill.engine.identity}-unchanged"
    commits = [_commit(change) for change in bill.applied if change.after]
    pedigree = Pedigree(
        ancestors=[before],
        commits=commits,
        patches=[_patch(change) for change in bill.applied],
        # The model sorts its lists; the notes keep the order of application.
        notes="\n".join(change.description() for change in bill.applied),
    )
    return _component(bill.engine, pedigree)


def _commit(change: Change) -> Commit:
    url = XsUri(change.page or change.location) if change.page or change.location else None
    return Commit(uid=change.after, url=url, message=change.why)


def _patch(change: Change) -> Patch:
    text = None
    if change.content:
        packed = base64.b64encode(change.content).decode()
        text = AttachedText(content=packed, content_type="text/x-diff", encoding=Encoding.BASE_64)
    url = XsUri(change.diff) if change.diff else None
    issue = IssueType(
        type=IssueClassification.DEFECT,  # `why` of a patch describes a defect
        id=change.upstream or change.name,
        name=change.name,
        description=change.why,
        source=IssueTypeSource(url=XsUri(change.issue)) if change.issue else None,
        references=[XsUri(change.page)] if change.page else (),
    )
    return Patch(
        type=PATCHES[change.kind],
        diff=Diff(text=text, url=url) if text or url else None,
        resolves=[issue],
    )
