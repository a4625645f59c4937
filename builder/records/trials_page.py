"""``trials/README.md``: tables of what the verified images of this repository showed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from builder.presets.schema import Preset
from builder.recipes.catalog import Catalog
from builder.recipes.schema.sources import GitSource
from builder.records import markdown
from builder.records.table import Overview
from builder.records.trials import FOLDER, KeptTrials
from builder.simulator.figures import mib
from builder.tools import sizes
from builder.tools.files import atomic_write
from builder.tools.log import duration

HEAD = """\
# Trials

What the newest verified image of a recipe showed, without a GPU: one file for each recipe, and the
tables of this page. `./farm ci trials RECIPE` writes both. The smoke test starts each preset of the
recipe on its simulated card, and `choose` uses the memory that it took on machines that never built
the image. A figure counts while its preset is unchanged.

"""
SHORT = 12  # digits of a commit


def commits_of(catalog: Catalog) -> dict[str, str]:
    """The commits of the sources that are git repositories, by recipe."""
    recipes = {name: entry.recipe for name, entry in catalog.engines.items() if entry.recipe}
    sources = {name: recipe.source for name, recipe in recipes.items()}
    return {name: each.commit for name, each in sources.items() if isinstance(each, GitSource)}


def write(root: Path, commits: Mapping[str, str], presets: Mapping[str, Preset]) -> Path:
    """Write the page anew from the files of ``trials/``.

    ``commits`` are the commits of the recipes' sources, by recipe.  Raises ``OSError`` where the
    page cannot be written, ``ValueError`` where a file is invalid.
    """
    files = sorted((root / FOLDER).glob("*.json"))
    kept = [KeptTrials.model_validate_json(file.read_bytes()) for file in files]
    path = root / FOLDER / "README.md"
    with atomic_write(path) as new:
        new.write_text(page(kept, commits, presets), "utf-8")
    return path


def page(
    kept: Sequence[KeptTrials], commits: Mapping[str, str], presets: Mapping[str, Preset]
) -> str:
    """The page as Markdown."""
    images = Overview(
        "Images",
        ("recipe", "built from", "build", "to download", "checks", "kernels", "numbers"),
        tuple(_image(each, commits.get(each.recipe, "")) for each in kept),
        (
            "built from another commit: a copy of the recipe's tree, with placeholders for files "
            "that could not be had.",
            "build: on the machine that wrote the file, with what its compiler cache had.",
            "kernels: different ones that the server launched on its simulated card.",
        ),
    )
    used = Overview(
        "Presets on their simulated cards",
        ("preset", "card", "context", "peak", "published", "peak with another context"),
        tuple((name, *row) for each in kept for name, row in _presets(each, presets).items()),
    )
    return HEAD + markdown.of_table(images) + "\n" + markdown.of_table(used).rstrip("\n") + "\n"


def _image(kept: KeptTrials, commit: str) -> tuple[str, ...]:
    built = kept.commit[:SHORT]
    if kept.commit != commit:
        built += f" (the recipe has {commit[:SHORT] or 'none'})"
    took = duration(kept.build_seconds) if kept.build_seconds is not None else ""
    return (
        kept.recipe,
        built,
        took,
        sizes.shown(kept.download_size),
        str(kept.checks),
        str(kept.kernels or ""),
        kept.coverage,
    )


def _presets(kept: KeptTrials, presets: Mapping[str, Preset]) -> dict[str, tuple[str, ...]]:
    rows: dict[str, tuple[str, ...]] = {}
    for name, use in kept.presets.items():
        preset = presets.get(name)
        stated = preset.memory.whole if preset is not None and preset.memory else None
        smaller = f"{mib(use.smaller.peak)} with {use.smaller.context}" if use.smaller else ""
        card = f"{use.cards} x {use.card}" if use.cards > 1 else use.card
        published = mib(stated) if stated is not None else "unknown"
        rows[name] = (card, str(use.context), mib(use.peak), published, smaller)
    return rows
