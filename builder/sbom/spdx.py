"""A bill of materials as SPDX 2.3 JSON (https://spdx.github.io/spdx-spec/v2.3/).

The document describes one package, the image: it contains the engine and the shipped parts,
descends from its bases, and has the other parts as build dependencies.  Every patch is a package
that was applied to the engine.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from spdx_tools.common.spdx_licensing import spdx_licensing  # type: ignore[import-untyped]
from spdx_tools.spdx.model.actor import Actor, ActorType
from spdx_tools.spdx.model.checksum import Checksum, ChecksumAlgorithm
from spdx_tools.spdx.model.document import CreationInfo, Document
from spdx_tools.spdx.model.extracted_licensing_info import ExtractedLicensingInfo
from spdx_tools.spdx.model.package import (
    ExternalPackageRef,
    ExternalPackageRefCategory,
    Package,
    PackagePurpose,
)
from spdx_tools.spdx.model.relationship import Relationship, RelationshipType
from spdx_tools.spdx.model.spdx_no_assertion import SpdxNoAssertion
from spdx_tools.spdx.validation.uri_validators import validate_download_location
from spdx_tools.spdx.writer.json.json_writer import write_document_to_stream

from builder import __version__
from builder.sbom.bill import Bill
from builder.sbom.changes import SourceChange
from builder.sbom.parts import Kind, Part

DOCUMENT = "SPDXRef-DOCUMENT"
IMAGE = "SPDXRef-Image"
PURPOSES: dict[Kind, PackagePurpose] = {
    "engine": PackagePurpose.APPLICATION,
    "python": PackagePurpose.LIBRARY,
    "debian": PackagePurpose.INSTALL,
    "base": PackagePurpose.CONTAINER,
    "script": PackagePurpose.FILE,
}
NO_LICENSE_TEXT = "Not an SPDX license: the text is in the source that this package names."


def to_json(bill: Bill) -> str:
    """The document; equal bills give equal texts."""
    text = StringIO()
    write_document_to_stream(document(bill), text, validate=False, drop_duplicates=False)
    return text.getvalue() + "\n"


def document(bill: Bill) -> Document:
    """The document in the library's model."""
    changes = {f"SPDXRef-Patch-{number}": it for number, it in enumerate(bill.applied, 1)}
    return Document(
        CreationInfo(
            spdx_version="SPDX-2.3",
            spdx_id=DOCUMENT,
            name=f"{bill.repository}:{bill.tag}",
            document_namespace=f"urn:uuid:{uuid5(NAMESPACE_URL, f'spdx:{bill.fingerprint}')}",
            creators=[Actor(ActorType.TOOL, f"builder-{__version__}")],
            created=bill.created,
            document_comment="\n".join(f"Not listed: {gap}" for gap in bill.gaps) or None,
        ),
        packages=[
            _image(bill),
            _package(bill.engine),
            *(_patch(name, change) for name, change in changes.items()),
            *(_package(part) for part in bill.parts),
        ],
        relationships=list(_relationships(bill, changes)),
        extracted_licensing_info=[
            ExtractedLicensingInfo(name, NO_LICENSE_TEXT)
            for name in sorted(set(re.findall(r"LicenseRef-[A-Za-z0-9.-]+", bill.engine.license)))
        ],
    )


def _relationships(bill: Bill, changes: Mapping[str, SourceChange]) -> Iterator[Relationship]:
    kinds = RelationshipType
    engine = _identifier(bill.engine)
    yield Relationship(DOCUMENT, kinds.DESCRIBES, IMAGE)
    yield Relationship(IMAGE, kinds.CONTAINS, engine)
    for name, change in changes.items():
        yield Relationship(name, kinds.PATCH_APPLIED, engine, change.why)
    for part in bill.parts:
        if not part.shipped:
            yield Relationship(_identifier(part), kinds.BUILD_DEPENDENCY_OF, IMAGE)
        elif part.kind == "base":
            yield Relationship(IMAGE, kinds.DESCENDANT_OF, _identifier(part))
        else:
            yield Relationship(IMAGE, kinds.CONTAINS, _identifier(part))
    for gap in bill.gaps:
        # A known unknown: 11.1 of the specification.
        yield Relationship(IMAGE, kinds.CONTAINS, SpdxNoAssertion(), gap)


def _image(bill: Bill) -> Package:
    return Package(
        spdx_id=IMAGE,
        name=bill.repository,
        version=bill.tag,
        download_location=SpdxNoAssertion(),
        files_analyzed=False,
        checksums=[_sha256(bill.digest.removeprefix("sha256:"))],
        summary=bill.summary,
        comment=_comment(bill.properties),
        external_references=[_purl(bill.purl)],
        primary_package_purpose=PackagePurpose.CONTAINER,
    )


def _package(part: Part) -> Package:
    return Package(
        spdx_id=_identifier(part),
        name=part.name,
        version=part.version or None,
        download_location=_location(part.origin),
        files_analyzed=False,
        checksums=[_sha256(part.digest["sha256"])] if "sha256" in part.digest else [],
        license_declared=_license(part.license),
        summary=part.about or None,
        source_info=part.origin or None,
        comment=_comment(part.all_properties),
        external_references=[_purl(part.purl)],
        primary_package_purpose=PURPOSES[part.kind],
    )


def _patch(identifier: str, change: SourceChange) -> Package:
    digest = hashlib.sha256(change.content).hexdigest() if change.content else ""
    return Package(
        spdx_id=identifier,
        name=change.name,
        version=change.after or None,
        download_location=_location(change.diff or change.location),
        files_analyzed=False,
        checksums=[_sha256(digest)] if digest else [],
        homepage=change.page or None,
        summary=change.why,
        source_info=change.description(),
        comment=_comment({"builder:upstream": change.upstream}),
        primary_package_purpose=PackagePurpose.SOURCE,
    )


def _identifier(part: Part) -> str:
    """An identifier of letters, digits, . and -; a hash keeps similar names apart."""
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", f"{part.name}-{part.version}").strip("-")
    exact = hashlib.sha256(part.identity.encode()).hexdigest()[:8]
    return f"SPDXRef-{part.kind}-{plain}-{exact}"


def _location(origin: str) -> str | SpdxNoAssertion:
    """The download location; NOASSERTION where the library refuses the address."""
    known = bool(origin) and not validate_download_location(origin)
    return origin if known else SpdxNoAssertion()


def _license(expression: str) -> Any:
    return spdx_licensing.parse(expression) if expression else SpdxNoAssertion()


def _purl(purl: str) -> ExternalPackageRef:
    return ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", purl)


def _sha256(digest: str) -> Checksum:
    return Checksum(ChecksumAlgorithm.SHA256, digest)


def _comment(properties: Mapping[str, str]) -> str | None:
    return "\n".join(f"{name}: {value}" for name, value in properties.items() if value) or None
