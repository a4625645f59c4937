"""Bills of materials of the catalog, for tests."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator

from builder.build.record import Record
from builder.checks.verdict import Verdict
from builder.core.platforms import Platforms
from builder.plan.plan import Plan
from builder.publish.attachments import SPDX, documents_of
from builder.publish.sbom import Dpkg, parse_dpkg
from builder.publish.verdicts import SLSA
from support.catalogs import AMD64, rendered
from support.environment import REPOSITORY

ENGINES = sorted(file.stem for file in (REPOSITORY / "recipes").glob("*.toml"))


DIGEST = "sha256:" + "ab" * 32


CREATED = "2026-11-21T13:58:33+00:00"


RELEASE = 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nVERSION_ID="13"\nID=debian\n'


STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Multi-Arch: same
Source: glibc
Version: 2.41-12+deb13u1
Description: GNU C Library: Shared libraries
 Contains the standard libraries.
 .
 Version: 9 is no version here.

Package: libgcc-s1
Status: install ok installed
Architecture: amd64
Source: gcc-14 (14.2.0-19)
Version: 1:14.2.0-19+b1

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0

Package: ca-certificates
Status: install ok installed
Architecture: all
Version: 20250419
"""


DPKG = parse_dpkg(STATUS, RELEASE)


TEXT = {"type": "string", "minLength": 1}
REFERENCE = {"type": "string", "pattern": r"^SPDXRef-[A-Za-z0-9.-]+$"}


def some_of(*values: str) -> dict[str, Any]:
    return {"enum": values}


def record_with(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": [*required],
        "additionalProperties": False,
    }


def rows_of(row: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": row}


LOCATION = {
    "type": "string",
    "pattern": r"^(NOASSERTION|NONE|((git|hg|svn|bzr)\+)?[a-z]+://[^\s/]+/\S+)$",
}
CHECKSUM = record_with(
    {
        "algorithm": some_of("SHA256"),
        "checksumValue": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    }
)
EXTERNAL_REFERENCE = record_with(
    {
        "referenceCategory": some_of("PACKAGE_MANAGER", "PACKAGE-MANAGER"),
        "referenceLocator": {"type": "string", "pattern": r"^pkg:[a-z]+/\S+$"},
        "referenceType": some_of("purl"),
    }
)
PACKAGE = record_with(
    {"SPDXID": REFERENCE, "downloadLocation": LOCATION, "name": TEXT},
    checksums=rows_of(CHECKSUM),
    comment=TEXT,
    externalRefs=rows_of(EXTERNAL_REFERENCE),
    filesAnalyzed={"const": False},
    homepage={"type": "string", "pattern": r"^https://\S+$"},
    licenseDeclared=TEXT,
    primaryPackagePurpose=some_of(
        *("APPLICATION", "FRAMEWORK", "LIBRARY", "CONTAINER", "OPERATING-SYSTEM", "DEVICE"),
        *("FIRMWARE", "SOURCE", "ARCHIVE", "FILE", "INSTALL", "OTHER"),
    ),
    sourceInfo=TEXT,
    summary=TEXT,
    versionInfo=TEXT,
)
RELATIONSHIP = record_with(
    {
        "spdxElementId": REFERENCE,
        "relatedSpdxElement": {"anyOf": [REFERENCE, some_of("NOASSERTION", "NONE")]},
        "relationshipType": some_of(
            "DESCRIBES", "CONTAINS", "PATCH_APPLIED", "BUILD_DEPENDENCY_OF", "DESCENDANT_OF"
        ),
    },
    comment=TEXT,
)
SCHEMA = Draft7Validator(
    record_with(
        {
            "SPDXID": some_of("SPDXRef-DOCUMENT"),
            "spdxVersion": some_of("SPDX-2.3"),
            "dataLicense": some_of("CC0-1.0"),
            "name": TEXT,
            "documentNamespace": {"type": "string", "pattern": "^urn:uuid:[0-9a-f-]{36}$"},
            "creationInfo": record_with(
                {
                    "created": {
                        "type": "string",
                        "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$",
                    },
                    "creators": rows_of(
                        {"type": "string", "pattern": "^(Person|Organization|Tool): ."}
                    ),
                }
            ),
            "packages": rows_of(PACKAGE),
            "relationships": rows_of(RELATIONSHIP),
        },
        comment=TEXT,
        hasExtractedLicensingInfos=rows_of(
            record_with(
                {
                    "licenseId": {"type": "string", "pattern": "^LicenseRef-[A-Za-z0-9.-]+$"},
                    "extractedText": TEXT,
                }
            )
        ),
    )
)
"""The part of SPDX's JSON schema (spdx-spec, schemas/spdx-schema.json, 2.3) that a bill may use,
narrower where the specification's text is."""


@cache
def of_catalog(name: str, platforms: Platforms = AMD64) -> Plan:
    return rendered(REPOSITORY, name, platforms)


def record_of(made: Plan, **changed: Any) -> Record:
    name = made.name
    kept = Record(
        recipe=name,
        key=made.key,
        contract="c0" * 32,
        references=(f"me/{name}:1-{made.short_key}", f"me/{name}:1"),
        digest=DIGEST,
        verdict=Verdict(DIGEST, (), 1, 1),
        created=CREATED,
        seconds={"plan": 9.0, f"fetch {name}": 1.5, f"build {name}": 60.0, "smoke": 9.0},
        log="/somewhere/private/build.log",
    )
    return kept.model_copy(update=changed)


@cache
def texts(name: str, dpkg: Dpkg | None = DPKG) -> dict[str, str]:
    made = of_catalog(name)
    return documents_of(made, record_of(made), dpkg)


def spdx(name: str, dpkg: Dpkg | None = DPKG) -> dict[str, Any]:
    return spdx_of(of_catalog(name), dpkg)


def spdx_of(made: Plan, dpkg: Dpkg | None = DPKG) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(documents_of(made, record_of(made), dpkg)[SPDX])
    return found


def faults(document: dict[str, Any]) -> list[str]:
    """What is against SPDX 2.3 in a document: its schema, and elements that it does not have."""
    there = {document["SPDXID"], "NOASSERTION", *(each["SPDXID"] for each in document["packages"])}
    ends = {
        each[end]
        for each in document["relationships"]
        for end in ("spdxElementId", "relatedSpdxElement")
    }
    found = [f"{each.json_path}: {each.message}" for each in SCHEMA.iter_errors(document)]
    return [*found, *(f"no element {each}" for each in sorted(ends - there))]


def provenance(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(texts(name)[SLSA])
    return found


def package(document: dict[str, Any], name: str) -> dict[str, Any]:
    """The only package of that name."""
    (found,) = [each for each in document["packages"] if each["name"] == name]
    return dict(found)


def engine_of(document: dict[str, Any]) -> dict[str, Any]:
    kind = "APPLICATION"
    (found,) = [each for each in document["packages"] if each["primaryPackagePurpose"] == kind]
    return dict(found)


def purl(package: dict[str, Any]) -> str:
    return str(package["externalRefs"][0]["referenceLocator"])


def relations(document: dict[str, Any]) -> dict[str, str]:
    """How each package but the image is related, by its name: CONTAINS, BUILD_DEPENDENCY_OF, ..."""
    names = {each["SPDXID"]: each["name"] for each in document["packages"]}
    found: dict[str, str] = {}
    for each in document["relationships"]:
        ends = (each["spdxElementId"], each["relatedSpdxElement"])
        other = next(end for end in ends if end != "SPDXRef-Image")
        if other in names:
            found.setdefault(names[other], each["relationshipType"])
    return found


def unlisted(document: dict[str, Any]) -> list[str]:
    """The contents of the image that are not listed, each in a sentence."""
    found = document["relationships"]
    return [each["comment"] for each in found if each["relatedSpdxElement"] == "NOASSERTION"]


def in_catalog(root: Path, name: str, text: str) -> Plan:
    """A recipe of that text, with the real bases."""
    folder = root / "recipes"
    folder.mkdir(exist_ok=True)
    for part in ("bases", "locks"):
        if not (folder / part).exists():
            (folder / part).symlink_to(REPOSITORY / "recipes" / part)
    if not (root / "patches").exists():
        (root / "patches").symlink_to(REPOSITORY / "patches")
    (folder / f"{name}.toml").write_text(text)
    return rendered(root, name)
