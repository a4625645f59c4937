"""Arguments and options that several commands share, and the values that they name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from builder.core.errors import RecipeError
from builder.core.farm import farm_root
from builder.core.platforms import Platform
from builder.core.sizes import contexts_of

if TYPE_CHECKING:
    from builder.recipes.catalog import Catalog


# Completion in a shell: names of the catalog.
#
# They come from the names of files; of presets, only the model's name is read. A key press does
# not wait for files to be checked.


def recipes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Recipes."""
    return _completed(ctx, incomplete, lambda root: _stems(root / "recipes"))


def presets_and_recipes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Short names of presets, presets, then recipes."""
    return _completed(
        ctx,
        incomplete,
        lambda root: [
            *_short_names(root / "presets"),
            *_stems(root / "presets"),
            *_stems(root / "recipes"),
        ],
    )


def known_cards(ctx: typer.Context, incomplete: str) -> list[str]:
    """Cards that have a file."""
    from builder.presets import cards  # slow to import: its models are pydantic's

    return _completed(ctx, incomplete, cards.names)


def complete_tags(ctx: typer.Context, incomplete: str) -> list[str]:
    """The tags of the recipe that stands before."""

    def of_recipe(root: Path) -> list[str]:
        text = (root / "recipes" / f"{ctx.params['recipe']}.toml").read_text("utf-8")
        return [str(tag) for tag in tomllib.loads(text)["image"]["tags"]]

    return _completed(ctx, incomplete, of_recipe)


def _completed(
    ctx: typer.Context, incomplete: str, names: Callable[[Path], Iterable[str]]
) -> list[str]:
    try:
        found = names(farm_root(ctx.params.get("catalog")))
    except (RecipeError, OSError, ValueError, LookupError):
        return []  # a shell that completes shows no errors
    return [name for name in found if name.startswith(incomplete)]


def _short_names(folder: Path) -> list[str]:
    from builder.presets import all_names

    texts = {file.stem: file.read_text("utf-8") for file in folder.glob("*.toml")}
    models = {name: tomllib.loads(text)["model"]["name"] for name, text in texts.items()}
    return all_names(models)


def _stems(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.toml"))


# The options.


class EngineCommand(TyperCommand):
    """A command that takes options of the engine after ``--``; an error says so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments, as Click parses them."""
        given = [*args]
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if hasattr(error, "possibilities"):  # Click's NoSuchOption
                name = getattr(error, "option_name", "")
                # Click names -n alone for -ngl.
                word = next((each for each in given if each.startswith(name)), name)
                known = f"; options of the engine go after --: ... -- {word}"
                error.message = f"No such option: {word}{known}"  # type: ignore[attr-defined]
            raise


RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="Name of a recipe, or of an engine that has only one recipe.",
        autocompletion=recipes,
    ),
]
SomeRecipe = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE",
        help="Name of a recipe. Default: all recipes.",
        autocompletion=recipes,
    ),
]
Recipes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE",
        help="Names of recipes. Default: all recipes.",
        autocompletion=recipes,
    ),
]
CatalogOption = Annotated[
    Path | None,
    typer.Option(
        "--catalog",
        metavar="DIR",
        envvar="BUILDER_CATALOG",
        help="Repository that contains recipes/. Default: the repository around the working "
        "directory, else the repository that builder was installed from.",
    ),
]
PlatformOption = Annotated[
    Platform | None,
    typer.Option(
        "--platform",
        metavar="OS/ARCHITECTURE",
        help="Only the image for this platform: linux/amd64 or linux/arm64. Default: all images "
        "of the recipe.",
    ),
]
OnePlatformOption = Annotated[
    Platform | None,
    typer.Option(
        "--platform",
        metavar="OS/ARCHITECTURE",
        help="Which image of a recipe with several platforms: linux/amd64 or linux/arm64.",
    ),
]
DropOption = Annotated[
    list[str] | None,
    typer.Option(
        "--drop-platform",
        metavar="OS/ARCHITECTURE",
        help="Platform that a tag may lose, because the new image lacks it; repeatable.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
OfflineOption = Annotated[
    bool,
    typer.Option(
        "--offline",
        help="Download nothing. An input that is neither mirrored nor cached is an error.",
    ),
]
BuilderOption = Annotated[
    str | None,
    typer.Option(
        "--builder",
        metavar="NAME",
        help="Buildx builder that compiles, for example on another machine. The local engine loads "
        "the image from it. Default: BUILDX_BUILDER, else the engine's own builder.",
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        metavar="N",
        min=1,
        max=4096,
        help="Number of parallel compile jobs. Default: as many as the cores and the memory of "
        "the compiling machine allow.",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show the changes, but write nothing.")
]
JunitOption = Annotated[
    Path | None,
    typer.Option(
        "--junit", metavar="FILE", dir_okay=False, help="Write the verdict to this JUnit XML file."
    ),
]


def reason_option(text: str, what: str = "the tag is moved") -> Any:
    """The option --reason TEXT: why ``what`` is so."""

    def not_blank(reason: str | None) -> str | None:
        if reason is not None and not reason.strip():
            raise typer.BadParameter(f"the reason is empty: write why {what}")
        return reason

    return typer.Option("--reason", metavar="TEXT", callback=not_blank, help=text)


def _checked_tag(value: str | None) -> str | None:
    """Refuse a value that registries refuse: it becomes a part of a URL."""
    from builder.recipes.fields import PATTERNS, TAG

    if value is not None and not re.fullmatch(TAG, value):
        raise typer.BadParameter(f"{value!r} {PATTERNS[TAG]}")
    return value


def _checked_reference(value: str | None) -> str | None:
    """Accept a tag or a full digest."""
    from builder.recipes.fields import DIGEST, PATTERNS

    if value is None or not value.startswith("sha256:"):
        return _checked_tag(value)
    if not re.fullmatch(DIGEST, value):
        raise typer.BadParameter(f"{value!r} {PATTERNS[DIGEST]}")
    return value


def checked_capability(value: str | None) -> str | None:
    """Accept a compute capability: 12.0."""
    from simulator.selection import Capability

    try:
        return str(Capability.parse(value)) if value is not None else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


TagName = Annotated[
    str,
    typer.Argument(
        metavar="TAG",
        callback=_checked_tag,
        help="Tag: latest, nightly, ...",
        autocompletion=complete_tags,
    ),
]
Reference = Annotated[
    str,
    typer.Argument(
        metavar="TAG|DIGEST",
        callback=_checked_reference,
        help="Tag or digest of an image in the recipe's repository.",
        autocompletion=complete_tags,
    ),
]


def reference_option(flag: str, text: str) -> Any:
    """An option that names an image in a registry by tag or digest."""
    return typer.Option(flag, metavar="TAG|DIGEST", callback=_checked_reference, help=text)


def output_option(text: str) -> Any:
    """The option --output DIR."""
    return typer.Option("--output", metavar="DIR", file_okay=False, help=text)


def file_option(flag: str, text: str, panel: str | None = None) -> Any:
    """An option that names a file that exists."""
    return typer.Option(
        flag, metavar="FILE", exists=True, dir_okay=False, help=text, rich_help_panel=panel
    )


def catalog_at(folder: Path | None) -> Catalog:
    """Read all recipes; raises ``RecipeError`` if there is no catalog."""
    from builder.engines.families import load_catalog

    return load_catalog(farm_root(folder))


def contexts(text: str) -> tuple[int, ...]:
    """The sizes of ``--context`` in tokens; raises ``typer.BadParameter``."""
    try:
        return contexts_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--context") from error


def one_context(text: str) -> int:
    """The only size of ``--context`` in tokens; raises ``typer.BadParameter``."""
    found = contexts(text)
    if len(found) > 1:
        raise typer.BadParameter("give one size", param_hint="--context")
    return found[0]
