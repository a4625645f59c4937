"""What became of a channel's nights: kept in the registry, beside the channel's tag.

The registry is the state: who has it and the recipes knows what happened, on any machine.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from builder.errors import GoneError, RegistryError
from builder.publish import referrers
from builder.tools.registry.client import Repository

NIGHTLY_RUNS = "application/vnd.builder.nights.v1+json"
MOST = 100
LARGEST = 4_000_000  # bytes
LONGEST_REASON = 600  # characters
QUOTED = r"(?<=['\"])(?:file://)?~?/(?!/)(?:[^/\n'\"]+/)+"
BEFORE = r"(?:file://|(?<![\w/.~])|(?<=-[A-Z])(?<!\w-[A-Z]))"
"""What stands before a path: also a compiler's option.  A URL's path follows its host."""
PATH = re.compile(rf"{QUOTED}|{BEFORE}~?/(?!/)(?:[^\s/:'\"]+/)+")
"""The directories of an absolute path; in quotes they may hold spaces."""

Outcome = Literal["moved", "unchanged", "held", "failed"]


@dataclass(frozen=True, slots=True)
class Night:
    """One night of a channel.

    ``moved``: it got a new image; ``unchanged``: it has the newest; ``held``: it was rolled back
    from the newest by hand, and stays; ``failed``: it stays, for the ``reason``.
    """

    recipe: str
    channel: str
    outcome: Outcome
    started: str
    """RFC 3339, UTC."""
    seconds: float
    upstream: str = ""
    """What upstream had: a tag, a branch, or an image."""
    commit: str = ""
    """Its commit (40 hex digits), or the image's digest."""
    digest: str = ""
    """What the channel led to afterwards, where that is known."""
    reason: str = ""

    @property
    def good(self) -> bool:
        """Whether nothing is to be done."""
        return self.outcome != "failed"


def tag_of(channel: str) -> str:
    """The tag under which the nights of a channel are kept."""
    return f"{channel}.nights"


def nights(repository: Repository, channel: str) -> list[Night]:
    """The nights of a channel, newest first; none where it had none.

    Raises ``RegistryError`` where they cannot be read, ``FetchError``.
    """
    kept = repository.manifest(tag_of(channel))
    if kept is None:
        return []
    body = kept.body
    try:
        (layer,) = body.layers or []
        ours = body.artifactType == NIGHTLY_RUNS and layer.size <= LARGEST
        return parsed(repository.blob(layer.digest) if ours else b"another artifact")
    except (ValueError, GoneError) as error:
        raise RegistryError(
            f"{repository.name}:{tag_of(channel)} cannot be read",
            str(error)[:LONGEST_REASON],
            "something else wrote it; the next night begins it anew",
        ) from error


def parsed(content: bytes) -> list[Night]:
    """The nights of a journal's file; raises ``ValueError`` where it is damaged."""
    return TypeAdapter(list[Night]).validate_json(content)


def write(repository: Repository, night: Night) -> None:
    """Put a night before those that are known; what cannot be read is begun anew.

    The registry may be public: the reason names no path of this machine.  Raises
    ``RegistryError``, ``FetchError``.
    """
    try:
        known = nights(repository, night.channel)
    except RegistryError:
        known = []
    night = replace(night, reason=_without_paths(night.reason))
    content = json.dumps([asdict(each) for each in [night, *known][:MOST]], indent=1).encode()
    file = referrers.File("nights.json", NIGHTLY_RUNS, content)
    referrers.store(repository, tag_of(night.channel), NIGHTLY_RUNS, [file])


def _without_paths(text: str) -> str:
    """A text in which absolute paths are cut to their last part."""
    home = str(Path.home())
    return PATH.sub(".../", text.replace(home, "~") if home != "/" else text)
