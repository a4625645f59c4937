"""Turns a request to bisect into a state: a new question, or an unfinished one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from builder.build.session import BuildSession
from builder.core.errors import FetchError, RecipeError
from builder.engines import families
from builder.plan.resolver import one_of
from builder.recipes.catalog import Entry
from builder.recipes.fields import checked_ref
from builder.recipes.schema import Recipe
from builder.recipes.sources import GitSource
from builder.upstream import state as bisect_state
from builder.upstream import track
from builder.upstream.session import SourceSession
from builder.upstream.state import BisectQuestion, BisectState, BuildFails, End, QuestionError

ABBREVIATED = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, slots=True)
class BisectRequest:
    """The options of a user; without ends, the previous question continues."""

    good: str | None = None
    bad: str | None = None
    test: str | None = None
    build_fails: BuildFails = "skip"
    first_parent: bool = False


def count(commits: int) -> str:
    """``1 commit`` or ``2 commits``."""
    return "1 commit" if commits == 1 else f"{commits} commits"


def source_of(entry: Entry[Recipe]) -> str:
    """The URL of the git repository that a recipe is built from.

    Raises ``RecipeError`` if there is none.
    """
    source = entry.recipe.source
    if not isinstance(source, GitSource):
        raise RecipeError(
            f"the source of {entry.name} is not a git repository",
            hint="only [source] git can be bisected; try releases one by one",
        )
    if families.ENGINES[entry.recipe.family].package_paths:
        raise RecipeError(
            f"the engine of {entry.name} comes from its base, {entry.recipe.base}",
            hint="only an engine that is built from its source can be bisected",
        )
    return source.git


def state_of(
    builds: BuildSession,
    sources: SourceSession,
    entry: Entry[Recipe],
    url: str,
    request: BisectRequest,
) -> BisectState:
    """The state that a request begins with; nothing is written.

    An unfinished bisect continues.  Raises ``QuestionError`` if a different bisect is unfinished,
    the recipe has changed since, or the directory of the test is gone; ``RecipeError`` where the
    recipe has several images and none is named; ``FetchError`` for an end that does not exist.
    """
    known = bisect_state.read(builds.settings.state_dir, entry.name)
    one_of(entry.recipe, builds.platform)
    inputs = bisect_state.inputs_of(builds.catalog, entry, builds.platform)
    if known is None:
        state = BisectState(_question(sources, entry, url, request, inputs))
    else:
        state = _continued(builds, sources, url, request, known, inputs)
    _require_folder(builds, state.question)
    return state


def _question(
    sources: SourceSession, entry: Entry[Recipe], url: str, request: BisectRequest, inputs: str
) -> BisectQuestion:
    if request.good is None or request.bad is None:
        raise QuestionError(
            f"there is no unfinished bisect of {entry.name}", hint="start one: --good A --bad B"
        )
    good, bad = (_end(sources, url, name) for name in (request.good, request.bad))
    folder = str(Path.cwd()) if request.test is not None else ""
    way = (request.test, folder, request.build_fails, request.first_parent)
    return BisectQuestion(entry.name, good, bad, *way, inputs)


def _require_folder(builds: BuildSession, question: BisectQuestion) -> None:
    """Raise ``QuestionError`` if the test's directory is gone; relative paths in it start there."""
    if question.test is None:
        return
    if not Path(question.folder).is_dir():
        raise QuestionError(
            f"the directory that the test of {question.recipe} runs in is gone",
            question.folder,
            "restore it, or discard the progress with --reset",
        )
    if Path(question.folder) != Path.cwd():
        builds.log(f"the test runs in {question.folder}, where the bisect started")


def _continued(
    builds: BuildSession,
    sources: SourceSession,
    url: str,
    request: BisectRequest,
    known: BisectState,
    inputs: str,
) -> BisectState:
    old = known.question
    _require_same(sources, url, request, old)
    if old.inputs != inputs:
        raise QuestionError(
            f"{old.recipe}, its base or a patch has changed since its bisect started",
            "its commits were evaluated with the earlier recipe",
            "undo the change, or discard the progress with --reset",
        )
    builds.log(f"continuing between {old.good} and {old.bad}: {count(len(known.steps))} evaluated")
    return known


def _require_same(
    sources: SourceSession, url: str, request: BisectRequest, old: BisectQuestion
) -> None:
    """Raise ``QuestionError`` unless a request repeats the old question, or gives no options."""
    ends = ((request.good, old.good), (request.bad, old.bad))
    bare = request == BisectRequest()
    same = all(name is None or _is_end(sources, url, name, end) for name, end in ends)
    same &= request.test == old.test and request.build_fails == old.build_fails
    if bare or (same and request.first_parent == old.first_parent):
        return
    test = f"by --test {old.test!r}" if old.test is not None else "by the smoke test"
    more = [f"--build-fails {old.build_fails}"] if old.build_fails != "skip" else []
    more += ["--first-parent"] if old.first_parent else []
    raise QuestionError(
        f"another bisect of {old.recipe} is unfinished",
        ", ".join([f"it is between {old.good} and {old.bad}", test, *more]),
        f"continue it with `builder bisect {old.recipe}`, or discard it with --reset",
    )


def _is_end(sources: SourceSession, url: str, name: str, end: End) -> bool:
    """Whether a name means an end; a branch does, even if it has moved since."""
    return name in {end.name, end.commit} or _end(sources, url, name).commit == end.commit


def _end(sources: SourceSession, url: str, name: str) -> End:
    try:
        return End(name, track.resolve(url, checked_ref(name), sources.repositories).commit)
    except FetchError as error:
        if ABBREVIATED.fullmatch(name):
            raise type(error)(error.what, error.why, "give all 40 digits of a commit") from error
        raise


def merge_bases(sources: SourceSession, question: BisectQuestion) -> list[str]:
    """The merge bases of the ends, unless the good end is the only one: they must be good too.

    Raises ``QuestionError`` if there is nothing between the ends.
    """
    good, bad = question.good, question.bad
    if good.commit == bad.commit:
        raise QuestionError(f"{good} and {bad} are the same commit")
    roots = sources.repositories.scratch.merge_bases(good.commit, bad.commit)
    if not roots:
        raise QuestionError(f"{good} and {bad} have no common history")
    if bad.commit in roots:
        raise QuestionError(
            f"the bad end, {bad}, is older than the good one, {good}",
            "a bisect finds the first bad commit after a good one",
            "to find the commit that fixed something, give a broken commit as --good, and a --test "
            "that fails where it is fixed",
        )
    return [] if good.commit in roots else roots
