"""Verdicts that are attached to images of a registry, and the keys that sign them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from builder.records.record import Record
from builder.settings import Settings
from builder.tools.registry import cosign

VERDICT = "application/vnd.builder.verdict.v1+json"
TEXT = "builder.verdict"
SIGNATURE = "builder.verdict.signature"
"""The annotations of an attached verdict: a ``Statement`` as JSON, and its signature (base64).

They are annotations, and no file, because a registry lists them: nothing has to be fetched."""


class Statement(BaseModel):
    """A good verdict on one image, as it is attached and signed."""

    model_config = ConfigDict(frozen=True)

    recipe: str
    key: str
    digest: str
    """The image's; ``sha256:`` and 64 hex digits."""
    contract: str
    """sha256 of what the smoke test checked."""
    checks: dict[str, int]
    """How many checks of each kind passed."""
    created: str
    """When the image was made; RFC 3339, UTC."""

    @property
    def text(self) -> str:
        """What is signed."""
        return json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))


def statement_of(kept: Record) -> Statement:
    """What is attached of the record of a verified image."""
    assert kept.verdict.good
    checks = Counter(check.kind for check in kept.verdict.checks)
    return Statement(
        recipe=kept.recipe,
        key=kept.key,
        digest=kept.digest,
        contract=kept.contract,
        checks=dict(checks),
        created=kept.created,
    )


@dataclass(frozen=True, slots=True)
class Trust:
    """The keys that sign verdicts, and those whose verdicts count; ``work`` is a directory for
    what cosign reads."""

    signing: str
    trusted: tuple[str, ...]
    work: Path

    def annotations(self, statement: Statement) -> dict[str, str]:
        """The annotations of an attached verdict.  Raises ``WorldError`` where it cannot be
        signed."""
        text = statement.text
        if not self.signing:
            return {TEXT: text}
        return {TEXT: text, SIGNATURE: cosign.sign_text(text, self.signing, self.work)}

    def counts(self, annotations: Mapping[str, str]) -> bool:
        """Whether a verdict is signed by a trusted key.  Raises ``WorldError``."""
        return any(self._signed(annotations, public) for public in self._keys())

    def is_ours(self, annotations: Mapping[str, str]) -> bool:
        """Whether a verdict is signed as this run would sign it.  Raises ``WorldError``."""
        return not self.signing or self._signed(annotations, self._own())

    def _keys(self) -> Iterator[str]:
        if self.signing:
            yield self._own()
        yield from self.trusted

    def _own(self) -> str:
        return str(cosign.public_key(self.signing, self.work))

    def _signed(self, annotations: Mapping[str, str], public: str) -> bool:
        signature = annotations.get(SIGNATURE, "")
        return bool(signature) and cosign.signed_by(
            annotations.get(TEXT, ""), signature, public, self.work
        )


def trust_of(settings: Settings, work: Path) -> Trust:
    """The keys that the settings name.  Raises ``WorldError`` where cosign is needed and absent."""
    if settings.cosign_key or settings.trusted_keys:
        cosign.require_cosign()
    return Trust(settings.cosign_key, settings.trusted_keys, work / "cosign")


def require_signing(settings: Settings, work: Path) -> None:
    """Raise ``WorldError`` where a signing key is set, and cosign cannot sign with it."""
    if settings.cosign_key:
        cosign.require_key(settings.cosign_key, work / "cosign")


def attached_verdicts(
    entries: Iterable[Mapping[str, Any]], digest: str, key: str, contract: str
) -> list[dict[str, str]]:
    """The annotations of the verdicts on an image among its referrers, for one contract."""
    found = []
    for entry in entries:
        annotations = entry.get("annotations") or {}
        if entry.get("artifactType") == VERDICT and isinstance(annotations, dict):
            try:
                told = Statement.model_validate_json(annotations.get(TEXT, ""))
            except ValidationError:
                continue
            if (told.digest, told.key, told.contract) == (digest, key, contract):
                found.append(annotations)
    return found
