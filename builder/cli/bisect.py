"""``builder bisect``."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli.options import (
    BuilderOption,
    CatalogOption,
    JobsOption,
    JsonOption,
    OnePlatformOption,
    RecipeName,
)
from builder.cli.tables import table
from builder.cli.terminal import line, print_json

if TYPE_CHECKING:
    from builder.upstream.bisect import BisectResult


class BuildFails(StrEnum):
    """The verdict on a commit that does not compile."""

    SKIP = "skip"
    BAD = "bad"


def bisect(
    recipe: RecipeName,
    catalog: CatalogOption = None,
    platform: OnePlatformOption = None,
    builder: BuilderOption = None,
    good: Annotated[
        str | None,
        typer.Option(metavar="REF", help="Tag, branch or commit that is known to be good."),
    ] = None,
    bad: Annotated[
        str | None,
        typer.Option(metavar="REF", help="Later tag, branch or commit that is known to be bad."),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Shell command that decides instead of the smoke test. It runs in the directory "
            "where the bisect was started, with the image in $IMAGE and the commit in $COMMIT. "
            "Exit code 0: good; 125: skip; 1 to 124: bad; any other stops the bisect.",
        ),
    ] = None,
    build_fails: Annotated[
        BuildFails,
        typer.Option(
            metavar="skip|bad",
            help="Verdict on a commit that does not compile. With bad, the bisect finds the commit "
            "that broke the build.",
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
            help="Do not test this commit (at least seven digits). May be repeated.",
        ),
    ] = None,
    jobs: JobsOption = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Discard progress and do nothing else.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Print the progress and test nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find the upstream commit that broke an engine, by building and testing commits.

    git chooses the commits. Each one replaces the recipe's pin and is built with the compiler
    cache. A commit is bad if the image fails its smoke test, or --test in its place. It is skipped
    if it does not compile, or if a patch of the recipe does not apply; a patch that upstream
    already contains is left out. Both ends are tested first, because a wrong end leads to a wrong
    answer that looks right. If the good end is not an ancestor of the bad one, their merge base is
    tested too.

    After an interruption, a crash, a network failure or a build that ran out of memory, repeat the
    command, or run `builder bisect RECIPE`, to continue. The images of the commits are removed,
    except images that existed before; the logs are kept.

    The exit code is 0 if the first bad commit is found; 8 if only skipped commits are left, or if a
    build or the test stopped early; and 2 if --good is not good, or --bad not bad.
    """
    from builder.checks.smoke_subject import GpuTest
    from builder.cli.session import build_session, reporter
    from builder.upstream import bisect as search
    from builder.upstream.request import BisectRequest

    progress = reporter()
    builds = build_session(
        catalog, progress, gpu_test=GpuTest(), jobs=jobs, builder=builder, platform=platform
    )
    if reset:
        search.reset(builds, recipe)
        return
    if status:
        _print_outcome(search.status(builds, recipe), as_json)
        return
    request = BisectRequest(good, bad, test, build_fails.value, first_parent)
    options = search.BisectOptions(trust_ends, tuple(skip or ()))
    with progress:
        outcome = search.bisect(builds, recipe, request, options)
    _print_outcome(outcome, as_json)
    search.finish(builds, outcome)


def _print_outcome(outcome: BisectResult, as_json: bool) -> None:
    from builder.upstream.request import count

    if as_json:
        print_json(_as_data(outcome))
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
    table(("", "commit", "", "", "why"), rows)
    question = outcome.question
    line(
        f"\nbetween {question.good} and {question.bad}: {count(len(outcome.steps))} tested, "
        f"{outcome.builds} built"
    )
    if outcome.state == "open":
        line(f"{count(outcome.left)} left, about {outcome.left.bit_length()} to test")
    found = outcome.first_bad
    if found is None:
        return
    line(f"\n{found.name} is the first bad commit")
    line(f"  {found.subject}\n  {found.author}, {found.date}")
    for step in outcome.steps:
        if step.commit.name == found.name:
            line(f"  {step.evaluation.why}")
            line(f"  the log is {step.evaluation.log}")


def _as_data(outcome: BisectResult) -> dict[str, Any]:
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
