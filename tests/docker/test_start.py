"""Patches that run whenever a container starts: the engine follows them, or nothing does."""

from __future__ import annotations

import json
import re
import subprocess
import time
from uuid import uuid4

import pytest

from builder.engines.layout import LAYOUT
from support.environment import REPOSITORY
from support.overlaid import OVERLAID, PACKAGE, SITE, Build, StandIn, ran
from support.smoke_tests import docker, run_image
from support.upstreams import Upstream

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("overlaid")]

# Like Genesis: it looks at its surroundings, edits the package, exits 0, 1 or 2.
APPLY = """
import os, pathlib, sys, time
import vllm
package = pathlib.Path(vllm.__file__).parent
print("looking for a GPU", flush=True)
if os.environ.get("HANG"):
    time.sleep(600)
if os.environ.get("GPU"):
    text = (package / "ops.py").read_text()
    (package / "ops.py").write_text(text.replace("= 9", "= 12"))
    print("P60 applied", flush=True)
sys.exit(int(os.environ.get("STATUS", "0")))
"""

START = """
[[start]]
run     = ["python3", "-m", "vllm._patches"]
why     = "it needs a GPU to know what to do"
contains    = ["looking for a GPU"]
seconds = 5
"""


CPU = "--env=BUILDER_CPU=1"


@pytest.fixture
def started(build: Build, published: StandIn) -> str:
    """An image whose engine says what it serves, by what the package is then."""
    published.files = {**PACKAGE, "vllm/_patches.py": APPLY}
    published.more = (
        'RUN printf \'#!/bin/sh\\necho serving "$@"; '
        f"exec grep CAP {SITE}/vllm/ops.py\\n' > /usr/local/bin/vllm"
    )
    build.once(START)
    return OVERLAID


def start(image: str, *options: str, command: tuple[str, ...] = ()) -> tuple[int, str]:
    done = run_image(CPU, *options, image, *command, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def test_the_engine_follows_its_patches_or_does_not_start(started: str, build: Build) -> None:
    entrypoint = json.loads(docker("image", "inspect", started))[0]["Config"]["Entrypoint"]
    assert entrypoint == [LAYOUT.entrypoint, "python3", LAYOUT.start, "--"]
    status, output = start(started, "--env=GPU=1", command=("--model", "a b"))
    assert status == 0, output
    assert output.splitlines() == [
        "start: running python3 -m vllm._patches",
        "looking for a GPU",
        "P60 applied",
        f"start: changed 1 files of {SITE}/vllm: ops.py",
        "start: starting vllm serve --model a b",
        "serving serve --model a b",
        "CAPABILITY = 12",
    ]
    # Without arguments the base's own command follows.
    status, output = start(started)
    assert "start: changed 0 files" in output
    assert "serving serve --default\nCAPABILITY = 9" in output
    status, output = start(started, "--env=GPU=1", "--env=BUILDER_START=only")
    assert status == 0
    assert "start: stopping before vllm serve --default, as BUILDER_START=only asks" in output
    assert "serving" not in output
    for code in (1, 2):
        status, output = start(started, "--env=GPU=1", f"--env=STATUS={code}")
        assert status == code
        assert f"failed with exit status {code}: the engine is not started" in output
        assert "serving" not in output
    status, output = start(started, "--env=HANG=1")
    assert status == 124
    assert "python3 did not end within 5 s: the engine is not started" in output
    status, output = start(started, "--read-only")
    assert status == 76
    assert "cannot be written" in output
    assert "serving" not in output
    status, output = start(started, "--user=nobody")
    assert status == 76
    done = build(START.replace("looking for a GPU", "all is well"), expect=7)
    assert "python3 did not say 'all is well': the engine is not started" in done.stderr


def test_a_half_patched_container_does_not_start_again(started: str) -> None:
    name = f"builder-test-{uuid4().hex[:8]}"
    options = ("--name", name, CPU, "--env=GPU=1", "--env=STATUS=1")
    subprocess.run(["docker", "run", *options, started], capture_output=True, check=False)
    try:
        again = subprocess.run(
            ["docker", "start", "--attach", name], capture_output=True, text=True, check=False
        )
        assert again.returncode == 75
        assert "patching failed in this container before" in again.stdout
        assert "serving" not in again.stdout
    finally:
        docker("rm", "--force", name)


def test_a_container_that_was_patched_starts_again(started: str) -> None:
    name = f"builder-test-{uuid4().hex[:8]}"
    docker("run", "--name", name, CPU, "--env=GPU=1", started)
    try:
        assert "serving serve --default\nCAPABILITY = 12" in docker("start", "--attach", name)
    finally:
        docker("rm", "--force", name)


def test_a_stop_while_patching_ends_it(started: str) -> None:
    name = docker("run", "--detach", CPU, "--env=HANG=1", started)
    try:
        for _ in range(100):
            if "looking" in docker("logs", name):
                break
            time.sleep(0.1)
        began = time.monotonic()
        docker("stop", "--time=30", name)
        assert time.monotonic() - began < 25  # it was not SIGKILL that ended it
        assert docker("inspect", "--format={{.State.ExitCode}}", name) == "143"
    finally:
        docker("rm", "--force", name)


def test_a_step_that_fails_everywhere_is_never_published(build: Build, published: StandIn) -> None:
    published.files = {**PACKAGE, "vllm/_patches.py": "import sys; sys.exit('no set-up')\n"}
    done = build(START, expect=7)
    assert "start: the steps before the engine: expected: exit status 0" in done.stderr
    assert "exit status 1" in done.stderr


# Like Genesis' P8: two files, of which each is patched where its anchor is there; an
# import of the second from the first; exit 0 also where one was skipped, or all of it.
GENESIS = """
import os
from pathlib import Path

import vllm

CORE = Path(vllm.__file__).parent / "v1" / "core"
HELPER = "def token_capacity(groups):\\n    return len(groups)\\n"
IMPORT = "from vllm.v1.core.kv_cache_utils import token_capacity\\n"


def edit(name, anchor, added):
    file = CORE / name
    text = file.read_text()
    if added in text:
        return "applied(idempotent)"
    if anchor not in text:
        return "skipped(required_anchor_missing)"
    file.write_text(text.replace(anchor, added + anchor))
    return "applied(ok)"


def main():
    utils = edit("kv_cache_utils.py", "{anchor}", HELPER)
    scheduler = edit("sched.py", "class Scheduler", IMPORT)
    states = f"kv_cache_utils={{utils}}, scheduler={{scheduler}}"
    print(f"[Genesis] applied: P8 KV hybrid reporting — {{states}}")
    for number, name in ((60, "GDN"), (62, "x"), (64, "x"), (65, "x"), (66, "x")):
        enabled = any(key.startswith(f"GENESIS_ENABLE_P{{number}}_") for key in os.environ)
        print(f"[Genesis] {{'applied' if enabled else 'skipped'}}: P{{number}} {{name}}")
    print("[Genesis] applied: P60b Triton")


if __name__ == "__main__":
    main()
"""
PLUGIN = """
def register():
    from vllm._genesis.patches import apply_all
    apply_all.main()
"""
VLLM = {
    **PACKAGE,
    "vllm/v1/__init__.py": "",
    "vllm/v1/core/__init__.py": "",
    "vllm/v1/core/kv_cache_utils.py": "def report(groups):\n    return groups\n",
    "vllm/v1/core/sched.py": "class Scheduler:\n    pass\n",
}


def genesis(build: Build, published: StandIn, anchor: str, *enabled: int, expect: int) -> str:
    """Build the recipe's patches and steps on a tree of Genesis' shape; the output."""
    upstream = Upstream(published.work / f"genesis-{uuid4().hex[:8]}")
    upstream.write("vllm/_genesis/__init__.py", "")
    upstream.write("vllm/_genesis/patches/__init__.py", "")
    upstream.write("vllm/_genesis/patches/apply_all.py", GENESIS.format(anchor=anchor))
    upstream.write("genesis_vllm_plugin/genesis_v7/__init__.py", PLUGIN)
    commit = upstream.record("one")
    text = (REPOSITORY / "recipes" / "vllm-0.20.0-genesis.toml").read_text()
    parts = text[text.index("[[patch]]") : text.index("[cuda]")]
    parts = re.sub(r'(?m)^git    = ".*"', f'git    = "{upstream.url}"', parts)
    parts = re.sub(r'(?m)^commit = ".*"', f'commit = "{commit}"', parts)
    published.files = VLLM
    published.more = "".join(f"ENV GENESIS_ENABLE_P{number}_X=1\n" for number in enabled)
    return build(parts, expect=expect).stderr


def test_genesis_is_whole_and_in_every_process_or_is_not_published(
    build: Build, published: StandIn
) -> None:
    named = (60, 62, 64, 65, 66)
    output = genesis(build, published, "def nowhere", *named, expect=7)  # a8c202d on 0.20.0
    assert "did not say 'kv_cache_utils=applied': the engine is not started" in output
    output = genesis(build, published, "def report", *named[1:], expect=7)
    assert "did not say 'applied: P60 ': the engine is not started" in output
    genesis(build, published, "def report", *named, expect=0)
    live = (
        "import importlib.metadata as m; "
        "[e] = m.entry_points(group='vllm.general_plugins'); e.load()(); "
        "import vllm.v1.core.sched"
    )
    output = ran(OVERLAID, "python3", "-c", live)
    assert "kv_cache_utils=applied(ok), scheduler=applied(ok)" in output


def test_nothing_can_follow_where_the_base_has_no_entrypoint(
    build: Build, published: StandIn
) -> None:
    image = published.build()
    bare = "builder-test/published:bare"
    published.made.add(bare)
    docker(
        *("buildx", "build", "--provenance=false", f"--output=type=image,name={bare}", "-"),
        text=f"FROM {image}\nENTRYPOINT []\n",
    )
    done = build(START, image=bare, expect=6)
    assert "the base has no entrypoint: nothing could follow the patches at start" in done.stderr
