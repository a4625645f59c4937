"""``builder ci``: matrix, trials, ccache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from builder.cli.options import (
    BuilderOption,
    CatalogOption,
    JsonOption,
    RecipeName,
    Recipes,
    catalog_at,
)
from builder.cli.terminal import line, log, print_json, table
from builder.core import sizes

group = typer.Typer(
    no_args_is_help=True,
    help="For workflows: the matrix of jobs, the memory of presets, and the compiler cache.",
)
ccache = typer.Typer(
    no_args_is_help=True, help="Save the engine's compiler cache to a file, and load it elsewhere."
)
group.add_typer(ccache, name="ccache")


@group.command()
def matrix(
    recipes: Recipes = None,
    catalog: CatalogOption = None,
    changed_since: Annotated[
        str | None,
        typer.Option(
            metavar="REV",
            help="Only recipes whose image or whose checks changed since this commit of the "
            "catalog's repository.",
        ),
    ] = None,
    direct: Annotated[
        bool,
        typer.Option(
            "--direct",
            help="With --changed-since: only recipes that changed themselves (the file, its lock, "
            "its patches, its source), not those whose base or builder changed.",
        ),
    ] = False,
    tracked: Annotated[
        bool,
        typer.Option(
            "--tracked", help="Only recipes with a channel, which `builder nightly` moves."
        ),
    ] = False,
    large_runner: Annotated[
        str,
        typer.Option(
            metavar="LABEL",
            help="Runner for recipes that need more disk than GitHub's standard runner has. "
            "Without it, these recipes are left out with a warning.",
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Print the jobs of a workflow: each recipe with its runner, disk space and caches.

    With --json, the output is a matrix for GitHub's fromJSON. Nothing is downloaded, and no engine
    is needed. Changes are found by build keys, which each revision computes with its own code:
    a new template changes every recipe, a comment changes none. If nothing has changed, the matrix
    is empty and the exit code is 0. The exit code is 4 if the commit does not exist.
    """
    import tempfile

    from builder.upstream import night as matrices

    if direct and changed_since is None:
        raise typer.BadParameter("requires --changed-since", None, None, "--direct")
    found = catalog_at(catalog)
    jobs = matrices.jobs(found, recipes or (), tracked=tracked)
    if changed_since is not None:
        with tempfile.TemporaryDirectory() as work:
            before = matrices.earlier(found.root, changed_since, Path(work), log)
        jobs = matrices.changed(jobs, before, direct=direct)
    placed, left_out = matrices.placed(jobs, large_runner)
    for job in left_out:
        log(
            f"{job.recipe} is left out: it needs {job.disk} GiB of disk, and {matrices.HOSTED} has "
            f"{matrices.CLEARED:.0f} GiB after cleaning; give another runner with --large-runner"
        )
    if as_json:
        print_json({"include": [asdict(job) for job in placed]})
        return
    rows = [
        (
            job.recipe,
            job.channel,
            f"{job.disk} GiB{', cleaned' if job.clear else ''}",
            job.runner,
            job.cache,
        )
        for job in placed
    ]
    table(("recipe", "channel", "disk", "runner", "compiler cache"), rows)


@group.command()
def trials(
    recipes: Recipes = None, catalog: CatalogOption = None, as_json: JsonOption = False
) -> None:
    """Write what the smoke test found without a GPU to trials/, for machines without the image.

    It has the memory of presets on simulated cards, the server's paths, and the sums of the device
    code, from the record of the newest verified image, else of the newest one that was refused.
    trials/README.md gets tables of all images. Without names, recipes without an image that ran on
    a simulated card are left out. The exit code is 8 if you name a recipe without an image.
    """
    from builder.build import record, reports
    from builder.core import settings
    from builder.core.errors import UntriedError
    from builder.presets import catalog as preset_files
    from builder.presets.schema import TRIALS
    from builder.presets.shapes import own_contexts

    found, state = catalog_at(catalog), settings.load().state_dir
    names = [found.engine(name).name for name in recipes] if recipes else [*found.engines]
    presets = {each.name: each.preset for each in preset_files.load(found).valid()}
    files = {}
    for name in names:
        kept = record.newest_good(state, name) or record.newest_refused(state, name)
        if kept is not None and (recipes or kept.verdict.device is not None):
            files[name] = reports.write_trials(found.root, kept)
        elif recipes:
            hint = f"`builder build {name}`, or `builder smoke {name}` for an older image"
            what = f"no image of {name} was checked on this machine"
            raise UntriedError(what, hint=hint)
    if (found.root / TRIALS).is_dir():
        reports.write_trials_page(found, presets, own_contexts())
    if as_json:
        print_json({name: str(file) for name, file in files.items()})
    else:
        table(("recipe", "file"), [(name, str(file)) for name, file in files.items()])


@ccache.command()
def save(
    recipe: RecipeName,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", dir_okay=False, help="A tar file; an existing one is replaced."
        ),
    ],
    catalog: CatalogOption = None,
    builder: BuilderOption = None,
    limit: Annotated[
        float,
        typer.Option(
            metavar="GIB",
            min=0.01,
            max=1000,
            help="Maximum size; the least recently used entries are left out.",
        ),
    ] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Save the engine's compiler cache to a file.

    All recipes share one cache per engine, which is not changed. If the recipe compiles nothing,
    the command does nothing.
    """
    from builder.build import ccache as compiler_cache

    _carry(recipe, file, catalog, builder, partial(compiler_cache.save, limit=limit), as_json)


@ccache.command()
def load(
    recipe: RecipeName,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", dir_okay=False, help="A file that `builder ci ccache save` wrote."
        ),
    ],
    catalog: CatalogOption = None,
    builder: BuilderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add the contents of a file to the engine's compiler cache, before a build.

    The recipe's base image is built if it is missing, because the cache is loaded inside it. If the
    recipe compiles nothing, the command does nothing. A file that is incomplete, or that `builder
    ci ccache save` did not write, is refused. The author of the file controls the contents of
    your builds: load only files from people whom you trust.
    """
    from builder.build import ccache as compiler_cache

    _carry(recipe, file, catalog, builder, compiler_cache.load, as_json)


def _carry(
    recipe: str,
    file: Path,
    catalog: Path | None,
    builder: str | None,
    carry: Callable[..., int],
    as_json: bool,
) -> None:
    """Save or load the cache of the recipe's engine, if it compiles anything."""
    from builder.build.build import compile_image
    from builder.cli.session import build_session
    from builder.core.files import workspace

    session = build_session(catalog, builder=builder)
    image = compile_image(session.plans(recipe)[0], session)
    size = None
    if image is not None:
        path = file.absolute()
        with workspace(session.settings.cache_dir) as work:
            size = carry(image, path, work, builder=session.settings.buildx)
    if as_json:
        print_json(None if size is None else {"file": str(file.absolute()), "size": size})
    elif size is None:
        line(f"{recipe} compiles nothing, so it has no compiler cache")
    else:
        line(f"compiler cache {file.absolute()}  ({sizes.shown(size)})")
