"""The patch doctor on histories with many forks, moves and merges, held against git itself.

What is right is not ours to say: whether a tree is right says git's three-way merge, whether a
pull request is merged says who merged it, and where a hunk's lines are now says git blame.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from builder.patches import diff
from builder.patches.apply import FITS, attempt
from builder.patches.context import PatchContext
from builder.patches.series import apply_all
from builder.plan.inputs import GitCommit, PlannedPatch
from builder.recipes.schema import PullPatch, Track
from builder.tools.git.repositories import Repositories
from builder.upstream.compatibility import PatchSet, diagnose
from builder.upstream.patch_state import Finding
from support import histories
from support.histories import RENAMED, History, Pull

pytestmark = pytest.mark.xdist_group("line_map")  # they share what a fixture makes

SEEDS = (1, 2, 3)
NEAR = 8  # commits of main after the base of a pull request: there most still fit
SLACK = 2  # lines
SHOWN = re.compile(r"(?s)(\S+), hunk (\d+): [^\n]*?(?:from|at) line (\d+)(?:, and have|\n|$)")


@dataclass
class Score:
    """How often the doctor was right, of how many, by question."""

    right: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def count(self, question: str, right: bool, what: str) -> None:
        self.asked[question] += 1
        self.right[question] += right
        if not right:
            self.wrong.append(f"{question}: {what}")

    def share(self, question: str) -> float:
        return self.right[question] / self.asked[question]

    def __str__(self) -> str:
        lines = [
            f"{name}: {self.right[name]} of {count} ({self.share(name):.0%})"
            for name, count in sorted(self.asked.items())
        ]
        return "\n".join([*lines, *self.wrong])


class Ward:
    """One history, and the doctor over its mirror."""

    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir()
        self.history: History = histories.make(folder, seed)
        self.git = self.history.upstream.git
        work = folder / "work"
        work.mkdir()
        self.repositories = Repositories(folder / "cache", work, lambda _: None)
        self.context = PatchContext(self.repositories, work, None, lambda _: None)

    def case(self, pull: Pull, pin: str) -> PatchSet:
        url = self.history.upstream.url
        patch = PullPatch(pull=pull.number, base=pull.base, head=pull.head, why="a test")
        source = GitCommit(url, pin, False, {})
        planned = (PlannedPatch(patch, url),)
        return PatchSet("x", source, Track(branch="main"), planned, self.context)

    def findings(self, pull: Pull) -> list[Finding]:
        """What the doctor says of a pull request on today's main, and soon after its start."""
        main = self.history.main
        near = main[min(main.index(pull.base) + NEAR, len(main) - 1)]
        _, *found = diagnose(self.case(pull, pull.base), [near])
        return found

    def has(self, pull: Pull, commit: str) -> bool:
        """Whether a commit of main has a pull request, by the last one to add or revert it."""
        main = self.history.main
        at = main.index(commit)
        return next((there for by, there in reversed(pull.turns) if main.index(by) <= at), False)

    def lost_its_name(self, pull: Pull, commit: str) -> bool:
        """Whether a pull request changes the file that has another name in a commit of main."""
        changed = self.git("diff", "--name-only", pull.base, pull.head).split()
        there = self.git("ls-tree", "-r", "--name-only", commit).split()
        return RENAMED[0] in changed and RENAMED[1] in there

    def merged_tree(self, pull: Pull, commit: str) -> str:
        """The tree of git's own three-way merge; empty where it conflicts.

        What was merged once and taken back is merged as if it never had been.
        """
        never = self.git("commit-tree", f"{commit}^{{tree}}", "-p", pull.base, "-m", "never merged")
        try:
            return self.git("merge-tree", "--write-tree", never, pull.head)
        except AssertionError:
            return ""

    def applied_tree(self, pull: Pull, commit: str) -> str:
        case = self.case(pull, commit)
        return apply_all(self.context, case.tree(next(case.targets(()))), case.patches)

    def by_text(self, pull: Pull, commit: str) -> list[str]:
        """The conflicts of a pull request's diff that does not say what it was made for."""
        text = self.history.upstream.raw("diff", "--no-renames", pull.base, pull.head)
        files = diff.parse(re.sub(rb"(?m)^index .*\n", b"", text))
        tree = self.context.scratch.tree_of(commit)
        return [str(each) for each in attempt(self.context.scratch, tree, files).conflicts]

    def hunks(self, pull: Pull) -> Iterator[tuple[str, int, range]]:
        """Path, number and lines of the old file of each hunk of a pull request."""
        text = self.history.upstream.raw("diff", "--no-renames", pull.base, pull.head)
        for file in diff.parse(text):
            for number, hunk in enumerate(file.hunks, 1):
                yield file.path, number, range(hunk.start, hunk.start + len(hunk.before))

    def line_map(self, base: str, path: str, to: str) -> dict[int, int]:
        """Where the lines of a file are in a commit of main, by git blame; those that went lack."""
        listing = self.git(
            *("blame", "--reverse", "--first-parent", "--porcelain", f"{base}..{to}"),
            *("--", path),
        )
        found = {}
        for name, there, line in re.findall(r"(?m)^([0-9a-f]{40}) (\d+) (\d+)", listing):
            if name == to:
                found[int(line)] = int(there)
        return found


def expected_at(where: dict[int, int], lines: range, telling: set[int]) -> range | None:
    """The lines at which a hunk may be shown; None where no line that tells anything is left."""
    left = [line for line in lines if line in where]
    if not telling.intersection(left):
        return None
    at = [where[line] - (line - lines.start) for line in left if line in telling]
    return range(min(at) - SLACK, max(*at, where[left[0]]) + SLACK + 1)


def examine(ward: Ward, score: Score) -> None:
    for pull in ward.history.pulls:
        for finding in ward.findings(pull):
            compare(ward, pull, finding, score)


def compare(ward: Ward, pull: Pull, finding: Finding, score: Score) -> None:
    there = ward.has(pull, finding.commit)
    what = f"pull {pull.number} ({pull.how}) is {finding.state} on {finding.commit[:9]}"
    score.count("merged or not", (finding.state == "upstream") == there, what)
    if not there:
        score.count("kept", finding.state != "upstream", what)
        if ward.lost_its_name(pull, finding.commit):
            noted = any(f"its lines moved to {RENAMED[1]}" in line for line in finding.details)
            score.count("another name", noted and finding.state != "absent", what)
    if there and finding.state == "upstream":
        named = finding.commits[0].split()[0] if finding.commits else "nobody"
        score.count("introduced by", pull.merged.startswith(named), f"{what}, by {named}")
    elif not there and finding.state in FITS:
        # What moved as a whole, git's merge does not follow.
        merged = ward.merged_tree(pull, finding.commit)
        if merged:
            score.count("trees", ward.applied_tree(pull, finding.commit) == merged, what)
    elif not there:
        hunks(ward, pull, finding.commit, finding.details, score, "hunks")
        hunks(
            ward, pull, finding.commit, ward.by_text(pull, finding.commit), score, "by text alone"
        )


def hunks(
    ward: Ward, pull: Pull, commit: str, details: Sequence[str], score: Score, question: str
) -> None:
    """Whether the hunks that do not fit a commit are shown where git blame says that they are."""
    shown = {
        (path, int(number)): int(line)
        for detail in details
        for path, number, line in SHOWN.findall(detail)
    }
    told = {
        (path, int(number))
        for detail in details
        for path, number in re.findall(r"^(\S+), hunk (\d+):", detail)
    }
    for path, number, lines in ward.hunks(pull):
        if (path, number) not in told:
            continue
        where = ward.line_map(pull.base, path, commit)
        content = ward.history.upstream.git("show", f"{pull.base}:{path}").splitlines()
        telling = {n for n, line in enumerate(content, 1) if re.search(r"\w{3}", line)}
        right = expected_at(where, lines, telling)
        if right is None:
            continue
        at = shown.get((path, number))
        what = f"pull {pull.number}, {path}, hunk {number}: shown at {at}, it is at {right}"
        score.count(question, at is not None and at in right, what)


@pytest.fixture(scope="module")
def score(tmp_path_factory: pytest.TempPathFactory) -> Score:
    found = Score()
    for seed in SEEDS:
        examine(Ward(tmp_path_factory.mktemp("line-map") / str(seed), seed), found)
    print(found)  # noqa: T201  (the shares, with -s)
    return found


@pytest.mark.parametrize(
    ("question", "floor", "least"),
    [
        ("merged or not", 0.98, 200),
        ("kept", 1.0, 150),
        ("another name", 1.0, 30),
        ("introduced by", 1.0, 60),
        ("trees", 1.0, 75),
        ("hunks", 0.89, 50),
        ("by text alone", 0.69, 50),
    ],
)
def test_the_doctor_is_right(score: Score, question: str, floor: float, least: int) -> None:
    assert score.asked[question] >= least
    assert score.share(question) >= floor, str(score)
