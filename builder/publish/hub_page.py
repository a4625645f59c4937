"""What a repository's page says, written from the recipes whose images it has.

Docker Hub takes a short text and a long one, in Markdown.  Nothing in it is said by hand: what
each tag is made of, how it is run, what was checked and what is known to be wrong stand in the
recipes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from builder.errors import RegistryError, plain
from builder.plan.explain import explained
from builder.plan.inputs import where
from builder.plan.resolve import complete
from builder.publish.remote_image import REVISION
from builder.recipes.catalog import Catalog
from builder.recipes.schema import AddPatch, Patch, PullPatch, Recipe, ScriptPatch
from builder.smoke.gpu import capability_of
from builder.tools.registry.hub import FULL, SHORT
from builder.tools.web.github import ADDRESS
from builder.upstream.track import rank

GPUS = {"12.0": "GeForce RTX 50xx"}
MODEL = "/models/model.gguf"
CONTEXT = "8192"  # tokens
WIDE = 80  # characters of a command in one line
NUMBERED = re.compile(r"[A-Za-z]{0,2}\d+(?:[._]\d+)*(?:[.-].*)?")
SPECIAL = re.compile(r"[\\`*<\[\]~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|&(?=#?\w+;)")
"""What begins markup within a line (CommonMark 0.31, section 6; GFM's strikethrough)."""
BLOCK = re.compile(r"^(?:(?=[-+]\s|#{1,6}(?:\s|$)|>|[-+=]+\s*$)|(\d{1,9})(?=[.)](?:\s|$)))")
"""What begins a block at the start of a line (CommonMark 0.31, sections 4 and 5)."""
LINK = re.compile(r"https?://[^\s<>\\]+")


@dataclass(frozen=True, slots=True)
class Description:
    """What the page of a repository says: ``short`` has at most 100 bytes, ``full`` 25,000."""

    repository: str
    recipes: tuple[str, ...]
    """Those that it was written from, newest version first."""
    short: str
    full: str


@dataclass(frozen=True, slots=True)
class _Version:
    """A recipe, what there is to say of it, and its tags."""

    recipe: Recipe
    told: dict[str, Any]

    @property
    def fixed(self) -> tuple[str, ...]:
        """The tags that stay."""
        image = self.recipe.image
        return tuple(tag for tag in image.tags if tag not in image.moving)

    @property
    def tags(self) -> tuple[str, ...]:
        """All its tags, those that stay first."""
        return (*self.fixed, *self.recipe.image.moving)


def described(
    catalog: Catalog, repository: str, name: str, there: Collection[str] | None = None
) -> Description:
    """The description of the images that recipes call ``repository``, and people ``name``.

    Only of versions that have one of the tags ``there``; None: of all.  Raises ``RecipeError``
    where one of the recipes is wrong, ``RegistryError`` where none is left.
    """
    versions = _versions(catalog, repository, there)
    if not versions:
        raise RegistryError(
            f"{name} has no tag of a recipe yet",
            hint="`builder push` gives it its tags; describe it then",
        )
    newest = versions[0]
    sections = [
        (f"# {name.rpartition('/')[2]}", _opening(versions)),
        ("## How to run it", _running(newest, name)),
        ("## Tags", [*_tags(versions), _immutable(newest)]),
        ("## What was checked", _checked(versions)),
        ("## Licenses", [_listed(_licenses(catalog, versions))]),
        ("## To know", _items(versions, "notes")),
    ]
    return Description(
        name,
        tuple(version.recipe.name for version in versions),
        shortened(plain(newest.recipe.summary), SHORT),
        whole_paragraphs(sections, FULL),
    )


def _versions(catalog: Catalog, repository: str, there: Collection[str] | None) -> list[_Version]:
    names = [
        entry.name
        for entry in catalog.engines.values()
        if entry.recipe is not None and entry.recipe.image.repository == repository
    ]
    found = []
    for name in names:
        entry = catalog.engine(name)
        # What a recipe follows is said where its tags are.
        pinned = replace(entry, recipe=entry.recipe.model_copy(update={"track": None}))
        told = explained(replace(catalog, engines={name: pinned}), name)
        version = _Version(complete(entry.recipe), told)
        if there is None or not set(version.tags).isdisjoint(there):
            found.append(version)
    return sorted(found, key=lambda version: _age(version.recipe.version), reverse=True)


def _age(version: str) -> tuple[object, ...]:
    """The order of versions: after names ("master") and commits those that count, and of two with
    one number the plain one."""
    numbers, release, rest = rank(version)
    return bool(NUMBERED.fullmatch(version)), numbers, release, not rest, rest


def shortened(text: str, limit: int) -> str:
    """A text of at most ``limit`` bytes, cut at a word where it is longer."""
    if len(text.encode()) <= limit:
        return text
    dots = "..."
    cut = text.encode()[: limit - len(dots)].decode(errors="ignore")
    whole, space, _ = cut.rpartition(" ")
    return (whole.rstrip(" ,;:.") if space else cut) + dots


def whole_paragraphs(sections: Sequence[tuple[str, Sequence[str]]], limit: int) -> str:
    """The sections, each a title and paragraphs, as Markdown of at most ``limit`` bytes.

    Where it is longer it ends after a whole paragraph, and says so.
    """
    paragraphs = [
        f"{title}\n\n{text}" if number == 0 else text
        for title, texts in sections
        for number, text in enumerate(texts)
    ]
    full = _joined(paragraphs)
    count = len(paragraphs)
    while len(full.encode()) > limit and count > 0:
        count -= 1
        left = len(paragraphs) - count
        said = f"*(Cut here, before {left} more paragraphs: it may have {limit} bytes.)*"
        full = _joined([*paragraphs[:count], said])
    return full


def _joined(paragraphs: Sequence[str]) -> str:
    """Paragraphs with an empty line between them, but for items of one list."""
    parts = [paragraphs[0]]
    for before, text in pairwise(paragraphs):
        items = before.rpartition("\n")[2].startswith("- ") and text.startswith("- ")
        parts.append(f"{'' if items else chr(10)}{text}")
    return "\n".join(parts) + "\n"


def _opening(versions: Sequence[_Version]) -> list[str]:
    recipe, told = versions[0].recipe, versions[0].told
    wanted = sorted({capability_of(arch) for each in versions for arch in each.recipe.cuda.arch})
    cards = [f"{each} ({GPUS[each]})" if each in GPUS else each for each in wanted]
    driver = f", with driver {recipe.cuda.driver} or newer" if recipe.cuda.driver else ""
    url = told["url"]
    return [
        f"{_escaped(recipe.summary)}" + (f"\n\n<{url}>" if LINK.fullmatch(url) else ""),
        f"For NVIDIA GPUs of compute capability {' or '.join(cards)}, on linux/amd64{driver}. "
        "Every image passes its smoke test before it gets a tag.",
    ]


def _running(version: _Version, name: str) -> list[str]:
    recipe, reference = version.recipe, f"{name}:{version.tags[0]}"
    if recipe.artifact is not None:
        lines = [f"id=$(docker create {reference} none)"]
        lines += [f"docker cp $id:/{file} ." for file in recipe.artifact.names]
        return ["It holds files, and runs nothing:", _console([*lines, "docker rm $id"])]
    image, serve = recipe.image, recipe.serve
    arguments = [*serve.arguments, *serve.gpu] if serve is not None else []
    told = [each.replace("{model}", MODEL).replace("{context}", CONTEXT) for each in arguments]
    options = [f"-p {image.port}:{image.port}"] if image.port is not None else []
    options += ["-v ~/models:/models:ro"] if told != arguments else []
    command = " ".join(["docker run --rm --gpus all", *options])
    runs = " ".join([reference, *([shlex.join(told)] if told else [])])
    apart = " \\\n    " if len(command) + len(runs) > WIDE else " "
    page = f" {_code(f'/{image.health}')} answers when it is ready." if image.health else ""
    listens = [f"It listens on port {image.port}.{page}"] if image.port is not None else []
    return [_console([f"{command}{apart}{runs}"]), *listens]


def _console(lines: Sequence[str]) -> str:
    text = "\n".join(f"$ {plain(line)}" for line in lines)
    fence = _ticks(text, 3)
    return f"{fence}console\n{text}\n{fence}"


def _tags(versions: Sequence[_Version]) -> Iterator[str]:
    """A paragraph a version: its tags, its source, and what was changed about it."""
    for version in versions:
        recipe, told = version.recipe, version.told
        tags = [f"`{tag}`" for tag in version.fixed]
        tags += [f"`{tag}` ({_moves(recipe, tag)})" for tag in recipe.image.moving]
        lines = [_escaped(recipe.summary), f"made from {_escaped(_source(version))}"]
        lines += [
            f"on {_escaped(base['published'])}" for base in told["bases"] if base["published"]
        ]
        lines += [
            _patch(patch, told_of)
            for patch, told_of in zip(recipe.patch, told["patches"], strict=True)
        ]
        lines += [
            f"patched at every start by {_code(step['run'])}: {_escaped(step['why'])}"
            for step in told["starts"]
        ]
        yield f"### {', '.join(tags)}\n\n{_listed(lines)}"


def _source(version: _Version) -> str:
    """Its pin; of what has only a channel's tag where it is found, for the pin is not in it."""
    recipe = version.recipe
    if recipe.track is not None and recipe.track.channel and not version.fixed:
        return f"{where(recipe.source)}; each image tells its commit by the label {REVISION}"
    return ", ".join(version.told["source"]).replace("this repository", "the farm's repository")


def _moves(recipe: Recipe, tag: str) -> str:
    """How a tag that moves does: a channel is not at the recipe's pin, but where upstream is."""
    track = recipe.track
    if track is None or track.channel != tag:
        return "moves"
    followed = track.tag and f"the newest tag {track.tag}"
    followed = followed or (track.branch and f"the head of {track.branch}")
    return f"moves every night to {_escaped(followed or f'what {track.image} is')}"


def _patch(patch: Patch, told: dict[str, Any]) -> str:
    """A patch with where it comes from, its pin, and its reason."""
    found = ADDRESS.fullmatch(told["where"])
    name = _escaped(told["name"])
    if isinstance(patch, PullPatch) and found is not None:
        name = f"[{name}](https://github.com/{found[1]}/{found[2]}/pull/{patch.pull})"
    elif told["where"]:
        name += f" of {_escaped(told['where'])}"
    pin = _pin(patch)
    how = "patched with" if patch.expect == "applies" else "not patched, for it is absent:"
    drop = f" (until {_escaped(patch.drop_when)})" if patch.drop_when else ""
    return f"{how} {name}{f' at {pin}' if pin else ''}: {_escaped(patch.why)}{drop}"


def _pin(patch: Patch) -> str:
    """The commit of a patch that its name does not tell."""
    match patch:
        case PullPatch(head=commit):
            return commit
        case ScriptPatch(script=script):
            return script.commit
        case AddPatch(add=add):
            return add.commit
    return ""


def _immutable(version: _Version) -> str:
    return (
        f"A tag that ends in twelve hexadecimal digits, such as `{version.recipe.version}-"
        "0123456789ab`, is one build, and stays that one. A tag that moves is given to a newer "
        "image by digest, and the reason is attached to that image."
    )


def _checked(versions: Sequence[_Version]) -> list[str]:
    always = (
        "Every image is read layer by layer before it gets a tag: the GPU code that its recipe "
        "names, every library that it needs and none that it must not have, no secret, nothing "
        "left over from its build. These are checked as well:"
    )
    return [always, *_items(versions, "checks")]


def _items(versions: Sequence[_Version], what: str) -> list[str]:
    """What is said of the versions, each thing once: with the versions, where it is not all."""
    said: dict[str, list[str]] = {}
    for version in versions:
        for text in version.told[what]:
            said.setdefault(text, []).append(version.recipe.version)
    return [
        f"- {_escaped(text)}" + (f" ({', '.join(known)})" if len(known) < len(versions) else "")
        for text, known in said.items()
    ]


def _licenses(catalog: Catalog, versions: Sequence[_Version]) -> list[str]:
    """The licenses, each with the engine, or the bases, that are under it."""
    under: dict[str, set[str]] = {}
    for each in versions:
        under.setdefault(each.recipe.license, set()).add(each.recipe.engine)
        for name in catalog.chain(each.recipe.base):
            base = catalog.base(name).recipe
            under.setdefault(base.license, set()).add(base.name)
    return [
        f"{_escaped(terms)}: {', '.join(sorted(names))}" for terms, names in sorted(under.items())
    ]


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _escaped(text: str) -> str:
    """A text of a recipe in one line, which Markdown shows as it is written."""
    line = SPECIAL.sub(lambda found: "\\" + found[0], " ".join(plain(text).split()))
    return BLOCK.sub(lambda found: (found[1] or "") + "\\", line)


def _code(text: str) -> str:
    """A text of a recipe as code (CommonMark 0.31, section 6.1)."""
    line = " ".join(plain(text).split())
    ticks = _ticks(line, 1)
    apart = " " if "`" in line else ""
    return f"{ticks}{apart}{line}{apart}{ticks}"


def _ticks(text: str, least: int) -> str:
    """More back ticks than stand together in a text, and no fewer than that."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(least, longest + 1)
