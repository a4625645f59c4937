"""Verdicts and tables as Markdown, for a job's summary page."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

from packaging.requirements import Requirement
from platformdirs import user_cache_path, user_state_path

from builder import __version__
from builder.build.trials import KeptTrials, kept
from builder.checks import device
from builder.checks.simulated import why_never
from builder.checks.verdict import Check, CheckState, Verdict
from builder.core import sizes
from builder.core.errors import BuilderError, WorldError
from builder.core.files import atomic_write, full_disk, is_disk_full
from builder.core.log import duration
from builder.image.code_paths import HEADER, shown_parts, text_of, worse
from builder.presets import cards, shapes
from builder.presets.schema import TRIALS, Preset, PresetUse
from builder.presets.shapes import number
from builder.recipes.catalog import Catalog
from builder.recipes.schema import GitSource
from simulator.report import mib
from simulator.work import texts_by_work

CELL_LIMIT = 300  # characters


@dataclass(frozen=True, slots=True)
class Overview:
    """A table with a title, for the terminal and for Markdown."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    """Lines below the table."""


def of_verdict(name: str, verdict: Verdict) -> str:
    """The verdict as Markdown: first the checks that did not pass, then all."""
    bad = [*verdict.failures, *verdict.untried]
    seconds = sum(check.seconds for check in verdict.checks)
    state = "verified" if verdict.good else "**not verified**"
    lines = [
        f"### {name}: {state}",
        "",
        f"{len(verdict.checks)} checks in {seconds:.0f} s: {len(verdict.failures)} failed, "
        f"{len(verdict.untried)} untried, {len(verdict.skipped)} skipped. "
        f"{sizes.shown(verdict.download_size)} to download, "
        f"{sizes.shown(verdict.unpacked_size)} unpacked.",
        "",
        f"`{verdict.digest}`",
        "",
    ]
    lines += [f"On a simulated card: {_cell(verdict.device.text)}", ""] if verdict.device else []
    lines += [f"Device code: {_cell(text_of(verdict.code))}", ""] if verdict.code else []
    lines += _check_table(bad) if bad else []
    details = _check_table(verdict.checks)
    lines += ["<details><summary>All checks</summary>", "", *details, "</details>"]
    return "\n".join(lines) + "\n"


def of_table(overview: Overview) -> str:
    """A table with its title and notes."""
    rows = [overview.header, ("---",) * len(overview.header)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in overview.rows]
    notes = [f"- {_cell(note)}\n" for note in overview.notes]
    return "\n".join([f"### {overview.title}", "", *lines, "", *notes]) + "\n"


def append_to_summary(text: str) -> None:
    """Append to the summary of a job in a GitHub workflow; nothing elsewhere.  Raises ``OSError``.

    https://docs.github.com/actions/reference/workflows-and-actions/variables, GITHUB_STEP_SUMMARY
    """
    name = os.environ.get("GITHUB_STEP_SUMMARY")
    if name:
        with Path(name).open("a", encoding="utf-8") as stream:
            stream.write(text)


def _check_table(checks: Sequence[Check]) -> list[str]:
    rows = ["| | check | of | expected | found | took |", "|---|---|---|---|---|---|"]
    for check in checks:
        cells = (check.state, check.kind, check.subject, check.expected, check.found)
        rows.append("| " + " | ".join(map(_cell, cells)) + f" | {check.seconds:.2f} s |")
    return [*rows, ""]


def _cell(text: str) -> str:
    """Text for a table cell, with Markdown and HTML escaped."""
    short = " ".join(text.split())
    short = short if len(short) <= CELL_LIMIT else short[: CELL_LIMIT - 3] + "..."
    for character in "\\`*_[]<>|~":
        short = short.replace(character, "\\" + character)
    return short


# Verdicts as JUnit XML, for CI systems.

ILLEGAL = dict.fromkeys((*range(9), 11, 12, *range(14, 32)), "\N{REPLACEMENT CHARACTER}")
"""Characters that XML 1.0 does not allow (section 2.2)."""
ELEMENTS = {
    CheckState.FAILED: "failure",
    CheckState.UNTRIED: "error",
    CheckState.SKIPPED: "skipped",
}
MESSAGE_LIMIT = 300  # characters of a message attribute; the element's text has all of it


def junit(verdicts: Mapping[str, Verdict]) -> str:
    """Verdicts by name as JUnit XML: one suite for each, one test case for each check.

    The format follows Ant's JUnit reports: a failed check has ``failure``, an untried one
    ``error``, a skipped one ``skipped``, each with the expected and the found value.
    """
    root = ElementTree.Element("testsuites")
    root.extend(_suite(name, verdict) for name, verdict in verdicts.items())
    ElementTree.indent(root)
    return ElementTree.tostring(root, "unicode", xml_declaration=True) + "\n"


def write_junit(file: Path, verdicts: Mapping[str, Verdict]) -> None:
    """Write verdicts as JUnit XML; raises ``OSError``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(junit(verdicts), encoding="utf-8")


def _suite(name: str, verdict: Verdict) -> ElementTree.Element:
    suite = ElementTree.Element(
        "testsuite",
        name=name,
        tests=str(len(verdict.checks)),
        failures=str(len(verdict.failures)),
        errors=str(len(verdict.untried)),
        skipped=str(len(verdict.skipped)),
        time=f"{sum(check.seconds for check in verdict.checks):.3f}",
    )
    properties = ElementTree.SubElement(suite, "properties")
    facts = {
        "digest": verdict.digest,
        "download_size": str(verdict.download_size),
        "unpacked_size": str(verdict.unpacked_size),
    }
    for key, value in facts.items():
        ElementTree.SubElement(properties, "property", name=key, value=value)
    suite.extend(_case(name, check) for check in verdict.checks)
    return suite


def _case(name: str, check: Check) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        classname=f"{name}.{check.kind}",
        name=_legal(f"{check.subject}: {check.expected}"),
        time=f"{check.seconds:.3f}",
    )
    tag = ELEMENTS.get(check.state)
    if tag is not None:
        text = _legal(check.comparison)
        child = ElementTree.SubElement(case, tag, message=text[:MESSAGE_LIMIT], type=check.kind)
        child.text = text
    return case


def _legal(text: str) -> str:
    return text.translate(ILLEGAL)


# ``trials/README.md``: tables of the images that were tried, and their presets.

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


def write_trials_page(catalog: Catalog, presets: Mapping[str, Preset]) -> None:
    """Write the page anew from the files of ``trials/``.

    Raises ``RecipeError`` where a file is invalid, ``OSError`` where the page cannot be written.
    """
    text = trials_page(kept(catalog.root), pinned(catalog), presets, why_untried(catalog, presets))
    with atomic_write(catalog.root / TRIALS / "README.md") as new:
        new.write_text(text, "utf-8")


def why_untried(catalog: Catalog, presets: Mapping[str, Preset]) -> dict[str, str]:
    """The presets that no smoke test tries, with the reason, as far as the catalog shows it.

    Raises ``RecipeError`` where a recipe, a base or a card is invalid.
    """
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
    tables = (of_table(each) for each in (built, code, grown, used, not_tried, taken))
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
    names = shapes.published_shape()
    name = names.get(preset.model.repository or "") if preset is not None else None
    longest = number(shapes.shape_of(name), "context_length", 0) if name else 0
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


# Unexpected exceptions: an error message where the machine is the cause, else a crash report.


def as_builder_error(error: BaseException) -> BuilderError | None:
    """The error that an exception of the operating system means; None for a bug of builder."""
    if isinstance(error, BuilderError):
        return error
    if isinstance(error, ModuleNotFoundError) and _is_optional(error.name or ""):
        return WorldError(
            "the packages for builds and tests of images are not installed",
            f"there is no {error.name}",
            "install builder with its extra `build`: uv tool install '.[build]' or "
            "pipx install '.[build]', in a checkout",
        )
    if not isinstance(error, OSError):
        return None
    if is_disk_full(error):
        named = [Path(error.filename)] if isinstance(error.filename, str) else []
        why = ": ".join([*map(str, named), str(error.strerror)])
        return full_disk(why, *(named or [*_directories(), Path(tempfile.gettempdir())]))
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return WorldError(
            f"cannot read or write {error.filename or 'a file that builder needs'}",
            str(error.strerror or error),
            "check who owns it; BUILDER_CACHE_DIR and BUILDER_STATE_DIR name the directories that "
            "builder writes to",
        )
    return None


def _is_optional(module: str) -> bool:
    """Whether a module is of a package that only the extra ``build`` installs."""
    markers = {
        requirement.name.replace("-", "_"): requirement.marker
        for requirement in map(Requirement, metadata.requires("builder") or ())
    }
    marker = markers.get(module.partition(".")[0])
    return marker is not None and not marker.evaluate({"extra": ""})


def write_report(error: BaseException) -> str:
    """Write a crash report; its path, or its text where no file can be written."""
    text = "".join(traceback.format_exception(error))
    try:
        _, state = _directories()
        folder = state / "crashes"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
        file.write_text(f"builder {__version__}, Python {sys.version}\n{text}")
    except OSError:
        return text
    return str(file)


def _directories() -> tuple[Path, Path]:
    """The cache and the state directory, from the settings if they can be read."""
    try:
        from builder.core import settings

        chosen = settings.load()
    except Exception:  # reading the settings may be the failure
        return user_cache_path("builder"), user_state_path("builder")
    return chosen.cache_dir, chosen.state_dir
