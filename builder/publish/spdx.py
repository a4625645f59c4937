"""A bill of materials as SPDX 2.3 JSON (https://spdx.github.io/spdx-spec/v2.3/).

The document describes one package, the image: it contains the engine and the shipped parts,
descends from its bases, and has the other parts as build dependencies.  Every patch is a package
that was applied to the engine.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from builder import __version__
from builder.build.record import Record
from builder.plan.plan import Plan
from builder.publish.sbom import Bill, Dpkg, Kind, Part, SourceChange, bill_of, image_purl

DOCUMENT = "SPDXRef-DOCUMENT"
IMAGE = "SPDXRef-Image"
UNKNOWN = "NOASSERTION"
PURPOSES: dict[Kind, str] = {
    "engine": "APPLICATION",
    "python": "LIBRARY",
    "debian": "INSTALL",
    "base": "CONTAINER",
    "script": "FILE",
}
NO_LICENSE_TEXT = "Not an SPDX license: the text is in the source that this package names."


def to_json(bill: Bill) -> str:
    """The document; equal bills give equal texts."""
    applied = (change for change in bill.changes if change.applied)
    changes = {f"SPDXRef-Patch-{number}": change for number, change in enumerate(applied, 1)}
    licenses = sorted(set(re.findall(r"LicenseRef-[A-Za-z0-9.-]+", bill.engine.license)))
    document = _without_empty(
        {
            "SPDXID": DOCUMENT,
            "comment": "\n".join(f"Not listed: {gap}" for gap in bill.gaps),
            "creationInfo": {
                "created": f"{bill.created:%Y-%m-%dT%H:%M:%SZ}",
                "creators": [f"Tool: builder-{__version__}"],
            },
            "dataLicense": "CC0-1.0",
            "hasExtractedLicensingInfos": [
                {"extractedText": NO_LICENSE_TEXT, "licenseId": name} for name in licenses
            ],
            "name": f"{bill.repository}:{bill.tag}",
            "spdxVersion": "SPDX-2.3",
            "documentNamespace": f"urn:uuid:{uuid5(NAMESPACE_URL, f'spdx:{bill.fingerprint}')}",
            "packages": [
                _image(bill),
                _package(bill.engine),
                *(_patch(identifier, change) for identifier, change in changes.items()),
                *map(_package, bill.parts),
            ],
            "relationships": list(_relationships(bill, changes)),
        }
    )
    return json.dumps(document, indent=4) + "\n"


def _without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in ("", [])}


def _relationships(bill: Bill, changes: Mapping[str, SourceChange]) -> Iterator[dict[str, Any]]:
    engine = _identifier(bill.engine)
    yield _relationship(DOCUMENT, "DESCRIBES", IMAGE)
    yield _relationship(IMAGE, "CONTAINS", engine)
    for identifier, change in changes.items():
        yield _relationship(identifier, "PATCH_APPLIED", engine, change.why)
    for part in bill.parts:
        if not part.shipped:
            yield _relationship(_identifier(part), "BUILD_DEPENDENCY_OF", IMAGE)
        elif part.kind == "base":
            yield _relationship(IMAGE, "DESCENDANT_OF", _identifier(part))
        else:
            yield _relationship(IMAGE, "CONTAINS", _identifier(part))
    for gap in bill.gaps:
        # A known unknown: 11.1 of the specification.
        yield _relationship(IMAGE, "CONTAINS", UNKNOWN, gap)


def _relationship(of: str, kind: str, to: str, comment: str = "") -> dict[str, Any]:
    ends = {"spdxElementId": of, "comment": comment, "relatedSpdxElement": to}
    return _without_empty({**ends, "relationshipType": kind})


def _image(bill: Bill) -> dict[str, Any]:
    return _without_empty(
        {
            "SPDXID": IMAGE,
            "checksums": _sha256(bill.digest.removeprefix("sha256:")),
            "comment": _comment(bill.properties),
            "downloadLocation": UNKNOWN,
            "externalRefs": _purl(image_purl(bill.repository, bill.digest, bill.tag)),
            "filesAnalyzed": False,
            "name": bill.repository,
            "primaryPackagePurpose": "CONTAINER",
            "summary": bill.summary,
            "versionInfo": bill.tag,
        }
    )


def _package(part: Part) -> dict[str, Any]:
    return _without_empty(
        {
            "SPDXID": _identifier(part),
            "checksums": _sha256(part.digest.get("sha256", "")),
            "comment": _comment(part.all_properties),
            "downloadLocation": part.origin or UNKNOWN,
            "externalRefs": _purl(part.purl),
            "filesAnalyzed": False,
            "licenseDeclared": part.license or UNKNOWN,
            "name": part.name,
            "primaryPackagePurpose": PURPOSES[part.kind],
            "sourceInfo": part.origin,
            "summary": part.about,
            "versionInfo": part.version,
        }
    )


def _patch(identifier: str, change: SourceChange) -> dict[str, Any]:
    digest = hashlib.sha256(change.content).hexdigest() if change.content else ""
    return _without_empty(
        {
            "SPDXID": identifier,
            "checksums": _sha256(digest),
            "comment": _comment({"builder:upstream": change.upstream}),
            "downloadLocation": change.diff or change.location or UNKNOWN,
            "filesAnalyzed": False,
            "homepage": change.page,
            "name": change.name,
            "primaryPackagePurpose": "SOURCE",
            "sourceInfo": change.description(),
            "summary": change.why,
            "versionInfo": change.after,
        }
    )


def _identifier(part: Part) -> str:
    """An identifier of letters, digits, . and -; a hash keeps similar names apart."""
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", f"{part.name}-{part.version}").strip("-")
    exact = hashlib.sha256(part.identity.encode()).hexdigest()[:8]
    return f"SPDXRef-{part.kind}-{plain}-{exact}"


def _purl(purl: str) -> list[dict[str, str]]:
    reference = {"referenceCategory": "PACKAGE_MANAGER", "referenceLocator": purl}
    return [{**reference, "referenceType": "purl"}]


def _sha256(digest: str) -> list[dict[str, str]]:
    return [{"algorithm": "SHA256", "checksumValue": digest}] if digest else []


def _comment(properties: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in properties.items() if value)


# SLSA provenance of an image, as an in-toto statement.
#
# https://slsa.dev/spec/v1.0/provenance; https://github.com/in-toto/attestation, spec/v1:
# statement.md, resource_descriptor.md, digest_set.md, field_types.md.

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:builder:recipe:v1"
"""``builder build RECIPE``.

externalParameters: ``recipe`` and ``version``, the names of the recipe and of the engine's version.
internalParameters: ``key``, the sha256 of all inputs of the image; ``contract``, the sha256 of what
the smoke test checks; ``platforms``, of the compiler and of the image.
resolvedDependencies has the recipe's pins."""
LOCAL = "urn:builder:local"
"""A builder that no platform vouches for."""


def platform(environment: Mapping[str, str]) -> str:
    """The URI of the builder: GitHub's workflow at its commit's ref, else ``LOCAL``.

    https://docs.github.com/en/actions/reference/workflows-and-actions/variables
    """
    server = environment.get("GITHUB_SERVER_URL", "")
    workflow = environment.get("GITHUB_WORKFLOW_REF", "")
    return f"{server}/{workflow}" if server and workflow else LOCAL


def provenance_json(bill: Bill, plan: Plan, record: Record, builder: str = LOCAL) -> str:
    """The statement on an image, unsigned; ``builder`` is the URI of the builder."""
    platforms = {"build": plan.platforms.build, "target": plan.platforms.target}
    statement = {
        "_type": STATEMENT,
        "subject": [
            {"name": bill.repository, "digest": {"sha256": bill.digest.removeprefix("sha256:")}}
        ],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"recipe": bill.recipe, "version": bill.version},
                "internalParameters": {
                    "key": plan.key,
                    "contract": record.contract,
                    "platforms": platforms,
                },
                "resolvedDependencies": list(_dependencies(bill)),
            },
            "runDetails": {
                "builder": {"id": builder, "version": {"builder": __version__}},
                "metadata": _times(plan.name, record),
            },
        },
    }
    return json.dumps(statement, indent=2) + "\n"


def _times(name: str, record: Record) -> dict[str, str]:
    """When the build began; and, where its stages are known, when it ended (without smoke)."""
    if not record.created:
        return {}
    started = datetime.fromisoformat(record.created).astimezone(UTC)
    stages = [record.seconds.get(f"{stage} {name}") for stage in ("fetch", "build")]
    known = [seconds for seconds in stages if seconds is not None]
    found = {"startedOn": f"{started:%Y-%m-%dT%H:%M:%SZ}"}
    if len(known) == len(stages):
        finished = started + timedelta(seconds=sum(known))
        found["finishedOn"] = f"{finished:%Y-%m-%dT%H:%M:%SZ}"
    return found


def _dependencies(bill: Bill) -> Iterator[dict[str, Any]]:
    yield _part(bill.engine)
    # A start step runs a file that is a dependency already: of a patch, or of the base.
    yield from (_change(change) for change in bill.changes if change.kind != "start")
    yield from map(_part, bill.parts)


def _part(part: Part) -> dict[str, Any]:
    return {
        "name": f"{part.name} {part.version}".strip(),
        "uri": part.origin or part.purl,
        **({"digest": dict(part.digest)} if part.digest else {}),
        "annotations": {"builder_kind": part.kind, "builder_shipped": part.shipped},
    }


def _change(change: SourceChange) -> dict[str, Any]:
    if change.content:
        digest = {"sha256": hashlib.sha256(change.content).hexdigest()}
    else:
        digest = {"gitCommit": change.after} if change.after else {}
    known = {
        "builder_base": change.before,
        "builder_path": change.path,
        "builder_page": change.page,
        "builder_why": change.why,
    }
    return {
        "name": change.name,
        **({"uri": change.location} if change.location else {}),
        **({"digest": digest} if digest else {}),
        "annotations": {
            "builder_kind": "patch",
            "builder_applied": change.applied,
            **{name: value for name, value in known.items() if value},
        },
    }


# Bills of materials and SLSA provenance of an image.
#
# The bills are SPDX, the format of BuildKit's own SBOM attestations
# (https://docs.docker.com/build/metadata/attestations/sbom/) and the only format that ``docker
# buildx imagetools inspect`` shows (docker/buildx, util/imagetools/loader.go).

SPDX = "application/spdx+json"
PROVENANCE = "application/vnd.in-toto+json"


def documents_of(
    plan: Plan, record: Record, packages: Dpkg | None, builder: str = LOCAL
) -> dict[str, str]:
    """The bill of materials of a verified image and its provenance: JSON texts by media type.

    ``packages`` is the image's dpkg database (None where it has none), ``builder`` the URI of the
    builder.  The same recipe and image always give the same texts, which contain nothing of the
    build machine.
    """
    made = bill_of(plan, record, packages)
    return {SPDX: to_json(made), PROVENANCE: provenance_json(made, plan, record, builder)}
