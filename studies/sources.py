"""The cost of pinned sources and of `patch check`, as rows of studies/measurements.md.

Needs git, no engine and no network: the repositories are generated.

    .venv/bin/python studies/sources.py [--commits 4000] [--recipes 20] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from builder.core import settings
from builder.engines.families import load_catalog
from builder.sources.mirrors import Repositories
from builder.upstream.patches import diagnose, open_session

REPOSITORY = Path(__file__).resolve().parents[1]
FILES = 400
LINES = 200
RECIPE = """
engine = "e{n}"
version = "1"
summary = "a benchmark"
license = "MIT"
family = "llama-cpp"
base = "cuda-13.0"
source = {{ git = "{url}", commit = "{pin}" }}
track = {{ branch = "main" }}
cuda = {{ arch = ["120"] }}
llama = {{ build_number = 1 }}
cmake = [{{ targets = ["llama-server"] }}]
image = {{ repository = "e", tags = ["1"] }}
probe = [{{ option = "--x" }}]
patch = [{{ pull = {pull}, base = "{pin}", head = "{head}", why = "a benchmark" }}]
"""


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> str:
    """git in ``folder``."""
    done = subprocess.run(
        ["git", *arguments], cwd=folder, input=stdin, capture_output=True, check=True
    )
    return done.stdout.decode().strip()


def upstream(folder: Path, commits: int, pulls: int) -> dict[int, tuple[str, str]]:
    """Make a repository with a long history on main; pin and head of each pull request.

    Each commit rewrites some lines of one file; a pull request changes a line of the last tenth.
    """
    folder.mkdir()
    git(folder, "init", "--quiet", "--bare", "--initial-branch=main")
    git(folder, "config", "uploadpack.allowFilter", "true")
    chance = random.Random(1)  # noqa: S311  (the same history every time)
    words = [f"word{n}" for n in range(5000)]
    files = {n: [" ".join(chance.choices(words, k=8)) for _ in range(LINES)] for n in range(FILES)}
    stream: list[str] = []

    def write(ref: str, mark: int, parent: int, changed: dict[int, list[str]]) -> None:
        when = 1_600_000_000 + mark * 600
        stream.append(f"commit {ref}\nmark :{mark}\ncommitter B <b@x> {when} +0000\ndata 1\n.\n")
        if parent:
            stream.append(f"from :{parent}\n")
        for name, lines in changed.items():
            text = "\n".join(lines) + "\n"
            path = f"dir{name % 20}/file{name}.c"
            stream.append(f"M 100644 inline {path}\ndata {len(text)}\n{text}\n")

    write("refs/heads/main", 1, 0, files)
    for mark in range(2, commits + 1):
        name = chance.randrange(FILES)
        files[name][chance.randrange(LINES)] = " ".join(chance.choices(words, k=8))
        write("refs/heads/main", mark, mark - 1, {name: files[name]})
    for number in range(1, pulls + 1):
        write(f"refs/heads/at-{number}", commits + 2 * number, commits - 20 * number, {})
        changed = list(files[number])
        changed[5] = f"mended by {number}"
        write(
            f"refs/pull/{number}/head",
            commits + 2 * number + 1,
            commits + 2 * number,
            {number: changed},
        )
    git(folder, "fast-import", "--quiet", "--force", stdin="".join(stream).encode())
    git(folder, "repack", "-a", "-d", "--quiet")
    return {
        number: (
            git(folder, "rev-parse", f"refs/heads/at-{number}"),
            git(folder, "rev-parse", f"refs/pull/{number}/head"),
        )
        for number in range(1, pulls + 1)
    }


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    started = time.monotonic()
    work()
    return time.monotonic() - started


def size(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def pinned_tree(url: str, commit: str, folder: Path, runs: int) -> dict[str, float]:
    """The tree of a commit through a new mirror, over a full clone and a checkout."""
    ours, theirs = [], []
    for run in range(runs):
        work = folder / f"pin-{run}"
        work.mkdir(parents=True)

        def pin(work: Path = work) -> None:
            repositories = Repositories(work / "cache", work, lambda _: None)
            tree = repositories.tree(url, commit, moved={})
            repositories.scratch.export(tree, work / "tree")

        def clone(work: Path = work) -> None:
            git(work, "clone", "--quiet", "--no-checkout", url, "clone")
            git(work / "clone", "checkout", "--quiet", commit)

        ours.append(timed(pin))
        theirs.append(timed(clone))
    fetched = size(folder / "pin-0" / "cache")
    cloned = size(folder / "pin-0" / "clone" / ".git" / "objects")
    return {
        "pin_s": round(statistics.median(ours), 2),
        "clone_s": round(statistics.median(theirs), 2),
        "seconds_ratio": round(statistics.median(ours) / statistics.median(theirs), 2),
        "pin_mb": round(fetched / 1e6, 2),
        "clone_mb": round(cloned / 1e6, 2),
        "bytes_ratio": round(fetched / cloned, 3),
    }


def patch_check(
    url: str, pulls: dict[int, tuple[str, str]], folder: Path, runs: int
) -> dict[str, float]:
    """`patch check` on warm mirrors, over checkouts and ``git apply --check``."""
    recipes = folder / "recipes"
    recipes.mkdir(parents=True)
    (recipes / "bases").symlink_to(REPOSITORY / "recipes" / "bases")
    for number, (pin, head) in pulls.items():
        text = RECIPE.format(n=number, url=url, pin=pin, head=head, pull=number)
        (recipes / f"e{number}-1.toml").write_text(text)
    found = load_catalog(folder)
    chosen = settings.load().model_copy(
        update={"cache_dir": folder / "cache", "state_dir": folder / "state"}
    )
    middle = git(Path(url.removeprefix("file://")), "rev-parse", "main~200")

    def examine(*, offline: bool) -> int:
        with open_session(found, chosen, lambda _: None, offline=offline) as session:
            cases = [session.patch_set(found.engine(name)) for name in found.engines]
            return sum(len(list(diagnose(case, [middle]))) for case in cases)

    checks = examine(offline=False)
    seconds = [timed(lambda: examine(offline=True)) for _ in range(runs)]
    clone = folder / "clone"
    git(folder, "clone", "--quiet", url, str(clone))
    git(clone, "fetch", "--quiet", "origin", "+refs/*:refs/all/*")

    def by_hand() -> None:
        for pin, head in pulls.values():
            diff = subprocess.run(
                ["git", "diff", pin, head], cwd=clone, capture_output=True, check=True
            ).stdout
            for ref in (pin, "origin/main", middle):
                git(clone, "checkout", "--quiet", "--detach", ref)
                subprocess.run(
                    ["git", "apply", "--check"],
                    cwd=clone,
                    input=diff,
                    capture_output=True,
                    check=False,
                )

    naive = [timed(by_hand) for _ in range(runs)]
    return {
        "recipes": len(pulls),
        "checks": checks,
        "patch_check_s": round(statistics.median(seconds), 2),
        "by_hand_s": round(statistics.median(naive), 2),
        "ratio": round(statistics.median(seconds) / statistics.median(naive), 2),
    }


def rows(commits: int, figures: dict[str, dict[str, float]]) -> dict[str, str]:
    """The figures by the rows of studies/measurements.md that they belong to."""
    tree, patches = figures["pinned_tree"], figures["patch_check"]
    return {
        f"a pinned tree out of {commits} commits over a full clone: bytes, seconds": (
            f"{tree['bytes_ratio']}, {tree['seconds_ratio']}"
        ),
        f"`patch check`, {patches['recipes']} recipes × 3 refs on warm mirrors": (  # noqa: RUF001
            f"{patches['patch_check_s']} s"
        ),
        "the same over checkouts and `git apply --check`": f"{patches['ratio']}",
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--commits", type=int, default=4000)
    parser.add_argument("--recipes", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.commits < 20 * options.recipes + 300:
        sys.exit("the history is too short for so many recipes")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pulls = upstream(folder / "upstream", options.commits, options.recipes)
        url = f"file://{folder / 'upstream'}"
        figures = {
            "pinned_tree": pinned_tree(url, pulls[1][0], folder / "pins", options.runs),
            "patch_check": patch_check(url, pulls, folder / "patches", options.runs),
        }
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for row, figure in rows(options.commits, figures).items():
        print(f"| {row} | {figure} |")


if __name__ == "__main__":
    main()
