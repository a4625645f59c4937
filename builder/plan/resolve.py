"""Resolve every input of a recipe.

A plan is made without fetching anything, and contains all inputs that decide the image.  Its
base is a plan as well.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from builder import families
from builder.errors import FetchError, RecipeError
from builder.farm import dockerfiles
from builder.plan import tree_hash
from builder.plan.debian import debian_packages, lock_file, suite_of
from builder.plan.inputs import (
    Archive,
    BootstrappedRoot,
    GitCommit,
    Installed,
    LocalTree,
    PlannedPatch,
    PypiFile,
    RootChoice,
    SourceChoice,
)
from builder.plan.plan import BasePlan, Plan
from builder.platforms import Platforms, of_target
from builder.recipes import debian_lock
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.lockfile import PinnedFile
from builder.recipes.schema import (
    AddPatch,
    ArchiveSource,
    BaseRecipe,
    FilePatch,
    GitSource,
    InstalledSource,
    PathSource,
    PickPatch,
    PullPatch,
    PypiSource,
    Recipe,
    Root,
    ScriptPatch,
)


def _scripts(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def bootstrapped_root(
    entry: Entry[BaseRecipe], root: Root, platforms: Platforms
) -> BootstrappedRoot:
    """The root that mmdebstrap makes for a base.

    Raises ``RecipeError`` where its lock cannot be read.
    """
    file = lock_file(entry)
    as_of = (
        f"{debian_lock.read(file, entry.name).as_of:%Y-%m-%d}"
        if file is not None
        else root.as_of or ""
    )
    return BootstrappedRoot(root.suite, as_of, (*root.packages, *root.crossing(platforms)))


def _require_stages(entry: Entry[Any], base: BasePlan, *stages: str) -> None:
    missing = [stage for stage in stages if stage not in base.stages]
    if missing:
        message = (
            f"{base.name} has no stage {' and no stage '.join(missing)} that {entry.name} needs"
        )
        raise RecipeError(
            f"{entry.name} cannot use the base {base.name}",
            problems=(entry.problem(("base",), message),),
        )


def plan_base(catalog: Catalog, name: str, platforms: Platforms, root: RootChoice) -> BasePlan:
    """Resolve a base and those below it.

    Raises ``RecipeError`` when one of them is wrong.
    """
    entry = catalog.base(name)
    recipe = _base_for(entry.recipe, platforms)
    family = families.BASES[recipe.family]
    below = plan_base(catalog, recipe.base, platforms, root) if recipe.base else None
    if below is not None:
        _require_stages(entry, below, *family.requires_stages)
    folder = dockerfiles(catalog.root)
    scripts = family.scripts + (family.cross_scripts if platforms.cross else ())
    return BasePlan(
        recipe=recipe,
        file=entry.file,
        platforms=platforms,
        packages=family.packages(recipe, entry.file.parent, platforms),
        dockerfiles=folder,
        scripts=_scripts(folder / "scripts", scripts),
        root=root if recipe.root or recipe.published else None,
        base=below,
        debian=debian_packages(entry, family.debian(recipe, platforms), suite_of(catalog, name)),
    )


def _tree(folder: Path) -> dict[str, str]:
    """sha256 (hex) of each file of a directory; older templates have none for the entrypoint."""
    if not folder.is_dir():
        return {}
    return _scripts(folder, tuple(sorted(file.name for file in folder.iterdir())))


def plan(
    catalog: Catalog,
    entry: Entry[Recipe],
    platforms: Platforms,
    root: RootChoice,
    tools: BasePlan | None = None,
    namespace: str = "",
) -> Plan:
    """Resolve an engine's recipe; ``root`` is the root of its bases.

    ``tools`` is the base that its family compiles the entrypoint in, if it names one;
    ``namespace`` comes before the image's repository.

    Raises ``RecipeError`` when a file that the recipe names is wrong, ``FetchError`` when the
    source tree of an in-repo engine is not there.
    """
    recipe = _for(complete(entry.recipe.on(platforms.image)), platforms)
    _require_tree(entry, catalog.root)
    family = families.ENGINES[recipe.family]
    base = plan_base(catalog, recipe.base, platforms, root)
    _require_stages(entry, base, *family.requires_stages)
    folder = dockerfiles(catalog.root)
    name = recipe.image.repository
    return Plan(
        recipe=recipe,
        repository=f"{namespace}/{name}" if namespace else name,
        file=entry.file,
        platforms=platforms,
        source=resolve_source(recipe, catalog.root),
        patches=resolve_patches(entry, catalog.root),
        packages=family.packages(recipe, entry.file.parent, platforms),
        dockerfiles=folder,
        scripts=_scripts(folder / "scripts", family.scripts),
        entrypoint=_tree(folder / "entrypoint") if family.runs else {},
        base=base,
        tools=tools,
        debian=debian_packages(
            entry, family.debian(recipe, platforms), suite_of(catalog, recipe.base)
        ),
    )


def _for(recipe: Recipe, platforms: Platforms) -> Recipe:
    """A recipe whose Debian packages name the target's architecture."""
    build = of_target(recipe.debian.build, platforms.target)
    debian = recipe.debian.model_copy(update={"build": build})
    return recipe.model_copy(update={"debian": debian})


def _base_for(recipe: BaseRecipe, platforms: Platforms) -> BaseRecipe:
    """A base whose packages to compile with name the target's architecture."""
    packages = of_target(recipe.devel.packages, platforms.target)
    devel = recipe.devel.model_copy(update={"packages": packages})
    return recipe.model_copy(update={"devel": devel})


def _require_tree(entry: Entry[Recipe], root: Path) -> None:
    source = entry.recipe.source
    if isinstance(source, PathSource) and not (root / source.path).is_dir():
        message = f"there is no source tree {root / source.path}"
        raise FetchError(
            f"the source of {entry.name} is missing",
            str(entry.problem(("source", "path"), message)),
            f"correct path, a directory below {root}, or restore the directory",
        )


def complete(recipe: Recipe) -> Recipe:
    """A recipe with the defaults of its family."""
    return families.ENGINES[recipe.family].complete(recipe)


def resolve_source(recipe: Recipe, root: Path) -> SourceChoice:
    """The source of a recipe; paths are below ``root``, the repository.

    Raises ``FetchError`` when the tree of an in-repo engine is not there.
    """
    source = recipe.source
    match source:
        case PathSource(path=path):
            return LocalTree(root / path, tree_hash.identity(root / path))
        case GitSource():
            return GitCommit(source.git, source.commit, source.submodules, source.submodule)
        case PypiSource(pypi=name, version=version, sha256=digest, subdirectory=folder):
            file, family = PinnedFile(name, version, digest), families.ENGINES[recipe.family]
            texts_only = family.package_paths is not None
            return PypiFile(file, folder, texts_only=texts_only, below=family.package_root)
        case ArchiveSource(archive=url, sha256=digest, subdirectory=folder):
            return Archive(url, digest, folder)
        case InstalledSource(installed=name):
            if recipe.overlay is None:
                raise RecipeError(
                    f"{recipe.name} does not say which package it patches",
                    hint="add [overlay] with the package and its version",
                )
            return Installed(name, recipe.overlay.version)


def resolve_patches(entry: Entry[Recipe], root: Path) -> tuple[PlannedPatch, ...]:
    """The patches of a recipe, with the contents of patch files of ``root/patches``.

    Raises ``RecipeError`` when such a file cannot be read.
    """
    source = entry.recipe.source
    home = source.git if isinstance(source, GitSource) else ""
    scope = families.ENGINES[entry.recipe.family].package_paths
    found = []
    for index, patch in enumerate(entry.recipe.patch):
        match patch:
            case FilePatch(file=name):
                content = _patch_file(entry, index, root / "patches" / name)
                found.append(PlannedPatch(patch, content=content, scope=scope))
            case PullPatch():
                found.append(PlannedPatch(patch, patch.git or home, scope=scope))
            case PickPatch(pick=pick):
                found.append(PlannedPatch(patch, pick.git or home, scope=scope))
            case ScriptPatch(script=script):
                found.append(PlannedPatch(patch, script.git))
            case AddPatch(add=add):
                found.append(PlannedPatch(patch, add.git))
    return tuple(found)


def _patch_file(entry: Entry[Recipe], index: int, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}"
        problem = entry.problem(("patch", index, "file"), message)
        raise RecipeError(f"a patch of {entry.name} is missing", problems=(problem,)) from error
