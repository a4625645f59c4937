"""The page of a repository on Docker Hub, written from the recipes whose images it has.

Docker Hub takes a short text and a long one, in Markdown.  ``hub_page.md.j2`` is the long one:
its text comes from the recipes, and from the records of images the figures of simulated cards and
the sums of the device code.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from builder.build.record import newest_good
from builder.core.errors import RegistryError, plain
from builder.core.versions import version_order
from builder.engines.families import complete
from builder.engines.layout import REVISION
from builder.image.code_paths import text_of
from builder.plan.explain import explained
from builder.plan.inputs import where
from builder.publish.hub import FULL, SHORT
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe
from simulator.selection import Capability

SPECIAL = re.compile(r"[\\`*<\[\]~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|&(?=#?\w+;)")
"""Characters that begin markup within a line (CommonMark 0.31, section 6; GFM's strikethrough)."""
BLOCK = re.compile(r"^(?:(?=[-+]\s|#{1,6}(?:\s|$)|>|[-+=]+\s*$)|(\d{1,9})(?=[.)](?:\s|$)))")
"""Characters that begin a block at the start of a line (CommonMark 0.31, sections 4 and 5)."""


class Markdown(str):
    """A text that is Markdown already: ``escaped`` leaves it as it is."""

    __slots__ = ()


def escaped(text: object) -> Markdown:
    """A value in one line that Markdown shows as it is written."""
    if isinstance(text, Markdown):
        return text
    line = SPECIAL.sub(lambda found: "\\" + found[0], " ".join(plain(str(text)).split()))
    return Markdown(BLOCK.sub(lambda found: (found[1] or "") + "\\", line))


def code(text: str) -> Markdown:
    """A text in one line as code (CommonMark 0.31, section 6.1)."""
    line = " ".join(plain(text).split())
    ticks = _ticks(line, 1)
    space = " " if "`" in line else ""
    return Markdown(f"{ticks}{space}{line}{space}{ticks}")


def console(commands: Sequence[str]) -> Markdown:
    """Shell commands as a fenced block of code (CommonMark 0.31, section 4.5)."""
    text = "\n".join(f"$ {plain(command)}" for command in commands)
    fence = _ticks(text, 3)
    return Markdown(f"{fence}console\n{text}\n{fence}")


def _ticks(text: str, least: int) -> str:
    """More back ticks than any run of them in a text, and at least ``least``."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(least, longest + 1)


GPUS = {"12.0": "GeForce RTX 50xx", "12.1": "GB10"}
MODEL = "/models/model.gguf"
CONTEXT = "8192"  # tokens
WIDE = 80  # characters of a command in one line
NUMBERED = re.compile(r"[A-Za-z]{0,2}\d+(?:[._]\d+)*(?:[.-].*)?")
LINK = re.compile(r"https?://[^\s<>\\]+")
CUT = Markdown("\x1e")
"""Marks in a page where it may end; no text of a recipe has this character (``errors.plain``)."""


@dataclass(frozen=True, slots=True)
class Description:
    """The page of a repository: ``short`` has at most 100 bytes, ``full`` 25,000."""

    repository: str
    recipes: tuple[str, ...]
    """The recipes that it was written from, newest version first."""
    short: str
    full: str


class _Item(NamedTuple):
    """A line of a list, and the versions that it holds for; none: it holds for all."""

    text: str
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _ListedVersion:
    """A recipe as the page lists it; ``explained`` is its ``plan.explain``.

    ``device`` is the run of its server on a simulated card, ``code`` the sums of its device code,
    both by the newest record; empty: there is none.
    """

    recipe: Recipe
    explained: dict[str, Any]
    device: str = ""
    code: str = ""

    @property
    def moving_tags(self) -> tuple[str, ...]:
        return tuple(self.recipe.image.moving)

    @property
    def version_tags(self) -> tuple[str, ...]:
        return tuple(tag for tag in self.recipe.image.tags if tag not in self.moving_tags)

    @property
    def tags(self) -> tuple[str, ...]:
        return (*self.version_tags, *self.moving_tags)

    @property
    def channel(self) -> str | None:
        return self.recipe.track.channel if self.recipe.track else None

    @property
    def follows(self) -> Markdown:
        """The upstream that a channel follows; its images are not made from the recipe's pin."""
        track = self.recipe.track
        if track is None:
            return Markdown()
        if track.tag:
            return Markdown(f"the newest tag like {code(track.tag)}")
        if track.branch:
            return Markdown(f"the head of {code(track.branch)}")
        return Markdown(f"the image {code(track.image)}") if track.image else Markdown()

    @property
    def source(self) -> str:
        """Its pin; for a recipe that has only a channel the repository: the pin is in no image."""
        if self.channel and not self.version_tags:
            found = where(self.recipe.source)
            return f"{found}; the label {REVISION} of each image names its commit"
        pin = ", ".join(self.explained["source"])
        return pin.replace("this repository", "the farm's repository")

    @property
    def bases(self) -> list[str]:
        return [base["published"] for base in self.explained["bases"] if base["published"]]


def describe_repository(
    catalog: Catalog,
    repository: str,
    name: str,
    there: Collection[str] | None = None,
    state: Path | None = None,
) -> Description:
    """The page of the images that recipes call ``repository``, and people ``name``.

    Only versions that have one of the tags ``there`` are listed; None: all.  ``state`` is the
    directory of the records, which have the figures of images.  Raises
    ``RecipeError`` where one of the recipes is wrong, ``RegistryError`` where none is left.
    """
    versions = _versions(catalog, repository, there, state)
    if not versions:
        raise RegistryError(
            f"{name} has none of the tags that recipes name",
            hint="push an image first: `builder push`",
        )
    newest = versions[0]
    recipe, url = newest.recipe, newest.explained["url"]
    page = _template().render(
        title=name.rpartition("/")[2],
        url=Markdown(url) if LINK.fullmatch(url) else "",
        newest=newest,
        gpus=_gpus(versions),
        commands=_commands(newest.recipe, f"{name}:{newest.tags[0]}"),
        port=recipe.image.port if recipe.artifact is None else None,
        health=f"/{recipe.image.health}" if recipe.image.health else "",
        versions=versions,
        checks=_items(versions, "checks"),
        licenses=_licenses(catalog, versions),
        notes=_items(versions, "notes"),
    )
    return Description(
        name,
        tuple(version.recipe.name for version in versions),
        shortened(plain(recipe.summary), SHORT),
        cut_page(page, FULL),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("builder", "publish"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=escaped,
        autoescape=False,  # noqa: S701  (it is for HTML; ``finalize`` escapes for Markdown)
    )
    environment.filters |= {"code": code, "console": console, "link": Markdown}
    environment.globals["CUT"] = CUT
    return environment.get_template("hub_page.md.j2")


def _versions(
    catalog: Catalog, repository: str, there: Collection[str] | None, state: Path | None
) -> list[_ListedVersion]:
    found = []
    for name in (recipe.name for recipe in catalog.of_repository(repository)):
        entry = catalog.engine(name)
        # The page names the followed upstream beside the tags, so not among the sources.
        pinned = replace(entry, recipe=entry.recipe.model_copy(update={"track": None}))
        details = explained(replace(catalog, engines={name: pinned}), name)
        kept = newest_good(state, name) if state is not None else None
        device = kept.verdict.device if kept is not None else None
        version = _ListedVersion(
            complete(entry.recipe),
            details,
            device.text if device else "",
            text_of(kept.verdict.code) if kept is not None else "",
        )
        if there is None or not set(version.tags).isdisjoint(there):
            found.append(version)
    return sorted(found, key=lambda version: _age(version.recipe.version), reverse=True)


def _age(version: str) -> tuple[object, ...]:
    """The order of versions: numbers come after names ("master") and commits; of two versions with
    the same number the plain one is newer."""
    numbers, release, rest = version_order(version)
    return bool(NUMBERED.fullmatch(version)), numbers, release, not rest, rest


def _gpus(versions: Sequence[_ListedVersion]) -> str:
    archs: dict[str, set[str]] = {}
    for recipe in (each.recipe for each in versions):
        for platform in recipe.platform:
            archs.setdefault(platform, set()).update(recipe.on(platform).cuda.arch)
    texts = []
    for name, found in archs.items():
        names = [str(each) for each in sorted({Capability.of_arch(arch) for arch in found})]
        cards = (f"{each} ({GPUS[each]})" if each in GPUS else each for each in names)
        texts.append(f"{' or '.join(cards)}, on {name}")
    return ", and ".join(texts)


def _commands(recipe: Recipe, reference: str) -> list[str]:
    """The commands that run an image, or that copy the files of an image that runs nothing."""
    if recipe.artifact is not None:
        copies = [f"docker cp $id:/{file} ." for file in recipe.artifact.names]
        return [f"id=$(docker create {reference} none)", *copies, "docker rm $id"]
    image, serve = recipe.image, recipe.serve
    arguments = [*serve.arguments, *serve.gpu] if serve is not None else []
    filled = [each.replace("{model}", MODEL).replace("{context}", CONTEXT) for each in arguments]
    options = [f"-p 127.0.0.1:{image.port}:{image.port}"] if image.port is not None else []
    options += ["-v ~/models:/models:ro"] if filled != arguments else []
    command = " ".join(["docker run --rm --gpus all", *options])
    runs = " ".join([reference, *([shlex.join(filled)] if filled else [])])
    separator = " \\\n    " if len(command) + len(runs) > WIDE else " "
    return [f"{command}{separator}{runs}"]


def _items(versions: Sequence[_ListedVersion], field: str) -> list[_Item]:
    """The lines that ``plan.explain`` has under a name, each once, in their first order."""
    found: dict[str, list[str]] = {}
    for version in versions:
        for text in version.explained[field]:
            found.setdefault(text, []).append(version.recipe.version)
    several = len(versions)
    return [_Item(text, tuple(of) if len(of) < several else ()) for text, of in found.items()]


def _licenses(catalog: Catalog, versions: Sequence[_ListedVersion]) -> list[tuple[str, list[str]]]:
    under: dict[str, set[str]] = {}
    for each in versions:
        under.setdefault(each.recipe.license, set()).add(each.recipe.engine)
        for name in catalog.chain(each.recipe.base):
            base = catalog.base(name).recipe
            under.setdefault(base.license, set()).add(base.name)
    return [(terms, sorted(names)) for terms, names in sorted(under.items())]


def shortened(text: str, limit: int) -> str:
    """A text of at most ``limit`` bytes, cut at a word where it is longer."""
    if len(text.encode()) <= limit:
        return text
    cut = text.encode()[: limit - 3].decode(errors="ignore")
    words, space, _ = cut.rpartition(" ")
    return (words.rstrip(" ,;:.") if space else cut) + "..."


def cut_page(page: str, limit: int) -> str:
    """A page without its marks, of at most ``limit`` bytes.

    A longer page ends at a mark, and its last line says how much was left out.
    """
    parts = page.split(CUT)
    full = "".join(parts)
    for count in range(len(parts) - 1, -1, -1):
        if len(full.encode()) <= limit:
            break
        left = len(parts) - count
        more = "1 more paragraph" if left == 1 else f"{left} more paragraphs"
        note = f"*({more} left out: a page has at most {limit} bytes.)*"
        full = "".join([*parts[:count], f"\n{note}\n"])
    return full
