"""The attachments of an image in a registry: bills of materials, provenance, known faults, recipe,
and PTX."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from builder import __version__
from builder.build import ccache
from builder.build.record import Record
from builder.core.errors import RegistryError
from builder.docker import engine as docker
from builder.engines.layout import LABEL_KEY
from builder.plan.inputs import lock_at
from builder.plan.plan import Plan
from builder.publish import lock
from builder.publish.registry import Repository, remote_image
from builder.publish.sbom import (
    Bill,
    Dpkg,
    Kind,
    Part,
    SourceChange,
    bill_of,
    image_purl,
    installed,
)
from builder.publish.signing import UNSIGNED, Trust, statement_in
from builder.publish.tags import no_image
from builder.publish.verdicts import (
    SLSA,
    AttachedFile,
    Attachment,
    files_of,
    kind_of,
    referrers,
    stated,
    statement_of,
)
from builder.recipes.edit import write

if TYPE_CHECKING:
    from builder.build.build import BuildSession

# A bill of materials as SPDX 2.3 JSON (https://spdx.github.io/spdx-spec/v2.3/).
#
# The document describes one package, the image: it contains the engine and the shipped parts,
# descends from its bases, and has the other parts as build dependencies.  Every patch is a package
# that was applied to the engine.

DOCUMENT = "SPDXRef-DOCUMENT"
IMAGE = "SPDXRef-Image"
NO_ASSERTION = "NOASSERTION"
PURPOSES: dict[Kind, str] = {
    "engine": "APPLICATION",
    "python": "LIBRARY",
    "debian": "INSTALL",
    "base": "CONTAINER",
    "script": "FILE",
    "OperatingSystem": "OPERATING-SYSTEM",
}
NO_LICENSE_TEXT = "Not an SPDX license: the text is in the source that this package names."


def to_json(bill: Bill) -> str:
    """The document; equal bills give equal texts."""
    applied = (change for change in bill.changes if change.applied)
    changes = {f"SPDXRef-Patch-{number}": change for number, change in enumerate(applied, 1)}
    licenses = sorted(set(re.findall(r"LicenseRef-[A-Za-z0-9.-]+", bill.engine.license)))
    # Documents share an identifier only where they are equal.
    fingerprint = hashlib.sha256(repr(bill).encode()).hexdigest()
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
            "documentNamespace": f"urn:uuid:{uuid5(NAMESPACE_URL, f'spdx:{fingerprint}')}",
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
        yield _relationship(IMAGE, "CONTAINS", NO_ASSERTION, gap)


def _relationship(of: str, kind: str, to: str, comment: str = "") -> dict[str, Any]:
    ends = {"spdxElementId": of, "comment": comment, "relatedSpdxElement": to}
    return _without_empty({**ends, "relationshipType": kind})


def _image(bill: Bill) -> dict[str, Any]:
    return _without_empty(
        {
            "SPDXID": IMAGE,
            "checksums": _sha256(bill.digest.removeprefix("sha256:")),
            "comment": _comment(bill.properties),
            "downloadLocation": NO_ASSERTION,
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
            "downloadLocation": part.origin or NO_ASSERTION,
            "externalRefs": _purl(part.purl),
            "filesAnalyzed": False,
            "licenseDeclared": part.license or NO_ASSERTION,
            "name": part.name,
            "primaryPackagePurpose": PURPOSES[part.kind],
            "sourceInfo": f"built package from: {part.source}" if part.source else part.origin,
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
            "downloadLocation": change.diff or change.location or NO_ASSERTION,
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

BUILD_TYPE = "urn:builder:recipe:v1"
"""``builder build RECIPE``.

externalParameters: ``recipe`` and ``version``, the names of the recipe and of the engine's version.
internalParameters: ``key``, the sha256 of all inputs of the image; ``contract``, the sha256 of what
the smoke test checks; ``platforms``, of the compiler and of the image.
resolvedDependencies has the recipe's pins."""
LOCAL = "urn:builder:local"
"""A builder that no platform vouches for."""


def builder_uri(environment: Mapping[str, str]) -> str:
    """The URI of the builder: GitHub's workflow at its commit's ref, else ``LOCAL``.

    https://docs.github.com/en/actions/reference/workflows-and-actions/variables
    """
    server = environment.get("GITHUB_SERVER_URL", "")
    workflow = environment.get("GITHUB_WORKFLOW_REF", "")
    return f"{server}/{workflow}" if server and workflow else LOCAL


def provenance_json(bill: Bill, plan: Plan, record: Record, builder: str = LOCAL) -> str:
    """The statement on an image; ``builder`` is the URI of the builder."""
    platforms = {"build": plan.platforms.build, "target": plan.platforms.target}
    predicate = {
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
    }
    return statement_of(bill.repository, bill.digest, SLSA, predicate)


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
    yield from (_part(part) for part in bill.parts if part.kind != "OperatingSystem")


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


# Known faults of upstream that an image mends or has, as OpenVEX
# (https://github.com/openvex/spec, OPENVEX-SPEC.md, v0.2.0).  Threads are their names: few have a
# CVE.

VEX = "https://openvex.dev/ns/v0.2.0"
THREAD = re.compile(r"(?<![\w./-])([\w.-]+/[\w.-]+)#([0-9]+)\b")


def vex_json(bill: Bill, plan: Plan) -> str:
    """The statement with an OpenVEX document; empty where the recipe names no thread.

    A patch mends the threads in its reason, and the one where upstream discusses it; an exception
    of the checks means that the image has the fault.
    """
    mended = [(f"{each.upstream} {each.why}", each) for each in bill.changes if each.applied]
    found = [
        *(
            _fault(bill, text, "fixed", {"status_notes": each.description()})
            for text, each in mended
        ),
        *(
            _fault(bill, each.why, "affected", {"action_statement": each.why})
            for each in plan.recipe.accept
        ),
    ]
    statements = list(
        {each["vulnerability"]["name"]: each for one in found for each in one}.values()
    )
    if not statements:
        return ""
    identity = hashlib.sha256(repr((bill.digest, statements)).encode()).hexdigest()
    document = {
        "@context": VEX,
        "@id": f"urn:uuid:{uuid5(NAMESPACE_URL, f'vex:{identity}')}",
        "author": bill.repository,
        "timestamp": f"{bill.created:%Y-%m-%dT%H:%M:%SZ}",
        "version": 1,
        "statements": statements,
    }
    return statement_of(bill.repository, bill.digest, VEX, document)


def _fault(bill: Bill, text: str, status: str, more: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    product = {
        "@id": image_purl(bill.repository, bill.digest),
        **({"subcomponents": [{"@id": bill.engine.purl}]} if bill.engine.purl else {}),
    }
    for repository, number in dict.fromkeys(THREAD.findall(text)):
        page = f"https://github.com/{repository}/issues/{number}"
        yield {
            "vulnerability": {"@id": page, "name": f"{repository}#{number}"},
            "products": [product],
            "status": status,
            **more,
        }


# The documents of an image: its bill of materials, its provenance, its known faults.
#
# The bills are SPDX, the format of BuildKit's own SBOM attestations
# (https://docs.docker.com/build/metadata/attestations/sbom/) and the only format that ``docker
# buildx imagetools inspect`` shows (docker/buildx, util/imagetools/loader.go).

SPDX = "application/spdx+json"


def documents_of(
    plan: Plan, record: Record, packages: Dpkg | None, builder: str = LOCAL
) -> dict[str, str]:
    """The bill of materials of a verified image, its provenance, and its known faults if there are
    any: JSON texts by media type, statements by the type of their predicate.

    ``packages`` is the image's dpkg database (None where it has none), ``builder`` the URI of the
    builder.  The same recipe and image always give the same texts, which contain nothing of the
    build machine.
    """
    made = bill_of(plan, record, packages)
    slsa, vex = provenance_json(made, plan, record, builder), vex_json(made, plan)
    return {SPDX: to_json(made), SLSA: slsa, **({VEX: vex} if vex else {})}


NAME = r"[A-Za-z0-9][A-Za-z0-9._+-]*"
RECIPE_FILE = re.compile(rf"(?:{NAME}/)*{NAME}\.toml")
RECIPE = "application/vnd.builder.recipe.v1+toml"
"""What earlier versions attached: the recipe, and its locks."""
STATEMENTS = {SLSA: "slsa", VEX: "vex"}
"""The names of the files of statements, without suffixes."""


def documents(plan: Plan, record: Record, work: Path) -> dict[str, str]:
    """The documents of an image of the engine, as ``documents_of`` has them.

    ``work`` is an empty directory.  Raises ``UntriedError`` where the engine does not give a file
    of the image.
    """
    packages = installed(record.digest, work)
    return documents_of(plan, record, packages, builder_uri(os.environ))


def missing_attachments(
    session: BuildSession,
    plan: Plan,
    record: Record,
    attached: Collection[str],
    work: Path,
    trust: Trust = UNSIGNED,
) -> list[Attachment]:
    """The attachments that a verified image lacks; ``attached`` are the kinds that it has.

    They describe the files of the image: if the engine does not have it, it is pulled first.
    """
    missing = []
    if lock.KIND not in attached:
        missing.append(lock.lock_of(plan, session.catalog))
    if not {SPDX, SLSA} <= {*attached}:
        for kind, text in _documents_of(plan, record, work).items():
            if kind in attached:
                continue
            if kind in STATEMENTS:
                missing.append(stated(trust, text, kind, STATEMENTS[kind]))
            else:
                file = AttachedFile("bom.spdx.json", kind, text.encode())
                missing.append(Attachment(kind, (file,)))
    ptx_file = ccache.path_of(session.settings.state_dir, plan.name, plan.key)
    if ccache.KIND not in attached and ptx_file.exists():
        file = AttachedFile(ccache.NAME, ccache.KIND, ptx_file.read_bytes())
        missing.append(Attachment(ccache.KIND, (file,)))
    return missing


def _documents_of(plan: Plan, record: Record, work: Path) -> dict[str, str]:
    """The documents of an image of the engine, or of a registry.

    The provenance of the latter names no build platform: it may have been built elsewhere.
    """
    if docker.image(record.digest) is not None:
        return documents(plan, record, work)
    repository = record.references[0].rpartition(":")[0]
    with docker.pulled(f"{repository}@{record.digest}", plan.platform):
        return documents_of(plan, record, installed(record.digest, work))


def catalog_of(
    repository: Repository, reference: str, folder: Path, platform: str | None = None
) -> Path:
    """The catalog of all that an image was made of, below the new directory ``folder``.

    An earlier version attached only the recipe, and its locks.  Raises ``RegistryError`` where
    nothing is attached, or a path is not one of ``recipes/``.
    """
    try:
        file = attached(repository, reference, lock.KIND, platform)[0]
    except RegistryError as error:
        try:
            files = attached(repository, reference, RECIPE, platform)
        except RegistryError:
            raise error from None
    else:
        found = lock.unpacked(file, folder)
        image, made = remote_image(repository, reference), lock_at(found)
        keys = {image.labels.get(LABEL_KEY)} if image else set()
        keys |= {each.key for each in image.platforms.values()} if image else set()
        if made is None or made.key not in keys:
            raise RegistryError(
                f"the lock that is attached to {repository.name}:{reference} is of another image",
                "whoever may push may attach one",
                "nothing is built of it",
            )
        return found
    for name, text in recipe_texts(files).items():
        write(folder / "recipes" / name, text)
    return folder


def recipe_texts(files: Sequence[AttachedFile]) -> dict[str, str]:
    """The texts of an attached recipe, by their paths below ``recipes/``.

    Raises ``RegistryError`` for a path that is not below ``recipes/``, or a file that is not text.
    """
    found = {}
    for file in files:
        if not RECIPE_FILE.fullmatch(file.name):
            raise RegistryError(
                f"the attached recipe has a file with the path {file.name!r}",
                "a recipe's files are NAME.toml, locks/NAME.toml, bases/NAME.toml and the like",
                "nothing is written",
            )
        try:
            found[file.name] = file.content.decode()
        except UnicodeDecodeError as error:
            raise RegistryError(
                f"{file.name} of the attached recipe is not UTF-8 text", hint="nothing is written"
            ) from error
    return found


def attached(
    repository: Repository, reference: str, kind: str, platform: str | None = None
) -> list[AttachedFile]:
    """The files of one type that are attached to the image of a tag or a digest.

    ``platform`` ("linux/amd64") names an image of an index; None: the first one, for recipes and
    locks only: all images of an index have one recipe.  Raises ``RegistryError`` where there is no
    such image, or no attachment of that type with a file.
    """
    manifest = repository.manifest(reference)
    if manifest is None:
        raise no_image(repository, reference)
    digest = manifest.digest
    entries = manifest.body.manifests or ()
    listed = {each.platform.name: each.digest for each in entries if each.platform}
    if listed:
        name = next(iter(listed)) if kind in {RECIPE, lock.KIND} and platform is None else platform
        if name not in listed:
            what = f"has no image for {platform}" if platform else "is an index of several images"
            raise RegistryError(
                f"{repository.name}:{reference} {what}",
                f"its platforms are {' and '.join(listed)}",
                f"name one of them: --platform {next(iter(listed))}",
            )
        digest = listed[name]
    found = [each for each in referrers(repository, digest) if kind_of(each) == kind]
    artifact = repository.manifest(found[-1]["digest"]) if found else None
    files = [
        replace(each, content=statement_in(each.content).encode() or each.content)
        for each in (files_of(repository, artifact) if artifact else [])
    ]
    if not files:
        raise RegistryError(
            f"{repository.name}:{reference} has no attachment of the type {kind}",
            f"the image is {digest}",
            "builder did not push it, or the attachment was deleted",
        )
    return files
