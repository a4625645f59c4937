"""What the tests take of this machine, and what they are sealed from; a plugin of pytest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from builder.core import web
from builder.core.files import file_lock
from support import model_hub

REPOSITORY = Path(__file__).resolve().parents[2]
# Taken before the environment is sealed: fetched wheels and build caches serve all tests.
SHARED_CACHE = Path(os.environ.get("BUILDER_CACHE_DIR") or user_cache_path("builder"))
DOCKER_CONFIG = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
SEALED = ("BUILDER_", "BUILDX_", "XDG_", "GIT_", "HF_")


def sealed_environment(home: Path) -> dict[str, str]:
    """Variables without settings, home or git configuration of the machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SEALED)}
    return kept | {
        "HOME": str(home / "home"),
        "DOCKER_CONFIG": str(DOCKER_CONFIG),
        "BUILDER_CACHE_DIR": str(SHARED_CACHE),
        "BUILDER_STATE_DIR": str(home / "state"),
        "NO_COLOR": "1",
    }


@pytest.fixture(autouse=True)
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test has the sealed environment, and a home and a state of its own."""
    environment = sealed_environment(tmp_path)
    Path(environment["HOME"]).mkdir()
    for name in set(os.environ) - set(environment):
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    model_hub.reread()
    monkeypatch.setattr(web, "GIVEN_UP", set())
    folder = Path.cwd()
    yield
    assert Path.cwd() == folder, "the test changed the working directory"


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache: no other test has its locks, or sees what is left in it."""
    folder = tmp_path / "own-cache"
    folder.mkdir()
    monkeypatch.setenv("BUILDER_CACHE_DIR", str(folder))
    return folder


def abandoned() -> list[Path]:
    """Work directories of runs that have ended; another lane's runs hold theirs."""
    found = []
    work = SHARED_CACHE / "work"
    with file_lock(work / ".lock"):
        for path in work.iterdir():
            if path.is_dir():
                with suppress(BlockingIOError), file_lock(work / f"{path.name}.lock", wait=False):
                    found.append(path)
    return found
