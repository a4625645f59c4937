"""What every test stands on: a sealed environment, the command line, the real engine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from platformdirs import user_cache_path

from builder.tools.files import file_lock
from builder.tools.web import retry
from support.smoke_tests import SmokeTest

REPOSITORY = Path(__file__).resolve().parents[2]
# Taken before the environment is sealed: fetched wheels and build caches serve all tests.
SHARED_CACHE = Path(os.environ.get("BUILDER_CACHE_DIR") or user_cache_path("builder"))
DOCKER_CONFIG = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")

MADE: set[str] = set()
OF_THE_REGISTRY = {
    *("test_bake", "test_kills", "test_machines", "test_nights"),
    *("test_overlay", "test_prune", "test_publish", "test_registry"),
    *("test_signing", "test_start", "test_status", "test_verified"),
    "test_vllm",
}
"""They stand on one image of somebody else's, or hold the locks of the nights."""
SEALED = ("BUILDER_", "BUILDX_", "XDG_", "GIT_")

REGISTRY = """version: 0.1
storage: {{filesystem: {{rootdirectory: {root}}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""

Builder = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine", action="store_true", help="also compile real engines (half an hour)"
    )
    parser.addoption(
        "--kills", type=int, default=8, help="so often a build or a push is killed (20: 5 minutes)"
    )
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads what this marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        lane = _lane(item)
        if lane:
            item.add_marker(pytest.mark.xdist_group(lane))
    if config.getoption("--engine"):
        return
    chosen = [item for item in items if item.get_closest_marker("engine") is None]
    left = [item for item in items if item.get_closest_marker("engine") is not None]
    config.hook.pytest_deselected(items=left)
    items[:] = chosen


def _lane(item: pytest.Item) -> str:
    """Tests of one lane never run side by side; empty: a test may run beside any other."""
    if item.path.stem in OF_THE_REGISTRY:
        return "registry"
    return "engine" if item.get_closest_marker("docker") is not None else ""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove what the tests made: when all of them have ended, as a build may stand on it."""
    told: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if told is not None:
        told["made"] = sorted(MADE)
    elif MADE:
        subprocess.run(
            ["docker", "image", "rm", "--force", *MADE], capture_output=True, check=False
        )


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of pytest-xdist has ended, and tells what it made."""
    MADE.update(getattr(node, "workeroutput", {}).get("made", ()))


@pytest.fixture(autouse=True)
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings, home or git configuration of the machine, and a state of the test's own."""
    for name in [name for name in os.environ if name.startswith(SEALED)]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("DOCKER_CONFIG", str(DOCKER_CONFIG))
    monkeypatch.setenv("BUILDER_CACHE_DIR", str(SHARED_CACHE))
    monkeypatch.setenv("BUILDER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(retry, "GIVEN_UP", set())
    folder = Path.cwd()
    yield
    assert Path.cwd() == folder, "the test changed the working directory"


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest) -> None:
    """A test marked ``docker`` fails where no engine answers: it never skips."""
    if request.node.get_closest_marker("docker") is not None:
        done = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"no Docker engine answers: {done.stderr}"


@pytest.fixture
def builder() -> Builder:
    """Run the command line in a process of its own, as a user would."""

    def run(
        *arguments: str | Path, timeout: float = 900, cwd: Path = REPOSITORY
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "builder", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
            check=False,
        )

    return run


def abandoned() -> list[Path]:
    """Work directories of runs that have ended; those of another lane's are held."""
    found = []
    work = SHARED_CACHE / "work"
    with file_lock(work / ".lock"):
        for path in work.iterdir():
            if path.is_dir():
                with suppress(BlockingIOError), file_lock(work / f"{path.name}.lock", wait=False):
                    found.append(path)
    return found


@pytest.fixture(scope="session")
def hello(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """hello-sm120, built and verified once for all tests: the JSON of the build, and the plan."""
    state = tmp_path_factory.mktemp("state")
    environment = os.environ | {"BUILDER_CACHE_DIR": str(SHARED_CACHE)}
    environment["BUILDER_STATE_DIR"] = str(state)

    def run(verb: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "builder", verb, "hello-sm120", "--json"],
            capture_output=True,
            text=True,
            check=False,
            cwd=REPOSITORY,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    # Another lane may want it, too.
    with file_lock(SHARED_CACHE / "locks" / "hello-of-the-tests.lock"):
        return {"state": state, **run("build"), "plan": run("show")}


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """A catalog of the test's own, with the real bases and nothing else."""
    root = tmp_path / "catalog"
    shutil.copytree(REPOSITORY / "recipes" / "bases", root / "recipes" / "bases")
    return root


@pytest.fixture
def images(hello: dict[str, Any]) -> dict[str, str]:
    """The good image, the Debian root and the base to compile in, by what they are."""
    base = hello["plan"]["base"]
    return {
        "good": hello["references"][0],
        "root": f"builder-base/debian-trixie:root-{base['base']['key'][:12]}",
        "devel": f"builder-base/cuda-13.0:devel-{base['key'][:12]}",
    }


@pytest.fixture(scope="session")
def made() -> set[str]:
    """Names of the images that the tests made; removed together, when no build is going on."""
    return MADE


@pytest.fixture
def smoke_test(tmp_path: Path, made: set[str]) -> SmokeTest:
    """Builds Dockerfiles, and smoke-tests their images."""
    return SmokeTest(tmp_path, made)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Debian's docker-registry on a loopback port: its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "registry.yml"
    config.write_text(REGISTRY.format(root=tmp_path / "registry", port=port))
    with subprocess.Popen(
        ["docker-registry", "serve", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            _wait(f"http://127.0.0.1:{port}/v2/")
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def _wait(url: str) -> None:
    for _ in range(100):
        try:
            if requests.get(url, timeout=5).status_code == 200:
                return
        except requests.ConnectionError:
            time.sleep(0.1)
    pytest.fail("the registry did not answer")
