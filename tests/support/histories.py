"""Histories with many forks, moves and merges: made here, the same for the same seed, in real git.

Every line of development is a list of lines a file; git merge-file(1) merges; what
conflicts stays unmerged.  Some merges keep the other side, some pull requests are taken back and
brought again, all of them insert the same guard into functions of their own, and one file has
another name at last.  Some edits change only white space; later work moves functions within a file,
and removes blocks that were added; merged branches add files and remove them again.  Merged pull
requests are squashes, too, and rebased commits have other ids.  git fast-import(1) makes the
commits of it all in one go.
"""

from __future__ import annotations

import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from support.upstreams import Upstream

Files = dict[str, list[str]]
How = Literal["merge", "squash", "rebase", "ours", "open"]
PATHS = ("src/common.c", "src/device.c", "src/server.c", "src/tools.c")
RENAMED = ("src/tools.c", "src/toolbox.c")
NOTES = "notes.md"
GUARD = "    if (ctx == NULL) return -1;"
WORDS = ("batch", "cache", "draft", "head", "layer", "limit", "slot", "stream", "tensor", "token")
HEAD = "static int {name}(struct context * ctx, int n) {{\n    int total = {start};\n"
PARTS = (
    "    if (n > {limit}) {{\n        return -1;\n    }}\n",
    "    for (int i = 0; i < n; i++) {{\n        total += ctx->{word}[i] * {factor};\n    }}\n",
    "    if (total < 0) {{\n        return -1;\n    }}\n",
    "    ctx->{word} = {other}_{word}_of(ctx, {limit});\n",
    '    if (!ctx->{word}) {{\n        log_error("no {word}");\n        return -1;\n    }}\n',
    "    total += {other}_{word}(ctx, n - {factor});\n\n    free(ctx->{other});\n",
    "    while (ctx->{word} < {limit}) {{\n        ctx->{word} += {other}_step(n);\n    }}\n",
)
TAIL = "\n    return total;\n}}\n"
BLOCK = """\
    if (ctx->{word} > {limit}) {{
        log_warning("{word} is above {limit}");
        return -1;
    }}
"""


@dataclass(eq=False)
class Pull:
    """A pull request: the commits of its branch, and how it came into main, if it did."""

    number: int
    how: How
    base: str = ""
    head: str = ""
    commits: list[str] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    base_mark: int = 0
    merged_mark: int = 0
    merged: str = ""
    """The commit of main with which it was there; empty where it never was."""
    turned: list[tuple[int, bool]] = field(default_factory=list)
    turns: list[tuple[str, bool]] = field(default_factory=list)
    """Commits of main, oldest first, that brought it (True) or took it back."""


@dataclass
class History:
    """A repository whose ``main`` went on long after most of its pull requests."""

    upstream: Upstream
    pulls: list[Pull]
    main: list[str]
    """The first-parent line of main, oldest first."""

    def rewritten(self, pull: Pull) -> list[str]:
        """The commits of a pull request with other ids, after its base."""
        found = [pull.base]
        for commit in pull.commits:
            tree, parent = f"{commit}^{{tree}}", found[-1]
            found.append(self.upstream.git("commit-tree", tree, "-p", parent, "-m", "rewritten"))
        return found


class Maker:
    """Makes one history: ``marks`` are fast-import's names for commits."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.stream: list[str] = []
        self.mark = 0
        self.serial = 0
        self.states: dict[int, Files] = {}
        self.main: list[int] = []

    def commit(self, ref: str, files: Files, message: str, *parents: int) -> int:
        self.mark += 1
        when = f"T <t@example.invalid> {1_700_000_000 + self.mark * 600} +0000"
        self.stream.append(f"commit {ref}\nmark :{self.mark}\ncommitter {when}\n")
        self.stream.append(f"data {len(message)}\n{message}\n")
        for word, parent in zip(("from", "merge"), parents, strict=False):
            self.stream.append(f"{word} :{parent}\n")
        before = self.states[parents[0]] if parents else {}
        self.stream += [f"D {path}\n" for path in before if path not in files]
        for path, lines in files.items():
            text = "".join(f"{line}\n" for line in lines)
            self.stream.append(f"M 100644 inline {path}\ndata {len(text)}\n{text}\n")
        self.states[self.mark] = files
        if ref == "refs/heads/main":
            self.main.append(self.mark)
        return self.mark

    def words(self) -> dict[str, object]:
        self.serial += 1
        chance = self.chance
        return {
            "name": f"{chance.choice(WORDS)}_{chance.choice(WORDS)}_{self.serial}",
            "start": chance.randrange(4),
            "limit": chance.randrange(16) * 64,
            "factor": chance.randrange(2, 6),
            "word": chance.choice(WORDS),
            "other": chance.choice(WORDS),
        }

    def function(self) -> list[str]:
        parts = [HEAD, *self.chance.sample(PARTS, k=self.chance.randrange(3, 6)), TAIL]
        return [*"\n".join(part.format(**self.words()) for part in parts).splitlines(), ""]

    def first(self) -> Files:
        return {path: [line for _ in range(12) for line in self.function()] for path in PATHS}

    def functions(self, lines: list[str]) -> list[tuple[int, int]]:
        """Where each function of a file starts and ends."""
        starts = [at for at, line in enumerate(lines) if line.startswith("static")]
        return list(zip(starts, [*starts[1:], len(lines)], strict=True))

    def edit(self, lines: list[str], *, big: bool) -> list[str]:
        """One change of a file; a big one adds, moves, copies or removes a whole function."""
        chance = self.chance
        start, end = chance.choice(self.functions(lines))
        body = lines[start:end]
        if big:
            others = [at for at, _ in self.functions(lines) if not start <= at < end]
            at = chance.choice(others)
            match chance.choice(("add", "add", "move", "copy", "remove")):
                case "add":
                    return lines[:at] + self.function() + lines[at:]
                case "move":
                    rest = lines[:start] + lines[end:]
                    at -= len(body) if at > start else 0
                    return rest[:at] + body + rest[at:]
                case "copy":
                    name = body[0].split("(")[0].split()[-1]
                    twin = [body[0].replace(name, f"{name}_twin{self.serial}"), *body[1:]]
                    self.serial += 1
                    return lines[:at] + twin + lines[at:]
                case _:
                    return lines[:start] + lines[end:] if len(others) > 8 else lines
        return self.retouched(lines, start, end)

    def retouched(self, lines: list[str], start: int, end: int) -> list[str]:
        """A small change of a function."""
        chance = self.chance
        body = lines[start:end]
        spaced = [n for n in range(start + 1, end) if " = " in lines[n]]
        block = next((n - 1 for n in range(start, end) if "log_warning" in lines[n]), None)
        told = [n for n in range(start + 1, end) if any(c.isdigit() for c in lines[n])]
        match chance.choice(("number", "number", "insert", "remove", "guard", "blank", "drop")):
            case "blank" if spaced:
                at = chance.choice(spaced)
                return [*lines[:at], lines[at].replace(" = ", "  =  "), *lines[at + 1 :]]
            case "drop" if block is not None:  # and something else: later work, not a revert
                lines = lines[:block] + lines[block + BLOCK.count("\n") :]
                return [*lines[: start + 1], "    trace(ctx);", *lines[start + 1 :]]
            case "guard" if GUARD not in body:
                return [*lines[: start + 2], GUARD, *lines[start + 2 :]]
            case "insert":
                at = chance.choice([n for n in range(start + 2, end - 2) if not lines[n].strip()])
                return lines[:at] + BLOCK.format(**self.words()).splitlines() + lines[at:]
            case "remove" if len(body) > 14 and told:
                at = chance.choice(told)
                return lines[:at] + lines[at + 1 :]
            case _:
                at = chance.choice(told) if told else start
                line = lines[at]
                digits = [n for n, c in enumerate(line) if c.isdigit()]
                if not digits:
                    return [*lines[:at], f"{line} // {self.words()['word']}", *lines[at + 1 :]]
                spot = chance.choice(digits)
                changed = f"{line[:spot]}{chance.randrange(1, 99)}{line[spot + 1 :]}"
                return [*lines[:at], changed, *lines[at + 1 :]]

    def changed(self, files: Files, *, big: float, edits: int) -> Files:
        found = dict(files)
        paths = self.chance.sample(
            sorted(files.keys() - {NOTES}), k=min(edits, 2) if edits > 1 else 1
        )
        for number in range(edits):
            path = paths[number % len(paths)]
            found[path] = self.edit(found[path], big=self.chance.random() < big)
        return found

    def merge(self, ours: Files, base: Files, theirs: Files) -> Files | None:
        """git's own three-way merge of every file; None where one conflicts."""
        found = {}
        for path in PATHS:
            if theirs[path] == base[path]:
                found[path] = ours[path]
                continue
            for name, files in (("ours", ours), ("base", base), ("theirs", theirs)):
                text = "".join(f"{line}\n" for line in files[path])
                (self.folder / name).write_text(text)
            done = subprocess.run(
                ["git", "merge-file", "-p", "ours", "base", "theirs"],
                cwd=self.folder,
                capture_output=True,
                check=False,
            )
            if done.returncode:
                return None
            found[path] = done.stdout.decode().splitlines()
        return found

    def branch(self, pull: Pull, tip: int) -> None:
        """The commits of a pull request, on what main is now."""
        pull.base_mark = tip
        ref = f"refs/pull/{pull.number}/head"
        count = self.chance.choice((1, 1, 1, 2, 3))
        for number in range(count):
            files = self.changed(self.states[tip], big=0.1, edits=self.chance.choice((1, 2, 3)))
            files.pop(NOTES, None)
            if pull.how == "merge" and count > 1 and number == 0:
                files[NOTES] = [f"notes of {pull.number}", *self.function()]
            if files != self.states[tip]:
                tip = self.commit(ref, files, f"pull {pull.number}: step {number + 1}", tip)
                pull.marks.append(tip)

    def bring(self, pull: Pull, tip: int) -> int:
        """A pull request into main, as its ``how`` says; what conflicts stays open."""
        base, ours = self.states[pull.base_mark], self.states[tip]
        if pull.how == "rebase":
            before = base
            for mark in pull.marks:
                merged = self.merge(ours, before, self.states[mark])
                if merged is None or merged == ours:
                    pull.how = "open"
                    return tip
                before, ours = self.states[mark], merged
            ours = self.states[tip]
            before = base
            for mark in pull.marks:
                ours = self.merge(ours, before, self.states[mark]) or ours
                # As git rebase(1) has it: the subject stays, the committer's time does not.
                message = f"pull {pull.number}: step {pull.marks.index(mark) + 1}"
                tip = self.commit("refs/heads/main", ours, message, tip)
                before = self.states[mark]
        else:
            merged = self.merge(ours, base, self.states[pull.marks[-1]])
            if merged is None or merged == ours:
                pull.how = "open"
                return tip
            parents = (tip, pull.marks[-1]) if pull.how == "merge" else (tip,)
            if pull.how == "ours":
                return self.commit("refs/heads/main", ours, "keep ours", tip, pull.marks[-1])
            message = f"{pull.how} a pull request (#{pull.number})"
            tip = self.commit("refs/heads/main", merged, message, *parents)
        pull.merged_mark = tip
        pull.turned.append((tip, True))
        return tip

    def turn(self, pull: Pull, tip: int) -> int:
        """Take back what was brought last, or bring it again; not where it conflicts."""
        last, there = pull.turned[-1]
        before = self.states[self.main[self.main.index(last) - 1]]
        turned = self.merge(self.states[tip], self.states[last], before)
        if turned is None or turned == self.states[tip]:
            return tip
        message = f"{'take back' if there else 'bring again'} number {pull.number}"
        tip = self.commit("refs/heads/main", turned, message, tip)
        pull.turned.append((tip, not there))
        return tip

    def turned(self, pulls: list[Pull], tip: int) -> int:
        """Some of the pull requests that came in are taken back, or brought again."""
        for pull in pulls:
            if pull.how in {"merge", "squash"} and pull.turned and self.chance.random() < 0.04:
                tip = self.turn(pull, tip)
        return tip

    def rename(self, tip: int) -> int:
        """Main gives a file another name."""
        old, new = RENAMED
        files = {new if path == old else path: lines for path, lines in self.states[tip].items()}
        return self.commit("refs/heads/main", files, "another name", tip)

    def make(self, pulls: int, between: int) -> list[Pull]:
        """Everything: pull requests start, main goes on, and they come in some time later."""
        tip = self.commit("refs/heads/main", self.first(), "first")
        waiting: list[tuple[int, Pull]] = []
        found = []
        hows: tuple[How, ...] = ("merge", "merge", "squash", "rebase", "ours", "open")
        for number in range(1, pulls + 1):
            pull = Pull(number, hows[number % len(hows)])
            self.branch(pull, tip)
            if pull.marks:
                found.append(pull)
                waiting.append((number + self.chance.randrange(1, 4), pull))
            for _ in range(between):
                files = self.changed(self.states[tip], big=0.3, edits=1)
                if files != self.states[tip]:
                    tip = self.commit("refs/heads/main", files, "main goes on", tip)
            for when, other in list(waiting):
                if when <= number or number == pulls:
                    waiting.remove((when, other))
                    tip = tip if other.how == "open" else self.bring(other, tip)
            tip = self.turned(found, tip)
        tip = self.rename(tip)
        for _ in range(3 * between):
            files = self.changed(self.states[tip], big=0.3, edits=1)
            if files != self.states[tip]:
                tip = self.commit("refs/heads/main", files, "main goes on", tip)
        return found


def make(folder: Path, seed: int, pulls: int = 40, between: int = 3) -> History:
    """A history with ``pulls`` pull requests, and ``between`` commits on main after each."""
    upstream = Upstream(folder / "upstream")
    maker = Maker(seed, folder)
    found = maker.make(pulls, between)
    marks = folder / "marks"
    subprocess.run(
        ["git", "fast-import", "--quiet", f"--export-marks={marks}"],
        cwd=upstream.folder,
        input="".join(maker.stream).encode(),
        check=True,
    )
    pairs = (line.split() for line in marks.read_text().splitlines())
    names = {int(mark[1:]): commit for mark, commit in pairs}
    for pull in found:
        pull.base = names[pull.base_mark]
        pull.commits = [names[mark] for mark in pull.marks]
        pull.head = pull.commits[-1]
        pull.merged = names.get(pull.merged_mark, "")
        pull.turns = [(names[mark], there) for mark, there in pull.turned]
    return History(upstream, found, [names[mark] for mark in maker.main])
