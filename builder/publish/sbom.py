"""The bill of materials of one image: the engine, its changes, and all other parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from builder.build.record import Record
from builder.plan.plan import Plan
from builder.publish.changes import SourceChange, changes_of
from builder.publish.debian import Dpkg
from builder.publish.parts import Part, bases, debian_packages, engine_of, scripts, wheels

UNKNOWN = "1970-01-01T00:00:00+00:00"
"""The creation time of an image whose record has none."""


@dataclass(frozen=True, slots=True)
class Bill:
    """One image and its known contents."""

    repository: str
    """Its name without a tag."""
    tag: str
    digest: str
    """``sha256:`` of its manifest."""
    created: datetime
    recipe: str
    version: str
    summary: str
    properties: Mapping[str, str]
    engine: Part
    changes: tuple[SourceChange, ...]
    """The changes of the engine's source, in order."""
    parts: tuple[Part, ...]
    """All other parts, sorted."""
    gaps: tuple[str, ...]
    """Contents that are not listed, each in a sentence."""

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) of all fields: documents share an identifier only where they are equal."""
        return hashlib.sha256(repr(self).encode()).hexdigest()


def bill_of(plan: Plan, record: Record, dpkg: Dpkg | None) -> Bill:
    """The bill of materials of a verified image; ``dpkg``: its package database, if it has one."""
    repository, _, tag = record.references[0].rpartition(":")
    base_shipped = "runtime" in plan.family.requires_stages  # or it is made from scratch
    engine = engine_of(plan)
    parts = [
        *bases(plan, record.base, base_shipped),
        *wheels(plan, base_shipped),
        *scripts(plan, base_shipped),
        *debian_packages(plan, dpkg, base_shipped),
    ]
    return Bill(
        repository=repository,
        tag=tag,
        digest=record.digest,
        created=datetime.fromisoformat(record.created or UNKNOWN).astimezone(UTC),
        recipe=plan.recipe.name,
        version=plan.recipe.version,
        summary=plan.recipe.summary,
        properties={
            "builder:recipe": plan.recipe.name,
            "builder:key": plan.key,
            "builder:architectures": " ".join(plan.recipe.cuda.arch),
        },
        engine=engine,
        changes=changes_of(plan),
        # The patched package may be a wheel of the base: it is listed as the engine.
        parts=_each_once(part for part in parts if part.identity != engine.identity),
        gaps=tuple(_gaps(plan, dpkg, base_shipped)),
    )


def _each_once(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Sorted and without duplicates; a part is shipped where one of its duplicates is."""
    found: dict[str, Part] = {}
    for part in parts:
        before = found.get(part.identity, part)
        found[part.identity] = replace(before, shipped=before.shipped or part.shipped)
    return tuple(sorted(found.values(), key=lambda part: (part.kind, part.identity)))


def _gaps(plan: Plan, dpkg: Dpkg | None, base_shipped: bool) -> Iterator[str]:
    if not base_shipped:
        return
    if dpkg is None:
        yield "Debian packages: the image has no dpkg database; only the requested ones are listed"
    for below in plan.base.chain():
        recipe = below.recipe
        published = getattr(recipe, "published", None)
        if published is not None:
            yield f"{published.image}: only its Debian packages are listed"
