"""Freezes a recipe at one state of its upstream, so that it can be built again years later.

The tag, the branch or the published image that a channel follows is resolved once.  The result is a
recipe like any other, under a name of its own, with fixed pins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder.core.errors import RecipeError
from builder.engines.families import ENGINES
from builder.recipes import edit
from builder.recipes.catalog import Catalog, Entry, R, parse
from builder.recipes.edit import NamedCommit
from builder.recipes.schema import BaseRecipe, Recipe
from builder.sources import git
from builder.sources.diff import PatchState
from builder.sources.git import GitError
from builder.upstream.patches import PatchFinding, on_pin
from builder.upstream.session import SourceSession

COMMIT_DIGITS = 9
DIGEST_DIGITS = 12


@dataclass(frozen=True, slots=True)
class FrozenRecipe:
    """A frozen recipe, and a catalog that contains it."""

    entry: Entry[Recipe]
    base: Entry[BaseRecipe] | None
    """The base, if it is frozen as well."""
    catalog: Catalog
    target: NamedCommit
    dropped: tuple[str, ...] = ()
    """The patches that are left out: upstream contains them."""

    @property
    def name(self) -> str:
        """The name of the frozen recipe."""
        return self.entry.name

    @property
    def files(self) -> dict[str, str]:
        """The texts of the recipe with its locks, of its base if that is frozen, and of the base
        that the entrypoint is compiled in with its locks, if the family names one; by their paths
        below ``recipes/``."""
        bases = [self.base] if self.base is not None else []
        tools = self.catalog.chain(ENGINES[self.entry.recipe.family].tools)
        found = self.entry.texts()
        for base in (*bases, *map(self.catalog.base, tools)):
            found |= {f"bases/{name}": text for name, text in base.texts().items()}
        return found

    def write(self, folder: Path) -> Path:
        """Write the files below a directory; the recipe's.  Raises ``WorldError``."""
        for name, text in self.files.items():
            edit.write(folder / name, text)
        return folder / self.entry.file.name


def version_of(channel: str, target: NamedCommit) -> str:
    """The version of a channel's image at a target: ``nightly-b9900``, ``nightly-3f2a91c0d``."""
    if target.kind == "tag":
        name = re.sub(r"[^A-Za-z0-9.]+", "-", target.name)
        return f"{channel}-{re.sub(r'[.-]{2,}', '-', name).strip('.-')}"
    digits = target.commit.removeprefix("sha256:")
    length = DIGEST_DIGITS if target.kind == "image" else COMMIT_DIGITS
    return f"{channel}-{digits[:length]}"


def at_commit(
    catalog: Catalog,
    entry: Entry[Recipe],
    target: NamedCommit,
    count: Callable[[], int],
    version: str,
) -> FrozenRecipe:
    """A recipe at a commit of its source; ``count`` is the number of commits up to it.

    Raises ``RecipeError`` where the result is not a valid recipe.
    """
    recipe = entry.recipe
    changes: dict[edit.Keys, object] = {
        ("source", "commit"): target.commit,
        ("source", "ref"): None if target.kind == "commit" else target.name,
    }
    recount = ENGINES[recipe.family].recounted(recipe, count)
    if recount is not None:
        changes[recount.key] = recount.new
    return _frozen(catalog, entry, target, version, changes, None)


def at_image(
    catalog: Catalog, entry: Entry[Recipe], target: NamedCommit, version: str
) -> FrozenRecipe:
    """A recipe over a published image; ``target.commit`` is the image's digest.

    Raises ``RecipeError`` where its base is not a published image.
    """
    recipe = entry.recipe
    below = catalog.base(recipe.base)
    if below.recipe.published is None:
        problem = entry.problem(
            ("track", "image"), f"the base {recipe.base} is not a published image"
        )
        raise RecipeError(f"{entry.name} cannot follow an image", problems=(problem,))
    name = f"{below.name}-{target.commit.removeprefix('sha256:')[:DIGEST_DIGITS]}"
    text = edit.edited(
        below.text,
        {
            ("name",): name,
            ("published", "digest"): target.commit,
            ("published", "image"): target.name,
            ("published", "note"): None,
        },
    )
    base = _entry(text, below.file.with_name(f"{name}.toml"), BaseRecipe)
    return _frozen(catalog, entry, target, version, {("base",): name}, base)


def _frozen(
    catalog: Catalog,
    entry: Entry[Recipe],
    target: NamedCommit,
    version: str,
    changes: dict[edit.Keys, object],
    base: Entry[BaseRecipe] | None,
) -> FrozenRecipe:
    recipe = entry.recipe
    changes |= {
        ("version",): version,
        ("image", "tags"): [version],
        ("image", "moving"): None,
        ("track",): None,
    }
    text = _headed(edit.edited(entry.text, changes), _head(catalog, entry, target))
    file = entry.file.with_name(f"{recipe.engine}-{version}.toml")
    frozen = _entry(text, file, Recipe)
    there = catalog.engines.get(frozen.name)
    if there is not None and _origin(entry) not in there.text:
        raise RecipeError(
            f"{entry.name} would be frozen as {frozen.name}, which is a recipe of its own",
            hint="rename that recipe, or the channel",
        )
    bases = {base.name: base} if base is not None else {}
    extended = replace(
        catalog,
        engines={**catalog.engines, frozen.name: frozen},
        bases={**catalog.bases, **bases},
    )
    return FrozenRecipe(frozen, base, extended, target)


def without(frozen: FrozenRecipe, patches: Sequence[int]) -> FrozenRecipe:
    """A frozen recipe without some of its patches; it keeps their probes.

    Raises ``RecipeError`` where the result is not a valid recipe.
    """
    before = frozen.entry.recipe
    names = tuple(before.patch[index].name for index in patches)
    text = edit.without_patches(frozen.entry.text, patches)
    entry = _entry(text, frozen.entry.file, Recipe)
    engines = {**frozen.catalog.engines, entry.name: entry}
    catalog = replace(frozen.catalog, engines=engines)
    return replace(frozen, entry=entry, catalog=catalog, dropped=names)


def fitted(frozen: FrozenRecipe, session: SourceSession) -> tuple[FrozenRecipe, list[PatchFinding]]:
    """A frozen recipe without patches that upstream contains; and the patches that do not apply.

    Raises ``FetchError`` where the source cannot be fetched.
    """
    patch_set = replace(session, catalog=frozen.catalog).patch_set(frozen.entry)
    findings = on_pin(patch_set) if patch_set.patches else []
    known = {PatchState.UPSTREAM, PatchState.UNTRIED}  # a build tries: it has an engine
    unfit = [each for each in findings if not each.good and each.state not in known]
    if unfit:
        return frozen, unfit
    merged = [index for index, each in enumerate(findings) if each.state == PatchState.UPSTREAM]
    if not merged:
        return frozen, []
    lean = without(frozen, merged)
    session.context.log(f"{frozen.name}: left out {', '.join(lean.dropped)}: upstream has it")
    return lean, []


def _entry(text: str, file: Path, model: type[R]) -> Entry[R]:
    found, problems = parse(text, file, model)
    if found is None:
        raise RecipeError(f"{file.stem} would not be a valid recipe", problems=problems)
    return Entry(found.name, file, text, found)


def _origin(entry: Entry[Recipe]) -> str:
    """The start of the first line of a recipe that is frozen from another."""
    return f"# Frozen from {entry.name}: "


def _head(catalog: Catalog, entry: Entry[Recipe], target: NamedCommit) -> str:
    farm = farm_commit(catalog.root)
    origin = f"{_origin(entry)}{target.name} was {target.commit}."
    if not farm:
        return origin
    return f"{origin}\n# Its base, locks and patches come from commit {farm} of the farm."


def _headed(text: str, head: str) -> str:
    """A recipe's text with comments at the top, below the line that names the schema."""
    first, line, rest = text.partition("\n")
    if first.startswith("#:"):
        return f"{first}{line}{head}\n{rest}"
    return f"{head}\n{text}"


def farm_commit(root: Path) -> str:
    """The commit of the repository that holds the catalog; empty where there is none."""
    try:
        return git.text(root / ".git", "rev-parse", "--verify", "HEAD")
    except GitError:
        return ""
