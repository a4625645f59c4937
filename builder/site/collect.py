"""All facts of the site, from the catalog, this machine's records, and the registry."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from builder import __version__
from builder.build import compiler_table as tables
from builder.build.record import newest_good
from builder.core.log import Log
from builder.core.settings import Settings
from builder.presets import catalog as preset_files
from builder.presets.known import known
from builder.presets.receipts_catalog import ReceiptEntry
from builder.publish.tags import open_repository
from builder.recipes.catalog import BrokenEntry, Catalog
from builder.site import choices
from builder.site.facts import Site
from builder.site.images import UNPUBLISHED, image_fact
from builder.site.published import published
from builder.site.speeds import measurements, speeds


def collect(
    catalog: Catalog,
    settings: Settings,
    log: Log,
    receipts: Sequence[ReceiptEntry] = (),
    *,
    offline: bool = False,
) -> Site:
    """The facts of all valid recipes and presets; broken ones are logged and left out.

    The registry is asked if there is a namespace, and not ``offline``.  Raises ``RegistryError``
    and ``FetchError`` where it does not answer, ``RecipeError`` where a file of ``cards/``,
    ``compilers/`` or ``trials/`` is invalid.
    """
    presets = preset_files.load(catalog)
    entries = presets.valid()
    broken = [each.name for each in catalog.engines.values() if isinstance(each, BrokenEntry)]
    for name in (*sorted({*presets.entries} - {entry.name for entry in entries}), *broken):
        log(f"{name} is left out as invalid: see `builder recipe check`")
    asked, images = bool(settings.namespace) and not offline, []
    for name in catalog.engines:
        if name not in broken:
            recipe = catalog.engine(name).recipe
            repository = settings.repository(recipe.image.repository)
            there = UNPUBLISHED
            if asked:
                opened = open_repository(repository, log)
                there = published(opened, recipe, settings, catalog.engines)
            record = newest_good(settings.state_dir, name)
            images.append(image_fact(catalog, name, repository, entries, record, there))
    facts = known(catalog, entries, settings.state_dir)
    cards = choices.every_card(facts, [each.recipe for each in images if each.repository])
    return Site(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        builder=__version__,
        repository=settings.farm_url,
        cards=cards,
        images=tuple(images),
        speeds=speeds(entries, {each.recipe: each for each in images}, facts.question.trials),
        measurements=measurements(entry.receipt for entry in receipts),
        compilers=tables.load(catalog.root),
        compiler_threads=tables.threads(catalog.root),
        composes=choices.compose_files(
            facts, images, [option for card in cards for option in card.fits]
        ),
    )
