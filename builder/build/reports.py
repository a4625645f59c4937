"""What records show: tables as Markdown, and the trials that the repository keeps.

A record is of this machine; ``trials/RECIPE.json`` is in the repository, for machines that never
built the image.  ``trials/README.md`` has tables of all these files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from builder.build.record import Record, newest_good
from builder.checks import device
from builder.checks.simulated import why_never
from builder.checks.verdict import cell
from builder.core import sizes
from builder.core.errors import RecipeError, WorldError
from builder.core.files import atomic_write, write_json
from builder.core.log import duration
from builder.core.platforms import Platform
from builder.image.code_paths import (
    HEADER,
    CodePaths,
    CodeSums,
    KernelSummary,
    shown_parts,
    sums,
    worse,
)
from builder.presets import cards
from builder.presets.schema import TRIALS, Preset, PresetUse, read_trials
from builder.recipes.catalog import Catalog
from builder.recipes.schema import GitSource, Recipe, by_version
from simulator.report import mib
from simulator.work import WorkPath, texts_by_work

# Tables as Markdown, for a job's summary page.


@dataclass(frozen=True, slots=True)
class Overview:
    """A table with a title, for the terminal and for Markdown; ``notes`` are lines below it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def of_table(overview: Overview) -> str:
    """A table with its title and notes."""
    notes = [f"- {cell(note)}\n" for note in overview.notes]
    rows = _rows(overview.header, overview.rows)
    return "\n".join([f"### {overview.title}", "", rows, *notes]) + "\n"


# What images showed without a GPU, such as the memory of presets: ``trials/RECIPE.json``.

WORST = 3  # spilling kernels of each library that a file keeps
COVERAGE = ("coverage", "kernels on a simulated card that computes")  # subjects of ``numbers``


class KeptBuild(BaseModel):
    """One build of an image, without its base; ``objects`` and ``reused`` are as in ``Record``."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    seconds: float
    objects: int = 0
    reused: int = 0

    @property
    def is_warm(self) -> bool:
        """Whether the compiler cache had at least half of its objects."""
        return self.objects > 0 and 2 * self.reused >= self.objects


class KeptTrials(BaseModel):
    """One image: its builds, its checks, and the presets that were tried."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    recipe: str
    platform: Platform = "linux/amd64"
    key: str
    digest: str
    commit: str
    created: str
    builds: tuple[KeptBuild, ...] = ()  # the commit's newest cold one and warm one
    check_seconds: float | None = None
    download_size: int  # bytes
    checks: int  # the number of checks that passed
    failed: Mapping[str, int] = {}  # checks by kind; empty: the image is verified
    kernels: int  # different kernels that the server launched on its simulated card
    code: KernelSummary | None = None  # its libraries that spill; None: not known
    device_code: tuple[CodeSums, ...] = ()  # by card; empty: not known
    paths: tuple[WorkPath, ...] = ()  # as in ``DeviceUse``, with the test model
    stated: str = ""  # as in ``DeviceUse``
    coverage: str  # the compared cases of the check ``numbers``, or why there are none
    presets: Mapping[str, PresetUse]


def write_trials(root: Path, record: Record) -> Path:
    """Keep the facts of a record's image in the repository; an earlier file is replaced.

    The earlier file's builds stay if they are of the same commit and the file is valid.
    Of a refused image, the paths and the memory of the presets are left out: they may be wrong.
    """
    before = None
    with suppress(RecipeError):
        before = kept_of(root, record.recipe)
    verdict = record.verdict
    ran = None if verdict.failures else verdict.device
    numbers = (each for each in verdict.checks if each.kind == "numbers")
    kept = KeptTrials(
        recipe=record.recipe,
        platform=record.platform,
        key=record.key,
        digest=record.digest,
        commit=record.commit,
        created=record.created,
        builds=_builds(before, record),
        check_seconds=record.check_seconds,
        download_size=verdict.download_size,
        checks=sum(verdict.passed_by_kind.values()),
        failed=verdict.failed_by_kind,
        kernels=len(verdict.device.launches) if verdict.device else 0,
        code=verdict.kernels.shortened(WORST) if verdict.kernels else None,
        device_code=sums(verdict.code),
        paths=ran.paths if ran else (),
        stated=ran.stated if ran else "",
        coverage=next((each.found for each in numbers if each.subject in COVERAGE), ""),
        presets={} if verdict.failures else dict(sorted(verdict.presets.items())),
    )
    path = root / TRIALS / f"{record.recipe}.json"
    path.parent.mkdir(exist_ok=True)
    write_json(path, kept.model_dump(mode="json"))
    return path


def _builds(before: KeptTrials | None, record: Record) -> tuple[KeptBuild, ...]:
    source = (record.platform, record.commit)
    known = before.builds if before and (before.platform, before.commit) == source else ()
    took = record.build_seconds
    if took is not None:
        newest = KeptBuild(seconds=took, objects=record.objects, reused=record.reused)
        # A build without objects, and a shorter one of an engine that has none, had layers in
        # BuildKit's cache.
        if not newest.objects and any(each.objects or each.seconds > took for each in known):
            return known
        known = (newest, *(each for each in known if each.is_warm != newest.is_warm))
    return known


def kept(root: Path) -> list[KeptTrials]:
    """All files of ``trials/``, by recipe.  Raises ``RecipeError`` where one is invalid."""
    found = (read_trials(file, KeptTrials) for file in sorted((root / TRIALS).glob("*.json")))
    return [each for each in found if each is not None]


def kept_of(root: Path, recipe: str) -> KeptTrials | None:
    """The file of a recipe; None where it has none."""
    return read_trials(root / TRIALS / f"{recipe}.json", KeptTrials)


# What cards do with a recipe's image, and its paths: from records and ``trials/``.

TEST_MODEL = "the smoke test's model"


@dataclass(frozen=True, slots=True)
class ImageCode:
    """The device code of one image.

    ``source`` is "the record of this machine" or "trials/RECIPE.json"; only a record has the
    ``libraries``, the largest first.
    """

    key: str
    created: str
    source: str
    sums: tuple[CodeSums, ...]
    libraries: tuple[CodePaths, ...] = ()


def code_of(root: Path, recipe: str, platform: Platform, state: Path) -> ImageCode | None:
    """The code of the newest verified image of this machine; without one, what the repository has;
    None where neither has any."""
    own = newest_good(state, recipe, platform=platform)
    if own is not None and (code := own.verdict.code):
        return ImageCode(own.key, own.created, "the record of this machine", sums(code), code)
    kept = kept_of(root, recipe)
    if kept is None or kept.platform != platform or not kept.device_code:
        return None
    return ImageCode(kept.key, kept.created, f"{TRIALS}/{recipe}.json", kept.device_code)


@dataclass(frozen=True, slots=True)
class EnginePaths:
    """The paths of the newest verified image of a recipe.

    ``by_model`` has them by preset, the small model of the smoke test first; ``stated`` is what the
    engine's own log says of its choices with it; ``kept``: it was started on another machine,
    ``trials/`` has it, and no record.
    """

    recipe: str
    by_model: Mapping[str, tuple[WorkPath, ...]]
    stated: str = ""
    kept: bool = False


def paths_of(catalog: Catalog, recipe: str, state: Path) -> EnginePaths:
    """The paths of this machine's image; where it has none, the ones that the repository keeps."""
    kept, own = kept_of(catalog.root, recipe), newest_good(state, recipe)
    device = own.verdict.device if own else None
    started = device or kept
    uses = {**(kept.presets if kept else {}), **(own.verdict.presets if own else {})}
    found = {TEST_MODEL: started.paths if started else ()}
    found |= {name: use.paths for name, use in sorted(uses.items())}
    known = {model: paths for model, paths in found.items() if paths}
    if not known:
        raise _unknown(catalog, recipe)
    stated = started.stated if started else ""
    return EnginePaths(recipe, known, stated, kept=device is None and TEST_MODEL in known)


def _unknown(catalog: Catalog, name: str) -> WorldError:
    what, recipe = f"the paths of {name} are not known", catalog.engine(name).recipe
    never = why_never(catalog, recipe)
    if not never:
        return WorldError(
            what,
            f"neither a record of this machine nor {TRIALS}/ has any: its server was not "
            "started on a simulated card by this version of builder, or launched no kernel that "
            "simulator/work.toml has",
            f"`builder smoke {name}` starts it, after `builder build {name}`",
        )
    recipes = [each.recipe for each in catalog.engines.values() if each.recipe]
    same = [each for each in recipes if each.engine == recipe.engine]
    others = [each.name for each in same if not why_never(catalog, each)]
    hint = "on a GPU, the log of the engine or a profiler shows its choices"
    if others:
        names = " and ".join(f"`builder paths {each}`" for each in others)
        hint = f"{names}: other images of {recipe.engine}, which are started on one; {hint}"
    return WorldError(what, f"its server is never started on a simulated card: {never}", hint)


# ``trials/README.md``: tables of the images that were tried, and their presets.

HEAD = """\
# Trials

*Generated by `./farm ci trials RECIPE`.* The tables show the newest verified image of each recipe,
without a GPU, or the newest refused one where none is verified. The smoke test starts each preset
on its simulated card. `choose`, `paths` and `recipe explain` use the figures on machines that never
built the image, while the preset is unchanged. [Checks](../docs/checks.md) explains the words.

"""
SHORT = 12  # digits of a commit
DAY = len("2026-11-27")
STEP = 1024  # tokens
IMAGES = "recipe|built from|built on|build, cold|build, warm|to download|checks|checked in|kernels|"
IMAGES += "spills|numbers"
PRESETS = "preset|card|context|largest that fits|peak|filled|published|peak with another context"


class Pinned(NamedTuple):
    """What the page says of a recipe: empty without a git repository, 0 where not known."""

    engine: str
    commit: str
    build: int  # the number of its commits


def pinned(catalog: Catalog) -> dict[str, Pinned]:
    """The recipes of a catalog."""
    return {
        name: Pinned(
            recipe.engine,
            recipe.source.commit if isinstance(recipe.source, GitSource) else "",
            (recipe.llama.build_number or 0) if recipe.llama else 0,
        )
        for name, entry in catalog.engines.items()
        if (recipe := entry.recipe)
    }


def write_trials_page(
    catalog: Catalog,
    presets: Mapping[str, Preset],
    longest: Mapping[str, int],
    receipts: Mapping[str, int],
) -> None:
    """Write the page of ``trials/``, and the tables of the README that has marks for them.

    ``longest`` are models' contexts in tokens, by repository; ``receipts`` are numbers of receipts,
    by recipe.
    """
    images, untried = kept(catalog.root), why_untried(catalog, presets)
    text = trials_page(images, pinned(catalog), presets, untried, longest)
    with atomic_write(catalog.root / TRIALS / "README.md") as new:
        new.write_text(text, "utf-8")
    readme = catalog.root / "README.md"
    if readme.is_file():
        before = readme.read_text("utf-8")
        text = with_tables(before, readme_tables(catalog, presets, images, receipts))
        if text != before:
            with atomic_write(readme) as new:
                new.write_text(text, "utf-8")


def why_untried(catalog: Catalog, presets: Mapping[str, Preset]) -> dict[str, str]:
    """The presets that no smoke test tries, with the reason, as far as the catalog shows it."""
    known = cards.known(catalog.root, {each.card for each in presets.values()})
    found = {}
    for name, preset in presets.items():
        recipe = catalog.engine(preset.recipe).recipe
        found[name] = why_never(catalog, recipe) or device.why_untried(preset, recipe, known)
    return {name: why for name, why in found.items() if why}


def trials_page(
    images: Sequence[KeptTrials],
    recipes: Mapping[str, Pinned],
    presets: Mapping[str, Preset],
    untried: Mapping[str, str],
    longest: Mapping[str, int] | None = None,
) -> str:
    """The page as Markdown; ``untried`` and ``longest`` are as for ``write_trials_page``."""
    built = Overview(
        "Images",
        tuple(IMAGES.split("|")),
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
        tuple(PRESETS.split("|")),
        tuple(row for each in images for row in _presets(each, presets, longest or {})),
        (
            "largest that fits: if it was not tried, it is on the line through both peaks, which "
            "was wrong by at most 150 MiB where it was tried.",
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
        tuple(
            (name, work, text)
            for image in images
            for name, paths in (
                (image.recipe, image.paths),
                *((preset, use.paths) for preset, use in image.presets.items()),
            )
            for work, text in texts_by_work(paths).items()
        ),
        (
            "by the kernels that the server launched: docs/checks.md, Paths.",
            "a recipe: with the small model of the smoke test.",
        ),
    )
    code = Overview(
        "Device code",
        ("recipe", *HEADER[1:], "removed", "files with code that the driver compiles"),
        tuple(
            (
                f"{image.recipe} ({each.card})" if len(image.device_code) > 1 else image.recipe,
                *shown_parts(each),
                each.shown_removed,
                ", ".join(each.late),
            )
            for image in images
            for each in image.device_code
        ),
        (
            "of all libraries in the image, whoever built them: docs/checks.md, Device code.",
            "removed: by the diet of wheels, before the image was made.",
        ),
    )
    tables = (of_table(each) for each in (built, code, grown, used, not_tried, taken))
    return HEAD + "\n".join(tables).rstrip("\n") + "\n"


# Two tables of README.md, between ``<!-- NAME: ... -->`` and ``<!-- /NAME -->``.


def readme_tables(
    catalog: Catalog,
    presets: Mapping[str, Preset],
    images: Sequence[KeptTrials],
    receipts: Mapping[str, int],
) -> dict[str, str]:
    """The tables of the README as Markdown by the name of their mark: ``engines``, ``checks``."""
    by_engine: dict[str, list[Recipe]] = {}
    recipes = [entry.recipe for entry in catalog.engines.values() if entry.recipe is not None]
    for recipe in sorted(recipes, key=by_version):
        by_engine.setdefault(recipe.engine, []).append(recipe)
    models: dict[str, set[str]] = {engine: set() for engine in by_engine}
    for preset in presets.values():
        models[catalog.engine(preset.recipe).recipe.engine].add(preset.model.name)
    kept_by_name = {each.recipe: each for each in images}
    engines, checks = [], []
    for engine, versions in sorted(by_engine.items()):
        current = [each for each in versions if not each.kept]
        newest = ", ".join(each.version for each in current)
        kept = str(len(versions) - len(current) or "")
        engines.append((engine, newest, kept, ", ".join(sorted(models[engine]))))
        names = [each.name for each in (*versions, *current)]
        if tried := [kept_by_name[name] for name in names if name in kept_by_name]:
            checks.append(_gates(tried[-1], receipts.get(tried[-1].recipe, 0)))
    never = [recipe.name for recipe in recipes if recipe.name not in kept_by_name]
    count = (
        f"\nTried: {len(recipes) - len(never)} of {len(recipes)} recipes. No image of these was: "
    )
    header = ("engine", "current versions", "older ones (`list --all`)", "models with a preset")
    return {
        "engines": _rows(header, engines),
        "checks": _rows(GATES, checks) + f"{count}{', '.join(never)}.\n",
    }


GATES = (
    "tried image",
    "code, files, contract",
    "server on a simulated card",
    "kernels computed and compared",
    "on a real RTX 50xx",
)


def _gates(image: KeptTrials, receipts: int) -> tuple[str, ...]:
    refused = ", ".join(f"{count} of {kind}" for kind, count in image.failed.items())
    compared = f"done, {image.coverage.partition(';')[0]}"
    if not image.coverage[:1].isdigit():
        compared = f"not possible: {image.coverage}"
    elif "numbers" in image.failed:
        compared = "failed"
    return (
        image.recipe,
        f"refused: {refused} failed" if refused else f"done, {image.checks} checks",
        f"done, {image.kernels} kernels" if image.kernels else "not possible",
        compared,
        f"done, receipts: {receipts}" if receipts else "needs a card",
    )


def _rows(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *(tuple(map(cell, row)) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """A page with each table between its marks; a table without marks is left out."""
    for name, table in tables.items():
        before, mark, rest = text.partition(
            f"<!-- {name}: ./farm ci trials writes this table -->\n"
        )
        _, end, after = rest.partition(f"<!-- /{name} -->")
        text = "".join((before, mark, table, end, after)) if end else text
    return text


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


def _presets(
    image: KeptTrials, presets: Mapping[str, Preset], longest: Mapping[str, int]
) -> Iterator[tuple[str, ...]]:
    for name, use in image.presets.items():
        preset = presets.get(name)
        stated = preset.memory.whole if preset is not None and preset.memory else None
        smaller = f"{mib(use.smaller.peak)} with {use.smaller.context}" if use.smaller else ""
        card = f"{use.cards} x {use.card}" if use.cards > 1 else use.card
        published = mib(stated) if stated is not None else "unknown"
        context, filled = str(use.context), str(use.filled or "")
        largest = _largest(use, preset, longest)
        yield name, card, context, largest, mib(use.peak), filled, published, smaller


def _largest(use: PresetUse, preset: Preset | None, longest: Mapping[str, int]) -> str:
    """The model's own context if it was tried; else the line through both peaks shows it, except
    for a preset whose published context was too large."""
    if preset is not None and use.context < (preset.published_context or 0):
        return f"at least {use.context}; the published {preset.published_context} is too large"
    own = longest.get(preset.model.repository or "", 0) if preset is not None else 0
    if own == use.context:
        return f"{own}, the model's"
    least = use.smaller
    if not own or least is None or use.peak <= least.peak:
        return f"at least {use.context}"
    of_token = (use.peak - least.peak) / (use.context - least.context)
    reached = int(use.context + (use.memory - use.peak) / of_token) // STEP * STEP
    return f"about {reached}" if reached < own else f"{own}, the model's (not tried)"
