"""The engine, and the images that the tests share; a plugin of pytest."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest

from builder.checks.verdict import Verdict
from builder.core.files import file_lock
from support.commands import ForkServer
from support.environment import REPOSITORY, SHARED_CACHE, sealed_environment
from support.smoke_tests import SmokeTest, hello_recipe, small

MADE: set[str] = set()
_SHARED = pytest.StashKey[IO[str]]()
LEFT = ("builder-base/stand-in*", "builder-test/*", *(f"127.0.0.1:*{'/*' * n}" for n in (1, 2, 3)))
"""Names of images that tests leave without naming them: of failed builds, of bases, of pulls."""
REMOVALS = 128  # images that are removed at the same time


SESSIONS = SHARED_CACHE / "locks" / "sessions-of-the-tests.lock"
"""Each session shares this lock, and the last one removes the images of all."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep the images of this session from being removed by another one."""
    if not hasattr(session.config, "workerinput"):
        SESSIONS.parent.mkdir(parents=True, exist_ok=True)
        stream = SESSIONS.open("w")
        fcntl.flock(stream, fcntl.LOCK_SH)
        session.config.stash[_SHARED] = stream


def _is_last(session: pytest.Session) -> bool:
    try:
        fcntl.flock(session.config.stash[_SHARED], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove what the tests made: when all of them have ended, as a build may stand on it."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["made"] = sorted(MADE)
    elif MADE and _is_last(session):
        # Docker waits for containerd's garbage collection, which serves all that wait for it.
        with ThreadPoolExecutor(REMOVALS) as pool:
            list(pool.map(_remove, MADE.union(_left())))
            # A name hid the digest that its image was pulled by.
            list(pool.map(_remove, _left()))


def _left() -> list[str]:
    """The images of the engine with names of tests; by their ids, where they have no tag."""
    filters = [f"--filter=reference={pattern}" for pattern in LEFT]
    command = ["docker", "image", "ls", "--format={{.Repository}}:{{.Tag}} {{.ID}}", *filters]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    named = [line.split() for line in done.stdout.splitlines()]
    return [image if name.endswith(":<none>") else name for name, image in named]


def _remove(name: str) -> None:
    subprocess.run(["docker", "image", "rm", "--force", name], capture_output=True, check=False)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of pytest-xdist has ended, and reports what it made."""
    MADE.update(getattr(node, "workeroutput", {}).get("made", ()))


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest) -> None:
    """A test marked ``docker`` fails where no engine answers: it never skips."""
    if request.node.get_closest_marker("docker") is not None:
        request.getfixturevalue("answering_engine")


@pytest.fixture(scope="session")
def answering_engine() -> None:
    done = subprocess.run(["docker", "version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"no Docker engine answers: {done.stderr}"


@pytest.fixture(scope="session")
def hello(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """hello-sm120, built and verified once for all tests: the JSON of the build, and the plan."""
    # All processes of pytest-xdist share the verdict, too.
    home = tmp_path_factory.getbasetemp()
    home = home.parent if "PYTEST_XDIST_WORKER" in os.environ else home

    def run(verb: str) -> Any:
        done = fork_server.run(
            [verb, "hello-sm120", "--json"], environment=sealed_environment(home)
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    # Another lane may want it, too.
    with file_lock(SHARED_CACHE / "locks" / "hello-of-the-tests.lock"):
        return {"state": home / "state", **run("build"), "plan": run("show")}


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """A catalog of the test's own, with the real bases and locks and nothing else."""
    root = tmp_path / "catalog"
    for name in ("bases", "locks"):
        shutil.copytree(REPOSITORY / "recipes" / name, root / "recipes" / name)
    return root


@pytest.fixture(scope="session")
def devel(hello: dict[str, Any]) -> str:
    """The base to compile in, with nvcc."""
    return f"builder-base/cuda-13.0:devel-{hello['plan']['base']['key'][:12]}"


@pytest.fixture(scope="session")
def images(hello: dict[str, Any], debian_root: str, small_root: str, devel: str) -> dict[str, str]:
    """The good image, Debian's root, a small one and the base to compile in, by what they are."""
    return {
        "good": hello["references"][0],
        "root": debian_root,
        "small": small_root,
        "devel": devel,
    }


@pytest.fixture(scope="session")
def made() -> set[str]:
    """Names of the images that the tests made; removed together, when no build is going on."""
    return MADE


@pytest.fixture
def smoke_test(tmp_path: Path, made: set[str]) -> SmokeTest:
    """Builds Dockerfiles, and smoke-tests their images."""
    return SmokeTest(tmp_path, made)


@pytest.fixture(scope="session")
def clean(
    images: dict[str, str], tmp_path_factory: pytest.TempPathFactory, made: set[str]
) -> Verdict:
    """The verdict on the small image with nothing bent, and with all probes of its recipe."""
    smoke_test = SmokeTest(tmp_path_factory.mktemp("clean"), made)
    return smoke_test(small(images), probe=hello_recipe().probe)
