"""What a bisect asks, and what it knows so far: one file a recipe, written whole or not at all.

git's own state is not kept.  Git gets every evaluated commit anew whenever a bisect goes on, so
that nothing of git's can be half written, and the mirrors may go and come back in between.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from builder.errors import BuilderError
from builder.plan.resolve import resolve_patches
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.schema import Recipe
from builder.tools.files import write_json
from builder.tools.git.bisection import Commit, Word

SHORT = 9  # digits of a commit that people are shown
BuildFails = Literal["skip", "bad"]


class QuestionError(BuilderError):
    """What is asked has no answer: the ends are not what they are said to be."""

    exit_code: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class End:
    """One end of what is looked through: as it was named, and the commit that this was."""

    name: str
    commit: str

    def __str__(self) -> str:
        short = self.commit[:SHORT]
        return short if self.name == self.commit else f"{self.name} ({short})"


@dataclass(frozen=True, slots=True)
class Question:
    """What decides the answer."""

    recipe: str
    good: End
    bad: End
    test: str | None
    """A shell command that decides; None: the smoke test does."""
    folder: str
    """The directory that it runs in, wherever the bisect goes on; empty without a test."""
    build_fails: BuildFails
    """What a commit is that does not compile."""
    first_parent: bool
    inputs: str
    """sha256 of what is built beside the commit, as ``inputs_of`` gives it."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a commit is, and why; ``why`` is one line."""

    word: Word
    why: str
    built: bool = False
    """Whether something was compiled for it."""
    seconds: float = 0.0
    log: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """A commit that was evaluated."""

    commit: Commit
    evaluation: Evaluation

    @property
    def word(self) -> Word:
        """Good, bad or skip."""
        return self.evaluation.word


@dataclass(frozen=True, slots=True)
class Trace:
    """What the engine may have of a commit: the names of images that are like ``patterns``.

    Those that were ``there`` before are not ours.
    """

    commit: str
    patterns: tuple[str, ...]
    there: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class State:
    """A question, what is known, and what is being tried."""

    question: Question
    steps: tuple[Step, ...] = ()
    trace: Trace | None = None

    def step(self, commit: str) -> Step | None:
        """The step of a commit, or None."""
        return next((step for step in self.steps if step.commit.name == commit), None)

    def with_step(self, step: Step) -> State:
        """The state with one more commit evaluated."""
        return replace(self, steps=(*self.steps, step))


def path_of(state_dir: Path, recipe: str) -> Path:
    """Where the state of a recipe's bisect stands."""
    return state_dir / "bisect" / f"{recipe}.json"


def under_way(state_dir: Path) -> set[str]:
    """The recipes of which a state stands, readable or not."""
    return {file.stem for file in path_of(state_dir, "*").parent.glob("*.json")}


def write(state_dir: Path, state: State) -> None:
    """Keep a state; raises ``OSError`` when the disk does not take it."""
    write_json(path_of(state_dir, state.question.recipe), asdict(state))


def keep(state_dir: Path, state: State) -> None:
    """Keep a state, or forget it where nothing is known: then it would only be in the way."""
    if state.steps or state.trace is not None:
        write(state_dir, state)
    else:
        forget(state_dir, state.question.recipe)


def read(state_dir: Path, recipe: str) -> State | None:
    """The state of a recipe's bisect, or None where none is under way.

    Raises ``QuestionError`` where it cannot be read.
    """
    file = path_of(state_dir, recipe)
    try:
        return _parsed(json.loads(file.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise QuestionError(
            f"what is known of the bisect of {recipe} cannot be read",
            f"{file}: {error}",
            f"`builder bisect {recipe} --reset` forgets it",
        ) from error


def _parsed(found: dict[str, Any]) -> State:
    asked = found["question"]
    ends = {name: End(**asked[name]) for name in ("good", "bad")}
    steps = [
        Step(Commit(**step["commit"]), Evaluation(**step["evaluation"])) for step in found["steps"]
    ]
    trace = found["trace"] and Trace(
        found["trace"]["commit"],
        tuple(found["trace"]["patterns"]),
        tuple(found["trace"]["there"]),
    )
    return State(Question(**(asked | ends)), tuple(steps), trace)


def forget(state_dir: Path, recipe: str) -> None:
    """Take a state away, readable or not; absence is no error."""
    path_of(state_dir, recipe).unlink(missing_ok=True)


def inputs_of(catalog: Catalog, entry: Entry[Recipe]) -> str:
    """sha256 of a recipe, its bases and its patches: judgements hold for these.

    Raises ``RecipeError`` when one of them cannot be read.
    """
    texts = [entry.text, *(catalog.base(n).text for n in catalog.chain(entry.recipe.base))]
    patches = [patch.inputs() for patch in resolve_patches(entry, catalog.root)]
    told = json.dumps([texts, patches], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()
