"""``builder nightly`` and ``builder status``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    Recipes,
    catalog_at,
)
from builder.cli.terminal import counted, line, log, minute, print_json, table
from builder.core import sizes

if TYPE_CHECKING:
    from builder.build.reports import Overview
    from builder.publish.nights import NightlyRun
    from builder.publish.verdicts import Reproduced
    from builder.upstream.bisect import BisectResult
    from builder.upstream.status import Status

DIGITS = 19  # of a digest: "sha256:" and twelve
WIDE = 120  # columns


def nightly(
    recipes: Recipes = None,
    catalog: CatalogOption = None,
    builder: BuilderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring every channel to its upstream: build, smoke-test, push, then move the channel's tag.

    The upstream that [track] names is looked up once and written to a recipe of its own, which is
    attached to the image and kept in the state directory. Patches that upstream already contains
    are left out. If another patch does not apply, nothing is built. An
    image that the registry already has, by build key, is not built again if the channel points to
    it, this machine built it, or a trusted key signed its verdict.

    If an engine fails, its channel stays, the other channels are moved, and the exit code is 13. A
    channel that was rolled back stays until upstream has a newer version. A channel whose update
    exceeds the recipe's [budget] stays until somebody promotes the image. The result of each run is
    stored beside the channel's tag, where `builder status` reads it.
    """
    from builder.checks.subject import GpuTest
    from builder.cli.session import build_session, reporter
    from builder.upstream.night import require_good, run_channels

    runs = []
    with reporter() as progress:
        session = build_session(catalog, progress, gpu_test=GpuTest(), builder=builder)
        for run in run_channels(session, recipes or []):
            runs.append(run)
            progress.log(f"{run.recipe}: {run.outcome}: {run.reason or run.upstream}")
    _print([run.model_dump() for run in runs], overview_of_runs(runs), as_json)
    require_good(runs)


def status(
    recipes: Recipes = None,
    catalog: CatalogOption = None,
    channels: Annotated[
        bool, typer.Option("--channels", help="Only recipes that have a channel.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the published image of each recipe and channel, and how far upstream is ahead.

    Each line has the digest and its creation date, the current upstream, the commits and days (d)
    that the image is behind, the result of the last nightly run, and the download of the last
    update: the layers that the image before lacks. If nothing is missing, "still" is followed by
    the days since upstream moved. If somebody has reproduced the image, the line
    has the day and the trusted key that signed the statement. --json adds the last good
    and the last failed run, and the commit of the image. Only the registry and upstream are asked,
    so every machine gives the same answer. The exit code is 14 if a channel is behind, or its
    upstream still, for longer than its limit, has no image, or could not be checked; 5 if a server
    does not answer, or the state of a tag is not known for another reason; 3 if --channels finds no
    channel; and 12 if no namespace is set.
    """
    from builder.core import settings
    from builder.core.errors import RecipeError
    from builder.upstream.patches import open_session
    from builder.upstream.status import require_fresh, statuses

    found = catalog_at(catalog)
    loaded = settings.load()
    with open_session(found, loaded, log, offline=False) as session:
        repositories = session.repositories
        listed = list(statuses(found, loaded, recipes or [], repositories, only_channels=channels))
    if channels and not listed:
        raise RecipeError(
            "no recipe has a channel",
            f"looked at {', '.join(recipes or []) or 'all recipes of the catalog'}",
            'add channel = "TAG" to [track] in a recipe, and the tag to image.moving',
        )
    _print([each.as_json() for each in listed], overview_of_statuses(listed), as_json)
    require_fresh(listed)


def _print(data: list[dict[str, Any]], overview: Overview, as_json: bool) -> None:
    from builder.build import reports

    reports.append_to_summary(reports.of_table(overview))
    if as_json:
        print_json(data)
        return
    table(overview.header, overview.rows)
    for note in overview.notes:
        line(note)


def overview_of_runs(runs: Sequence[NightlyRun]) -> Overview:
    """The results of a nightly run, a row for each channel."""
    from builder.build.reports import Overview

    rows = tuple(
        (
            run.recipe,
            run.channel,
            run.outcome,
            run.upstream,
            run.digest[:DIGITS],
            sizes.shown(run.update) if run.update is not None else "",
            f"{run.seconds:.0f} s",
            _first(run.reason),
        )
        for run in runs
    )
    good = sum(run.good for run in runs)
    header = ("recipe", "channel", "", "upstream", "serves", "update", "took", "why")
    return Overview(f"Nightly run: {good} of {len(runs)} channels are good", header, rows)


def overview_of_statuses(found: Sequence[Status]) -> Overview:
    """A row for each tag; as notes the last nightly run of each channel, updates and problems."""
    from builder.build.reports import Overview
    from builder.upstream.status import grouped

    header = ("recipe", "tag", "", "serves", "created", "upstream", "behind")
    rows = tuple(_row(status) for status in found)
    notes = tuple(grouped(note for status in found for note in _notes(status)))
    notes = tuple(text if len(text) <= WIDE else f"{text[: WIDE - 4]} ..." for text in notes)
    return Overview("Recipes and channels", header, rows, notes)


def _row(status: Status) -> tuple[str, ...]:
    image = status.image
    return (
        status.recipe,
        status.tag,
        status.state,
        image.digest.removeprefix("sha256:")[:12] if image else "",
        image.created[:10] if image else "",
        _upstream(status),
        _behind(status),
    )


def _upstream(status: Status) -> str:
    """The name of a tag or branch and its commit, the tag and the digest of an image, a release."""
    if status.upstream == status.commit:
        return status.upstream
    commit = status.commit.removeprefix("sha256:")[:9]
    return f"{status.upstream.rpartition(':')[2]} {commit}"


def _behind(status: Status) -> str:
    if status.image is None or status.days is None:
        return ""
    of_what = "release" if status.upstream == status.commit else "commit"
    commits = f"{counted(status.commits, of_what)}, " if status.commits else ""
    limit = f"/{status.limit}" if status.limit is not None else ""
    newer = status.commits is None or status.commits > 0
    if newer and status.upstream:
        return f"{commits}{status.days}{limit} d"
    if status.still_limit is None or status.commits != 0:
        return ""
    known = status.still is not None
    return (
        f"still {status.still}/{status.still_limit} d" if known else "still: not known since when"
    )


def _first(reason: str) -> str:
    """The failed steps; the reasons are below the table, and in the JSON."""
    return reason.partition("\n")[0]


def _downloads(status: Status) -> Iterator[str]:
    """The download of the last update, and of each image of an index."""
    if status.image is None:
        return
    before = "for somebody who has the image before"
    platforms = status.image.platforms
    if len(platforms) < 2 and status.update is not None:
        update, anew = map(sizes.shown, (status.update, status.image.download_size))
        yield f"download: {update} {before}, {anew} anew"
    for name, found in platforms.items() if len(platforms) > 1 else ():
        size = status.updates.get(name)
        known = f"{sizes.shown(size)} {before}, " if size is not None else ""
        yield f"download for {name}: {known}{sizes.shown(found.download_size)} anew"


def _reproduced(found: Reproduced) -> str:
    text = f"reproduced {found.created[:10]} on {found.architecture}"
    if found.key:
        return f"{text}, signed by {found.key}"
    return f"{text}, unverified: {found.problem or 'no trusted key signed the statement'}"


def _notes(status: Status) -> Iterator[tuple[str, str]]:
    """The texts about a tag, each after its recipe."""
    name, last = status.recipe, status.last
    if last is not None:
        good = minute(status.good.started) if status.good else "unknown"
        ended = f"last nightly run {minute(last.started)}: {last.outcome}"
        yield name, f"{ended}{'' if last.good else f'; last good one: {good}'}"
        if not last.good:
            yield name, _first(last.reason)
    if status.held:
        yield name, f"held: {status.held}"
    if status.state == "still":
        yield name, f"upstream has not moved for {status.still} days"
    for text in _downloads(status):
        yield name, text
    if status.reproduced is not None:
        yield name, _reproduced(status.reproduced)
    for text in status.problem.splitlines():
        yield name, text


# ``builder bisect``.


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
    from builder.checks.subject import GpuTest
    from builder.cli.session import build_session, reporter
    from builder.upstream import bisect as search
    from builder.upstream.bisect import BisectRequest

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
    with progress:
        outcome = search.bisect(builds, recipe, request, trust_ends=trust_ends, skip=skip or ())
    _print_outcome(outcome, as_json)
    search.finish(builds, outcome)


def _print_outcome(outcome: BisectResult, as_json: bool) -> None:
    if as_json:
        print_json(_as_data(outcome))
        return
    rows = [
        (step.verdict, step.commit.name[:9], step.commit.date, step.commit.subject, step.why)
        for step in outcome.steps
    ]
    table(("", "commit", "", "", "why"), rows)
    question = outcome.question
    tested = f"{counted(len(outcome.steps), 'commit')} tested, {outcome.builds} built"
    line(f"\nbetween {question.good} and {question.bad}: {tested}")
    if outcome.state == "open":
        line(f"{counted(outcome.left, 'commit')} left, about {outcome.left.bit_length()} to test")
    found = outcome.first_bad
    if found is None:
        return
    line(f"\n{found.name} is the first bad commit")
    line(f"  {found.subject}\n  {found.author}, {found.date}")
    for step in outcome.steps:
        if step.commit.name == found.name:
            line(f"  {step.why}")
            line(f"  the log is {step.log}")


def _as_data(outcome: BisectResult) -> dict[str, Any]:
    steps = [asdict(step) for step in outcome.steps]
    first_bad = outcome.first_bad
    return {
        **asdict(outcome.question),
        "state": outcome.state,
        "first_bad": asdict(first_bad) if first_bad else None,
        "candidates": [asdict(commit) for commit in outcome.candidates],
        "left": outcome.left,
        "builds": outcome.builds,
        "steps": [{**step.pop("commit"), **step} for step in steps],
        "log": outcome.log,
    }
