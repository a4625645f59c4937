"""The facts of an image: from its recipe, the record of this machine, and the registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from builder.choose import needs
from builder.families import complete
from builder.families.device_code import codes_of
from builder.plan.explain import explained
from builder.presets.catalog import PresetEntry
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Patch, Recipe
from builder.records.record import Record
from builder.site.facts import ImageFact, PatchFact
from builder.site.published import PublishedRecipe, PublishedTag

UNPUBLISHED = PublishedRecipe((), ())


def image_fact(
    catalog: Catalog,
    name: str,
    repository: str,
    presets: Sequence[PresetEntry],
    record: Record | None,
    published: PublishedRecipe = UNPUBLISHED,
) -> ImageFact:
    """The known facts of a recipe's image.

    ``repository`` has the namespace; ``record`` describes this machine's newest verified image.
    Raises ``RecipeError`` where the recipe is wrong.
    """
    recipe = complete(catalog.engine(name).recipe)
    details = explained(catalog, name)
    tag = _main_tag(recipe, published)
    # People get the registry's image: the record counts if it is of the same image.
    same = record if tag is None or (record and _has(tag, record.digest)) else None
    digest, created, size = _image(tag, same)
    return ImageFact(
        recipe=name,
        summary=recipe.summary,
        repository=repository if tag else "",
        url=details["url"],
        license=recipe.license,
        source=tuple(details["source"]),
        bases=tuple(base["published"] for base in details["bases"] if base["published"]),
        channel=(recipe.track.channel if recipe.track else None) or "",
        code=tuple(codes_of(recipe)),
        driver=needs.oldest_driver(recipe, catalog),
        port=recipe.image.port if recipe.artifact is None else None,
        digest=digest,
        created=created,
        download_size=size,
        unpacked_size=same.verdict.unpacked_size if same else None,
        device_code=same.verdict.code if same else (),
        checks=_checks(same, tag),
        patches=tuple(map(_patch, recipe.patch, details["patches"])),
        starts=tuple(details["starts"]),
        notes=tuple(details["notes"]),
        presets=tuple(entry.name for entry in presets if entry.preset.recipe == name),
        tags=published.tags,
        nights=published.nights,
    )


def _has(tag: PublishedTag, digest: str) -> bool:
    return digest in {tag.digest, *(each.digest for each in tag.platforms.values())}


def _main_tag(recipe: Recipe, published: PublishedRecipe) -> PublishedTag | None:
    """The version tag, else the channel: the registry may have one without the other."""
    order = {tag: place for place, tag in enumerate((*recipe.image.tags, *recipe.image.moving))}
    return min(published.tags, key=lambda each: order[each.tag], default=None)


def _image(tag: PublishedTag | None, record: Record | None) -> tuple[str, str, int | None]:
    if tag is not None:
        return tag.digest, tag.created, tag.download_size
    if record is not None:
        return record.digest, record.created, record.verdict.download_size
    return "", "", None


def _checks(record: Record | None, tag: PublishedTag | None) -> Mapping[str, int]:
    if record is not None:
        return dict(sorted(record.verdict.passed_by_kind.items()))
    return dict(sorted(tag.checks.items())) if tag is not None else {}


def _patch(patch: Patch, details: Mapping[str, Any]) -> PatchFact:
    return PatchFact(
        name=details["name"],
        where=details["page"] or details["where"],
        why=patch.why,
        drop_when=patch.drop_when or "",
        applied=patch.expect == "applies",
    )
