"""`patch check` on a real history: are merged pull requests recognised, and nothing else?

Needs git and a clone with merged pull requests (merge commits, or squashes named "... (#N)"):

    .venv/bin/python studies/patches.py CLONE [--branch REF] [--pulls 60]
        [--foreign OTHER_CLONE[=REF]] [--verbose] [--json]

Each of the last pull requests is given as a diff file, as a pull request, as a range of commits
with other ids, and as those commits one by one; the history says that all are upstream, except
those that it reverts.  Commits of another repository that the history has under no id, subject or
patch id are not upstream.  No patch that applies may add lines a second time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from builder.plan.inputs import GitCommit, PlannedPatch
from builder.recipes.edit import NamedCommit
from builder.recipes.patches import FilePatch, Pick, PickPatch, PullPatch
from builder.sources import diff
from builder.sources.diff import PatchState, trivial
from builder.sources.git import GitRepository
from builder.sources.mirrors import Repositories
from builder.sources.patches import PatchContext
from builder.upstream.patches import PatchFinding, PatchSet, findings_on

NUMBER = re.compile(r"[Mm]erge pull request #(\d+)|\(#(\d+)\)$")
REVERTED = re.compile(r"This reverts commit ([0-9a-f]{7,40})")
LOG = ("log", "-p", "--no-merges", "--full-index", "--full-history")
WAYS = ("file", "pull", "range", "commits")
FEWEST = 2
"""Lines of a hunk that must be there twice to say that it is."""
MOST_FILES = 100
"""Files of a pull request: whole upstreams are merged as one, too."""


@dataclass(frozen=True)
class Pull:
    """A merged pull request; ``commits`` are its own, oldest first, empty if it has merges."""

    number: int
    merge: str
    base: str
    head: str
    commits: tuple[str, ...]


@dataclass
class Tally:
    """Counts of one way of giving patches, and the exceptions."""

    right: int = 0
    of: int = 0
    exceptions: list[str] = field(default_factory=list)

    def add(self, *, right: bool, what: str) -> None:
        """Count one."""
        self.of += 1
        self.right += right
        if not right:
            self.exceptions.append(what)


class Clone:
    """A repository over the objects of clones, which stay as they are."""

    def __init__(self, folder: Path, clones: Sequence[Path]) -> None:
        self.folder = folder
        git(None, "init", "--quiet", "--bare", str(folder))
        objects = [git(each, "rev-parse", "--git-path", "objects") for each in clones]
        paths = [(each / path).resolve() for each, path in zip(clones, objects, strict=True)]
        (folder / "objects" / "info" / "alternates").write_text("".join(f"{p}\n" for p in paths))
        for name in ("allowFilter", "allowAnySHA1InWant"):
            self.git("config", f"uploadpack.{name}", "true")

    def git(self, *arguments: str, stdin: bytes = b"") -> str:
        """The output of git."""
        return git(self.folder, *arguments, stdin=stdin)

    def raw(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """The output of git, as it is."""
        return run(self.folder, *arguments, stdin=stdin)

    def commit(self, tree: str, parent: str, message: str) -> str:
        """A new commit."""
        who = ("-c", "user.name=Bench", "-c", "user.email=bench@example.invalid")
        return self.git(*who, "commit-tree", tree, "-p", parent, "-m", message)

    def rewritten(self, pull: Pull) -> list[str]:
        """The commits of a pull request with other ids, authors and times."""
        found = [pull.base]
        for commit in pull.commits:
            subject = self.git("log", "-1", "--format=%s", commit)
            found.append(self.commit(f"{commit}^{{tree}}", found[-1], subject))
        return found

    def pulls(self, target: str, count: int) -> Iterator[Pull]:
        """The last merged pull requests of a branch that change something, newest first."""
        log = self.git("log", "--first-parent", "--format=%H%x01%P%x01%s", target)
        for line in log.splitlines():
            merge, parents, subject = line.split("\x01")
            found, (before, *others) = NUMBER.search(subject), [*parents.split(), ""]
            if found is None or not before or not count:
                continue
            head = others[0] or merge
            base = self.git("merge-base", before, head) if others[0] else before
            span = self.git("rev-list", "--reverse", "--parents", f"{base}..{head}")
            rows = [row.split() for row in span.splitlines()]
            linear = all(len(row) == 2 for row in rows)
            commits = tuple(row[0] for row in rows) if linear else ()
            files = self.git("diff", "--name-only", base, head).splitlines()
            text = self.raw("diff", "--binary", base, head) if len(files) <= MOST_FILES else b""
            if is_patch(text):
                count -= 1
                yield Pull(int(found[1] or found[2]), merge, base, head, commits)

    def reverted(self, target: str) -> list[str]:
        """The commits, perhaps abbreviated, that messages of a branch revert."""
        return REVERTED.findall(self.git("log", "--format=%B", target))

    def is_undone(self, base: str, head: str, target: str) -> bool:
        """Whether a branch has a commit since a base with the patch id of the reverse diff."""
        paths = self.git("diff", "--name-only", base, head).splitlines()
        back = self.patch_ids("diff", head, base)
        if back.keys() == self.patch_ids("diff", base, head).keys():
            return False  # patch ids lack white space, and there is nothing else
        return not self.patch_ids(*LOG, f"{head}..{target}", "--", *paths).keys().isdisjoint(back)

    def is_there(self, text: bytes, target: str) -> bool:
        """Whether a diff can be reverted in a commit."""
        index = {"GIT_INDEX_FILE": str(self.folder / "index"), "GIT_DIR": str(self.folder)}
        apply = ["git", "apply", "--cached", "--check", "--reverse"]
        subprocess.run(["git", "read-tree", target], env=os.environ | index, check=True)
        done = subprocess.run(
            apply, env=os.environ | index, input=text, capture_output=True, check=False
        )
        return done.returncode == 0

    def patch_ids(self, *command: str) -> dict[str, str]:
        """The patch ids of diffs, and their commits (git-patch-id(1))."""
        rows = self.git("patch-id", "--stable", stdin=self.raw(*command)).splitlines()
        return {row.split()[0]: row.split()[1] for row in rows}

    def foreign(self, target: str, other: str, count: int) -> Iterator[str]:
        """The newest commits of another branch that a target has under no id, subject or patch id.

        Also none that changes what a clone lacks, or nothing: the target is as it leaves the files.
        """
        base = self.git("merge-base", target, other)
        known = set(self.git("log", "--format=%s", target, f"^{base}").splitlines())
        log = self.git("log", "--no-merges", "--format=%H%x01%s", other, f"^{target}")
        for commit, subject in (line.split("\x01") for line in log.splitlines()):
            try:
                files = self.git("diff", "--name-only", f"{commit}^", commit).splitlines()
                usable = subject not in known and 0 < len(files) <= MOST_FILES
                text = self.raw("diff", "--binary", f"{commit}^", commit)
                if not usable or not is_patch(text) or self.is_there(text, target):
                    continue
                ours = self.patch_ids(*LOG, target, f"^{base}", "--", *files)
                theirs = self.patch_ids("diff", f"{commit}^", commit)
            except subprocess.CalledProcessError:
                continue
            if count and ours.keys().isdisjoint(theirs):
                count -= 1
                yield commit


class Doctor:
    """The doctor over the mirror of a clone."""

    def __init__(self, clone: Clone, folder: Path) -> None:
        self.clone = clone
        self.url = f"file://{clone.folder}"
        work = folder / "work"
        work.mkdir()
        repositories = Repositories(folder / "cache", work, lambda _: None)
        self.context = PatchContext(repositories, work, None, lambda _: None)
        history = repositories.mirror(self.url).history
        GitRepository(
            history
        ).create()  # over the clone: the fetches of a real mirror are not measured
        alternates = history / "objects" / "info" / "alternates"
        alternates.write_text(f"{clone.folder / 'objects'}\n")
        self.seconds = 0.0
        self.processes = self.checks = 0
        sys.addaudithook(self._hook)
        self._counting = False

    def _hook(self, event: str, _: object) -> None:
        self.processes += self._counting and event == "subprocess.Popen"

    def finding(self, pin: str, target: str, patch: PlannedPatch) -> PatchFinding:
        """The finding for a patch that was made for a pin,"""
        source = GitCommit(self.url, pin, False, {})
        case = PatchSet("bench", source, None, (patch,), self.context)
        self.context.repositories.walk(self.url, pin, target)
        started = time.monotonic()
        self._counting = True
        (found,) = findings_on(case, NamedCommit("target", target, "commit"))
        self._counting = False
        self.seconds += time.monotonic() - started
        self.checks += 1
        return found

    def pick(self, after: str, to: str) -> PlannedPatch:
        """A range of commits as a patch."""
        self.context.repositories.walk(self.url, to)
        return PlannedPatch(PickPatch(pick=Pick(after=after, to=to), why="bench"), self.url)

    def pull(self, pull: Pull) -> PlannedPatch:
        """A pull request as a patch."""
        patch = PullPatch(pull=pull.number, base=pull.base, head=pull.head, why="bench")
        return PlannedPatch(patch, self.url)

    def file(self, base: str, head: str) -> PlannedPatch:
        """A diff as a patch."""
        text = self.clone.raw("diff", "--binary", base, head)
        return PlannedPatch(FilePatch(file="bench.patch", why="bench"), content=text)

    def doubled(self, base: str, head: str, tree: str) -> bool:
        """Whether a diff that applies to a tree adds lines that it has at the same place already.

        All lines of a block, words in them, are there once before the diff is applied, and are
        only once in the file that the diff leads to.
        """
        for file in diff.parse(self.clone.raw("diff", "--binary", base, head)):
            there = self._lines(tree, file.old)
            meant = self._lines(head, file.new)
            removed = Counter(line.strip() for hunk in file.hunks for line in hunk.of(b"-"))
            for hunk in file.hunks:
                added = {line.strip() for line in hunk.of(b"+") if not trivial(line)}
                fresh = [line for line in added if meant[line] == 1 and not removed[line]]
                if len(fresh) >= FEWEST and all(there[line] for line in fresh):
                    return True
        return False

    def _lines(self, tree: str, path: str | None) -> Counter[bytes]:
        content = self.context.scratch.file(tree, path) if path else None
        return Counter(line.strip() for line in diff.lines_of(content or b""))


def git(folder: Path | None, *arguments: str, stdin: bytes = b"") -> str:
    """The output of git in a folder."""
    return run(folder, *arguments, stdin=stdin).decode("utf-8", "replace").strip()


def run(folder: Path | None, *arguments: str, stdin: bytes = b"") -> bytes:
    """The output of git in a folder, as it is."""
    done = subprocess.run(
        ["git", *arguments], cwd=folder, input=stdin, capture_output=True, check=True
    )
    return done.stdout


def is_patch(text: bytes) -> bool:
    """Whether a diff can be applied."""
    try:
        return bool(diff.parse(text))
    except diff.NotADiffError:
        return False


def merged(clone: Clone, doctor: Doctor, target: str, count: int) -> dict[str, Tally]:
    """How many merged pull requests are recognised, in each way; and what applies.

    What the history reverts must not count as upstream.
    """
    tallies = {way: Tally() for way in (*WAYS, "reverted", "again")}
    named = clone.reverted(target)
    for pull in clone.pulls(target, count):
        names = (pull.merge, pull.head, *pull.commits)
        listed = any(name.startswith(each) for name in names for each in named)
        undone = listed or clone.is_undone(pull.base, pull.head, target)
        new = clone.rewritten(pull)
        steps = list(zip(pull.commits, pairwise(new), strict=True)) if len(new) > FEWEST else []
        base, head = pull.base, pull.head
        given = [
            ("file", base, head, doctor.file(base, head)),
            ("pull", base, head, doctor.pull(pull)),
            *([("range", base, head, doctor.pick(new[0], new[-1]))] if len(new) > 1 else []),
            *(("commits", pair[0], own, doctor.pick(*pair)) for own, pair in steps),
        ]
        for way, pin, head, patch in given:
            found = doctor.finding(pin, target, patch)
            if found.state == PatchState.BROKEN:
                continue  # a commit without changes
            there = not undone
            if way == "commits" and there:
                there = not clone.is_undone(f"{head}^", head, target)
            what = shown(f"{way} #{pull.number} {patch.name}", found)
            right = (found.state == PatchState.UPSTREAM) == there
            tallies[way if there else "reverted"].add(right=right, what=what)
            if there:
                tallies["again"].add(right=found.state != PatchState.APPLIES, what=what)
    return tallies


def unmerged(
    clone: Clone, doctor: Doctor, target: str, other: str, count: int, tallies: dict[str, Tally]
) -> None:
    """How many commits of another repository do not count as upstream, nor added twice."""
    foreign, twice = (tallies.setdefault(name, Tally()) for name in ("foreign", "twice"))
    for commit in clone.foreign(target, other, count):
        parent = clone.git("rev-parse", f"{commit}^")
        for patch in (doctor.pick(parent, commit), doctor.file(parent, commit)):
            found = doctor.finding(parent, target, patch)
            what = shown(f"{commit[:9]} {patch.name}", found)
            foreign.add(right=found.state != PatchState.UPSTREAM, what=what)
            if found.state == PatchState.APPLIES:
                twice.add(right=not doctor.doubled(parent, commit, target), what=what)


def shown(what: str, found: PatchFinding) -> str:
    """A finding in a few lines."""
    details = [f"    {line}" for text in found.details for line in text.splitlines()[:4]]
    return "\n".join([f"  {what}: {found.state}", *details[:12]])


ROWS = {
    "file": "merged pull requests recognised, as diff files",
    "pull": "the same, by their commits",
    "range": "the same, as ranges of commits with other ids",
    "commits": "their commits one by one, with other ids",
    "reverted": "what was reverted not taken for upstream",
    "again": "merged ones not applied again",
    "foreign": "commits of other repositories not taken for upstream",
    "twice": "the same, where they apply: no change made twice",
}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("clone", type=Path)
    parser.add_argument("--branch", default="HEAD")
    parser.add_argument("--pulls", type=int, default=60)
    parser.add_argument("--foreign", action="append", default=[], metavar="CLONE[=REF]")
    parser.add_argument("--verbose", action="store_true", help="show what is not recognised")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    target = git(options.clone, "rev-parse", options.branch)
    named = [name.partition("=") for name in options.foreign]
    others = [(Path(name), git(Path(name), "rev-parse", ref or "HEAD")) for name, _, ref in named]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clone = Clone(folder / "clone", [options.clone, *(path for path, _ in others)])
        doctor = Doctor(clone, folder)
        tallies = merged(clone, doctor, target, options.pulls)
        for _, head in others:
            unmerged(clone, doctor, target, head, options.pulls, tallies)
    if options.verbose:
        for way, tally in tallies.items():
            print(f"{way}:", *tally.exceptions, sep="\n", file=sys.stderr)
    figures = {
        "target": target,
        **{way: [tally.right, tally.of] for way, tally in tallies.items()},
        "seconds": round(doctor.seconds / doctor.checks, 2),
        "processes": round(doctor.processes / doctor.checks, 1),
    }
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print(f"| {target[:9]} | |")
    for way, tally in tallies.items():
        print(f"| {ROWS[way]} | {tally.right} of {tally.of} |")
    each = f"{figures['seconds']} s, {figures['processes']}"
    print(f"| each on its base and on the target: seconds, git processes | {each} |")


if __name__ == "__main__":
    main()
