"""``builder pin``: update, outdated, mirror, lock, image."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import typer

from builder.cli import options
from builder.cli.options import argument, catalog_at, flag, option, reason_option, user_settings
from builder.cli.terminal import counted, err, line, log, out, print_json, table
from builder.core import sizes
from builder.core.errors import FetchError, PatchError, RecipeError, as_started
from builder.core.files import workspace

if TYPE_CHECKING:
    from builder.core.platforms import Architecture
    from builder.recipes.catalog import Catalog, Entry
    from builder.recipes.schema import Recipe
    from builder.upstream.patches import PatchFinding, SourceSession
    from builder.upstream.status import Outdated
    from builder.upstream.track import Lag
    from builder.upstream.update import RecipeChange

# ``builder pin lock``: Python requirements and Debian packages become exact files.

HINT = (
    "a recipe names Python packages in [python]: requirements, and Debian packages in [debian]; a "
    "base names Debian packages in [root], [devel] and [runtime]"
)


Kind = Literal["python", "debian"]  # the packages that a lock has


def _python_version(value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"3\.[1-9][0-9]?", value):
        raise typer.BadParameter("must be a version of Python, such as 3.13")
    return value


def lock(
    names: list[str] = argument(
        "NAME...", "Recipes or bases with Python requirements or Debian packages."
    ),
    only: Kind | None = option("--only", "Lock only Python requirements, or only Debian packages."),
    python: str | None = option(
        "--python 3.N",
        "Version of CPython. Default: the one in the base's Debian release.",
        callback=_python_version,
    ),
    dry_run: options.DryRunOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Resolve the Python requirements and the Debian packages of recipes or bases to exact files.

    A lock lists the newest versions that fit, each file with its sha256. The bases of a recipe are
    locked before it. The command prints the changes.
    """
    from builder.upstream.locks import DebianSession, has_packages, make_lock

    loaded = user_settings()
    loaded.require_directories()
    found = catalog_at()

    def depth(name: str) -> int:
        return len(found.chain(name)) if name in found.bases else len(found.bases) + 1

    described: list[dict[str, Any]] = []
    with workspace(loaded.cache_dir) as work:
        debian = DebianSession(found, loaded.cache_dir, work, log, loaded.debian_servers)
        for name in sorted(names, key=depth):
            entry = found.base(name) if name in found.bases else found.engine(name)
            needs_python = entry.recipe.python is not None and entry.recipe.python.requirements
            needs: dict[Kind, Any]
            needs = {"python": needs_python, "debian": has_packages(entry.recipe)}
            kinds = [kind for kind, needed in needs.items() if needed and only in {None, kind}]
            if not kinds:
                what = {"python": "no Python requirements", "debian": "no Debian packages"}
                lacks = what[only] if only else "nothing"
                raise RecipeError(f"{entry.name} has {lacks} to lock", hint=HINT)
            for kind in kinds:
                entry.require_own_lock(kind)
                if kind == "debian":
                    made = debian.make(entry)
                else:
                    made = make_lock(entry, python, found, loaded.cache_dir, log)
                new = not made.file.exists()
                if not dry_run:
                    made.write()
                about = {"file": str(made.file), "size": made.size, "files": made.described()}
                described.append(about | {"changes": made.changes, "new": new})
                if as_json:
                    continue
                for change in made.changes or ([] if new else ["no changes"]):
                    line(change)
                of_all = f", {sizes.shown(made.size)} to download" if made.size else ""
                line(f"{made.file.name}: {counted(len(made.files), 'file')}{of_all}")
    if as_json:
        print_json(described)


group = typer.Typer(
    no_args_is_help=True, help="Update, mirror and lock the pinned inputs of recipes."
)


@group.command()
def update(
    recipe: options.RecipeName,
    to: str | None = option(
        "--to REF",
        "Tag, branch, commit or release. Default: the upstream that [track] names, else the "
        "newest release.",
    ),
    force: bool = flag("--force", "Write the recipe even if patches or names no longer fit."),
    keep_old: bool = flag("--keep-old", "Keep the recipe, if the new one gets another name."),
    dry_run: options.DryRunOption = False,
) -> None:
    """Move the pin of a recipe, show the diff, and check its patches against the new source.

    The commit or version, the build number, and names that contain the old pin change, with the
    names of the files. If a patch no longer applies, or the source lacks something that the recipe
    names, nothing is written without --force. A base that has the package in its lock gets a new
    file: `builder pin lock BASE` locks it anew.
    """
    from builder.presets import catalog as preset_files
    from builder.sources.diff import PatchState
    from builder.upstream.update import evaluate
    from builder.upstream.update import update as move_pin

    found = catalog_at()
    entry = found.engine(recipe)
    with open_session(found) as session:
        change = move_pin(session, entry, to)
        problems, findings = evaluate(session, entry, change)
    print_change(change, findings)
    bad = _misfits(findings)
    written = not dry_run and (force or not (bad or problems))
    if written:
        change.write(keep=keep_old)
        new_name = change.new_file.stem
        if not entry.file.exists():  # its presets' figures belong to the old pin
            presets = preset_files.load(found).of_recipe(entry.name)
            named = ", ".join(preset.name for preset in presets)
            if named:
                text = f"the recipe {entry.name} is now {new_name}; presets that name the old one"
                log(f"{text}: {named}")
        if change.base is not None:
            name = change.base.recipe.name
            log(f"{name} still has the old locks; next: `builder pin lock {name}`")
            log("its notes, and the notes and [[accept]] of the recipe, are the old release's")
            if change.recipe.patch:
                log("its patches are tried when the image is built")
    outcome = f"{change.new_file.name} was written anyway" if written else "nothing was written"
    hint = "" if written else "correct the recipe, or write it with --force"
    if bad:
        if hint and any(each.state == PatchState.UPSTREAM for each in findings):
            hint = f"remove the patches that upstream contains; {hint}"
        what = f"{len(bad)} of the patches do not apply to the new pin: {outcome}"
        raise PatchError(what, "\n".join([*bad, *map(str, problems)]), hint)
    if problems:
        what = f"the new source lacks something that {change.recipe.name} names: {outcome}"
        raise RecipeError(what, hint=hint, problems=problems)


@group.command()
def outdated(
    recipe: options.SomeRecipe = None,
    offline: options.OfflineOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """List pins that are behind upstream: by how much, since when, and what becomes of patches.

    Without RECIPE, the table has the current recipes. The last column has the state of patches at
    the newest version, as `builder patch check` finds it. `builder status` shows the published
    images, `builder pin lock NAME --dry-run` newer packages of Debian and PyPI.
    """
    from builder.upstream import status, track

    found = catalog_at()
    known: list[status.Outdated] = []
    failures: list[str] = []
    recipes = [each for each in chosen(found, recipe) if recipe or not each.recipe.kept]
    with open_session(found, offline=offline) as session:
        for entry in recipes:
            with collected(failures, entry.name):
                lag = track.lag(entry.recipe, found, session.repositories)
                known += [status.Outdated(entry, lag)] if lag is not None else []
        without = len(recipes) - len(known) - len(failures)
        rows = status.by_engine(known)
        for index, row in enumerate(rows):
            with collected(failures, row.entry.name):
                rows[index] = status.with_patches(session, row)
    if as_json:
        print_json([row.as_json() for row in rows])
    else:
        _print_outdated(rows)
        if without:
            log(f"{counted(without, 'recipe')} without an upstream to compare with")
    _raise_failures(failures, "pin outdated")


def _print_outdated(rows: Sequence[Outdated]) -> None:
    behind = [row for row in rows if row.behind]
    table(
        ("recipe", "pinned", "newest", "behind", "since", "patches there"),
        [
            (
                *(row.entry.name, row.pin, _newest(row.lag), _behind(row.lag), row.lag.since),
                ", ".join(f"{each.patch}: {each.state}" for each in row.patches),
            )
            for row in behind
        ],
    )
    if rows:
        log(f"{len(rows) - len(behind)} of {counted(len(rows), 'recipe')} up to date")
    older = [name for row in rows for name in row.older]
    if older:
        log(f"not in the table, because the engine has a newer recipe: {', '.join(older)}")


def _newest(lag: Lag) -> str:
    commit = f" {lag.target.commit[:9]}" if lag.target.kind != "release" else ""
    return f"{lag.target.name}{commit}"


def _behind(lag: Lag) -> str:
    count = counted(lag.ahead, "release" if lag.target.kind == "release" else "commit")
    days = [f"{lag.days} d"] if lag.days is not None else []
    rewritten = ["the pin is not in its history"] if lag.rewritten else []
    return ", ".join([count, *days, *rewritten])


@group.command()
def mirror(recipe: options.SomeRecipe = None) -> None:
    """Download and keep every pinned input, so that builds do not depend on upstream.

    With them in the cache directory, `builder build --offline` and `builder patch check --offline`
    need no network.
    """
    from builder.engines.families import bases_of
    from builder.upstream import locks

    found = catalog_at()
    failures: list[str] = []
    entries = chosen(found, recipe)
    with open_session(found) as session:
        for entry in entries:
            with collected(failures, entry.name):
                for mirrored in locks.mirror(session.patch_set(entry), entry, session.settings):
                    line(f"{entry.name}: {mirrored}")
        bases: dict[str, dict[Architecture, None]] = {}
        for entry in entries:
            for name in bases_of(found, entry.recipe):
                bases.setdefault(name, {}).update(dict.fromkeys(entry.recipe.targets))
        for name, targets in bases.items():
            base = found.base(name)
            with collected(failures, name):
                for mirrored in locks.mirror_base(base, targets, session.settings, log):
                    line(f"{name}: {mirrored}")
    _raise_failures(failures, "pin mirror")


group.command()(lock)


@group.command()
def image(
    base: str = argument("BASE", "A base that starts from a published image."),
    dry_run: options.DryRunOption = False,
) -> None:
    """Pin the image that a base starts from to its current digest in the registry.

    Without a digest, every build asks the registry for the tag.
    """
    from builder.build.roots import digest_today
    from builder.recipes.edit import Keys, difference, edited, write

    entry = catalog_at().base(base)
    table = "published" if entry.recipe.published else "root"
    pins: dict[Keys, str | None] = {(table, "digest"): digest_today(entry)}
    if entry.recipe.published is not None:
        pins[table, "note"] = None
    text = edited(entry.text, pins)
    changes = difference(entry.text, text, entry.file.name, entry.file.name)
    line(changes or f"{base} is already pinned to this digest")
    if changes and not dry_run:
        write(entry.file, text)


# Shared by the commands about patches and pins: sessions, failures, findings.


@contextmanager
def open_session(catalog: Catalog, *, offline: bool = False) -> Iterator[SourceSession]:
    """A session on the sources of recipes, with the user's settings."""
    from builder.upstream import patches

    with patches.open_session(catalog, user_settings(), log, offline=offline) as opened:
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
    from builder.sources.git import GitError

    try:
        yield
    except (FetchError, PatchError, GitError) as error:
        lines = [f"{name}: {error.what}", *error.why.splitlines()[:3]]
        failures.append("\n  ".join([*lines, *([f"-> {error.hint}"] if error.hint else [])]))


def _raise_failures(failures: list[str], command: str) -> None:
    if failures:
        count = "one recipe" if len(failures) == 1 else f"{len(failures)} recipes"
        raise FetchError(f"{command}: {count} failed", "\n".join(failures))


def _misfits(findings: Sequence[PatchFinding]) -> list[str]:
    from builder.sources.diff import PatchState
    from builder.upstream.patches import PIN

    bad = [f for f in findings if f.target == PIN and not f.good and f.state != PatchState.UNTRIED]
    return [f"{finding.recipe}: {finding.patch}: {finding.state}" for finding in bad]


def print_findings(found: Sequence[PatchFinding], notes: Sequence[str]) -> None:
    """Print the state of each patch, then the details of patches that do not apply, then notes."""
    from builder.sources.diff import PatchState

    if not found:
        log("there is no patch to check")
    rows = []
    for of in found:
        details = "; ".join(of.details) if of.good else ""
        meaning = ": ".join(filter(None, (of.state.meaning, details)))
        rows.append((of.recipe, of.patch, _target(of), of.state, meaning))
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


def print_change(change: RecipeChange[Recipe], findings: Sequence[PatchFinding]) -> None:
    """Print the diff that a command makes to a recipe, and the state of its patches."""
    if not change.changed:
        err().print(f"{change.file.name} is up to date", markup=False)
        return
    out().file.write(change.difference)
    if findings:
        line("")
        print_findings(findings, ())


# ``builder patch``: check and add.

patch_group = typer.Typer(
    no_args_is_help=True, help="Check the patches of recipes, and add pull requests as patches."
)


@patch_group.command()
def check(
    recipe: options.SomeRecipe = None,
    against: list[str] | None = option(
        "--against REF",
        "Also check the patches against this tag, branch, commit or release. May be repeated.",
    ),
    offline: options.OfflineOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Check whether patches apply to their pin and to the current upstream. Nothing is built.

    *upstream*: the history contains the change already; *doubtful*: its lines occur in several
    places, so a build refuses it; *conflicts*: the hunks are shown with the commits that changed
    their lines; *absent*: the files are missing. The exit code is 11 if a patch does not apply to
    its own pin.
    """
    from builder.upstream.patches import diagnose

    found = catalog_at()
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
    bad = _misfits(findings)
    if bad:
        what = f"{len(bad)} of the patches do not apply to their own pin"
        raise PatchError(what, "\n".join([*bad, *failures]))
    _raise_failures(failures, "patch check")


@patch_group.command()
def add(
    recipe: options.RecipeName,
    pull: int = option("--pull N", "Number of the pull request.", ..., min=1),
    repository: str | None = option(
        "--repository URL", "Repository of the pull request. Default: the repository of the source."
    ),
    onto: str | None = option(
        "--onto BRANCH", "Target branch of the pull request. Default: the default branch."
    ),
    reason: str | None = reason_option(
        "Why the recipe needs the patch. Default: the subject of its last commit.",
        "the recipe needs the patch",
    ),
    dry_run: options.DryRunOption = False,
) -> None:
    """Add a pull request to a recipe as a patch, pinned to its current commits.

    The patch is the diff from the merge base to the head, as its reviewers see it. If the recipe
    has the pull request already, its commits are updated. If the pin contains it already, nothing
    is written and the exit code is 11.
    """
    from builder.upstream.update import findings_of, pin_pull_request

    found = catalog_at()
    entry = found.engine(recipe)
    with open_session(found) as session:
        about = {"repository": repository, "onto": onto, "why": reason}
        change = pin_pull_request(session, entry, pull, **about)
        findings = findings_of(session, change)
    print_change(change, findings)
    if not dry_run:
        change.write()
