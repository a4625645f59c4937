"""The command `builder bisect`."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli.options import (
    EVERYDAY,
    BuilderOption,
    CatalogOption,
    JsonOption,
    RecipeName,
    app,
    build_options,
    build_session,
    print_json,
    reporter,
)

if TYPE_CHECKING:
    from builder.bisect.run import Outcome
    from builder.tools.git.bisection import Commit


class BuildFails(StrEnum):
    """The verdict on a commit that does not compile."""

    SKIP = "skip"
    BAD = "bad"


@app.command(rich_help_panel=EVERYDAY)
def bisect(
    recipe: RecipeName,
    catalog: CatalogOption = None,
    builder: BuilderOption = None,
    good: Annotated[
        str | None,
        typer.Option(metavar="REF", help="The last known good tag, branch or commit."),
    ] = None,
    bad: Annotated[
        str | None, typer.Option(metavar="REF", help="A later tag, branch or commit that is bad.")
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="A shell command that decides instead of the smoke test. It runs in the directory "
            "where the bisect started, with the image in $IMAGE and the commit in $COMMIT. Exit "
            "code 0: good; 125: skip; 1 to 124: bad; any other stops the bisect.",
        ),
    ] = None,
    build_fails: Annotated[
        BuildFails,
        typer.Option(
            metavar="skip|bad",
            help="The verdict on a commit that does not compile. With bad, the bisect finds the "
            "commit that broke the build.",
        ),
    ] = BuildFails.SKIP,
    first_parent: Annotated[
        bool,
        typer.Option("--first-parent", help="Find the merge; do not search the commits inside it."),
    ] = False,
    trust_ends: Annotated[
        bool,
        typer.Option(
            "--trust-ends", help="Do not check first that --good is good and --bad is bad."
        ),
    ] = False,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            "--skip",
            metavar="COMMIT",
            help="Do not try this commit (seven digits or more). May be given several times.",
        ),
    ] = None,
    keep_images: Annotated[
        bool, typer.Option("--keep-images", help="Keep the image of every commit in the engine.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="Number of parallel compile jobs, as for build."),
    ] = None,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart",
            help="Discard the progress and start again. Options that are not given keep their "
            "previous values, unless both --good and --bad are given.",
        ),
    ] = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="Discard the progress, and do nothing else.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Print the progress, and try nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find the commit of upstream that broke an engine, by building and smoke-testing some of them.

    git chooses the commits; each one replaces the recipe's pin and is built with the compiler
    cache. A commit is bad when the image fails a check, or when --test says so. It is skipped when
    it does not compile, or when a patch of the recipe does not fit; a patch that upstream already
    contains is left out. Both ends are tried first, because a wrong end gives a wrong answer that
    looks right. If the good end is no ancestor of the bad one, their merge base is tried too.

    After Ctrl-C, a crash, a broken network or a build that ran out of memory, the same command
    continues where it stopped, and so does `builder bisect RECIPE`. The images of the commits are
    removed, except those that existed before; the logs are kept.

    The exit code is 0 when the first bad commit is found, 8 when only skipped commits are left or
    a build or the test ended abnormally, and 2 when an end is not as good or bad as given.
    """
    from builder.bisect import run as bisect_run
    from builder.bisect.ask import Request
    from builder.smoke.gpu import GpuTest

    progress = reporter()
    build = build_options(gpu_test=GpuTest(), jobs=jobs, builder=builder)
    builds = build_session(catalog, build, progress)
    if reset:
        bisect_run.reset(builds, recipe, keep=keep_images)
        return
    if status:
        _tell(bisect_run.status(builds, recipe), as_json)
        return
    request = Request(good, bad, test, build_fails.value, first_parent)
    options = bisect_run.Options(trust_ends, tuple(skip or ()), keep_images, restart)
    with progress:
        outcome = bisect_run.bisect(builds, recipe, request, options)
    _tell(outcome, as_json)
    bisect_run.finish(builds, outcome)


def _tell(outcome: Outcome, as_json: bool) -> None:
    from builder.bisect.ask import count
    from builder.cli import console

    if as_json:
        print_json(_described(outcome))
        return
    rows = [
        (
            step.verdict,
            step.commit.name[:9],
            step.commit.date,
            step.commit.subject,
            step.evaluation.why,
        )
        for step in outcome.steps
    ]
    console.table(("", "commit", "", "", "why"), rows)
    question = outcome.question
    console.line(
        f"\nbetween {question.good} and {question.bad}: {count(len(outcome.steps))} evaluated, "
        f"{outcome.builds} built"
    )
    if outcome.state == "open":
        console.line(f"{count(outcome.left)} left, about {outcome.left.bit_length()} to try")
    if outcome.first_bad is not None:
        _tell_first_bad(outcome, outcome.first_bad)


def _tell_first_bad(outcome: Outcome, found: Commit) -> None:
    from builder.cli import console

    console.line(f"\n{found.name} is the first bad commit")
    console.line(f"  {found.subject}\n  {found.author}, {found.date}")
    for step in outcome.steps:
        if step.commit.name == found.name:
            console.line(f"  {step.evaluation.why}")
            console.line(f"  the log is {step.evaluation.log}")


def _described(outcome: Outcome) -> dict[str, Any]:
    steps = [{**asdict(step.commit), **asdict(step.evaluation)} for step in outcome.steps]
    first_bad = outcome.first_bad
    return {
        **asdict(outcome.question),
        "state": outcome.state,
        "first_bad": asdict(first_bad) if first_bad else None,
        "candidates": [asdict(commit) for commit in outcome.candidates],
        "left": outcome.left,
        "builds": outcome.builds,
        "steps": steps,
        "log": outcome.log,
    }
