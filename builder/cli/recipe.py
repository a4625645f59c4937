"""``builder recipe``: new, check, explain, export, lock, schema."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from builder.cli import options
from builder.cli.options import (
    argument,
    catalog_at,
    farm,
    flag,
    option,
    output_option,
    user_settings,
)
from builder.cli.pin import open_session
from builder.cli.terminal import counted, line, log, minute, paragraph, print_json, table
from builder.core.errors import PROGRAM, RecipeError, WorldError
from builder.core.platforms import Platform

if TYPE_CHECKING:
    from builder.plan.explain import Checked


group = typer.Typer(
    no_args_is_help=True,
    help="Write, check, explain recipes; get a published image's recipe.",
)


@group.command()
def new(
    url: str = argument(
        "URL",
        "Git repository; git's own configuration may rewrite it. Or an sdist of PyPI: "
        "pypi:PROJECT==RELEASE.",
    ),
    ref: str | None = option(
        "--ref REF", "Tag, branch or commit. Default: the newest tag, else the default branch."
    ),
    root: str | None = option("--root DIRECTORY", "Directory of the source in an sdist."),
    like: str | None = option(
        "--like RECIPE", "Take family, base, CMake definitions and image settings from this recipe."
    ),
    name: str | None = option(
        "--name ENGINE-VERSION",
        "Name of the recipe. Default: the repository's name and the tag or commit.",
    ),
    about: str | None = option(
        "--about TEXT",
        "Description of the engine, one line. Default: the first heading of its README.",
    ),
    license_id: str | None = option(
        "--license SPDX",
        "SPDX license expression. Default: the license file's, if its text is known.",
    ),
    force: bool = flag("--force", "Replace the recipe of that name if there is one."),
    dry_run: options.DryRunOption = False,
) -> None:
    """Write a recipe for a tree: a fork of llama.cpp, or an engine like another recipe's.

    It passes `builder recipe check` before it is written; with it come its lock files and, in a
    checkout, what the farm's tests compare. A tree that no family recognizes needs --like.
    """
    from builder.upstream import new_recipe

    recipes = catalog_at()
    wish = new_recipe.Wish(
        url=url, ref=ref, root=root, like=like, name=name, summary=about, license=license_id
    )
    with open_session(recipes) as session:
        found = new_recipe.draft(recipes, wish, session.repositories, session.context.work)
    for each in new_recipe.lines(found):
        log(each)
    if dry_run:
        line(found.text)
        return
    if found.file.exists() and not force:
        raise WorldError(
            f"{found.file} exists already",
            hint="another --name ENGINE-VERSION, or --force to replace it",
        )
    for file in new_recipe.write(found, recipes.root):
        line(f"written {file}")
    if like is not None:
        parts = "entrypoint, definitions, packages, probes, summary"
        log(f"look over what it has from {like}: {parts}")
    given = os.environ.get(options.CATALOG)
    where = f" --catalog {shlex.quote(given)}" if given else ""
    log(f"next: {PROGRAM} build {found.recipe.name}{where}")


@group.command()
def check(
    recipes: list[str] | None = argument(
        "RECIPE|PRESET",
        "Names of recipes, which are checked with their presets, or of presets. Default: all.",
        None,
        autocompletion=options.presets_and_recipes,
    ),
    strict: bool = flag("--strict", "Treat warnings as errors, for CI of a catalog."),
    as_json: options.JsonOption = False,
) -> None:
    """Check recipes and presets without building: format, plan, Dockerfile, missing probes.

    Warnings name gaps of the smoke test, and options of a preset that its image does not suit.
    """
    from builder.build import compilers
    from builder.plan import explain as lint
    from builder.presets import catalog as preset_files
    from builder.presets import is_preset

    loaded = catalog_at()
    presets = preset_files.load(loaded)
    named = recipes or [*loaded.engines, *presets.entries, *presets.archived]
    # The file of a preset may be misnamed: MODEL.toml.
    theirs = {name for name in named if is_preset(name) or name in presets.entries}
    wrong = compilers.warnings(loaded.root)
    of_recipes = [lint.lint(loaded, name, wrong) for name in named if name not in theirs]
    chosen = {name: presets.entry(name) for name in named if name in theirs}
    for each in of_recipes:
        chosen |= {entry.name: entry for entry in presets.of_recipe(each.name)}
    of_presets = [
        lint.Checked(
            name, "\n".join(map(str, of.problems)), (*preset_files.warnings_of(of, loaded),)
        )
        for name, of in chosen.items()
    ]
    checked = [*of_recipes, *of_presets]
    if as_json:
        print_json([{**each._asdict(), "warnings": [*map(str, each.warnings)]} for each in checked])
    else:
        here = os.path.relpath(loaded.root)
        near = "" if here == "." else f"{here}/"
        for each in checked:
            warnings = (f"{warning} (warning)" for warning in each.warnings)
            for text in (*each.error.splitlines(), *warnings):
                line(text if here.startswith("..") else text.replace(f"{loaded.root}/", near))
    _require_valid({"recipe": of_recipes, "preset": of_presets}, strict=strict)


def _require_valid(found: Mapping[str, Sequence[Checked]], *, strict: bool) -> None:
    bad, good = [], []
    for noun, checked in found.items():
        names = [each.name for each in checked if each.error or (strict and each.warnings)]
        if names:
            total = f"{len(names)} of {counted(len(checked), noun)}"
            bad.append(f"{total} {'is' if len(names) == 1 else 'are'} invalid: {', '.join(names)}")
        elif checked:
            good.append(counted(len(checked), noun))
    if bad:
        raise RecipeError("; ".join(bad))
    log(f"valid: {' and '.join(good)}")


@group.command()
def explain(
    recipe: options.RecipeName,
    platform: options.OnePlatformOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show a recipe in full: the same as `show RECIPE --flags`, and the device code.

    The last part is what cards do with the device code of its newest verified image, each library
    by itself where this machine checked the image. Nothing is downloaded or built.
    """
    from builder.build.reports import code_of
    from builder.cli.show import explanation, print_explanation
    from builder.image.code_paths import HEADER, rows, text_of_sums

    root = farm()
    found = explanation(root, recipe, platform)
    code = code_of(root, found["name"], found["platform"], user_settings().state_dir)
    if as_json:
        print_json({**found, "device_code": asdict(code) if code else None})
        return
    print_explanation(found, flags=True)
    if code:
        title = f"Device code of image {code.key[:12]} of {minute(code.created)}, by {code.source}"
        paragraph(title, [text_of_sums(code.sums)])
        table(HEADER, rows(code.libraries))


@group.command()
def export(
    recipe: options.RecipeName,
    reference: options.Reference,
    output: Path | None = output_option(
        "Directory for the recipe. Default: recipes/ of the catalog."
    ),
    dry_run: options.DryRunOption = False,
) -> None:
    """Write the recipe that a published image was built from, so that it can be built again.

    Its lock files are written with it, and bases that are not there. An existing file with
    different contents is not overwritten.
    """
    from builder.recipes.catalog import read_text
    from builder.recipes.edit import write

    folder = output or farm() / "recipes"
    with _attached_catalog(recipe, reference) as found:
        inside = found / "recipes"
        names = sorted(file.relative_to(inside) for file in inside.rglob("*.toml"))
        texts = {folder / name: read_text(inside / name) for name in names}
    # A base that has moved on stays: the recipe is built on it.
    texts = {
        file: text
        for file, text in texts.items()
        if not (file.is_relative_to(folder / "bases") and file.exists())
    }
    if dry_run:
        for file, text in texts.items():
            line(f"# {file}\n{text}")
        return
    for file, text in texts.items():
        if file.exists() and file.read_text("utf-8", "replace") != text:
            raise WorldError(f"{file} exists with different contents", hint="give --output DIR")
    for file, text in texts.items():
        existed = file.exists()
        write(file, text)
        line(f"{'unchanged' if existed else 'written'} {file}")


@contextmanager
def _attached_catalog(
    recipe: str, reference: str, platform: Platform | None = None
) -> Iterator[Path]:
    """The catalog that is attached to an image."""
    from builder.core.files import workspace
    from builder.publish.attachments import catalog_of
    from builder.publish.tags import repository_of

    repository = repository_of(catalog_at(), recipe, log)
    settings = user_settings()
    settings.require_directories()
    with workspace(settings.cache_dir) as work:
        yield catalog_of(repository, reference, work / "attached", platform)


@group.command()
def lock(
    recipe: options.RecipeName,
    reference: options.Reference,
    output: Path = output_option("New directory for the lock.", ...),
    platform: options.OnePlatformOption = None,
) -> None:
    """Write the lock of a published image: a catalog of all that the image was made of.

    `builder build RECIPE --catalog DIR` builds the image again from it, with the same key and the
    same digest, however recipes, bases, patches and templates of this farm have moved on.
    """
    from builder.core.files import require_writable
    from builder.plan.inputs import lock_at

    if output.exists():
        raise WorldError(f"{output} exists already", hint="name a new directory: --output DIR")
    require_writable(output, "name another directory: --output DIR")
    with _attached_catalog(recipe, reference, platform) as found:
        made = lock_at(found)
        if made is None:
            raise WorldError(
                f"{recipe} {reference} has no lock",
                "it was pushed before there were locks",
                f"take its recipe: `builder recipe export {recipe} {reference}`",
            )
        shutil.copytree(found, output, symlinks=True)
        (name,) = (file.stem for file in (found / "recipes").glob("*.toml"))
    line(f"written {output}: {name} {made.key[:12]} for {made.platform}")
    log(f"next: {PROGRAM} build {name} --catalog {shlex.quote(str(output))}")


@group.command()
def schema(
    base: bool = flag("--base", "Print the schema of bases instead."),
    preset: bool = flag("--preset", "Print the schema of presets instead."),
) -> None:
    """Print the JSON Schema of recipes, for editors.

    An editor finds it through the first line of a recipe: `#:schema schemas/recipe.schema.json`
    """
    from builder.presets.schema import Preset
    from builder.recipes.schema import BaseRecipe, Recipe, json_schema, with_extends

    if base and preset:
        raise typer.BadParameter("--base and --preset exclude each other")
    if preset or base:
        print_json(json_schema(Preset if preset else BaseRecipe))
    else:
        print_json(with_extends(json_schema(Recipe)))
