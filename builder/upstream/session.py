"""A place to look at recipes without building them: mirrors, a work directory, the cases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder.errors import BuilderError, RecipeError
from builder.patches.context import PatchContext
from builder.plan.base_image import RootPolicy, in_engine
from builder.plan.resolve import resolve_patches, resolve_source
from builder.plan.resolver import Resolver
from builder.platforms import Platforms, architecture
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.edit import difference, write
from builder.recipes.parse import parse
from builder.recipes.schema import Recipe, ScriptPatch
from builder.settings import Settings
from builder.tools.docker import engine as docker
from builder.tools.files import workspace
from builder.tools.git.repositories import Repositories
from builder.tools.log import Log
from builder.upstream.compatibility import PatchSet, diagnose
from builder.upstream.patch_state import Finding


@dataclass(frozen=True, slots=True)
class Change:
    """A recipe file as it is and as it would be: nothing is written before ``write``."""

    file: Path
    new_file: Path
    text: str
    new_text: str
    recipe: Recipe

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return self.text != self.new_text

    @property
    def difference(self) -> str:
        """The unified diff."""
        return difference(self.text, self.new_text, self.file.name, self.new_file.name)

    def write(self) -> None:
        """Write the new file, whole or not at all; where it has another name, the old one goes.

        Raises ``WorldError`` when the directory does not take it.
        """
        write(self.new_file, self.new_text, like=self.file)
        if self.new_file != self.file:
            self.file.unlink()


@dataclass(frozen=True, slots=True)
class SourceSession:
    """What the commands about sources and patches work with."""

    catalog: Catalog
    settings: Settings
    context: PatchContext

    @property
    def repositories(self) -> Repositories:
        """The mirrors."""
        return self.context.repositories

    def case(self, entry: Entry[Recipe]) -> PatchSet:
        """The patches and the source of a recipe.  Raises ``RecipeError``, ``FetchError``."""
        recipe = entry.recipe
        context = self.context
        if any(isinstance(patch, ScriptPatch) for patch in recipe.patch):
            image = _image_for_scripts(self.catalog, recipe, self.settings)
            context = PatchContext(self.repositories, context.work, image, context.log)
        return PatchSet(
            entry.name,
            resolve_source(recipe, self.catalog.root),
            recipe.track,
            resolve_patches(entry, self.catalog.root),
            context,
        )

    def change(self, entry: Entry[Recipe], text: str) -> Change:
        """A change of a recipe's file.

        Raises ``RecipeError`` when the new text is no recipe, or has the name of another.
        """
        recipe, problems = parse(text, entry.file, Recipe)
        if recipe is None:
            raise RecipeError(f"{entry.name} would be wrong", problems=problems)
        file = entry.file.with_name(f"{recipe.name}.toml")
        if file != entry.file and file.exists():
            raise RecipeError(
                f"{entry.name} would become {recipe.name}, which there is already",
                hint="remove one of them, or give --to another ref",
            )
        return Change(entry.file, file, entry.text, text, recipe)

    def findings(self, change: Change) -> list[Finding]:
        """What becomes of the patches of a changed recipe.  Raises ``FetchError``."""
        entry = Entry(change.recipe.name, change.file, change.new_text, change.recipe)
        case = self.case(entry)
        return list(diagnose(case)) if case.patches else []


@contextmanager
def open_session(
    catalog: Catalog, settings: Settings, log: Log, *, offline: bool
) -> Iterator[SourceSession]:
    """A desk with a work directory of its own, gone afterwards."""
    settings.require_directories()
    with workspace(settings.cache_dir) as work:
        repositories = Repositories(settings.cache_dir, work, log, offline=offline)
        yield SourceSession(catalog, settings, PatchContext(repositories, work, None, log))


def _image_for_scripts(catalog: Catalog, recipe: Recipe, settings: Settings) -> str | None:
    """A stage of the recipe's base that has Python, where an engine answers and has it."""
    try:
        machine = architecture(docker.engine().architecture)
        if machine is None:
            return None
        below = catalog.base(recipe.base).recipe
        if below.published is not None:
            # Whatever its tag means today: a script needs its Python, and no more.
            return next(iter(docker.image_names(f"builder-base/{below.name}:runtime-*")), None)
        policy = RootPolicy(settings.debian_root, ask=False)
        base = Resolver(catalog, Platforms(machine), policy).resolve_base(recipe.base)
        stage = "devel" if "devel" in base.plan.stages else "runtime"
        return base.references[stage] if in_engine(base, stage) else None
    except BuilderError:
        return None
