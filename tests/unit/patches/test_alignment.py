"""`patch check` on histories with many forks, moves and merges, compared with git's own results.

A tree is right if git's three-way merge makes the same; a pull request is merged if the history
merged it; the lines of a hunk are where git blame finds them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from builder.patches import diff
from builder.patches.apply import attempt
from builder.patches.context import PatchContext
from builder.patches.series import apply_all
from builder.patches.state import PatchState
from builder.plan.inputs import GitCommit, PlannedPatch
from builder.recipes.schema import FilePatch, Pick, PickPatch, PullPatch, Track
from builder.tools.git.repositories import Repositories
from builder.upstream.compatibility import PatchSet, diagnose
from builder.upstream.patch_state import PatchFinding
from support import histories
from support.histories import RENAMED, History, Pull

pytestmark = pytest.mark.xdist_group("alignment")  # they share what a fixture makes

SEEDS = (1, 2)
NEAR = 8  # commits of main after the base of a pull request: there most still fit
SLACK = 2  # lines
SHOWN = re.compile(r"(?s)(\S+), hunk (\d+): [^\n]*?(?:from|at) line (\d+)(?:, and have|\n|$)")


@dataclass
class Score:
    """How often `patch check` was right, by question."""

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


class Checked:
    """One history, and the patches of its pull requests, checked through a mirror."""

    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir()
        self.history: History = histories.make(folder, seed)
        self.git = self.history.upstream.git
        work = folder / "work"
        work.mkdir()
        self.repositories = Repositories(folder / "cache", work, lambda _: None)
        self.context = PatchContext(self.repositories, work, None, lambda _: None)
        self._fetch_all()

    def _fetch_all(self) -> None:
        """Fetch in one go what the checks would fetch piece by piece."""
        url = self.history.upstream.url
        heads = [pull.head for pull in self.history.pulls]
        self.repositories.walk(url, *self.history.main, *heads)
        objects = self.git("rev-list", "--objects", "--no-object-names", "--all").split()
        self.repositories.contents(url, objects)
        pins = self.repositories.mirror(url).pins
        pins.create()
        refs = [f"{commit}:refs/pins/{commit}" for commit in self.history.main]
        self.git("push", "--quiet", str(pins.folder), *refs)

    def patch_set(self, pull: Pull, pin: str) -> PatchSet:
        url = self.history.upstream.url
        patch = PullPatch(pull=pull.number, base=pull.base, head=pull.head, why="a test")
        source = GitCommit(url, pin, False, {})
        planned = (PlannedPatch(patch, url),)
        return PatchSet("x", source, Track(branch="main"), planned, self.context)

    def findings(self, pull: Pull) -> list[PatchFinding]:
        """The findings for a pull request on today's main, and soon after its start."""
        main = self.history.main
        near = main[min(main.index(pull.base) + NEAR, len(main) - 1)]
        _, *found = diagnose(self.patch_set(pull, pull.base), [near])
        return found

    def given(self, pull: Pull) -> Iterator[tuple[str, str, PlannedPatch]]:
        """Ways to give a pull request: the question, the pin, the patch."""
        url = self.history.upstream.url
        text = self.history.upstream.raw("diff", pull.base, pull.head)
        yield "as a file", pull.base, PlannedPatch(FilePatch(file="x", why="x"), content=text)
        new = self.history.rewritten(pull)
        pairs = [("as a range", (new[0], new[-1]))]
        pairs += [("as commits", pair) for pair in pairwise(new) if len(new) > 2]
        for question, (after, to) in pairs:
            self.repositories.walk(url, to)
            pick = PickPatch(pick=Pick(after=after, to=to), why="x")
            yield question, pull.base, PlannedPatch(pick, url)

    def has(self, pull: Pull, commit: str) -> bool:
        """Whether a commit of main has a pull request, by the last one to add or revert it."""
        main = self.history.main
        at = main.index(commit)
        return next((there for by, there in reversed(pull.turns) if main.index(by) <= at), False)

    def renames(self, pull: Pull, commit: str) -> bool:
        """Whether a commit of main has another name for a file that a pull request changes."""
        changed = {path for path, _, _ in self.hunks(pull)}
        return RENAMED[0] in changed and RENAMED[1] in self.paths(commit)

    @cache  # noqa: B019  (three of them live as long as the module)
    def paths(self, commit: str) -> list[str]:
        """The files of a commit."""
        return self.git("ls-tree", "-r", "--name-only", commit).split()

    @cache  # noqa: B019
    def diff(self, pull: Pull) -> bytes:
        """The diff of a pull request."""
        return self.history.upstream.raw("diff", "--no-renames", pull.base, pull.head)

    @cache  # noqa: B019
    def content(self, commit: str, path: str) -> list[str]:
        """The lines of a file."""
        return self.git("show", f"{commit}:{path}").splitlines()

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
        patch_set = self.patch_set(pull, commit)
        return apply_all(
            self.context, patch_set.tree(next(patch_set.targets(()))), patch_set.patches
        )

    def by_text(self, pull: Pull, commit: str) -> list[str]:
        """The conflicts of a pull request's diff that does not say what it was made for."""
        files = diff.parse(re.sub(rb"(?m)^index .*\n", b"", self.diff(pull)))
        tree = self.context.scratch.tree_of(commit)
        return [str(each) for each in attempt(self.context.scratch, tree, files).conflicts]

    def hunks(self, pull: Pull) -> Iterator[tuple[str, int, range]]:
        """Path, number and lines of the old file of each hunk of a pull request."""
        for file in diff.parse(self.diff(pull)):
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


def examine(checked: Checked, score: Score) -> None:
    for pull in checked.history.pulls:
        for finding in checked.findings(pull):
            compare(checked, pull, finding, score)
        there = checked.has(pull, checked.history.main[-1])
        for question, pin, patch in checked.given(pull):
            finding = list(diagnose(replace(checked.patch_set(pull, pin), patches=(patch,))))[-1]
            what = f"pull {pull.number} ({pull.how}) {question} is {finding.state}"
            if there:
                score.count(question, finding.state == "upstream", what)
                score.count("not again", finding.state != PatchState.APPLIES, what)
            elif question != "as commits":  # main inserts a guard of one commit, too
                score.count("kept", finding.state != "upstream", what)


def compare(checked: Checked, pull: Pull, finding: PatchFinding, score: Score) -> None:
    there = checked.has(pull, finding.commit)
    what = f"pull {pull.number} ({pull.how}) is {finding.state} on {finding.commit[:9]}"
    score.count("merged or not", (finding.state == "upstream") == there, what)
    if not there:
        score.count("kept", finding.state != "upstream", what)
        if checked.renames(pull, finding.commit):
            noted = any(f"its lines moved to {RENAMED[1]}" in line for line in finding.details)
            score.count("another name", noted and finding.state != "absent", what)
    if there and finding.state == "upstream":
        named = finding.commits[0].split()[0] if finding.commits else "nobody"
        score.count("introduced by", pull.merged.startswith(named), f"{what}, by {named}")
    elif not there and finding.state == PatchState.APPLIES:
        # What moved as a whole, git's merge does not follow.
        merged = checked.merged_tree(pull, finding.commit)
        if merged:
            score.count("trees", checked.applied_tree(pull, finding.commit) == merged, what)
    elif not there:
        hunks(checked, pull, finding.commit, finding.details, score, "hunks")
        hunks(
            checked,
            pull,
            finding.commit,
            checked.by_text(pull, finding.commit),
            score,
            "by text alone",
        )


def hunks(
    checked: Checked, pull: Pull, commit: str, details: Sequence[str], score: Score, question: str
) -> None:
    """Whether the hunks that do not fit a commit are shown where git blame says that they are."""
    shown = {
        (path, int(number)): int(line)
        for detail in details
        for path, number, line in SHOWN.findall(detail)
    }
    reported = {
        (path, int(number))
        for detail in details
        for path, number in re.findall(r"^(\S+), hunk (\d+):", detail)
    }
    for path, number, lines in checked.hunks(pull):
        if (path, number) not in reported:
            continue
        where = checked.line_map(pull.base, path, commit)
        content = checked.content(pull.base, path)
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
        examine(Checked(tmp_path_factory.mktemp("line-map") / str(seed), seed), found)
    print(found)  # noqa: T201  (the shares, with -s)
    return found


@pytest.mark.parametrize(
    ("question", "floor", "least"),
    [
        ("merged or not", 0.98, 150),
        ("as a file", 0.95, 30),
        ("as a range", 0.95, 30),
        ("as commits", 0.9, 30),  # kept where the rest of the pull rewrote most of it
        ("not again", 1.0, 100),
        ("kept", 1.0, 150),
        ("another name", 1.0, 20),
        ("introduced by", 1.0, 40),
        ("trees", 1.0, 45),
        ("hunks", 0.89, 50),
        ("by text alone", 0.69, 50),
    ],
)
def test_patch_check_agrees_with_git(score: Score, question: str, floor: float, least: int) -> None:
    assert score.asked[question] >= least
    assert score.share(question) >= floor, str(score)
