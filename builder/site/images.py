"""The facts of an image: from its recipe, the record of this machine, and the registry."""

from __future__ import annotations

from collections.abc import Sequence

from builder.build.record import Record
from builder.engines.device_code import codes_of
from builder.engines.families import complete
from builder.plan.explain import explained
from builder.presets import needs
from builder.presets.catalog import PresetEntry
from builder.recipes.catalog import Catalog
from builder.site.facts import ImageFact, PatchFact
from builder.site.published import PublishedRecipe

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
    # The version tag, else the channel: the registry may have one without the other.
    order = [*recipe.image.tags, *recipe.image.moving]
    tag = min(published.tags, key=lambda each: order.index(each.tag), default=None)
    # People get the registry's image: the record counts if it is of the same image.
    digests = {tag.digest, *(each.digest for each in tag.platforms.values())} if tag else set()
    same = record if record and (tag is None or record.digest in digests) else None
    verdict = same.verdict if same else None
    image = tag or same
    checks = verdict.passed_by_kind if verdict else tag.checks if tag else {}
    size = tag.download_size if tag else verdict.download_size if verdict else None
    patches = [
        PatchFact(
            name=each["name"],
            where=each["page"] or each["where"],
            why=patch.why,
            drop_when=patch.drop_when or "",
            applied=patch.expect == "applies",
        )
        for patch, each in zip(recipe.patch, details["patches"], strict=True)
    ]
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
        digest=image.digest if image else "",
        created=image.created if image else "",
        download_size=size,
        unpacked_size=verdict.unpacked_size if verdict else None,
        device_code=verdict.code if verdict else (),
        checks=dict(sorted(checks.items())),
        patches=tuple(patches),
        starts=tuple(details["starts"]),
        notes=tuple(details["notes"]),
        presets=tuple(entry.name for entry in presets if entry.preset.recipe == name),
        tags=published.tags,
        nights=published.nights,
    )
