"""Verdicts that are attached to images of a registry, and the keys that sign them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from builder.errors import SmokeError
from builder.publish.referrers import annotations_of
from builder.records.record import Record
from builder.settings import Settings
from builder.tools.registry import cosign

VERDICT = "application/vnd.builder.verdict.v1+json"
TEXT = "builder.verdict"
SIGNATURE = "builder.verdict.signature"
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

    @property
    def text(self) -> str:
        """The text that is signed."""
        return json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))


def statement_of(kept: Record) -> Statement:
    """The statement on an image by its record.  Raises ``SmokeError`` if its verdict is bad."""
    if not kept.verdict.good:
        raise SmokeError(f"{kept.recipe} is not verified: its verdict cannot be signed")
    return Statement(
        recipe=kept.recipe,
        key=kept.key,
        digest=kept.digest,
        contract=kept.contract,
        checks=kept.verdict.passed_by_kind,
        created=kept.created,
    )


@dataclass(frozen=True, slots=True)
class Trust:
    """The key that signs verdicts, and the public keys whose verdicts are trusted.

    ``work`` is a directory for the files that cosign reads.
    """

    signing: str
    trusted: tuple[str, ...]
    work: Path

    def annotations(self, statement: Statement) -> dict[str, str]:
        """The annotations of an attached verdict; raises ``WorldError`` where signing fails."""
        signature = self.signature(statement.text)
        return {TEXT: statement.text, **({SIGNATURE: signature} if signature else {})}

    def signature(self, text: str) -> str:
        """The signature (base64) of a text; empty without a key.  Raises ``WorldError``."""
        return cosign.sign_text(text, self.signing, self.work) if self.signing else ""

    def accepts(self, text: str, signature: str) -> bool:
        """Whether a text counts: a trusted key signed it, or no key is configured.

        Raises ``WorldError``.
        """
        return not (self.signing or self.trusted) or bool(self.signer(text, signature))

    def is_trusted(self, annotations: Mapping[str, str]) -> bool:
        """Whether a verdict is signed by a trusted key.  Raises ``WorldError``."""
        return bool(self.signer(annotations.get(TEXT, ""), annotations.get(SIGNATURE, "")))

    def is_signed_by_us(self, annotations: Mapping[str, str]) -> bool:
        """Whether this run's key signed a verdict, or it has none.  Raises ``WorldError``."""
        text, signature = annotations.get(TEXT, ""), annotations.get(SIGNATURE, "")
        return not self.signing or self._signed(text, signature, self._own())

    def signer(self, text: str, signature: str) -> str:
        """The trusted key that signed a text, as the settings name it; empty: none of them did.

        ``signature`` is base64.  Raises ``WorldError``.
        """
        if not signature:
            return ""
        if self.signing and self._signed(text, signature, self._own()):
            return self.signing
        return next((key for key in self.trusted if self._signed(text, signature, key)), "")

    def _own(self) -> str:
        return str(cosign.public_key(self.signing, self.work))

    def _signed(self, text: str, signature: str, public: str) -> bool:
        return bool(signature) and cosign.signed_by(text, signature, public, self.work)


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


def attached_verdicts(
    entries: Iterable[Mapping[str, Any]], digest: str, key: str, contract: str
) -> list[Mapping[str, str]]:
    """The annotations of the verdicts on an image, for one key and one contract.

    ``entries`` are the descriptors of its referrers.
    """
    return [
        annotations
        for statement, annotations in _statements(entries)
        if (statement.digest, statement.key, statement.contract) == (digest, key, contract)
    ]


def built_at(entries: Iterable[Mapping[str, Any]], digest: str) -> datetime | None:
    """When an image was first built, by the verdicts among its referrers; None: there is none."""
    found = []
    for statement in verdicts_on(entries, digest):
        with suppress(ValueError):
            found.append(datetime.fromisoformat(statement.created).astimezone(UTC))
    return min(found, default=None)


def verdicts_on(entries: Iterable[Mapping[str, Any]], digest: str) -> list[Statement]:
    """The verdicts on an image among its referrers, the newest first; signatures do not count."""
    found = [statement for statement, _ in _statements(entries) if statement.digest == digest]
    return sorted(found, key=lambda each: each.created, reverse=True)


def _statements(
    entries: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[Statement, Mapping[str, str]]]:
    for values in annotations_of(entries, VERDICT):
        with suppress(ValidationError):
            yield Statement.model_validate_json(values.get(TEXT, "")), values
