"""Commands about sources and patches: what is pinned, what moved, what still fits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.options import (
    CatalogOption,
    DryRunOption,
    JsonOption,
    OfflineOption,
    RecipeName,
    catalog_at,
    patch_group,
    pin_group,
    print_json,
)
from builder.errors import FetchError, PatchError, RecipeError

if TYPE_CHECKING:
    from builder.recipes.catalog import Catalog, Entry
    from builder.recipes.schema import Recipe
    from builder.upstream.patch_state import Finding
    from builder.upstream.pull_requests import Drift
    from builder.upstream.session import SourceSession
    from builder.upstream.track import Lag

SomeRecipe = Annotated[
    str | None, typer.Argument(metavar="RECIPE", help="Name of a recipe. Default: all of them.")
]


@contextmanager
def _desk(catalog: Catalog, *, offline: bool) -> Iterator[SourceSession]:
    from builder import settings
    from builder.cli import console
    from builder.upstream.session import open_session

    with open_session(catalog, settings.load(), console.log, offline=offline) as opened:
        yield opened


@contextmanager
def _alone(failures: list[str], name: str) -> Iterator[None]:
    """One recipe's failure stops only that one; it is told with the others at the end."""
    try:
        yield
    except (FetchError, PatchError) as error:
        lines = [f"{name}: {error.what}", *error.why.splitlines()[:3]]
        failures.append("\n  ".join([*lines, *([f"-> {error.hint}"] if error.hint else [])]))


def _raise_together(failures: list[str], what: str) -> None:
    if failures:
        count = "one recipe" if len(failures) == 1 else f"{len(failures)} recipes"
        raise FetchError(f"{what}: {count} failed", "\n".join(failures))


def _chosen(catalog: Catalog, name: str | None) -> list[Entry[Recipe]]:
    """The recipe of that name, or all; raises ``RecipeError`` where one of them is wrong."""
    if name is not None:
        return [catalog.engine(name)]
    if catalog.problems():
        raise RecipeError("some recipes are wrong", problems=catalog.problems())
    return [catalog.engine(each) for each in catalog.engines]


@patch_group.command("check")
def patches(
    recipe: SomeRecipe = None,
    catalog: CatalogOption = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="REF",
            help="Try them on this tag, branch, commit or release as well. May be given several "
            "times.",
        ),
    ] = None,
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Try every patch on its pin and on what upstream has now; nothing is built.

    A patch applies, applies at an offset, or is upstream: the history has its commits, has the
    same change under another name (a squash merge, a cherry-pick), or the lines are as it leaves
    them. A range of commits may be upstream in part; each commit is listed. Superseded: upstream
    had the lines that it changes, and they went. Not applicable: they are not there, and the
    history does not show that they ever were; what was looked for is listed. Absent: the files
    are not there. Partly and conflicts: file, hunk, and the lines that differ are shown, at the
    place that the hunk is for, with the upstream commits that changed them since the pin. The
    exit code is 11 when one does not apply to its own pin, or is not as absent as the recipe
    expects. Upstream is what [track] in the recipe says, else the head of the default branch;
    for a source of PyPI it is the newest release.
    """
    from builder.cli import console
    from builder.upstream.compatibility import diagnose

    found = catalog_at(catalog)
    findings: list[Finding] = []
    notes: list[str] = []
    failures: list[str] = []
    with _desk(found, offline=offline) as session:
        for entry in _chosen(found, recipe):
            with _alone(failures, entry.name):
                case = session.case(entry)
                if case.patches:
                    findings += diagnose(case, against or [])
                    notes += [f"{entry.name}: {note}" for note in dict.fromkeys(case.notes)]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    elif findings or not failures:
        console.findings(findings, notes)
    bad = _misfits(findings)
    if bad:
        raise PatchError(f"{len(bad)} of the patches do not apply to their own pin", "\n".join(bad))
    _raise_together(failures, "patches")


@patch_group.command("add")
def freeze(
    recipe: RecipeName,
    pull: Annotated[
        int, typer.Option("--pull", metavar="N", min=1, help="Number of the pull request.")
    ],
    catalog: CatalogOption = None,
    repository: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Repository of the pull request. Default: the source's."),
    ] = None,
    onto: Annotated[
        str | None,
        typer.Option(metavar="BRANCH", help="Its target branch. Default: the default branch."),
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="What is wrong without the patch. Default: the subject of its last commit.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Write a pull request into a recipe, as the two commits that it consists of today.

    The first commit is where its branch left the target branch, so the patch is the diff that
    people review. If the recipe has the pull request already, its commits are updated; if the pin
    contains it, nothing is written (exit code 11). Comments and order of the file stay.
    Afterwards the patch is tried on the recipe's pin.
    """
    from builder.cli import console
    from builder.upstream.update import freeze as frozen

    found = catalog_at(catalog)
    entry = found.engine(recipe)
    with _desk(found, offline=False) as session:
        change = frozen(session, entry, pull, repository=repository, onto=onto, why=reason)
        findings = session.findings(change)
    console.change(change, findings)
    if not dry_run:
        change.write()


@patch_group.command()
def drift(
    recipe: SomeRecipe = None,
    catalog: CatalogOption = None,
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show whether frozen pull requests have new commits, were merged or are gone.

    Changes since a pull request was frozen are shown as a range-diff. Merged means that the pin,
    what [track] says, or the request's own target branch contains the commits, or the same
    changes under another name, also if their lines changed since. If GitHub's API answers, it
    adds what git does not know: closed, or merged as another commit.
    """
    from builder import settings
    from builder.cli import console
    from builder.upstream.pull_requests import drift as drifted

    found = catalog_at(catalog)
    api = settings.load().github_api
    changes: list[Drift] = []
    failures: list[str] = []
    with _desk(found, offline=offline) as session:
        for entry in _chosen(found, recipe):
            with _alone(failures, entry.name):
                changes += drifted(session.case(entry), api)
    if as_json:
        print_json([{**asdict(change), "state": change.state} for change in changes])
    else:
        console.drift(changes)
    _raise_together(failures, "drift")


@pin_group.command()
def update(
    recipe: RecipeName,
    catalog: CatalogOption = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            help="Tag, branch, commit or release. Default: what [track] says, the newest release.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Write the recipe also where something does not fit."),
    ] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Move the pin of a recipe, show the difference, and try its patches on the result.

    The commit, the ref and the build number are replaced; of PyPI, the version and the sha256. A
    version or tag that names the old pin is changed to the new one, and the file is renamed.
    Comments and order stay. Where a patch no longer applies (exit code 11), or the new source
    lacks what the recipe names (exit code 3: a directory, a submodule, the built web page),
    nothing is written unless --force is given; the exit code is the same.
    """
    from builder.cli import console
    from builder.upstream.update import evaluate
    from builder.upstream.update import update as updated

    found = catalog_at(catalog)
    entry = found.engine(recipe)
    with _desk(found, offline=False) as session:
        change = updated(session, entry, to)
        problems, findings = evaluate(session, entry, change)
    console.change(change, findings)
    bad = _misfits(findings)
    written = not dry_run and (force or not (bad or problems))
    if written:
        change.write()
    outcome = f"{change.new_file.name} is written all the same" if written else "nothing is written"
    hint = "" if written else "mend the recipe, or write it with --force"
    if bad:
        what = f"{len(bad)} of the patches do not apply to the new pin: {outcome}"
        raise PatchError(what, "\n".join([*bad, *map(str, problems)]), hint)
    if problems:
        what = f"the new source lacks what {change.recipe.name} names: {outcome}"
        raise RecipeError(what, hint=hint, problems=problems)


def _misfits(findings: list[Finding]) -> list[str]:
    """The patches that do not apply to their pin, a line each."""
    from builder.upstream.compatibility import PIN

    bad = [f for f in findings if f.target == PIN and not f.good and f.state != "untried"]
    return [f"{finding.recipe}: {finding.patch}: {finding.state}" for finding in bad]


@pin_group.command()
def outdated(
    recipe: SomeRecipe = None,
    catalog: CatalogOption = None,
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """List pins that are behind their upstream: by how many commits or releases, and since when.

    On PyPI later releases count, without pre-releases and yanked ones; --offline leaves them out.
    """
    from builder.cli import console
    from builder.upstream import track

    found = catalog_at(catalog)
    rows: list[tuple[str, Lag]] = []
    failures: list[str] = []
    with _desk(found, offline=offline) as session:
        for entry in _chosen(found, recipe):
            with _alone(failures, entry.name):
                lag = track.lag(entry.recipe, session.repositories)
                rows += [(entry.name, lag)] if lag is not None else []
    if as_json:
        print_json([{"recipe": name, **asdict(lag)} for name, lag in rows])
    else:
        console.lags(rows)
    _raise_together(failures, "outdated")


@pin_group.command("verify")
def verify_pins(
    recipe: SomeRecipe = None, catalog: CatalogOption = None, as_json: JsonOption = False
) -> None:
    """Check that every pinned input can still be fetched from where the recipe says.

    Inputs are commits and their submodules, commits of patches, files of PyPI, archives, and
    images of bases. Mirrors do not count. The exit code is 5 when something is gone.
    """
    from builder.cli import console
    from builder.upstream.pins import verify

    found = catalog_at(catalog)
    names = [entry.name for entry in _chosen(found, recipe)]
    with _desk(found, offline=False) as session:
        pin_statuses = list(verify(found, names, session.context.work))
    if as_json:
        print_json([asdict(standing) for standing in pin_statuses])
    else:
        console.pin_statuses(pin_statuses)
    bad = [each for each in pin_statuses if each.state != "ok"]
    if bad:
        gone = sum(each.state == "gone" for each in bad)
        raise FetchError(
            f"of {len(pin_statuses)} pins {gone} are gone, "
            f"{len(bad) - gone} could not be asked for",
            "\n".join(f"{each.recipe}: {each.kind} {each.what}: {each.why}" for each in bad),
            "a mirror that has them still builds: see `builder pin mirror` and --offline",
        )


@pin_group.command()
def mirror(recipe: SomeRecipe = None, catalog: CatalogOption = None) -> None:
    """Fetch and keep every pinned input, so that none can vanish.

    The cache directory (BUILDER_CACHE_DIR) then has bare mirrors of the repositories with the
    pinned commits, submodules and pull requests, the histories that `builder patch check` reads,
    wheels, sdists and archives. With it `builder build --offline` and `builder patch check
    --offline` need no network. Debian's packages are not mirrored: build the base before.
    """
    from builder.cli import console
    from builder.upstream import pins

    found = catalog_at(catalog)
    failures: list[str] = []
    entries = _chosen(found, recipe)
    with _desk(found, offline=False) as session:
        for entry in entries:
            with _alone(failures, entry.name):
                for line in pins.mirror(session.case(entry), entry):
                    console.line(f"{entry.name}: {line}")
        bases = dict.fromkeys(base for entry in entries for base in found.chain(entry.recipe.base))
        for name in bases:
            base = found.base(name)
            with _alone(failures, name):
                for line in pins.mirror_base(base, session.settings.cache_dir, console.log):
                    console.line(f"{name}: {line}")
    _raise_together(failures, "mirror")
