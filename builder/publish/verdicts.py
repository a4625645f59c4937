"""Verdicts that are attached to images of a registry, and the keys that sign them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from builder.build.record import Record
from builder.core.errors import SmokeError, WorldError
from builder.core.files import workspace
from builder.core.settings import Settings
from builder.publish import cosign
from builder.publish.referrers import Attachment, annotations_of

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
            annotations[f"{name}.signature"] = cosign.sign_text(text, self.signing, self.work)
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
            public = str(cosign.public_key(self.signing, self.work))
            if cosign.signed_by(text, signature, public, self.work):
                return self.signing
        trusted = (key for key in self.trusted if cosign.signed_by(text, signature, key, self.work))
        return next(trusted, "")


UNSIGNED = Trust("", (), Path())
"""No key is configured: nothing is signed, and signatures do not count."""


def trust_of(settings: Settings, work: Path) -> Trust:
    """The keys in the settings; raises ``WorldError`` where there are some and no cosign."""
    if settings.cosign_key or settings.trusted_keys:
        cosign.require_cosign()
    return Trust(settings.cosign_key, settings.trusted_keys, work / "cosign")


def require_signing(settings: Settings, work: Path) -> None:
    """Raise ``WorldError`` where cosign cannot sign with the key in the settings."""
    if settings.cosign_key:
        cosign.require_key(settings.cosign_key, work / "cosign")


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
