"""The bill of materials of one image: the engine, what was changed of it, and everything else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from builder.plan.inputs import Plan
from builder.plan.rendered import EngineImage
from builder.records.record import Record
from builder.sbom.addresses import image_purl
from builder.sbom.changes import Change, changes_of
from builder.sbom.debian import Dpkg
from builder.sbom.parts import Part, bases, debian_packages, engine_of, scripts, wheels

UNKNOWN = "1970-01-01T00:00:00+00:00"
"""When an image was made whose record does not tell."""


@dataclass(frozen=True, slots=True)
class Bill:
    """One image and all that is known of what is in it."""

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
    changes: tuple[Change, ...]
    """What was changed of the engine's source, in order."""
    parts: tuple[Part, ...]
    """Everything else, sorted."""
    gaps: tuple[str, ...]
    """What the image holds beside that, in words."""

    @property
    def purl(self) -> str:
        """The image's own package URL."""
        return image_purl(self.repository, self.digest, self.tag)

    @property
    def mark(self) -> str:
        """sha256 of all that it says: two documents have one name only where they say the same."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    @property
    def applied(self) -> tuple[Change, ...]:
        """The changes that the image has."""
        return tuple(change for change in self.changes if change.applied)


def bill_of(image: EngineImage, record: Record, dpkg: Dpkg | None) -> Bill:
    """The bill of materials of a verified image; ``dpkg`` is what it has installed, None: unknown.

    ``image`` is what it was made from, ``record`` of its making.
    """
    plan = image.plan
    repository, _, tag = record.references[0].rpartition(":")
    stands = _stands_on_its_base(plan)
    engine = engine_of(plan)
    parts = [
        *bases(image, record.base, stands),
        *wheels(image, stands),
        *scripts(image, stands),
        *debian_packages(image, dpkg, stands),
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
            "builder:key": image.key,
            "builder:architectures": " ".join(plan.recipe.cuda.arch),
        },
        engine=engine,
        changes=changes_of(plan),
        # The wheel that is patched may be one of its base's: then it is the engine.
        parts=_each_once(part for part in parts if part.identity != engine.identity),
        gaps=tuple(_gaps(image, dpkg, stands)),
    )


def _stands_on_its_base(plan: Plan) -> bool:
    """Whether what the base's runtime holds is in the image: it may be made from scratch."""
    return "runtime" in plan.family.requires_stages


def _each_once(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Sorted; what is there twice is in the image where one of the two is."""
    found: dict[str, Part] = {}
    for part in parts:
        before = found.get(part.identity, part)
        found[part.identity] = replace(before, shipped=before.shipped or part.shipped)
    return tuple(sorted(found.values(), key=lambda part: (part.kind, part.identity)))


def _gaps(image: EngineImage, dpkg: Dpkg | None, base_shipped: bool) -> Iterator[str]:
    if not base_shipped:
        return
    if dpkg is None:
        yield "Debian packages: the image has no database of them; only those asked for are named"
    for below in image.base.chain():
        recipe = below.plan.recipe
        published = getattr(recipe, "published", None)
        if published is not None:
            yield f"{published.image}: of what it holds, only Debian packages are listed"
