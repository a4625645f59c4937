"""A container of an engine that serves the tiny model over HTTP."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

import tiny_gguf

PATIENCE = 120  # seconds for the server to load a model of half a megabyte


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@contextmanager
def server(
    image: str, folder: Path, port: int, ready: str, *arguments: str
) -> Iterator[tuple[str, str]]:
    """The container's name and the URL of its server, once the page ``ready`` answers."""
    models = folder / "models"
    models.mkdir(mode=0o755)
    tiny_gguf.write(models / "tiny.gguf")
    name = f"builder-test-{folder.name}".lower()
    options = ["--detach", "--name", name, "--read-only", "--tmpfs=/tmp", "--memory=2g"]
    options += [f"--publish=127.0.0.1::{port}", f"--volume={models}:/models:ro"]
    docker("run", *options, image, "--model", "/models/tiny.gguf", *arguments)
    try:
        url = "http://" + docker("port", name, str(port)).splitlines()[0]
        _wait(f"{url}/{ready}", name)
        yield name, url
    finally:
        docker("rm", "--force", name)


def _wait(url: str, name: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if requests.get(url, timeout=5).status_code == 200:
                return
        except requests.ConnectionError:
            pass
        time.sleep(0.5)
    pytest.fail(f"the server did not answer:\n{docker('logs', name)}")


def check_answers(name: str, url: str) -> None:
    """Models, a completion and a chat, as a user without rights."""
    assert docker("exec", name, "id", "-u") == "10001"
    models = requests.get(f"{url}/v1/models", timeout=30).json()
    assert [Path(found["id"]).stem for found in models["data"]] == ["tiny"], models
    answer = requests.post(
        f"{url}/v1/completions", json={"prompt": "Hello", "max_tokens": 12, "seed": 1}, timeout=60
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 12
    assert len(answer.json()["choices"][0]["text"]) > 0
    chat = requests.post(
        f"{url}/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8},
        timeout=60,
    )
    assert chat.status_code == 200, chat.text
    assert chat.json()["choices"][0]["message"]["role"] == "assistant"


def check_stops(name: str) -> None:
    """SIGTERM ends it, and that is no failure."""
    docker("stop", "--time=20", name)
    assert docker("inspect", "--format={{.State.ExitCode}}", name) == "0"
