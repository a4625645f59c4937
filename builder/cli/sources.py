"""Shared by the commands about patches and pins: sessions, failures, findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from builder.cli.tables import table
from builder.cli.terminal import err, line, log, out
from builder.core.errors import FetchError, PatchError, RecipeError, as_started
from builder.sources.errors import GitError
from builder.sources.patch_state import PatchState

if TYPE_CHECKING:
    from builder.recipes.catalog import Catalog, Entry
    from builder.recipes.schema import Recipe
    from builder.upstream.patch_state import PatchFinding
    from builder.upstream.session import RecipeChange, SourceSession


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
