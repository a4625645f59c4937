"""``trials/README.md``: tables of the images that were tried, and their presets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from builder.build import reports
from builder.build.reports import Overview
from builder.build.trials import FOLDER, KeptTrials, kept
from builder.checks import preset_trial
from builder.checks.simulated import why_never
from builder.core import sizes
from builder.core.files import atomic_write
from builder.core.log import duration
from builder.image.code_paths import HEADER, shown_parts
from builder.image.summary import worse
from builder.presets import cards, reads, shapes
from builder.presets.figures import PresetUse
from builder.presets.schema import Preset
from builder.recipes.catalog import Catalog
from builder.recipes.sources import GitSource
from simulator.figures import mib
from simulator.work import texts_by_work

HEAD = """\
# Trials

Each file has the results of the newest verified image of a recipe, without a GPU; of a recipe
without one, of the newest image that was refused. The tables of this page have all files.
`./farm ci trials RECIPE` writes both. The smoke test starts each preset of the recipe on its
simulated card, and `choose` uses its memory also on machines that never built the image. A figure
counts while its preset is unchanged. There, `paths` and `recipe explain` read the files, too.

"""
SHORT = 12  # digits of a commit
DAY = len("2026-11-27")
STEP = 1024  # tokens


@dataclass(frozen=True, slots=True)
class Pinned:
    """What the page says of a recipe."""

    engine: str
    commit: str
    """The source's; empty: it is no git repository."""
    build: int
    """The number of its commits; 0: not known."""


def pinned(catalog: Catalog) -> dict[str, Pinned]:
    """The recipes of a catalog."""
    return {
        name: Pinned(
            recipe.engine,
            recipe.source.commit if isinstance(recipe.source, GitSource) else "",
            recipe.llama.build_number if recipe.llama else 0,
        )
        for name, entry in catalog.engines.items()
        if (recipe := entry.recipe)
    }


def write(catalog: Catalog, presets: Mapping[str, Preset]) -> None:
    """Write the page anew from the files of ``trials/``.

    Raises ``RecipeError`` where a file is invalid, ``OSError`` where the page cannot be written.
    """
    text = page(kept(catalog.root), pinned(catalog), presets, why_untried(catalog, presets))
    with atomic_write(catalog.root / FOLDER / "README.md") as new:
        new.write_text(text, "utf-8")


def why_untried(catalog: Catalog, presets: Mapping[str, Preset]) -> dict[str, str]:
    """The presets that no smoke test tries, with the reason, as far as the catalog shows it.

    Raises ``RecipeError`` where a recipe, a base or a card is invalid.
    """
    known = cards.known(catalog.root, {each.card for each in presets.values()})
    found = {}
    for name, preset in presets.items():
        recipe = catalog.engine(preset.recipe).recipe
        found[name] = why_never(catalog, recipe) or preset_trial.why_untried(preset, recipe, known)
    return {name: why for name, why in found.items() if why}


def page(
    images: Sequence[KeptTrials],
    recipes: Mapping[str, Pinned],
    presets: Mapping[str, Preset],
    untried: Mapping[str, str],
) -> str:
    """The page as Markdown; ``untried`` is as ``why_untried`` returns it."""
    built = Overview(
        "Images",
        (
            "recipe",
            "built from",
            "built on",
            "build, cold",
            "build, warm",
            "to download",
            "checks",
            "checked in",
            "kernels",
            "spills",
            "numbers",
        ),
        tuple(_image(each, recipes.get(each.recipe)) for each in images),
        (
            "built from another commit: a copy of the recipe's tree, with placeholders for files "
            "that could not be had.",
            "built on: its base may have changed since. An empty cell: earlier versions of builder "
            "did not keep it, or the image has none.",
            "build: on the machine that wrote the file, without its base. Warm: the compiler cache "
            "had at least half of the objects. Without a count: not known, or nothing is compiled.",
            "kernels: different ones that the server launched on its simulated card.",
            "spills: of all kernels for the card; bytes of their spill stores and loads.",
            "numbers: the cases of docs/checks.md, Numbers, or why none could be compared.",
        ),
    )
    grown = Overview(
        "Spills that grew",
        ("recipe", "from", "library"),
        tuple(_grown(images, recipes)),
        ("against the newest earlier commit of the engine that has a row with spills.",),
    )
    used = Overview(
        "Presets on their simulated cards",
        (
            "preset",
            "card",
            "context",
            "largest that fits",
            "peak",
            "filled",
            "published",
            "peak with another context",
        ),
        tuple(row for each in images for row in _presets(each, presets)),
        (
            "largest that fits: what was not tried is on the line through both peaks, which was "
            "wrong by at most 150 MiB where it was tried.",
            "peak: with a short request. Filled: tokens of the prompts that then filled the "
            "context; empty: the preset names no context, or an earlier version tried it.",
        ),
    )
    tried = {name for each in images for name in each.presets}
    not_tried = Overview(
        "Presets that are not tried",
        ("preset", "recipe", "why"),
        tuple(
            (name, preset.recipe, untried.get(name, "no image of the recipe was checked with it"))
            for name, preset in sorted(presets.items())
            if name not in tried
        ),
    )
    taken = Overview(
        "Paths",
        ("recipe or preset", "work", "paths"),
        tuple(row for each in images for row in _paths(each)),
        (
            "by the kernels that the server launched: docs/checks.md, Paths.",
            "a recipe: with the small model of the smoke test.",
        ),
    )
    code = Overview(
        "Device code",
        ("recipe", *HEADER[1:], "removed", "files with code that the driver compiles"),
        tuple(row for each in images for row in _device_code(each)),
        (
            "of all libraries in the image, whoever built them: docs/checks.md, Device code.",
            "removed: by the diet of wheels, before the image was made.",
        ),
    )
    tables = (reports.of_table(each) for each in (built, code, grown, used, not_tried, taken))
    return HEAD + "\n".join(tables).rstrip("\n") + "\n"


def _image(image: KeptTrials, recipe: Pinned | None) -> tuple[str, ...]:
    built = image.commit[:SHORT]
    commit = recipe.commit if recipe is not None else ""
    if image.commit != commit:
        built += f" (the recipe has {commit[:SHORT] or 'none'})"
    took = {False: "", True: ""}  # by whether it was warm
    for build in image.builds:
        reused = f" ({build.reused} of {build.objects})" if build.objects else ""
        took[build.is_warm] = f"{duration(build.seconds)}{reused}"
    failed = ", ".join(f"{count} of {kind}" for kind, count in image.failed.items())
    code = image.code
    return (
        image.recipe,
        built,
        image.created[:DAY],
        took[False],
        took[True],
        sizes.shown(image.download_size),
        f"{image.checks}; refused: {failed} failed" if failed else str(image.checks),
        duration(image.check_seconds) if image.check_seconds is not None else "",
        str(image.kernels or ""),
        f"{code.spilling:,} kernels, {code.spills:,} bytes" if code is not None else "",
        image.coverage,
    )


def _grown(
    images: Sequence[KeptTrials], recipes: Mapping[str, Pinned]
) -> Iterator[tuple[str, str, str]]:
    """The libraries that spill more than at the commit before, of the same engine."""
    known = {each.recipe: each.code for each in images if each.code and each.recipe in recipes}
    order = sorted(known, key=lambda name: (recipes[name].engine, recipes[name].build))
    for before, after in pairwise(order):
        if recipes[before].engine == recipes[after].engine and recipes[before].build:
            for text in worse(known[before], known[after]):
                yield after, before, text


def _presets(image: KeptTrials, presets: Mapping[str, Preset]) -> Iterator[tuple[str, ...]]:
    for name, use in image.presets.items():
        preset = presets.get(name)
        stated = preset.memory.whole if preset is not None and preset.memory else None
        smaller = f"{mib(use.smaller.peak)} with {use.smaller.context}" if use.smaller else ""
        card = f"{use.cards} x {use.card}" if use.cards > 1 else use.card
        published = mib(stated) if stated is not None else "unknown"
        context, filled = str(use.context), str(use.filled or "")
        yield name, card, context, _largest(use, preset), mib(use.peak), filled, published, smaller


def _largest(use: PresetUse, preset: Preset | None) -> str:
    """The model's own context if it was tried; else the line through both peaks shows it, except
    for a preset whose published context was too large."""
    if preset is not None and use.context < (preset.published_context or 0):
        return f"at least {use.context}; the published {preset.published_context} is too large"
    names = shapes.published()
    name = names.get(preset.model.repository or "") if preset is not None else None
    longest = reads.number(shapes.of(name), "context_length", 0) if name else 0
    if longest == use.context:
        return f"{longest}, the model's"
    least = use.smaller
    if not longest or least is None or use.peak <= least.peak:
        return f"at least {use.context}"
    of_token = (use.peak - least.peak) / (use.context - least.context)
    reached = int(use.context + (use.memory - use.peak) / of_token) // STEP * STEP
    return f"about {reached}" if reached < longest else f"{longest}, the model's (not tried)"


def _device_code(image: KeptTrials) -> Iterator[tuple[str, ...]]:
    several = len(image.device_code) > 1
    for each in image.device_code:
        name = f"{image.recipe} ({each.card})" if several else image.recipe
        yield name, *shown_parts(each), each.shown_removed, ", ".join(each.late)


def _paths(image: KeptTrials) -> Iterator[tuple[str, ...]]:
    taken = {image.recipe: image.paths, **{name: use.paths for name, use in image.presets.items()}}
    for name, paths in taken.items():
        for work, text in texts_by_work(paths).items():
            yield name, work, text
