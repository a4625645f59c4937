"""The command that tells a workflow what to build."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from builder.cli.options import CatalogOption, JsonOption, catalog_at, ci_group, print_json


@ci_group.command()
def matrix(
    recipes: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECIPE", help="Names of recipes. Default: all."),
    ] = None,
    catalog: CatalogOption = None,
    changed_since: Annotated[
        str | None,
        typer.Option(
            metavar="REV",
            help="Only recipes whose image, or whose checks, changed since this commit of the "
            "catalog's repository.",
        ),
    ] = None,
    own: Annotated[
        bool,
        typer.Option(
            "--own",
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
            help="The runner of recipes that need more disk than GitHub's standard runner has. "
            "Without it they are left out, with a warning.",
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Tell what a workflow builds: each recipe with its runner, its disk and its cache.

    With --json it is the matrix of a GitHub workflow, for fromJSON. Nothing is fetched, and no
    engine is asked. What has changed is told by the keys of both revisions, each by its own
    code: a new template changes every recipe, a comment none. Where nothing has changed the
    matrix is empty, and the exit code 0; it is 4 where there is no such commit.
    """
    import tempfile
    from pathlib import Path

    from builder.ci import matrix as matrices
    from builder.cli import console

    if own and changed_since is None:
        raise typer.BadParameter(
            "it says which changes count: name --changed-since, too", None, None, "--own"
        )
    found = catalog_at(catalog)
    jobs = matrices.jobs(found, recipes or (), tracked=tracked)
    if changed_since is not None:
        with tempfile.TemporaryDirectory() as work:
            before = matrices.earlier(found.root, changed_since, Path(work), console.log)
        jobs = matrices.changed(jobs, before, own=own)
    there, left = matrices.placed(jobs, large_runner)
    for job in left:
        console.log(
            f"{job.recipe} is left out: it needs {job.disk} GiB of disk, and {matrices.HOSTED} has "
            f"{matrices.CLEARED:.0f} when it is cleared; --large-runner names another"
        )
    if as_json:
        print_json({"include": [asdict(job) for job in there]})
        return
    rows = [
        (
            job.recipe,
            job.channel,
            f"{job.disk} GiB{', cleared' if job.clear else ''}",
            job.runner,
            job.cache,
        )
        for job in there
    ]
    console.table(("recipe", "channel", "disk", "runner", "compiler cache"), rows)
