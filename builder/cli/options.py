"""Arguments and options that several commands share, and the values that they name."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperArgument, TyperOption

from builder.core.errors import RecipeError
from builder.core.farm import farm_root
from builder.core.platforms import Platform
from builder.core.sizes import contexts_of

if TYPE_CHECKING:
    from builder.core.settings import Settings
    from builder.recipes.catalog import Catalog


CATALOG = "BUILDER_CATALOG"  # the variable that --catalog sets

# Completion in a shell: names of the catalog.
#
# They come from the names of files; of presets, only the model's name is read. A key press does
# not wait for files to be checked.


def recipes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Recipes."""
    return _completed(ctx, incomplete, lambda root: _stems(root / "recipes"))


def presets_and_recipes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Short names of presets, presets, then recipes."""
    from builder.presets import all_names

    return _completed(
        ctx,
        incomplete,
        lambda root: [
            *all_names(
                {
                    file.stem: tomllib.loads(file.read_text("utf-8"))["model"]["name"]
                    for file in (root / "presets").glob("*.toml")
                }
            ),
            *_stems(root / "presets"),
            *_stems(root / "recipes"),
        ],
    )


def known_cards(ctx: typer.Context, incomplete: str) -> list[str]:
    """Cards that have a file."""
    from builder.presets import cards  # slow to import: its models are pydantic's

    return _completed(ctx, incomplete, cards.names)


def _complete_tags(ctx: typer.Context, incomplete: str) -> list[str]:

    def of_recipe(root: Path) -> list[str]:
        text = (root / "recipes" / f"{ctx.params['recipe']}.toml").read_text("utf-8")
        recipe = tomllib.loads(text)
        image = recipe.get("image", {})
        tags = [*image.get("tags", [recipe["version"]]), *image.get("moving", [])]
        return [str(tag) for tag in tags]

    return _completed(ctx, incomplete, of_recipe)


def _completed(
    ctx: typer.Context, incomplete: str, names: Callable[[Path], Iterable[str]]
) -> list[str]:
    try:
        given = ctx.find_root().params.get("catalog")
        found = names(given or farm())
    except (RecipeError, OSError, ValueError, LookupError):
        return []  # a shell that completes shows no errors
    return [name for name in found if name.startswith(incomplete)]


def _stems(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.toml"))


# The options.


def _value(param: Any, ctx: Any) -> str:  # noqa: ARG001
    """What help shows behind an option: what it takes; typer would show the types of arguments
    and of flags."""
    return "" if param.param_type_name == "argument" or param.is_flag else param.metavar or ""


TyperArgument.display_type_rich = TyperOption.display_type_rich = _value  # type: ignore[method-assign,assignment]


def _checked_tag(value: str | None) -> str | None:
    """Refuse a value that registries refuse: it becomes a part of a URL."""
    from builder.recipes.fields import PATTERNS, TAG

    if value is not None and not re.fullmatch(TAG, value):
        raise typer.BadParameter(f"{value!r} {PATTERNS[TAG]}")
    return value


def _checked_reference(value: str | None) -> str | None:
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


def option(name: str, text: str, default: Any = None, **more: Any) -> Any:
    """The option ``--name METAVAR`` of a signature; with the default ``...`` it must be given."""
    words = name.split()
    names = [word for word in words if word.startswith("-")]
    metavar = words[-1] if len(words) > len(names) else None
    return typer.Option(default, *names, metavar=metavar, help=text, **more)


def flag(name: str, text: str) -> Any:
    """The option ``--name``, which is off unless it is given."""
    return option(name, text, False)


def argument(metavar: str, text: str, default: Any = ..., **more: Any) -> Any:
    """An argument, in a function's signature; it must be given if it has no default."""
    return typer.Argument(default, metavar=metavar, help=text, **more)


def output_option(text: str, default: Any = None) -> Any:
    """The option --output DIR."""
    return option("--output DIR", text, default, file_okay=False)


def file_option(flag: str, text: str, panel: str | None = None) -> Any:
    """An option that names a file that exists."""
    return option(f"{flag} FILE", text, exists=True, dir_okay=False, rich_help_panel=panel)


def reference_option(flag: str, text: str) -> Any:
    """An option that names an image in a registry by tag or digest."""
    return option(f"{flag} TAG|DIGEST", text, callback=_checked_reference)


def reason_option(text: str, what: str = "the tag is moved", default: Any = None) -> Any:
    """The option --reason TEXT: why ``what`` is so."""

    def not_blank(reason: str | None) -> str | None:
        if reason is not None and not reason.strip():
            raise typer.BadParameter(f"the reason is empty: write why {what}")
        return reason

    return option("--reason TEXT", text, default, callback=not_blank)


# Options of several commands; their defaults stand in the signatures.

RecipeName = Annotated[
    str,
    argument(
        "RECIPE",
        "Name of a recipe, or of an engine: its current recipe.",
        autocompletion=recipes,
    ),
]
RecipeNames = Annotated[
    list[str],
    argument(
        "RECIPE",
        "Names of recipes, or of engines: their current recipes.",
        autocompletion=recipes,
    ),
]
SomeRecipe = Annotated[
    str | None,
    argument("RECIPE", "Name of a recipe. Default: all recipes.", autocompletion=recipes),
]
Recipes = Annotated[
    list[str] | None,
    argument("RECIPE", "Names of recipes. Default: all recipes.", autocompletion=recipes),
]
TagName = Annotated[
    str,
    argument(
        "TAG", "Tag: latest, nightly, ...", callback=_checked_tag, autocompletion=_complete_tags
    ),
]
Reference = Annotated[
    str,
    argument(
        "TAG|DIGEST",
        "Tag or digest of an image in the recipe's repository.",
        callback=_checked_reference,
        autocompletion=_complete_tags,
    ),
]
PlatformOption = Annotated[
    Platform | None,
    option(
        "--platform OS/ARCHITECTURE",
        "Only the image for this platform: linux/amd64 or linux/arm64. Default: all images of the "
        "recipe.",
        ...,
    ),
]
OnePlatformOption = Annotated[
    Platform | None,
    option(
        "--platform OS/ARCHITECTURE",
        "Which image of a recipe with several platforms: linux/amd64 or linux/arm64.",
        ...,
    ),
]
DropOption = Annotated[
    list[str] | None,
    option(
        "--drop-platform OS/ARCHITECTURE",
        "Platform that a tag may lose, because the new image lacks it; repeatable.",
        ...,
    ),
]
JsonOption = Annotated[bool, option("--json", "Print the result as JSON.", ...)]
OfflineOption = Annotated[
    bool,
    option(
        "--offline",
        "Download nothing. An input that is neither mirrored nor cached is an error.",
        ...,
    ),
]
BuilderOption = Annotated[
    str | None,
    option(
        "--builder NAME",
        "Buildx builder that compiles, for example on another machine. The local engine loads the "
        "image from it. Default: BUILDX_BUILDER, else the engine's own builder.",
        ...,
    ),
]
JobsOption = Annotated[
    int | None,
    option(
        "--jobs N",
        "Number of parallel compile jobs. Default: as many as the cores and the memory of the "
        "compiling machine allow.",
        ...,
        min=1,
        max=4096,
    ),
]
DryRunOption = Annotated[bool, option("--dry-run", "Show the changes, but write nothing.", ...)]
JunitOption = Annotated[
    Path | None,
    option("--junit FILE", "Write the verdict to this JUnit XML file.", ..., dir_okay=False),
]


def farm() -> Path:
    """The farm of --catalog, else the nearest; raises ``RecipeError`` if there is none."""
    given = os.environ.get(CATALOG)
    return farm_root(Path(given) if given else None)


def catalog_at(root: Path | None = None) -> Catalog:
    """Read all recipes, of the user's farm unless one is given; raises ``RecipeError``."""
    from builder.engines.families import load_catalog

    return load_catalog(root or farm())


def user_settings() -> Settings:
    """The user's settings; raises ``WorldError`` where they are invalid."""
    from builder.core import settings  # slow to import

    return settings.load()


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
