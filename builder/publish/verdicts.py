"""What is attached to an image, and who vouches for it: artifacts, signatures, verdicts.

Artifacts are listed as the image's referrers (OCI image specification 1.1, "Guidelines for Artifact
Usage").  For a registry without the referrers API a tag keeps the list (distribution specification
1.1, "Referrers Tag Schema").  A registry may get the API later, and some have it in part: both
lists are read, and the tag is written unless the API listed an artifact of ours.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from builder.build.record import Record
from builder.core.errors import FetchError, RegistryError, SmokeError, WorldError
from builder.core.files import workspace
from builder.core.settings import Settings
from builder.docker.engine import HUB, split
from builder.publish.registry import MANIFESTS, Manifest, Repository
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
    told = [repository.put_manifest(each.digest, each) for each in made]
    if not (all(told) and (not made or repository.lists(subject.digest, made[-1].digest))):
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
    if the registry allows that; Docker Hub does not.  Raises ``FetchError``.
    """
    image = _put_parts(repository, Attachment(VERDICT), None)
    artifact = _put_parts(repository, Attachment(VERDICT), image)
    tag = referrers_tag(image.digest)
    lists = [_list([]), _list([_entry(artifact)])]
    step = f"an artifact of the type {VERDICT} with a configuration of the type {EMPTY_TYPE}"
    try:
        repository.put_manifest(image.digest, image)
        step = "a manifest with a subject, as all attachments have"
        told = repository.put_manifest(artifact.digest, artifact)
        step = f"a tag that moves: {tag[:19]}..., which lists attachments"
        if not (told and repository.lists(image.digest, artifact.digest)):
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
        if repository.registry != HUB:
            with suppress(RegistryError, FetchError):
                for each in (*reversed(lists), artifact, image):
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
        | ({"annotations": {TITLE: file.name}} if file.name else {})
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
        if entry.get("artifactType") == kind and isinstance(found, dict):
            yield found


# cosign: signatures of images and texts, with self-managed keys.
#
# https://docs.sigstore.dev/cosign/key_management/signing_with_self-managed_keys/.  Nothing goes to
# a transparency log: a verifier needs the public key and no other server.  cosign takes the key's
# password from COSIGN_PASSWORD.  A ``key`` is a file or one of cosign's key URIs, ``work`` a
# directory for cosign's input.

TIMEOUT = 300.0  # seconds
NO_SIGNATURE = re.compile(
    r"no (?:matching )?signatures|invalid signature when validating", re.IGNORECASE
)
"""cosign's messages (2.5) for an image without a signature, or without one by that key."""
UNREADABLE_KEY = re.compile(r"loading public key")
"""cosign's message (2.5) for a key that it cannot use."""
SAMPLE = "builder tries its signing key"


def require_cosign() -> None:
    """Raise ``WorldError`` where there is no cosign."""
    if shutil.which("cosign") is None:
        raise WorldError(
            "there is no cosign on this machine",
            "a signing key is set (BUILDER_COSIGN_KEY)",
            "install cosign (in Debian since trixie), or unset the key",
        )


def require_key(key: str, work: Path) -> None:
    """Raise ``WorldError`` where there is no cosign, or it cannot sign with a key."""
    require_cosign()
    public = public_key(key, work)
    if not signed_by(SAMPLE, sign_text(SAMPLE, key, work), str(public), work):
        raise WorldError(
            "cosign cannot verify its own signature by the signing key",
            hint="check BUILDER_COSIGN_KEY",
        )


def public_key(key: str, work: Path) -> Path:
    """The public key of a signing key, as a PEM file in ``work``."""
    return _written(work, "cosign.pub", _public_key(key))


@cache  # with a password, cosign takes 0.2 s to read a key
def _public_key(key: str) -> bytes:
    return _run(("public-key", f"--key={key}"), "read its public key")


def _written(work: Path, name: str, content: bytes) -> Path:
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    (work / name).write_bytes(content)
    return work / name


def sign_text(text: str, key: str, work: Path) -> str:
    """The signature (base64) of a text."""
    file = _written(work, "text", text.encode())
    signing = ("sign-blob", "--yes", "--tlog-upload=false", f"--key={key}", str(file))
    return _run(signing, "sign a verdict").decode().strip()


def signed_by(text: str, signature: str, public: str, work: Path) -> bool:
    """Whether a signature (base64) of a text is by a public key, which is a file or a key URI.

    A damaged signature is not.
    """
    file = _written(work, "text", text.encode())
    stored = _written(work, "signature", signature.encode())
    options = ("--insecure-ignore-tlog=true", f"--key={public}", f"--signature={stored}")
    try:
        _run(("verify-blob", *options, str(file)), "verify a verdict")
    except WorldError as error:
        if not error.why:  # cosign did not end in time
            raise
        if not UNREADABLE_KEY.search(error.why):
            return False
        raise WorldError(
            f"the trusted key {public} cannot be read",
            error.why,
            "check BUILDER_TRUSTED_KEYS: files of public keys, or cosign's key URIs",
        ) from error
    return True


def sign_image(repository: str, digest: str, key: str, work: Path) -> bool:
    """Sign an image of a registry unless it has a valid signature; whether it was signed now.

    Raises ``WorldError`` where cosign cannot sign with the key or does not end in time,
    ``RegistryError`` where the registry then has no valid signature.
    """
    image, registry = f"{repository}@{digest}", split(repository)[0]
    certificate = certificate_of(registry)
    options = (f"--registry-cacert={certificate}",) if certificate is not None else ()
    public = public_key(key, work)
    login = login_for(registry)
    name = HUB_KEY if registry == HUB else registry
    auths = {name: {"auth": login.basic}} if login is not None else {}
    config = work / "config.json"  # the login is in a file while cosign runs
    config.touch(0o600)
    try:
        config.write_text(json.dumps({"auths": auths}))
        if _verifies(image, public, options, work):
            return False
        signing = ("sign", "--yes", "--tlog-upload=false", f"--key={key}", *options, image)
        _run(signing, f"sign {image}", work)
        if not _verifies(image, public, options, work):
            raise RegistryError(
                f"{image} was signed, but has no signature by that key", hint="try again"
            )
    finally:
        config.unlink(missing_ok=True)
    return True


def _verifies(image: str, public: Path, options: tuple[str, ...], config: Path) -> bool:
    verifying = ("verify", "--insecure-ignore-tlog=true", f"--key={public}", *options, image)
    try:
        _run(verifying, f"verify {image}", config)
    except WorldError as error:
        if NO_SIGNATURE.search(error.why):
            return False
        raise
    return True


def _run(arguments: tuple[str, ...], what: str, config: Path | None = None) -> bytes:
    """cosign's output; ``config`` is the directory with its login for the registry."""
    try:
        done = subprocess.run(
            ("cosign", *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env=os.environ | ({"DOCKER_CONFIG": str(config)} if config else {}),
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise WorldError(f"cosign did not {what} within {TIMEOUT:.0f} s") from error
    if done.returncode != 0:
        raise WorldError(
            f"cosign cannot {what}",
            done.stderr.decode(errors="replace").strip()[-1000:],
            "check BUILDER_COSIGN_KEY, and the key's password in COSIGN_PASSWORD",
        )
    return done.stdout


# Verdicts that are attached to images of a registry, and the keys that sign them.

M = TypeVar("M", bound=BaseModel)
VERDICT = "application/vnd.builder.verdict.v1+json"
TEXT = "builder.verdict"
SIGNATURE = f"{TEXT}.signature"
"""The annotations of an attached verdict: a ``Statement`` as JSON, and its signature (base64).

A registry lists annotations, so no file has to be fetched."""


class Statement(BaseModel):
    """A good verdict on one image, as it is attached and signed."""

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


@dataclass(frozen=True, slots=True)
class Trust:
    """The key that signs verdicts and notes, and the public keys whose signatures are trusted.

    ``work`` is a directory for the files that cosign reads.  All methods raise ``WorldError`` where
    cosign fails.
    """

    signing: str
    trusted: tuple[str, ...]
    work: Path

    def attachment(self, kind: str, name: str, text: str) -> Attachment:
        """An artifact with a text as its annotation ``name``, and the text's signature where there
        is a key."""
        annotations = {name: text}
        if self.signing:
            annotations[f"{name}.signature"] = sign_text(text, self.signing, self.work)
        return Attachment(kind, annotations=annotations)

    def accepts(self, text: str, signature: str) -> bool:
        """Whether a text counts: a trusted key signed it, or no key is configured."""
        return not (self.signing or self.trusted) or bool(self.signer(text, signature))

    def signer(self, text: str, signature: str) -> str:
        """The trusted key that signed a text, as the settings name it; empty: none of them did.

        ``signature`` is base64.
        """
        if not signature:
            return ""
        if self.signing:
            public = str(public_key(self.signing, self.work))
            if signed_by(text, signature, public, self.work):
                return self.signing
        trusted = (key for key in self.trusted if signed_by(text, signature, key, self.work))
        return next(trusted, "")


UNSIGNED = Trust("", (), Path())
"""No key is configured: nothing is signed, and signatures do not count."""


def trust_of(settings: Settings, work: Path) -> Trust:
    """The keys in the settings; raises ``WorldError`` where there are some and no cosign."""
    if settings.cosign_key or settings.trusted_keys:
        require_cosign()
    return Trust(settings.cosign_key, settings.trusted_keys, work / "cosign")


def require_signing(settings: Settings, work: Path) -> None:
    """Raise ``WorldError`` where cosign cannot sign with the key in the settings."""
    if settings.cosign_key:
        require_key(settings.cosign_key, work / "cosign")


def verdict_on(kept: Record, trust: Trust) -> Attachment:
    """The verdict of a record, to be attached to its image."""
    if not kept.verdict.good:
        raise SmokeError(f"{kept.recipe} is not verified: its verdict cannot be signed")
    statement = Statement(
        recipe=kept.recipe,
        key=kept.key,
        digest=kept.digest,
        contract=kept.contract,
        checks=kept.verdict.passed_by_kind,
        created=kept.created,
    )
    text = json.dumps(statement.model_dump(), sort_keys=True, separators=(",", ":"))
    return trust.attachment(VERDICT, TEXT, text)


def verdict_signers(
    entries: Iterable[Mapping[str, Any]], digest: str, key: str, contract: str, trust: Trust
) -> Iterator[str]:
    """The trusted key of each verdict on an image for one key and one contract; empty: none.

    ``entries`` are the descriptors of its referrers.
    """
    for found, values in _statements(entries, VERDICT, TEXT, Statement):
        if (found.digest, found.key, found.contract) == (digest, key, contract):
            yield trust.signer(values.get(TEXT, ""), values.get(SIGNATURE, ""))


def built_at(entries: Iterable[Mapping[str, Any]], digest: str) -> datetime | None:
    """When an image was first built, by the verdicts among its referrers; None: there is none."""
    found = []
    for statement in verdicts_on(entries, digest):
        with suppress(ValueError):
            found.append(datetime.fromisoformat(statement.created).astimezone(UTC))
    return min(found, default=None)


def verdicts_on(entries: Iterable[Mapping[str, Any]], digest: str) -> list[Statement]:
    """The verdicts on an image among its referrers, the newest first; signatures do not count."""
    statements = _statements(entries, VERDICT, TEXT, Statement)
    found = [statement for statement, _ in statements if statement.digest == digest]
    return sorted(found, key=lambda each: each.created, reverse=True)


def _statements(
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
    statements = _statements(entries, REPRODUCTION, REPRODUCTION_TEXT, ReproductionStatement)
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
