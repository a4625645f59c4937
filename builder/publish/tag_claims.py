"""The claims of clients that move a tag, under the tag ``TAG.moves``.

A claim has the note of its move.  So the note is known, too, where a registry that keeps an image's
referrers under a tag loses it: two machines that attach at once overwrite each other's list.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from builder.publish.referrers import store
from builder.tools.registry.client import Repository

CLAIMS = "application/vnd.builder.moves.v1+json"
TEXT = "builder.moves"
"""The annotation that has the claims."""
MOST = 8
"""Claims that are kept, the newest: of clients that are at work."""


class Claim(BaseModel):
    """A move that somebody is about to make, or has made, by its note."""

    model_config = ConfigDict(frozen=True, strict=True)

    text: str
    signature: str = ""
    withdrawn: bool = False


_CLAIMS = TypeAdapter(list[Claim])


def claims_tag(tag: str) -> str:
    """The tag that keeps the claims to move a tag."""
    return f"{tag[:120]}.moves"


def read_claims(repository: Repository, tag: str) -> tuple[Claim, ...]:
    """The claims to move a tag, unverified; something else under their tag counts as none.

    Raises ``RegistryError``, ``FetchError``.
    """
    there = repository.manifest(claims_tag(tag))
    if there is None or there.body.artifactType != CLAIMS:
        return ()
    with suppress(ValidationError):
        return tuple(_CLAIMS.validate_json((there.body.annotations or {}).get(TEXT, "")))
    return ()


def write_claim(repository: Repository, tag: str, own: Claim, others: Sequence[Claim]) -> None:
    """Write a claim before the claims that were read.  Raises like ``read_claims``."""
    claims = [own, *(each for each in others if each.text != own.text)][:MOST]
    text = _CLAIMS.dump_json(claims, exclude_defaults=True).decode()
    store(repository, claims_tag(tag), CLAIMS, (), {TEXT: text})
