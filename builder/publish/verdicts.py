"""What is attached to an image, and who vouches for it: artifacts, signatures, verdicts.

Artifacts are listed as the image's referrers (OCI image specification 1.1, "Guidelines for Artifact
Usage").  For a registry without the referrers API a tag keeps the list (distribution specification
1.1, "Referrers Tag Schema").  A registry may get the API later, and some have it in part: both
lists are read, and the tag is written unless the API listed an artifact of ours.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import to_jsonable_python

from builder.build.record import Record
from builder.core.errors import FetchError, RegistryError, SmokeError, WorldError
from builder.core.files import workspace
from builder.core.settings import Settings
from builder.docker.engine import HUB, split
from builder.publish.registry import MANIFESTS, Manifest, Repository
from builder.publish.signing import (
    BUNDLE,
    IN_TOTO,
    Trust,
    identity_of,
    key_text,
    require_key,
    sign_reference,
    sign_statement,
    sign_text,
    statement_in,
    trust_of,
    verifying,
)
from builder.publish.transport import HUB_KEY, certificate_of, login_for

TITLE = "org.opencontainers.image.title"
EMPTY = b"{}"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """One file of an artifact: its name, its media type, its bytes."""

    name: str
    media_type: str
    content: bytes
    more: Mapping[str, str] = field(default_factory=dict)  # annotations beside the name


@dataclass(frozen=True, slots=True)
class Attachment:
    """An artifact to attach to an image: its type, its files and its annotations."""

    kind: str
    files: tuple[AttachedFile, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


def attach_all(
    repository: Repository, subject: Manifest, attachments: Sequence[Attachment]
) -> list[str]:
    """Attach several artifacts to an image; their digests.

    Where a tag keeps the list of referrers, it is read and written once.
    """
    made = [_put_parts(repository, each, subject) for each in attachments]
    listing = [repository.put_manifest(each.digest, each) for each in made]
    if not (all(listing) and (not made or repository.lists(subject.digest, made[-1].digest))):
        known = _listed(repository, subject.digest)
        there = {entry["digest"] for entry in known}
        more = [_entry(each) for each in made if each.digest not in there]
        if more:  # an entry that another machine adds right now is lost: there is no remedy
            repository.put_manifest(referrers_tag(subject.digest), _list([*known, *more]))
    return [each.digest for each in made]


def _list(entries: Sequence[Mapping[str, Any]]) -> Manifest:
    """The list of referrers that a tag keeps."""
    index = {"schemaVersion": 2, "mediaType": MANIFESTS[1], "manifests": entries}
    return Manifest(json.dumps(index).encode(), MANIFESTS[1])


def require_attachments(repository: Repository) -> None:
    """Raise ``RegistryError`` where a registry refuses what is attached to images.

    A tiny artifact is put, attached to another one and, where that needs a tag, listed there twice:
    a registry may refuse a type, a subject, or a tag that moves.  Everything is deleted afterwards,
    if the registry and the login allow that.  Docker Hub deletes by digest what has no tag
    (https://docs.docker.com/reference/api/registry/latest/).  Raises ``FetchError``.
    """
    image = _put_parts(repository, Attachment(VERDICT), None)
    artifact = _put_parts(repository, Attachment(VERDICT), image)
    tag = referrers_tag(image.digest)
    lists = [_list([]), _list([_entry(artifact)])]
    step = f"an artifact of the type {VERDICT} with a configuration of the type {EMPTY_TYPE}"
    try:
        repository.put_manifest(image.digest, image)
        step = "a manifest with a subject, as all attachments have"
        listing = repository.put_manifest(artifact.digest, artifact)
        step = f"a tag that moves: {tag[:19]}..., which lists attachments"
        if not (listing and repository.lists(image.digest, artifact.digest)):
            for each in lists:
                repository.put_manifest(tag, each)
            if not _listed(repository, image.digest):
                repository.log(
                    f"{repository.registry} lists no attachments, neither by the referrers API nor "
                    "under a tag: it will show no verdicts and no histories of tags"
                )
    except RegistryError as error:
        error.why = f"{error.what}\n{error.why}"
        error.what = f"{repository.registry} does not take {step}: nothing else was uploaded"
        error.hint = error.hint or "docs/publishing.md, Registries, says what must be set"
        raise
    finally:
        for each in (*reversed(lists), artifact, image):
            with suppress(RegistryError, FetchError):
                repository.delete(each.digest)


def store(
    repository: Repository,
    tag: str,
    kind: str,
    files: Sequence[AttachedFile],
    annotations: Mapping[str, str] = {},
) -> None:
    """Put an artifact without an image under a tag."""
    wanted = Attachment(kind, tuple(files), annotations)
    repository.put_manifest(tag, _put_parts(repository, wanted, None))


def files_of(repository: Repository, artifact: Manifest) -> list[AttachedFile]:
    """The files of an artifact."""
    return [
        AttachedFile(
            (layer.annotations or {}).get(TITLE, ""),
            layer.mediaType,
            repository.blob(layer.digest),
        )
        for layer in artifact.body.layers or ()
        if layer.mediaType != EMPTY_TYPE
    ]


def _put_parts(repository: Repository, wanted: Attachment, subject: Manifest | None) -> Manifest:
    """Upload the parts of an artifact; its manifest, which is not uploaded yet."""
    for content in (EMPTY, *(file.content for file in wanted.files)):
        repository.put_bytes(content)
    empty = _descriptor(EMPTY_TYPE, EMPTY)
    # ORAS keeps the names of files in their titles, too.
    layers = [
        _descriptor(file.media_type, file.content)
        | ({"annotations": {TITLE: file.name, **file.more}} if file.name else {})
        for file in wanted.files
    ]
    parts: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFESTS[0],
        "artifactType": wanted.kind,
        "config": empty,
        "layers": layers or [empty],
        "annotations": dict(wanted.annotations),
    }
    if subject is not None:
        parts["subject"] = _descriptor(subject.media_type, subject.content)
    return Manifest(json.dumps(parts, indent=1).encode(), MANIFESTS[0])


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    """OCI image specification 1.1, "Content Descriptors"."""
    digest = Manifest(content, media_type).digest
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _entry(artifact: Manifest) -> dict[str, Any]:
    parsed = artifact.parsed()
    entry = _descriptor(artifact.media_type, artifact.content)
    return entry | {"artifactType": parsed["artifactType"], "annotations": parsed["annotations"]}


def referrers_tag(digest: str) -> str:
    """The tag that keeps the list of a manifest's referrers where the registry has no API for it.

    OCI distribution specification 1.1, "Unavailable Referrers API".
    """
    return digest.replace(":", "-", 1)


def entries_of(manifest: Manifest) -> list[dict[str, Any]]:
    """The descriptors that an index lists; for any other manifest none."""
    return list(manifest.parsed().get("manifests") or [])


def _listed(repository: Repository, digest: str) -> list[dict[str, Any]]:
    """The referrers that an image's tag lists.

    GitLab answers for that tag with the image itself, whose entries are images of platforms.
    """
    there = repository.manifest(referrers_tag(digest))
    return entries_of(there) if there and there.digest != digest else []


def referrers(
    repository: Repository, digest: str, tags: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """The descriptors of an image's referrers: the API's, and others that the image's tag lists.

    ``tags`` are all tags of the repository, where they are known: the tag is read only if it is
    there.
    """
    listed = repository.referrers(digest) or []
    if tags is None or referrers_tag(digest) in tags:
        there = {each["digest"] for each in listed}
        listed += [each for each in _listed(repository, digest) if each["digest"] not in there]
    return listed


def annotations_of(entries: Iterable[Mapping[str, Any]], kind: str) -> Iterator[Mapping[str, str]]:
    """The annotations of artifacts of the type ``kind`` among the descriptors of referrers."""
    for entry in entries:
        found = entry.get("annotations") or {}
        if kind_of(entry) == kind and isinstance(found, dict):
            yield found


def kind_of(entry: Mapping[str, Any]) -> str:
    """What an artifact is, by its descriptor: of a statement the predicate's type, else its own."""
    kind, found = str(entry.get("artifactType")), entry.get("annotations")
    if kind not in {BUNDLE, IN_TOTO}:
        return VERDICT if kind == OLD_VERDICT else kind
    named = found.get(PREDICATE) if isinstance(found, dict) else None
    return str(named) if named else SLSA if kind == IN_TOTO else kind


# in-toto statements about images: signed in a bundle of Sigstore, as cosign 3 attaches it, else
# plain (https://github.com/in-toto/attestation, spec/v1;
# https://github.com/sigstore/cosign/blob/main/specs/BUNDLE_SPEC.md).

STATEMENT = "https://in-toto.io/Statement/v1"
SLSA = "https://slsa.dev/provenance/v1"
PREDICATE = "dev.sigstore.bundle.predicateType"
"""The annotation that names the predicate's type."""


def statement_of(repository: str, digest: str, kind: str, predicate: Mapping[str, Any]) -> str:
    """An in-toto statement (JSON) on an image; ``kind`` is the predicate's type."""
    subject = {"name": repository, "digest": {"sha256": digest.removeprefix("sha256:")}}
    head = {"_type": STATEMENT, "subject": [subject], "predicateType": kind}
    return json.dumps({**head, "predicate": predicate}, indent=2) + "\n"


# Verdicts that are attached to images of a registry, and the signers that vouch for them.

M = TypeVar("M", bound=BaseModel)
VERDICT = "urn:builder:verdict:v1"
"""The type of the predicate: docs/publishing.md has its fields."""
NUMBERS = "numbers"
"""The kind of the checks that compare numbers."""
OLD_VERDICT = "application/vnd.builder.verdict.v1+json"
"""The type of earlier versions' artifact: a signed annotation."""
TEXT = "builder.verdict"
SIGNATURE = f"{TEXT}.signature"
"""Annotations: a ``Statement`` as JSON, so that no file has to be fetched to list it; and, of an
old verdict, its signature (base64)."""


class Statement(BaseModel):
    """A good verdict on one image, in short."""

    model_config = ConfigDict(frozen=True, strict=True)

    recipe: str
    key: str
    digest: str
    """The image's; ``sha256:`` and 64 hex digits."""
    contract: str
    """sha256 of the recipe's checks when the image was checked."""
    checks: dict[str, int]
    """The number of checks that passed, by kind."""
    created: str
    """When its build began, by the record; RFC 3339, UTC."""


def noted(trust: Trust, kind: str, name: str, text: str) -> Attachment:
    """An artifact with a text as its annotation ``name``, and the text's signature where there is a
    key."""
    annotations = {name: text}
    if trust.signing:
        annotations[f"{name}.signature"] = sign_text(text, trust.signing, trust.work)
    return Attachment(kind, annotations=annotations)


def stated(
    trust: Trust, text: str, kind: str, name: str, annotations: Mapping[str, str] | None = None
) -> Attachment:
    """An artifact with an in-toto statement, in a bundle where there is a key.

    ``kind`` is the predicate's type, ``name`` the name of the file without its suffix.
    """
    more = {**(annotations or {}), PREDICATE: kind}
    if not trust.signing:
        plain = AttachedFile(f"{name}.json", IN_TOTO, text.encode())
        return Attachment(IN_TOTO, (plain,), more)
    bundle = sign_statement(text, trust.signing, trust.work)
    file = AttachedFile(f"{name}.sigstore.json", BUNDLE, bundle.encode())
    return Attachment(BUNDLE, (file,), {**more, "dev.sigstore.bundle.content": "dsse-envelope"})


def sign_image(repository: str, digest: str, trust: Trust) -> bool:
    """Sign an image of a registry unless it has a valid signature; whether it was signed now.

    Raises ``WorldError`` where cosign cannot sign as the signer or does not end in time,
    ``RegistryError`` where the registry then has no valid signature.
    """
    registry = split(repository)[0]
    login, name = login_for(registry), HUB_KEY if registry == HUB else registry
    auths = {name: {"auth": login.basic}} if login is not None else {}
    image, certificate = f"{repository}@{digest}", certificate_of(registry)
    return sign_reference(image, trust.signing, trust.work, auths, certificate)


@dataclass(frozen=True, slots=True)
class PublicSigner:
    """Who signs, as strangers need it: a public key (PEM), or an identity and its issuer."""

    key: str = ""
    identity: str = ""
    issuer: str = ""

    def commands(self, image: str) -> tuple[str, str]:
        """Commands that verify an image, and its verdict, which the second one prints.

        A key is in the file ``cosign.pub``.
        """
        options = verifying(f"{self.identity};{self.issuer}" if self.identity else "cosign.pub")
        shown = [each for each in options if not each.startswith("--trusted-root=")]
        verdict = ["cosign", "verify-attestation", f"--type={VERDICT}", *shown, image]
        return shlex.join(["cosign", "verify", *shown, image]), shlex.join(verdict)


def signers_of(settings: Settings) -> tuple[PublicSigner, ...]:
    """The signers in the settings; raises ``WorldError`` where a key cannot be read."""
    found = []
    for signer in filter(None, (settings.cosign_key, *settings.trusted_keys)):
        identity = identity_of(signer)
        if identity is not None:
            found.append(PublicSigner("", *identity))
        else:
            found.append(PublicSigner(key_text(signer)))
    return tuple(dict.fromkeys(found))


def require_signing(settings: Settings, work: Path) -> None:
    """Raise ``WorldError`` where cosign cannot sign with the key in the settings."""
    if settings.cosign_key:
        require_key(settings.cosign_key, work / "cosign")


def verdict_on(kept: Record, trust: Trust, by: Mapping[str, str]) -> Attachment:
    """The verdict of a record, to be attached to its image; ``by`` says which builder gave it."""
    if not kept.verdict.good:
        raise SmokeError(f"{kept.recipe} is not verified: its verdict cannot be signed")
    short = Statement(
        recipe=kept.recipe,
        key=kept.key,
        digest=kept.digest,
        contract=kept.contract,
        checks=kept.verdict.passed_by_kind,
        created=kept.created,
    )
    found: dict[str, Any] = to_jsonable_python(kept.verdict)
    predicate = {
        "verifier": {"id": "urn:builder", **by},
        "result": "passed",
        **short.model_dump(),
        "commit": kept.commit,
        "platform": kept.platform,
        "passed": [each for each in found["checks"] if each["kind"] != NUMBERS],
        "numbers": [each for each in found["checks"] if each["kind"] == NUMBERS],
        **{name: found[name] for name in ("code", "device", "presets")},
        **{name: found[name] for name in ("download_size", "unpacked_size")},
    }
    name = kept.references[0].rpartition(":")[0]
    text = statement_of(name, kept.digest, VERDICT, predicate)
    summary = json.dumps(short.model_dump(), sort_keys=True, separators=(",", ":"))
    return stated(trust, text, VERDICT, "verdict", {TEXT: summary})


def verdict_signers(
    repository: Repository,
    entries: Iterable[Mapping[str, Any]],
    wanted: tuple[str, str, str],
    trust: Trust,
) -> Iterator[str]:
    """The trusted signer of each verdict on an image; empty: none.

    ``wanted`` is its digest, its key and its contract; ``entries`` are the descriptors of its
    referrers.
    """
    for entry in entries:
        if kind_of(entry) != VERDICT:
            continue
        if entry.get("artifactType") == OLD_VERDICT:
            for found, values in statements_in([entry], VERDICT, TEXT, Statement):
                if (found.digest, found.key, found.contract) == wanted:
                    yield trust.signer(values.get(TEXT, ""), values.get(SIGNATURE, ""))
            continue
        artifact = repository.manifest(str(entry["digest"]))
        files = files_of(repository, artifact) if artifact else []
        if files and _told(files[0].content) == wanted:
            yield trust.signer_of(files[0].content)


def _told(content: bytes) -> tuple[str, str, str] | None:
    """The digest, the key and the contract of a verdict's statement; None: it is none."""
    try:
        found = json.loads(statement_in(content) or content)
        subject, predicate = found["subject"][0], found["predicate"]
        if found["predicateType"] != VERDICT or predicate["result"] != "passed":
            return None
        key, contract = str(predicate["key"]), str(predicate["contract"])
        return f"sha256:{subject['digest']['sha256']}", key, contract
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def built_at(entries: Iterable[Mapping[str, Any]], digest: str) -> datetime | None:
    """When an image was first built, by the verdicts among its referrers; None: there is none."""
    found = []
    for statement in verdicts_on(entries, digest):
        with suppress(ValueError):
            found.append(datetime.fromisoformat(statement.created).astimezone(UTC))
    return min(found, default=None)


def verdicts_on(entries: Iterable[Mapping[str, Any]], digest: str) -> list[Statement]:
    """The verdicts on an image among its referrers, the newest first; signatures do not count."""
    statements = statements_in(entries, VERDICT, TEXT, Statement)
    found = [statement for statement, _ in statements if statement.digest == digest]
    return sorted(found, key=lambda each: each.created, reverse=True)


def statements_in(
    entries: Iterable[Mapping[str, Any]], kind: str, name: str, model: type[M]
) -> Iterator[tuple[M, Mapping[str, str]]]:
    """The statements in the annotation ``name`` of artifacts of one kind, and all annotations."""
    for values in annotations_of(entries, kind):
        with suppress(ValidationError):
            yield model.model_validate_json(values.get(name, "")), values


# Statements that an image of a registry was built again, with the same digest.

REPRODUCTION = "application/vnd.builder.reproduction.v1+json"
REPRODUCTION_TEXT = "builder.reproduction"
REPRODUCTION_SIGNATURE = f"{REPRODUCTION_TEXT}.signature"
"""The annotations of an attached ``ReproductionStatement``: its JSON and its signature (base64)."""


class ReproductionStatement(BaseModel):
    """That an image was built again, as it is attached and signed."""

    model_config = ConfigDict(frozen=True, strict=True)

    digest: str
    """The image's; ``sha256:`` and 64 hex digits."""
    recipe: str
    architecture: str
    """The machine's that built it again: "x86_64"."""
    version: str
    """Version of builder."""
    created: str
    """When it was built again; RFC 3339, UTC."""


@dataclass(frozen=True, slots=True)
class Reproduced:
    """A statement that an image was built again, and whether it is trusted."""

    created: str
    """When it was built again; RFC 3339, UTC."""
    architecture: str
    """The machine's that built it again: "x86_64"."""
    key: str = ""
    """The trusted key that signed the statement, as the settings name it; empty: none."""
    problem: str = ""
    """Why no key was tried; empty: all were."""


def reproduced(
    entries: Iterable[Mapping[str, Any]], digest: str, settings: Settings
) -> Reproduced | None:
    """The newest statement on an image that a trusted key signed, else the newest one, or None.

    ``entries`` are the descriptors of the image's referrers.
    """
    statements = statements_in(entries, REPRODUCTION, REPRODUCTION_TEXT, ReproductionStatement)
    found = [each for each in statements if each[0].digest == digest]
    if not found:
        return None
    found.sort(key=lambda each: each[0].created, reverse=True)
    newest = Reproduced(found[0][0].created, found[0][0].architecture)
    try:
        with workspace(settings.cache_dir) as work:
            trust = trust_of(settings, work)
            for statement, values in found:
                key = trust.signer(
                    values.get(REPRODUCTION_TEXT, ""), values.get(REPRODUCTION_SIGNATURE, "")
                )
                if key:
                    return Reproduced(statement.created, statement.architecture, key)
    except WorldError as error:
        return replace(newest, problem=error.what)
    return newest


def of_all(found: Sequence[Reproduced | None]) -> Reproduced | None:
    """One statement for all images of an index; None where an image was not built again.

    It is the oldest statement; a statement without a key comes before all others.
    """
    known = [each for each in found if each is not None]
    if not known or len(known) < len(found):
        return None
    return min(known, key=lambda each: (bool(each.key), each.created))
