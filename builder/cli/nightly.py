"""``builder nightly`` and ``builder status``."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import typer

from builder.cli import options
from builder.cli.options import argument, catalog_at, flag, option, output_option, user_settings
from builder.cli.terminal import counted, line, log, minute, pairs, print_json, table, wrapped
from builder.core import sizes
from builder.core.errors import RecipeError, UntriedError, WorldError, listed
from builder.core.files import workspace
from builder.core.platforms import PLATFORMS, Platforms

if TYPE_CHECKING:
    from builder.build.reports import Overview
    from builder.core.settings import Settings
    from builder.measure.doctor import Finding
    from builder.publish.nights import NightlyRun
    from builder.upstream.bisect import BisectResult
    from builder.upstream.status import Status

DIGITS = 19  # of a digest: "sha256:" and twelve
WIDE = 120  # columns


def nightly(
    recipes: options.Recipes = None,
    builder: options.BuilderOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Bring every channel to its upstream: build, check, push, move.

    Patches that upstream contains are left out; if another one does not apply, nothing is built. If
    an engine fails, its channel stays and the others are moved. `builder status` shows what became
    of each run.
    """
    from builder.checks.subject import GpuTest
    from builder.cli.session import build_session, reporter
    from builder.upstream.night import require_good, run_channels

    runs = []
    with reporter() as progress:
        session = build_session(progress, gpu_test=GpuTest(), builder=builder)
        for run in run_channels(session, recipes or []):
            runs.append(run)
            progress.log(f"{run.recipe}: {run.outcome}: {run.reason or run.upstream}")
    _print([run.model_dump() for run in runs], overview_of_runs(runs), as_json)
    require_good(runs)


def status(
    recipes: options.Recipes = None,
    channels: bool = flag("--channels", "Only recipes that have a channel."),
    as_json: options.JsonOption = False,
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
    from builder.upstream.patches import open_session
    from builder.upstream.status import require_fresh, statuses

    found = catalog_at()
    loaded = user_settings()
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
    from builder.checks.verdict import append_to_summary

    append_to_summary(reports.of_table(overview))
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
            *(run.recipe, run.channel, run.outcome, run.upstream, run.digest[:DIGITS]),
            sizes.shown(run.update) if run.update is not None else "",
            *(f"{run.seconds:.0f} s", _first(run.reason)),
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
    serves = image.digest.removeprefix("sha256:")[:12] if image else ""
    created = image.created[:10] if image else ""
    # A tag or branch and its commit, the tag and the digest of an image, or a release.
    upstream = status.upstream
    if upstream != status.commit:
        commit = status.commit.removeprefix("sha256:")[:9]
        upstream = f"{upstream.rpartition(':')[2]} {commit}"
    names = (status.recipe, status.tag, status.state)
    return (*names, serves, created, upstream, _behind(status))


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
    if status.still is None:
        return "still: not known since when"
    return f"still {status.still}/{status.still_limit} d"


def _first(reason: str) -> str:
    """The failed steps; of checks their names, of one check all. The JSON has the whole reason."""
    what, _, why = reason.partition("\n")
    checks = [each for each in why.splitlines() if ": expected: " in each]
    if not checks:
        return what
    names = [each.partition(": expected: ")[0] for each in checks]
    count = what.partition(" is built, and ")[2] or what
    return f"{count}: {checks[0] if len(checks) == 1 else listed(names, 3, ', ')}"


def _downloads(status: Status) -> Iterator[str]:
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


def _notes(status: Status) -> Iterator[tuple[str, str]]:
    name, last = status.recipe, status.last
    if last is not None:
        good = minute(status.good.started) if status.good else "unknown"
        ended = f"last nightly run {minute(last.started)}: {last.outcome}"
        yield name, f"{ended}{'' if last.good else f'; last good one: {good}'}"
        if not last.good or (last.outcome == "held" and not status.held):
            yield name, _first(last.reason)
    if status.held:
        yield name, f"held: {status.held}"
    if status.state == "empty" and status.presets:
        yield name, f"no image for {listed(status.presets, 3, ', ')}: `builder push {name}`"
    if status.state == "still":
        yield name, f"upstream has not moved for {status.still} days"
    scans = (each.text for each in status.vulnerable if each.fixed)
    for text in (*_downloads(status), *scans):
        yield name, text
    if again := status.reproduced:
        text = f"reproduced {again.created[:10]} on {again.architecture}"
        problem = again.problem or "no trusted key signed the statement"
        yield name, f"{text}, {f'signed by {again.key}' if again.key else f'unverified: {problem}'}"
    for cause in status.causes:
        yield name, cause


# ``builder bisect``.


def bisect(
    recipe: options.RecipeName,
    platform: options.OnePlatformOption = None,
    builder: options.BuilderOption = None,
    good: str | None = option("--good REF", "Tag, branch or commit that is known to be good."),
    bad: str | None = option("--bad REF", "Later tag, branch or commit that is known to be bad."),
    test: str | None = option(
        "--test COMMAND",
        "Shell command that decides instead of the smoke test. It runs in the directory where "
        "the bisect was started, with the image in $IMAGE and the commit in $COMMIT. Exit code "
        "0: good; 125: skip; 1 to 124: bad; any other stops the bisect.",
    ),
    build_fails: Literal["skip", "bad"] = option(
        "--build-fails skip|bad",
        "Verdict on a commit that does not compile. With bad, the bisect finds the commit that "
        "broke the build.",
        "skip",
    ),
    first_parent: bool = flag(
        "--first-parent", "Find the merge; do not search the commits inside it."
    ),
    trust_ends: bool = flag(
        "--trust-ends", "Do not check first that --good is good and --bad is bad."
    ),
    skip: list[str] | None = option(
        "--skip COMMIT", "Do not test this commit (at least seven digits). May be repeated."
    ),
    jobs: options.JobsOption = None,
    reset: bool = flag("--reset", "Discard progress and do nothing else."),
    status: bool = flag("--status", "Print the progress and test nothing."),
    as_json: options.JsonOption = False,
) -> None:
    """Find the upstream commit that broke an engine.

    A commit is bad if the image fails its smoke test, or --test in its place; it is skipped if it
    does not compile. After an interruption, the same command, or `builder bisect RECIPE`,
    continues. The exit code is 8 if only skipped commits are left, and 2 if --good is not good, or
    --bad not bad.
    """
    from builder.checks.subject import GpuTest
    from builder.cli.session import build_session, reporter
    from builder.upstream import bisect as search
    from builder.upstream.bisect import BisectRequest

    progress = reporter()
    builds = build_session(
        progress, gpu_test=GpuTest(), jobs=jobs, builder=builder, platform=platform
    )
    if reset:
        search.reset(builds, recipe)
        return
    if status:
        _print_outcome(search.status(builds, recipe), as_json)
        return
    request = BisectRequest(good, bad, test, build_fails, first_parent)
    with progress:
        outcome = search.bisect(builds, recipe, request, trust_ends=trust_ends, skip=skip or ())
    _print_outcome(outcome, as_json)
    search.finish(builds, outcome)


def _print_outcome(outcome: BisectResult, as_json: bool) -> None:
    if as_json:
        first_bad = asdict(outcome.first_bad) if outcome.first_bad else None
        plain = asdict(outcome) | {"first_bad": first_bad, "builds": outcome.builds}
        names = ("state", "first_bad", "candidates", "left", "builds", "steps", "log")
        plain["steps"] = [{**step.pop("commit"), **step} for step in plain["steps"]]
        print_json(plain["question"] | {name: plain[name] for name in names})
        return
    rows = [
        (step.verdict, commit.name[:9], commit.date, commit.subject, step.why)
        for step in outcome.steps
        for commit in [step.commit]
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


# ``builder ci``: matrix, trials, ccache.

group = typer.Typer(
    no_args_is_help=True,
    help="For workflows: jobs, results of checks, the compiler cache.",
)
ccache = typer.Typer(
    no_args_is_help=True, help="Save the engine's compiler cache to a file, and load it elsewhere."
)
group.add_typer(ccache, name="ccache")


@group.command()
def matrix(
    recipes: options.Recipes = None,
    changed_since: str | None = option(
        "--changed-since REV",
        "Only recipes whose image or whose checks changed since this commit of the catalog's "
        "repository.",
    ),
    direct: bool = flag(
        "--direct",
        "With --changed-since: only recipes that changed themselves (the file, its lock, its "
        "patches, its source), not those whose base or builder changed.",
    ),
    tracked: bool = flag(
        "--tracked", "Only recipes with a channel, which `builder nightly` moves."
    ),
    large_runner: str = option(
        "--large-runner LABEL",
        "Runner for recipes that need more disk than GitHub's standard runner has. Without it, "
        "these recipes are left out with a warning.",
        "",
    ),
    as_json: options.JsonOption = False,
) -> None:
    """Print the jobs of a workflow: each recipe with its runner, disk space and caches.

    With --json, the output is a matrix for GitHub's fromJSON. Changes are found by build keys: a
    new template changes every recipe, a comment none. A recipe that is kept beside a newer one has
    a job only if it is named, or changed itself.
    """
    from builder.upstream import night as matrices

    if direct and changed_since is None:
        raise typer.BadParameter("requires --changed-since", None, None, "--direct")
    found = catalog_at()
    jobs = matrices.jobs(found, recipes or (), tracked=tracked)
    if changed_since is not None:
        with tempfile.TemporaryDirectory() as work:
            before = matrices.earlier(found.root, changed_since, Path(work), log)
        jobs = matrices.changed(jobs, before, direct=direct)
    elif not recipes:
        jobs = [job for job in jobs if not job.kept]
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
        (job.recipe, job.channel, f"{job.disk} GiB{cleaned}", job.runner, job.cache)
        for job in placed
        for cleaned in [", cleaned" if job.clear else ""]
    ]
    table(("recipe", "channel", "disk", "runner", "compiler cache"), rows)


@group.command()
def trials(
    recipes: options.Recipes = None,
    as_json: options.JsonOption = False,
) -> None:
    """Write what the smoke test found without a GPU to trials/, for machines without the image.

    The newest record of each image is taken. The exit code is 8 if you name a recipe without one.
    """
    from builder.build import record, reports
    from builder.presets import catalog as preset_files
    from builder.presets.receipts import checked
    from builder.presets.schema import TRIALS
    from builder.presets.shapes import own_contexts

    found, state = catalog_at(), user_settings().state_dir
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
        receipts = checked(found, datetime.now(UTC))
        measured = Counter(each.image.recipe for each in receipts.entries.values())
        reports.write_trials_page(found, presets, own_contexts(), measured)
    if as_json:
        print_json({name: str(file) for name, file in files.items()})
    else:
        table(("recipe", "file"), [(name, str(file)) for name, file in files.items()])


@ccache.command()
def save(
    recipe: options.RecipeName,
    file: Path = argument("FILE", "A tar file; an existing one is replaced.", dir_okay=False),
    builder: options.BuilderOption = None,
    limit: float = option(
        "--limit GIB",
        "Maximum size; the least recently used entries are left out.",
        1.0,
        min=0.01,
        max=1000,
    ),
    as_json: options.JsonOption = False,
) -> None:
    """Save the engine's compiler cache to a file.

    All recipes share one cache per engine, which is not changed.
    """
    from builder.build import ccache as compiler_cache

    _carry(recipe, file, builder, partial(compiler_cache.save, limit=limit), as_json)


@ccache.command()
def load(
    recipe: options.RecipeName,
    file: Path = argument("FILE", "A file that `builder ci ccache save` wrote.", dir_okay=False),
    builder: options.BuilderOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Add the contents of a file to the engine's compiler cache, before a build.

    The author of the file controls the contents of your builds: load only files from people whom
    you trust.
    """
    from builder.build import ccache as compiler_cache

    _carry(recipe, file, builder, compiler_cache.load, as_json)


def _carry(
    recipe: str,
    file: Path,
    builder: str | None,
    carry: Callable[..., int],
    as_json: bool,
) -> None:
    from builder.build.build import compile_image
    from builder.cli.session import build_session

    session = build_session(builder=builder)
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


# ``builder doctor``.


def doctor(as_json: options.JsonOption = False) -> None:
    """Say whether this machine can build, and run engines on a GPU; suggest fixes.

    The exit code is 4 if a requirement of every build is missing.
    """
    from builder.measure import doctor

    found = user_settings()
    findings = [*doctor.examine(found), *ways(found)]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        can = {
            "can build": doctor.can_build(findings),
            "can run on a GPU": doctor.can_run(findings),
        }
        pairs({f"{question}:": answer for question, answer in can.items()}, wraps=True)
        line("")
        for state in get_args(doctor.State)[::-1]:
            for each in (each for each in findings if each.state == state):
                line(wrapped(f"{state:8}  {each.what}: {each.found}", " " * 10, ""))
                if each.advice:
                    line(wrapped(f"-> {each.advice}", " " * 13, " " * 10))
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(WorldError.exit_code)


def ways(settings: Settings) -> Iterator[Finding]:
    """The way of a build for each platform; nothing where Docker does not answer."""
    from builder.build import record
    from builder.build.roots import compiles_on
    from builder.docker import buildx
    from builder.measure.doctor import Finding

    try:
        build, builder = compiles_on(settings), buildx.builder(settings.buildx)
    except WorldError:
        return
    for target in PLATFORMS.values():
        platforms = Platforms(build, target)
        # Most recipes have an image for linux/amd64 alone.
        needed = platforms.image == "linux/amd64"
        what = f"builds for {platforms.image}"
        last = record.last_time(settings.state_dir, buildx.way_name(platforms, builder))
        found = buildx.way_text(platforms, builder) + (f"; last time {last}" if last else "")
        advice = ""
        if buildx.is_emulated(platforms, builder):
            advice = "the compiler itself is emulated: unset BUILDER_COMPILE_ON to avoid that"
        try:
            buildx.require_emulators(platforms, builder)
            yield Finding(what, "optional" if advice else "ok", found, advice)
        except WorldError as error:
            yield Finding(
                what, "missing" if needed else "optional", f"{found}; {error.what}", error.hint
            )


# ``builder site``.


def _signed(text: str, *, push: bool) -> str:
    """The signature of a manifest, empty without a key; both are pushed, if wanted."""
    from builder.presets.manifest import NAME, SIGNED
    from builder.publish.signing import BUNDLE, sign_text
    from builder.publish.tags import open_repository
    from builder.publish.verdicts import AttachedFile, require_signing, store

    chosen = user_settings()
    with workspace(chosen.cache_dir) as work:
        require_signing(chosen, work)
        signature = sign_text(text, chosen.cosign_key, work / "cosign") if chosen.cosign_key else ""
    if push:
        files = [AttachedFile(NAME, "application/json", text.encode())]
        if signature:
            kind = BUNDLE if signature.startswith("{") else "text/plain"
            files.append(AttachedFile(f"{NAME}{SIGNED}", kind, signature.encode()))
        repository = open_repository(chosen.repository("farm"), log)
        store(repository, "manifest", "application/vnd.builder.manifest.v1+json", files)
        log(f"pushed {repository.name}:manifest")
    return signature


def site(
    output: Path = output_option(
        "Directory for the pages; an earlier site in it is replaced.", ...
    ),
    offline: bool = flag("--offline", "Ask no registry: without tags, history and nights."),
    push: bool = flag(
        "--push", "Also push manifest.json and its signature as the artifact farm:manifest."
    ),
    as_json: options.JsonOption = False,
) -> None:
    """Write static pages: presets by card, images, speeds, nights.

    The facts come from the repository, the records of this machine and, if BUILDER_NAMESPACE is
    set, the registry. The pages need no server and load nothing from elsewhere; index.json has the
    same facts for programs. manifest.json has the tags and presets of the registry, for installers
    and for `choose --from`; it is signed if there is a key. The pages link to BUILDER_FARM_URL,
    else to the checkout's https remote.
    """
    from builder.presets.receipts import checked
    from builder.site.facts import collect
    from builder.site.pages import write

    recipes = catalog_at()
    receipts = checked(recipes, datetime.now(UTC))
    found = collect(recipes, user_settings(), log, receipts.entries, offline=offline)
    signature = _signed(found.manifest.text(), push=push)
    written = write(found, output.absolute(), signature)
    if not found.repository:
        log("the pages name no repository: set BUILDER_FARM_URL")
    if as_json:
        print_json({"directory": str(output.absolute()), "files": written})
    else:
        total = sizes.shown(sum(written.values()))
        line(f"written  {output}: {counted(len(written), 'file')}, {total}")
        line(f"         {counted(len(found.images), 'image')}, {counted(len(found.cards), 'card')}")
    receipts.require_valid()
