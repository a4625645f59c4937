"""``builder patch``: check and add."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    SomeRecipe,
    catalog_at,
    reason_option,
)
from builder.cli.terminal import err, line, log, out, print_json, table
from builder.core.errors import FetchError, PatchError, RecipeError, as_started
from builder.sources.diff import PatchState
from builder.sources.git import GitError

if TYPE_CHECKING:
    from builder.recipes.catalog import Catalog, Entry
    from builder.recipes.schema import Recipe
    from builder.upstream.patches import PatchFinding
    from builder.upstream.session import RecipeChange, SourceSession


# Shared by the commands about patches and pins: sessions, failures, findings.


@contextmanager
def open_session(catalog: Catalog, *, offline: bool = False) -> Iterator[SourceSession]:
    """A session on the sources of recipes, with the user's settings."""
    from builder.core import settings
    from builder.upstream import session

    with session.open_session(catalog, settings.load(), log, offline=offline) as opened:
        yield opened


def chosen(catalog: Catalog, name: str | None) -> list[Entry[Recipe]]:
    """The recipe of that name, or all; raises ``RecipeError`` if one of them is invalid."""
    if name is not None:
        return [catalog.engine(name)]
    if catalog.problems():
        raise RecipeError("some recipes are invalid", problems=catalog.problems())
    return [catalog.engine(each) for each in catalog.engines]


@contextmanager
def collected(failures: list[str], name: str) -> Iterator[None]:
    """Add the failure of one recipe to ``failures``, so that the next one is tried."""
    try:
        yield
    except (FetchError, PatchError, GitError) as error:
        lines = [f"{name}: {error.what}", *error.why.splitlines()[:3]]
        failures.append("\n  ".join([*lines, *([f"-> {error.hint}"] if error.hint else [])]))


def raise_failures(failures: list[str], command: str) -> None:
    """Raise one ``FetchError`` for all recipes that failed."""
    if failures:
        count = "one recipe" if len(failures) == 1 else f"{len(failures)} recipes"
        raise FetchError(f"{command}: {count} failed", "\n".join(failures))


def misfits(findings: Sequence[PatchFinding]) -> list[str]:
    """The patches that do not apply to their pin, a line each."""
    from builder.upstream.patches import PIN

    bad = [f for f in findings if f.target == PIN and not f.good and f.state != PatchState.UNTRIED]
    return [f"{finding.recipe}: {finding.patch}: {finding.state}" for finding in bad]


def print_findings(found: Sequence[PatchFinding], notes: Sequence[str]) -> None:
    """Print the state of each patch, then the details of patches that do not apply, then notes."""
    if not found:
        log("there is no patch to check")
    rows = [
        (finding.recipe, finding.patch, _target(finding), finding.state, _meaning(finding))
        for finding in found
    ]
    table(("recipe", "patch", "on", "", ""), rows)
    for finding in found:
        if not finding.good and (finding.details or finding.commits):
            line(f"\n{finding.recipe}: {finding.patch} on {_target(finding)}: {finding.state}")
            for detail in finding.details:
                line(as_started("\n".join(f"  {part}" for part in detail.splitlines())))
            verb = "introduced" if finding.state == PatchState.UPSTREAM else "changed"
            for commit in finding.commits:
                line(f"  {verb} by {commit}")
            if finding.commits and finding.state != PatchState.UPSTREAM:
                line("  unknown whether upstream has it in other words: look, with `git show`")
    for note in notes:
        line(note)


def _target(finding: PatchFinding) -> str:
    named = finding.target if finding.target != finding.commit else ""
    return f"{named} {finding.commit[:9]}".strip()


def _meaning(finding: PatchFinding) -> str:
    details = finding.details if finding.good else ()
    return ": ".join([finding.state.meaning, *(["; ".join(details)] if details else [])])


def print_change(change: RecipeChange[Recipe], findings: Sequence[PatchFinding]) -> None:
    """Print the diff that a command makes to a recipe, and the state of its patches."""
    if not change.changed:
        err().print(f"{change.file.name} is up to date", markup=False)
        return
    out().file.write(change.difference)
    if findings:
        line("")
        print_findings(findings, ())


# The commands.

group = typer.Typer(
    no_args_is_help=True, help="Check the patches of recipes, and add pull requests as patches."
)


@group.command()
def check(
    recipe: SomeRecipe = None,
    catalog: CatalogOption = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="REF",
            help="Also check the patches against this tag, branch, commit or release. May be "
            "repeated.",
        ),
    ] = None,
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check whether patches apply to their pin and to the current upstream. Nothing is built.

    The current upstream is the branch or tag that [track] names, else the head of the default
    branch; for a source on PyPI, it is the newest release. The states of a patch are:

    - **applies**: every hunk applies, possibly at other line numbers, which are shown.

    - **upstream**: the history contains its commits, or the same change in other commits (a squash
    merge, a cherry-pick), or the lines are already as the patch leaves them. Each commit of a range
    is listed.

    - **doubtful**: it applies, but its lines occur in several places, or the lines that it adds are
    already near by. A build refuses it.

    - **conflicts**: each hunk that does not apply is shown with the lines that differ, and with the
    upstream commits that changed them.

    - **absent**: the files are missing.

    The exit code is 11 if a patch does not apply to its own pin, or applies although the recipe
    expects its code to be absent.
    """
    from builder.upstream.patches import diagnose

    found = catalog_at(catalog)
    findings: list[PatchFinding] = []
    notes: list[str] = []
    failures: list[str] = []
    with open_session(found, offline=offline) as session:
        for entry in chosen(found, recipe):
            with collected(failures, entry.name):
                patches = session.patch_set(entry)
                if patches.patches:
                    findings += diagnose(patches, against or [])
                    notes += [f"{entry.name}: {note}" for note in dict.fromkeys(patches.notes)]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    elif findings or not failures:
        print_findings(findings, notes)
    bad = misfits(findings)
    if bad:
        what = f"{len(bad)} of the patches do not apply to their own pin"
        raise PatchError(what, "\n".join([*bad, *failures]))
    raise_failures(failures, "patch check")


@group.command()
def add(
    recipe: RecipeName,
    pull: Annotated[
        int, typer.Option("--pull", metavar="N", min=1, help="Number of the pull request.")
    ],
    catalog: CatalogOption = None,
    repository: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Repository of the pull request. Default: the repository of the source.",
        ),
    ] = None,
    onto: Annotated[
        str | None,
        typer.Option(
            metavar="BRANCH",
            help="Target branch of the pull request. Default: the default branch.",
        ),
    ] = None,
    reason: Annotated[
        str | None,
        reason_option(
            "Why the recipe needs the patch. Default: the subject of its last commit.",
            "the recipe needs the patch",
        ),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Add a pull request to a recipe as a patch, pinned to its current commits.

    The patch is the diff from the merge base with the target branch to the head of the pull
    request, as its reviewers see it. If the recipe already has the pull request, its commits are
    updated. If the pin already contains it, nothing is written and the exit code is 11. Comments
    and the order of keys are preserved. Then the patch is checked against the recipe's pin.
    """
    from builder.upstream.update import pin_pull_request

    found = catalog_at(catalog)
    entry = found.engine(recipe)
    with open_session(found) as session:
        change = pin_pull_request(
            session, entry, pull, repository=repository, onto=onto, why=reason
        )
        findings = session.findings(change)
    print_change(change, findings)
    if not dry_run:
        change.write()
