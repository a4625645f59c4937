"""What all commands share: the application, its options, and how they find their recipes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from builder.errors import EXIT_CODES, PROGRAM, WorldError, as_started
from builder.farm import farm_root

if TYPE_CHECKING:
    from builder.cli.console import BuildProgress
    from builder.images.session import BuildOptions, BuildSession
    from builder.recipes.catalog import Catalog
    from builder.smoke.gpu import GpuTest
    from builder.smoke.verdict import Verdict
    from builder.tools.registry.client import Repository

EPILOG = "Exit codes: " + "; ".join(f"{code} {text}" for code, text in EXIT_CODES.items()) + "."

EVERYDAY = "Everyday commands"
OTHERS = "Other commands and groups of commands"
PANELS = (EVERYDAY, OTHERS)
ORDER = (
    *("list", "show", "build", "smoke", "push", "nightly", "status", "bench", "bisect", "doctor"),
    *("recipe", "patch", "pin", "tag", "hub", "sbom", "bake", "ci"),
)


class _InOrder(TyperGroup):
    """Lists its commands in the order in which people meet them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)


app = typer.Typer(
    name="builder",
    cls=_InOrder,
    help="The image farm for sm_120 inference engines: recipes in, verified Docker images out.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _group(name: str, text: str) -> typer.Typer:
    group = typer.Typer(no_args_is_help=True, help=text)
    app.add_typer(group, name=name, rich_help_panel=OTHERS)
    return group


recipe_group = _group("recipe", "Check and explain recipes, and export those of published images.")
patch_group = _group("patch", "Check, add and follow the patches of recipes.")
pin_group = _group("pin", "Update, verify and mirror the pinned inputs of recipes.")
tag_group = _group("tag", "Move the tags of published images, and delete old nightlies.")
hub_group = _group("hub", "Write the repository's page on Docker Hub.")
ci_group = _group("ci", "What workflows need: the matrix of jobs, and the compiler cache.")


def run() -> None:
    """Run the command that the command line names, and exit as typer does.

    Usage lines and --help name builder as the user started it.
    """
    command = typer.main.get_command(app)
    _named_as_started(command)
    command(prog_name=PROGRAM if "BUILDER_PROGRAM" in os.environ else None)


def _named_as_started(command: Any) -> None:
    for part in (command, *command.params):
        for name in ("help", "epilog"):
            if getattr(part, name, None):
                setattr(part, name, as_started(getattr(part, name)))
    for below in getattr(command, "commands", {}).values():
        _named_as_started(below)


RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="Name of a recipe, or of an engine with one version")
]
CatalogOption = Annotated[
    Path | None,
    typer.Option(
        "--catalog",
        metavar="DIR",
        envvar="BUILDER_CATALOG",
        help="The repository that contains recipes/. Default: the one around the working "
        "directory, else the one that builder was installed from.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]


OfflineOption = Annotated[
    bool,
    typer.Option(
        "--offline",
        help="Fetch nothing. An input that is neither mirrored nor cached is an error.",
    ),
]

BuilderOption = Annotated[
    str | None,
    typer.Option(
        "--builder",
        metavar="NAME",
        help="The buildx builder that compiles, for example on another machine. The engine loads "
        "the image from it and smoke-tests it. Default: BUILDX_BUILDER, else the engine's own.",
    ),
]

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be written, but write nothing.")
]

JunitOption = Annotated[
    Path | None,
    typer.Option("--junit", metavar="FILE", dir_okay=False, help="Write the verdict as JUnit XML."),
]
SummaryOption = Annotated[
    Path | None,
    typer.Option(
        "--summary",
        metavar="FILE",
        dir_okay=False,
        help="Append the verdict to this file as Markdown. On GitHub it is always appended to the "
        "job's summary.",
    ),
]


def _checked_tag(value: str | None) -> str | None:
    """What a registry takes for a tag; nothing else becomes a part of a URL."""
    from builder.recipes.schema.fields import PATTERNS, TAG

    if value is not None and not re.fullmatch(TAG, value):
        raise typer.BadParameter(f"{value!r} {PATTERNS[TAG]}")
    return value


def _checked_reference(value: str | None) -> str | None:
    """A tag, or a digest in full."""
    from builder.recipes.schema.fields import DIGEST, PATTERNS

    if value is None or not value.startswith("sha256:"):
        return _checked_tag(value)
    if not re.fullmatch(DIGEST, value):
        raise typer.BadParameter(f"{value!r} {PATTERNS[DIGEST]}")
    return value


ChannelTag = Annotated[
    str,
    typer.Argument(
        metavar="TAG", callback=_checked_tag, help="The tag that is moved: latest, nightly, ..."
    ),
]
Reference = Annotated[
    str,
    typer.Argument(
        metavar="TAG|DIGEST",
        callback=_checked_reference,
        help="An image of the recipe's repository.",
    ),
]


def reference_option(flag: str, text: str) -> Any:
    """An option that names an image of a registry by a tag or a digest."""
    return typer.Option(flag, metavar="TAG|DIGEST", callback=_checked_reference, help=text)


def reporter(junit: Path | None = None, summary: Path | None = None) -> BuildProgress:
    """The reporter of a build, which also writes each verdict to these files, good or not."""
    from builder.cli import console
    from builder.records import junit as junit_xml
    from builder.records import markdown

    files = summaries(summary)

    def write(name: str, verdict: Verdict) -> None:
        if junit is not None:
            junit_xml.write(junit, name, verdict)
        markdown.append(markdown.of_verdict(name, verdict), files)

    return console.BuildProgress(write)


def summaries(summary: Path | None) -> list[Path]:
    """The files that Markdown is added to: the one that was asked for, and GitHub's."""
    named = [summary, os.environ.get("GITHUB_STEP_SUMMARY")]
    return [Path(file) for file in named if file]


def catalog_at(folder: Path | None) -> Catalog:
    """Read all recipes; raises ``RecipeError`` where there are none to be found."""
    from builder import families
    from builder.recipes import catalog

    engines = {name: family.check for name, family in families.ENGINES.items()}
    bases = {name: family.check for name, family in families.BASES.items()}
    return catalog.load(farm_root(folder), engines, bases)


def repository_of(recipes: Catalog, name: str) -> Repository:
    """The repository of a recipe's images.

    Raises ``RecipeError`` for an unknown recipe, ``RegistryError`` where it would be Docker's own.
    """
    from builder import settings
    from builder.cli import console
    from builder.publish import push

    found = recipes.engine(name).recipe
    return push.opened(settings.load().repository(found.image.repository), console.log)


def build_options(
    *,
    gpu_test: GpuTest | None = None,
    rebuild: bool = False,
    offline: bool = False,
    jobs: int | None = None,
    builder: str | None = None,
) -> BuildOptions:
    """The options of a build, with the user's settings; raises ``WorldError`` for wrong ones."""
    from builder import settings
    from builder.images.session import BuildOptions

    given = {"jobs": jobs, "buildx": builder}
    chosen = settings.load().model_copy(
        update={name: value for name, value in given.items() if value is not None}
    )
    return BuildOptions(chosen, gpu_test, rebuild, offline)


def build_session(
    folder: Path | None, options: BuildOptions | None = None, progress: BuildProgress | None = None
) -> BuildSession:
    """The recipes, with the options and the reporter of builds; by default the user's settings."""
    from builder.images.session import BuildSession

    chosen = options or build_options()
    return BuildSession(catalog_at(folder), chosen, progress or reporter())


def build_architecture() -> str | None:
    """None where the engine can be asked; this machine's own where there is none."""
    import platform

    from builder.tools.docker import engine as docker

    try:
        docker.engine()
    except WorldError:
        return platform.machine()
    return None


def print_json(value: Any) -> None:
    """Print a result for programs."""
    typer.echo(json.dumps(value, indent=2))
