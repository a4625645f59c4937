"""A bisect with builds: stopped and resumed, with the smoke test or the user's own test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from support.commands import Builder, ForkServer
from support.smoke_tests import docker
from support.upstreams import Upstream

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("bisect")]
IMAGES = "builder-test/tiny"
CANNOT, BREAKS, MERGES = (6, 7), 9, 4
RECIPE = """
engine  = "tiny"
version = "1"
summary = "A library of one file"
license = "MIT"
family  = "artifact"
base    = "cuda-13.0"

[source]
git    = "{url}"
commit = "{commit}"
{patches}
[cuda]
arch = ["120"]

[[cmake]]
targets = ["tiny"]

[artifact]
files = ["libtiny.so"]
loads = false

[image]
repository = "builder-test/tiny"
tags       = ["1"]

[build]
disk = 1.0

[[probe]]
library = "libtiny.so"
symbols = ["tiny_answer"]
"""
CMAKE = "cmake_minimum_required(VERSION 3.20)\nproject(tiny C)\nadd_library(tiny SHARED tiny.c)\n"
HEADERS = {"limit.h": "#define LIMIT 9\n", "mode.h": "#define MODE slow\n"}
PATCHED = {"limit.h": "#define LIMIT 12\n", "mode.h": "#define MODE fast\n"}
PATCH = """--- a/{name}
+++ b/{name}
@@ -1 +1 @@
-{old}+{new}"""


class Farm:
    """Twelve commits of a library: two do not compile, the ninth fails a probe of the recipe.

    The fourth has one of the recipe's two patches.
    """

    def __init__(self, catalog: Path, folder: Path, builder: Builder, server: ForkServer) -> None:
        self.catalog = catalog
        self.server = server
        self.kept = folder / "state" / "bisect" / "tiny-1.json"
        self.builder = builder
        self.upstream = Upstream(folder / "tiny")
        self.commits = [self.grow(number) for number in range(1, 13)]
        (catalog / "patches").mkdir()
        for name, old in HEADERS.items():
            text = PATCH.format(name=name, old=old, new=PATCHED[name])
            (catalog / "patches" / f"{name}.patch").write_text(text)
        patches = "".join(f'[[patch]]\nfile = "{name}.patch"\nwhy = "so"\n' for name in HEADERS)
        text = RECIPE.format(url=self.upstream.url, commit=self.commits[0], patches=patches)
        (catalog / "recipes" / "tiny-1.toml").write_text(text)

    def grow(self, number: int) -> str:
        answer = "nothing" if number >= BREAKS else "tiny_answer"
        code = f'#include "limit.h"\nint {answer}(void) {{ return LIMIT; }}\n'
        code += f'const char *tiny_step = "STEP = {number}";\n'
        code += "int (\n" if number in CANNOT else ""
        headers = HEADERS | ({"mode.h": PATCHED["mode.h"]} if number >= MERGES else {})
        files = {"CMakeLists.txt": CMAKE, "tiny.c": code, **headers}
        return self.upstream.commit(f"step {number}", **files)

    def run(self, *arguments: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = self.builder("bisect", "tiny", *arguments, "--catalog", self.catalog)
        assert done.returncode == status, done.stderr
        return done

    def killed(self, number: int, when: Callable[[Any], bool], *arguments: str) -> int:
        """Start a bisect, and send it a signal when its state is like that; its exit status."""
        command = ["bisect", "tiny-1", *arguments, "--catalog", str(self.catalog)]
        with self.server.running(command) as process:
            while process.poll() is None:
                if self.kept.exists() and when(json.loads(self.kept.read_text())):
                    os.kill(process.pid, number)
                    return process.wait(60)
                time.sleep(0.05)
        pytest.fail("it ended before it could be stopped")


def images() -> set[str]:
    listed = docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", IMAGES)
    return {name for name in listed.splitlines() if ":bisect-" in name or ":unverified-" in name}


@pytest.fixture
def farm(
    hello: Any,  # noqa: ARG001  (it has the base built)
    catalog: Path,
    tmp_path: Path,
    builder: Builder,
    fork_server: ForkServer,
) -> Iterator[Farm]:
    before = images()
    yield Farm(catalog, tmp_path, builder, fork_server)
    subprocess.run(
        ["docker", "image", "rm", "--force", *images() - before], capture_output=True, check=False
    )


def words(steps: list[dict[str, Any]], commits: list[str]) -> dict[int, str]:
    """What each commit is, by its number."""
    return {commits.index(step["name"]) + 1: step["verdict"] for step in steps}


def test_the_first_bad_commit_is_found_however_often_it_is_killed(farm: Farm) -> None:
    commits = farm.commits
    before = images()

    def building_the_fourth(state: Any) -> bool:
        return len(state["steps"]) == 3 and state["trace"] is not None

    ends = ["--good", commits[0], "--bad", commits[9]]
    assert farm.killed(signal.SIGKILL, building_the_fourth, *ends) == -signal.SIGKILL
    known = json.loads(farm.run("--status", "--json").stdout)
    assert (known["state"], len(known["steps"])) == ("open", 3)
    done = farm.run("--json")
    found = json.loads(done.stdout)
    assert f"continuing between {commits[0][:9]} and {commits[9][:9]}" in done.stderr
    assert found["first_bad"]["subject"] == f"step {BREAKS}"
    assert found["steps"][:3] == known["steps"]
    evaluated = words(found["steps"], commits)
    assert len(evaluated) == len(found["steps"]) < 10
    for number, word in evaluated.items():
        right = "skip" if number in CANNOT else "bad" if number >= BREAKS else "good"
        assert word == right, number
    assert {*evaluated} & {*CANNOT}
    why = {commits.index(step["name"]) + 1: step["why"] for step in found["steps"]}
    assert "tiny_answer" in why[BREAKS]
    assert all(
        "cannot be built: " in why[number] and "error: " in why[number]
        for number in CANNOT
        if number in why
    )
    left_out = "left out file mode.h.patch: upstream has it"
    assert f"bisect-{commits[BREAKS - 1][:9]}: {left_out}" in done.stderr
    assert all(Path(step["log"]).exists() for step in found["steps"])
    assert images() == before
    assert not farm.kept.exists()


def test_a_test_of_the_users_decides(farm: Farm, tmp_path: Path) -> None:
    commits = farm.commits
    before = images()
    script = tmp_path / "decide"
    ends = ["--good", commits[7], "--bad", commits[11], "--test", f"{script} 2>&1"]
    started = tmp_path / "started"
    script.write_text(
        f"#!/bin/sh\nsleep 300 & echo $! > {started}.new\nmv {started}.new {started}\nwait\n"
    )
    script.chmod(0o755)
    # Ctrl-C stops the test too, with what it started.
    assert farm.killed(signal.SIGINT, lambda _: started.exists(), *ends) == 130
    sleeping = Path(f"/proc/{started.read_text().strip()}/status")
    assert not sleeping.exists() or "zombie" in sleeping.read_text()
    assert images() - before
    # What breaks off is no verdict.
    script.write_text("#!/bin/sh\necho the card fell off the bus\nexit 134\n")
    stopped = farm.run(*ends, status=8)
    assert "the test ended with 134" in stopped.stderr
    assert "the card fell off the bus" in stopped.stderr
    # The checks fail from the ninth on; the test sees the images all the same.
    script.write_text(
        f"#!/bin/sh\necho looking at $COMMIT\n[ $COMMIT != {commits[9]} ] || exit 125\n"
        f"id=$(docker create $IMAGE x) && docker cp $id:/libtiny.so {tmp_path} && docker rm $id\n"
        f"! grep -q 'STEP = 1[12]' {tmp_path}/libtiny.so\n"
    )
    done = farm.run(*ends, "--json", status=8)
    found = json.loads(done.stdout)
    assert [commit["name"] for commit in found["candidates"]] == commits[9:11]
    evaluated = words(found["steps"], commits)
    assert evaluated == {8: "good", 12: "bad", 10: "skip", 9: "good", 11: "bad"}
    assert f"  looking at {commits[11]}" in done.stderr.splitlines()
    assert images() == before


def test_wrong_ends_are_refused(farm: Farm) -> None:
    commits = farm.commits
    before = images()
    done = farm.run("--good", commits[9], "--bad", "main", status=2)
    assert f"the good end, {commits[9][:9]}, is bad: library" in done.stderr
    assert not farm.kept.exists()
    # A branch that left before it broke, and where it left it was broken by something else.
    upstream = farm.upstream
    upstream.git("checkout", "--quiet", "-b", "release", commits[9])
    mended = farm.grow(3)
    done = farm.run(
        "--good", mended, "--bad", "main", "--trust-ends", "--build-fails", "bad", status=2
    )
    assert f"the merge base of {mended[:9]} and main ({commits[11][:9]}) is bad" in done.stderr
    assert "give a good commit that is an ancestor of the bad one" in done.stderr
    assert not farm.kept.exists()
    # What does not compile is bad, where that is what is looked for.
    ends = ["--good", commits[4], "--bad", commits[5], "--build-fails", "bad", "--json"]
    found = json.loads(farm.run(*ends).stdout)
    assert found["first_bad"]["subject"] == "step 6"
    assert words(found["steps"], commits) == {5: "good", 6: "bad"}
    assert images() == before


# The compiler, one of gcc's programs, is killed the first time that it is started.
KILLED_ONCE = """\
case $1 in
*cc1) if [ -e {mark} ]; then rm {mark}; else touch {mark}; kill -9 $$; fi ;;
esac
exec "$@"
"""


def test_a_killed_compiler_is_no_verdict(farm: Farm) -> None:
    good, upstream = farm.commits[7], farm.upstream
    upstream.git("checkout", "--quiet", "-b", "killed", good)
    wrapped = f"{CMAKE}target_compile_options(tiny PRIVATE -wrapper sh,/src/once.sh)\n"
    once = KILLED_ONCE.format(mark=f"/ccache/{uuid4().hex}")  # the one place that stays
    upstream.commit("killed once", **{"CMakeLists.txt": wrapped, "once.sh": once})
    killed, bad = upstream.head(), upstream.commit("no change", **{"more.h": ""})
    ends = ["--good", good, "--bad", bad, "--trust-ends", "--build-fails", "bad"]
    done = farm.run(*ends, status=8)
    assert f"the build of {killed[:9]} broke down: no verdict on the commit" in done.stderr
    assert "Killed signal terminated program" in done.stderr
    assert "a compile job ran out of memory: use fewer jobs" in done.stderr
    assert farm.kept.exists()
    found = json.loads(farm.run(*ends, "--json").stdout)
    assert [step["verdict"] for step in found["steps"]] == ["good"]
    assert found["first_bad"]["name"] == bad
