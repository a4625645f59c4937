"""The state of a bisect: its question and the commits evaluated so far, one file for each recipe.

git's own state is not kept.  A bisect that goes on gives git every evaluated commit again, so that
no state of git's can be half written, and the mirrors may be deleted in between.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from builder.core.errors import UsageError
from builder.core.files import write_json
from builder.core.json_model import first_error
from builder.core.platforms import Platform
from builder.plan.inputs import resolve_patches
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.schema import Recipe
from builder.sources.bisection import Commit, Word

SHORT = 9  # digits of a commit in messages
STRICT = ConfigDict(strict=True, extra="forbid")
BuildFails = Literal["skip", "bad"]


class QuestionError(UsageError):
    """The question of a bisect cannot be answered as it was given."""


@dataclass(frozen=True, slots=True, config=STRICT)
class End:
    """One end of the range: the name that was given, and its commit at that time."""

    name: str
    commit: str

    def __str__(self) -> str:
        short = self.commit[:SHORT]
        return short if self.name == self.commit else f"{self.name} ({short})"


@dataclass(frozen=True, slots=True, config=STRICT)
class BisectQuestion:
    """Everything that the answer depends on."""

    recipe: str
    good: End
    bad: End
    test: str | None
    """A shell command that decides; None: the smoke test does."""
    folder: str
    """The directory that the test runs in; empty without a test."""
    build_fails: BuildFails
    """The verdict on a commit that does not compile."""
    first_parent: bool
    inputs: str
    """sha256 of the other inputs of the builds, from ``inputs_of``."""


@dataclass(frozen=True, slots=True, config=STRICT)
class Evaluation:
    """The verdict on a commit, and the reason in one line."""

    verdict: Word
    why: str
    built: bool = False
    """Whether this commit was compiled."""
    seconds: float = 0.0
    log: str = ""


@dataclass(frozen=True, slots=True, config=STRICT)
class BisectStep:
    """A commit that was evaluated."""

    commit: Commit
    evaluation: Evaluation

    @property
    def verdict(self) -> Word:
        """Good, bad or skip."""
        return self.evaluation.verdict


@dataclass(frozen=True, slots=True, config=STRICT)
class Trace:
    """The image names that the build of a commit may leave in the engine."""

    commit: str
    patterns: tuple[str, ...]
    """Patterns of the names."""
    there: tuple[str, ...]
    """Names that existed before; they are not removed."""


@dataclass(frozen=True, slots=True, config=STRICT)
class BisectState:
    """A question, the commits evaluated so far, and the trace of the current one."""

    question: BisectQuestion
    steps: tuple[BisectStep, ...] = ()
    trace: Trace | None = None

    def step(self, commit: str) -> BisectStep | None:
        """The step of a commit; None if it is not evaluated yet."""
        return next((step for step in self.steps if step.commit.name == commit), None)

    def with_step(self, step: BisectStep) -> BisectState:
        """The state with one more step."""
        return replace(self, steps=(*self.steps, step))


STATE = TypeAdapter(BisectState)


def path_of(state_dir: Path, recipe: str) -> Path:
    """The file of a recipe's state."""
    return state_dir / "bisect" / f"{recipe}.json"


def under_way(state_dir: Path) -> set[str]:
    """The recipes that have a state file, readable or not."""
    return {file.stem for file in path_of(state_dir, "*").parent.glob("*.json")}


def write(state_dir: Path, state: BisectState) -> None:
    """Write a state; raises ``OSError`` if that fails."""
    write_json(path_of(state_dir, state.question.recipe), STATE.dump_python(state, mode="json"))


def keep(state_dir: Path, state: BisectState) -> None:
    """Write a state, or delete the file if there is no progress to keep."""
    if state.steps or state.trace is not None:
        write(state_dir, state)
    else:
        forget(state_dir, state.question.recipe)


def read(state_dir: Path, recipe: str) -> BisectState | None:
    """The state of a recipe's bisect, or None if there is none.

    Raises ``QuestionError`` if it cannot be read.
    """
    file = path_of(state_dir, recipe)
    try:
        return STATE.validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise _damaged(file, recipe, first_error(error)) from error
    except OSError as error:
        raise _damaged(file, recipe, error.strerror or str(error)) from error


def _damaged(file: Path, recipe: str, reason: str) -> QuestionError:
    return QuestionError(
        f"the state of the bisect of {recipe} cannot be read",
        f"{file}: {reason}",
        f"`builder bisect {recipe} --reset` discards it",
    )


def forget(state_dir: Path, recipe: str) -> None:
    """Delete a state, readable or not; absence is no error."""
    path_of(state_dir, recipe).unlink(missing_ok=True)


def inputs_of(catalog: Catalog, entry: Entry[Recipe], platform: Platform | None) -> str:
    """sha256 of a recipe, its bases and its patches, and of the platform if one is named:
    evaluations hold for these inputs.

    Raises ``RecipeError`` if one of them cannot be read.
    """
    texts = [entry.text, *(catalog.base(n).text for n in catalog.chain(entry.recipe.base))]
    patches = [patch.inputs() for patch in resolve_patches(entry, catalog.root)]
    inputs = json.dumps([texts, patches, *([platform] if platform else [])], sort_keys=True)
    return hashlib.sha256(inputs.encode()).hexdigest()
