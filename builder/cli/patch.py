"""``builder patch``: check and add."""

from __future__ import annotations

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
from builder.cli.sources import (
    chosen,
    collected,
    misfits,
    open_session,
    print_change,
    print_findings,
    raise_failures,
)
from builder.cli.terminal import print_json
from builder.core.errors import PatchError

if TYPE_CHECKING:
    from builder.upstream.patch_state import PatchFinding

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
