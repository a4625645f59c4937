"""What a user asks of a bisect, as commits: whether it can be answered, and what is known of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from builder import families
from builder.bisect import state as bisect_state
from builder.bisect.state import BuildFails, End, Question, QuestionError, State
from builder.errors import FetchError, RecipeError
from builder.images.session import BuildSession
from builder.recipes.catalog import Entry
from builder.recipes.schema import GitSource, Recipe, checked_ref
from builder.tools.git.bisection import roots_of
from builder.upstream import track
from builder.upstream.session import SourceSession

ABBREVIATED = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user asks; without ends it is what was asked before."""

    good: str | None = None
    bad: str | None = None
    test: str | None = None
    build_fails: BuildFails = "skip"
    first_parent: bool = False


def count(commits: int) -> str:
    """So many commits, for people."""
    return "1 commit" if commits == 1 else f"{commits} commits"


def source_of(entry: Entry[Recipe]) -> str:
    """The repository whose commits a recipe can be built from.

    Raises ``RecipeError`` where there is none.
    """
    source = entry.recipe.source
    if not isinstance(source, GitSource):
        raise RecipeError(
            f"the source of {entry.name} is no git repository",
            hint="only [source] git is: of a release try versions one by one",
        )
    if families.ENGINES[entry.recipe.family].extends_base:
        raise RecipeError(
            f"the engine of {entry.name} is in its base, {entry.recipe.base}, at every commit",
            hint="only what is built from its source can be bisected",
        )
    return source.git


def state_of(
    builds: BuildSession,
    at: SourceSession,
    entry: Entry[Recipe],
    url: str,
    asked: Asked,
    *,
    anew: bool,
) -> State:
    """What is known of the question, or nothing yet; ``anew``: nothing, whatever is known.

    ``anew`` asks what was asked before, but for what is said now; where both ends are said, it is
    another question.  Nothing is written.
    Raises ``QuestionError`` where another one is not answered yet, what is asked for again was
    evaluated with another recipe, or the directory of its test is gone; ``FetchError`` for an end
    that does not exist.
    """
    whole = asked.good is not None and asked.bad is not None
    known = None if anew and whole else bisect_state.read(builds.settings.state_dir, entry.name)
    inputs = bisect_state.inputs_of(builds.catalog, entry)
    if known is None:
        state = State(_question(at, entry, url, asked, inputs))
    elif anew:
        state = State(_again(at, url, asked, known.question, inputs))
    else:
        state = _gone_on_with(builds, at, url, asked, known, inputs)
    _require_folder(builds, state.question)
    return state


def _question(
    at: SourceSession, entry: Entry[Recipe], url: str, asked: Asked, inputs: str
) -> Question:
    if asked.good is None or asked.bad is None:
        raise QuestionError(f"no bisect of {entry.name} is under way", hint="say --good A --bad B")
    good, bad = (_end(at, url, name) for name in (asked.good, asked.bad))
    folder = str(Path.cwd()) if asked.test is not None else ""
    way = (asked.test, folder, asked.build_fails, asked.first_parent)
    return Question(entry.name, good, bad, *way, inputs)


def _again(at: SourceSession, url: str, asked: Asked, old: Question, inputs: str) -> Question:
    """What was asked before, but for what is said now."""
    test, folder = old.test, old.folder
    if asked.test is not None:
        test, folder = asked.test, str(Path.cwd())
    return replace(
        old,
        good=_end(at, url, asked.good) if asked.good is not None else old.good,
        bad=_end(at, url, asked.bad) if asked.bad is not None else old.bad,
        test=test,
        folder=folder,
        build_fails=asked.build_fails if asked.build_fails != "skip" else old.build_fails,
        first_parent=asked.first_parent or old.first_parent,
        inputs=inputs,
    )


def _require_folder(builds: BuildSession, question: Question) -> None:
    """A test means what it meant where it was asked for: names in it may lead from there."""
    if question.test is None:
        return
    if not Path(question.folder).is_dir():
        raise QuestionError(
            f"the directory that the test of {question.recipe} runs in is gone",
            question.folder,
            "put it back, or begin anew with --restart --test COMMAND",
        )
    if Path(question.folder) != Path.cwd():
        builds.log(f"the test runs in {question.folder}, where the bisect began")


def _gone_on_with(
    builds: BuildSession, at: SourceSession, url: str, asked: Asked, known: State, inputs: str
) -> State:
    """What is known, where it answers what is asked."""
    old = known.question
    _require_same(at, url, asked, old)
    if old.inputs != inputs:
        raise QuestionError(
            f"{old.recipe}, its base or a patch has changed since its bisect began",
            "its commits were evaluated with the earlier recipe",
            "undo the change, or begin anew with --restart",
        )
    builds.log(f"going on between {old.good} and {old.bad}: {count(len(known.steps))} evaluated")
    return known


def _require_same(at: SourceSession, url: str, asked: Asked, old: Question) -> None:
    """Raise ``QuestionError`` unless what is asked is what was asked, or nothing in particular."""
    ends = ((asked.good, old.good), (asked.bad, old.bad))
    bare = asked == Asked()
    same = all(name is None or _is_end(at, url, name, end) for name, end in ends)
    same &= asked.test == old.test and asked.build_fails == old.build_fails
    if bare or (same and asked.first_parent == old.first_parent):
        return
    test = f"by --test {old.test!r}" if old.test is not None else "by the smoke test"
    more = [f"--build-fails {old.build_fails}"] if old.build_fails != "skip" else []
    more += ["--first-parent"] if old.first_parent else []
    raise QuestionError(
        f"another bisect of {old.recipe} is not at its end",
        ", ".join([f"it is between {old.good} and {old.bad}", test, *more]),
        f"go on with `builder bisect {old.recipe}`, or begin anew with --restart",
    )


def _is_end(at: SourceSession, url: str, name: str, end: End) -> bool:
    """Whether a name means an end; a branch that has moved on still does."""
    return name in {end.name, end.commit} or _end(at, url, name).commit == end.commit


def _end(at: SourceSession, url: str, name: str) -> End:
    try:
        return End(name, track.resolve(url, checked_ref(name), at.repositories).commit)
    except FetchError as error:
        if ABBREVIATED.fullmatch(name):
            raise type(error)(error.what, error.why, "of a commit give all 40 digits") from error
        raise


def roots_between(at: SourceSession, question: Question) -> list[str]:
    """Where the histories of the ends part, if not at the good one: git-bisect needs it good.

    Raises ``QuestionError`` where there is nothing between the ends.
    """
    good, bad = question.good, question.bad
    if good.commit == bad.commit:
        raise QuestionError(f"{good} and {bad} are the same commit")
    roots = at.repositories.sound(
        lambda: roots_of(at.repositories.scratch, good.commit, bad.commit)
    )
    if not roots:
        raise QuestionError(f"{good} and {bad} have no common history")
    if bad.commit in roots:
        raise QuestionError(
            f"the bad end, {bad}, is older than the good one, {good}",
            "what is looked for is the first bad commit after a good one",
            "for the commit that mended something, give the broken one as --good, and a --test "
            "that fails where it is mended",
        )
    return [] if good.commit in roots else roots
