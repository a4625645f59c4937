"""A session with the sources of recipes: mirrors, a work directory and sets of patches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

from builder.build.roots import in_engine
from builder.core.errors import BuilderError, RecipeError
from builder.core.files import workspace
from builder.core.log import Log
from builder.core.platforms import architecture
from builder.core.settings import Settings
from builder.docker import engine as docker
from builder.plan.inputs import resolve_patches, resolve_source
from builder.plan.resolver import Resolver
from builder.recipes.catalog import Catalog, Entry, R, locks_of, parse, read_text
from builder.recipes.edit import difference, write
from builder.recipes.patches import ScriptPatch
from builder.recipes.schema import BaseRecipe, Recipe
from builder.sources.mirrors import Repositories
from builder.sources.patches import PatchContext
from builder.upstream.patches import PatchFinding, PatchSet, diagnose


@dataclass(frozen=True, slots=True)
class RecipeChange(Generic[R]):
    """The file of a recipe or a base, and its new text; ``write`` writes it."""

    file: Path
    new_file: Path
    text: str
    new_text: str
    recipe: R
    locks: Mapping[Path, Path] = field(default_factory=dict)
    """The lock files that get another name, and their new names."""
    base: RecipeChange[BaseRecipe] | None = None
    """The change of the recipe's base, which is written first."""
    shared: bool = False
    """Other files name this one: it stays beside the new one."""

    @property
    def changed(self) -> bool:
        """Whether the texts differ."""
        return self.text != self.new_text

    @property
    def difference(self) -> str:
        """The unified diff, the base's first."""
        own = difference(self.text, self.new_text, self.file.name, self.new_file.name)
        return self.base.difference + own if self.base else own

    def write(self, *, keep: bool = False) -> None:
        """Write the new file atomically; where its name is new, the old file is removed.

        Lock files with another name move too.  ``keep`` leaves the old files in place.  Raises
        ``RecipeError`` where a lock file cannot be read, ``WorldError`` where the directory is not
        writable.
        """
        keep = keep or self.shared
        if self.base is not None:
            self.base.write(keep=keep)
        for lock, new_lock in self.locks.items():
            write(new_lock, read_text(lock), like=lock)
        write(self.new_file, self.new_text, like=self.file)
        if not keep:
            for old in (*self.locks, *([self.file] if self.new_file != self.file else [])):
                old.unlink()


@dataclass(frozen=True, slots=True)
class SourceSession:
    """Shared state of the commands on sources and patches."""

    catalog: Catalog
    settings: Settings
    context: PatchContext

    @property
    def repositories(self) -> Repositories:
        """The mirrors."""
        return self.context.repositories

    def patch_set(self, entry: Entry[Recipe]) -> PatchSet:
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

    def change(
        self, entry: Entry[R], text: str, base: RecipeChange[BaseRecipe] | None = None
    ) -> RecipeChange[R]:
        """A change of the file of a recipe or a base; ``base`` is the change of its base.

        Raises ``RecipeError`` when the new text is no valid recipe, or another one has its name.
        """
        recipe, problems = parse(text, entry.file, type(entry.recipe))
        if recipe is None:
            raise RecipeError(f"{entry.name} would not be valid", problems=problems)
        file = entry.file.with_name(f"{recipe.name}.toml")
        if file != entry.file and file.exists():
            raise RecipeError(
                f"{entry.name} would be renamed to {recipe.name}, which exists already",
                hint="remove one of them, or name another ref with --to",
            )
        folder, locks = entry.file.parent, locks_of(recipe)
        moved = {
            folder / lock: folder / locks[table]
            for table, lock in locks_of(entry.recipe).items()
            if locks.get(table, lock) != lock
        }
        others = [*self.catalog.engines.values(), *self.catalog.bases.values()]
        above = [each for each in others if each.recipe and each.recipe.base == entry.name]
        shared = len(above) > 1
        return RecipeChange(entry.file, file, entry.text, text, recipe, moved, base, shared)

    def findings(self, change: RecipeChange[Recipe]) -> list[PatchFinding]:
        """The findings for the patches of a changed recipe.  Raises ``FetchError``."""
        entry = Entry(change.recipe.name, change.file, change.new_text, change.recipe)
        patch_set = self.patch_set(entry)
        return list(diagnose(patch_set)) if patch_set.patches else []


@contextmanager
def open_session(
    catalog: Catalog, settings: Settings, log: Log, *, offline: bool
) -> Iterator[SourceSession]:
    """A session with a work directory of its own, which is removed afterwards."""
    settings.require_directories()
    with workspace(settings.cache_dir) as work:
        repositories = Repositories(settings.cache_dir, work, log, offline=offline)
        yield SourceSession(catalog, settings, PatchContext(repositories, work, None, log))


def _image_for_scripts(catalog: Catalog, recipe: Recipe, settings: Settings) -> str | None:
    """An image of the recipe's base that has Python; None where no engine has one."""
    try:
        machine = settings.compile_on or architecture(docker.engine().architecture)
        if machine is None:
            return None
        below = catalog.base(recipe.base).recipe
        if below.published is not None:
            # Any version of it does: a script needs nothing but its Python.
            return next(iter(docker.image_names(f"builder-base/{below.name}:runtime-*")), None)
        base = Resolver(catalog, machine, settings.debian_root).resolve_base(recipe.base)
        stage = "devel" if "devel" in base.stages else "runtime"
        return base.references[stage] if in_engine(base, base.references[stage]) else None
    except BuilderError:
        return None
