"""The script that opens a pull request for each update, with git itself and a program for gh."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.environment import REPOSITORY

SCRIPT = REPOSITORY / ".github" / "scripts" / "propose_updates"
GH = """#!/bin/sh
echo "$1 $2 $*" >>"$RECORD"
case "$1 $2" in
"run download") cp -r "$ARTIFACTS" updates ;;
"pr list") cat "$OPEN" ;;
"pr create" | "pr edit") cat body.md >>"$RECORD" ;;
esac
"""


def git(folder: Path, *arguments: str) -> str:
    author = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    command = ["git", "-C", str(folder), *author, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone of a bare repository, with a recipe; and the artifacts of two updates."""
    git(tmp_path, "init", "--quiet", "--bare", "origin")
    git(tmp_path, "clone", "--quiet", str(tmp_path / "origin"), "clone")
    clone = tmp_path / "clone"
    (clone / "recipes" / "bases").mkdir(parents=True)
    (clone / "recipes" / "a-1.toml").write_text("1\n")
    (clone / "farm").write_text("#!/bin/sh\n")
    git(clone, "add", ".")
    git(clone, "commit", "--quiet", "--message", "one")
    git(clone, "push", "--quiet", "origin", "HEAD")
    changed = {"recipes/a-2.toml": "2", "recipes/bases/a-wheel-2.toml": "2", "farm": "evil"}
    for name, files in (("a-1", changed), ("b-1", {})):
        for path, text in files.items():
            (clone / path).write_text(f"{text}\n")
        git(clone, "add", ".")
        folder = tmp_path / "artifacts" / f"update-{name}"
        folder.mkdir(parents=True)
        change = git(clone, "diff", "--cached", "--binary")
        (folder / "update.patch").write_text(f"{change}\n" if change else "")
        (folder / "verdicts.txt").write_text(f"farm: set up\n{name}: pull 6: `upstream`\n")
        git(clone, "reset", "--quiet", "--hard")
    program = tmp_path / "bin" / "gh"
    program.parent.mkdir()
    program.write_text(GH)
    program.chmod(0o755)
    return clone


def proposed(checkout: Path, open_request: str) -> str:
    """What the script says to gh; the file ``printed`` has what it prints."""
    folder = checkout.parent
    (folder / "open").write_text(open_request)
    (folder / "record").unlink(missing_ok=True)
    done = subprocess.run(
        [SCRIPT],
        cwd=checkout,
        env={
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(folder),
            "RECORD": str(folder / "record"),
            "OPEN": str(folder / "open"),
            "ARTIFACTS": str(folder / "artifacts"),
            "GITHUB_RUN_ID": "7",
            "GITHUB_SHA": git(checkout, "rev-parse", "HEAD"),
            "BASE": "main",
        },
        check=True,
        capture_output=True,
        text=True,
    )
    (folder / "printed").write_text(done.stdout)
    return (folder / "record").read_text()


def test_an_update_becomes_a_branch_and_a_pull_request(checkout: Path) -> None:
    said = proposed(checkout, "")
    assert "pr create --head update/a-1 --base main" in said
    assert "    a-1: pull 6: `upstream`" in said
    assert "b-1" not in said
    assert "farm: set up" not in said
    printed = (checkout.parent / "printed").read_text()
    assert "::warning::b-1: upstream is newer, but nothing was written" in printed
    assert "b-1: pull 6: `upstream`" in printed
    changed = git(checkout, "diff", "--name-only", "update/a-1~", "origin/update/a-1")
    # and not the program that CI runs
    assert changed.splitlines() == ["recipes/a-2.toml", "recipes/bases/a-wheel-2.toml"]
    assert not git(checkout, "branch", "--remotes", "--list", "origin/update/b-1")


def test_an_open_pull_request_is_renewed(checkout: Path) -> None:
    proposed(checkout, "")
    before = git(checkout, "rev-parse", "update/a-1~")
    git(checkout, "switch", "--quiet", "--detach", before)
    (checkout / "updates").rename(checkout.parent / "updates.before")
    said = proposed(checkout, "12\n")
    assert "pr edit update/a-1" in said
    assert "pr create" not in said
    assert git(checkout, "rev-parse", "origin/update/a-1~") == before
