"""What a user asks of a bisect, as commits: whether it can be answered, and what is known of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from builder import families, questions, upstream
from builder.catalogue import Entry
from builder.desk import Desk
from builder.errors import FetchError, RecipeError
from builder.pipeline import Run
from builder.questions import BuildFails, End, Question, QuestionError, State
from builder.schema import GitSource, Recipe, checked_ref
from builder.tools.bisection import roots_of

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
    assert entry.recipe is not None
    source = entry.recipe.source
    if not isinstance(source, GitSource):
        raise RecipeError(
            f"the source of {entry.name} is no git repository",
            hint="releases of PyPI are tried one by one: edit version and sha256 of [source]",
        )
    if families.ENGINES[entry.recipe.family].INHERITS:
        raise RecipeError(
            f"the engine of {entry.name} is in its base, {entry.recipe.base}, at every commit",
            hint="only what is built from its source can be bisected",
        )
    return source.git


def state_of(run: Run, at: Desk, entry: Entry[Recipe], url: str, asked: Asked) -> State:
    """What is known of the question, or nothing yet.

    Raises ``QuestionError`` where another one is not answered yet, or what is asked for again was
    judged with another recipe; ``FetchError`` for an end that does not exist.
    """
    known = questions.read(run.settings.state_dir, entry.name)
    inputs = questions.inputs_of(run.catalogue, entry)
    if known is None:
        if asked.good is None or asked.bad is None:
            raise QuestionError(
                f"no bisect of {entry.name} is under way", hint="say --good A --bad B"
            )
        good, bad = (_end(at, url, name) for name in (asked.good, asked.bad))
        way = (asked.test, asked.build_fails, asked.first_parent)
        return State(Question(entry.name, good, bad, *way, inputs))
    old = known.question
    _need_same(at, url, asked, old)
    if old.inputs != inputs:
        raise QuestionError(
            f"{entry.name}, its base or a patch has changed since its bisect began",
            "what was judged was made with what was there before",
            "undo the change, or begin anew with --restart",
        )
    run.say(f"going on between {old.good} and {old.bad}: {count(len(known.steps))} judged")
    return known


def _need_same(at: Desk, url: str, asked: Asked, old: Question) -> None:
    """Raise ``QuestionError`` unless what is asked is what was asked, or nothing in particular."""
    ends = ((asked.good, old.good), (asked.bad, old.bad))
    bare = asked == Asked()
    same = all(name is None or _is_end(at, url, name, end) for name, end in ends)
    same &= asked.test == old.test and asked.build_fails == old.build_fails
    if bare or (same and asked.first_parent == old.first_parent):
        return
    test = f"by --test {old.test!r}" if old.test is not None else "by the proofs"
    more = [f"--build-fails {old.build_fails}"] if old.build_fails != "skip" else []
    more += ["--first-parent"] if old.first_parent else []
    raise QuestionError(
        f"another bisect of {old.recipe} is not at its end",
        ", ".join([f"it is between {old.good} and {old.bad}", test, *more]),
        f"go on with `builder bisect {old.recipe}`, or begin anew with --restart",
    )


def _is_end(at: Desk, url: str, name: str, end: End) -> bool:
    """Whether a name means an end; a branch that has moved on still does."""
    return name in {end.name, end.commit} or _end(at, url, name).commit == end.commit


def _end(at: Desk, url: str, name: str) -> End:
    try:
        return End(name, upstream.resolve(url, checked_ref(name), at.repositories).commit)
    except FetchError as error:
        if ABBREVIATED.fullmatch(name):
            raise type(error)(error.what, error.why, "of a commit give all 40 digits") from error
        raise


def roots_between(at: Desk, question: Question) -> list[str]:
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
