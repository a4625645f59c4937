"""The real engine: compiled, proved, and serving a model.  Half an hour; only with --engine."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

import tiny_gguf
from conftest import Builder

pytestmark = [pytest.mark.docker, pytest.mark.engine, pytest.mark.network]

PATIENCE = 120  # seconds for the server to load a model of half a megabyte


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def server(builder: Builder, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The container's name, and the URL of the server in it."""
    done = builder("build", "llama-cpp-python", "--json", timeout=5400)
    assert done.returncode == 0, done.stderr
    image = json.loads(done.stdout)["references"][0]
    models = tmp_path / "models"
    models.mkdir(mode=0o755)
    tiny_gguf.write(models / "tiny.gguf")
    name = f"llama-cpp-python-{tmp_path.name}".lower()
    options = ["--detach", "--name", name, "--read-only", "--tmpfs=/tmp", "--memory=2g"]
    options += ["--publish=127.0.0.1::8000", f"--volume={models}:/models:ro"]
    docker("run", *options, image, "--model", "/models/tiny.gguf", "--n_ctx", "256")
    try:
        url = "http://" + docker("port", name, "8000").splitlines()[0]
        _wait(url, name)
        yield name, url
    finally:
        docker("rm", "--force", name)


def _wait(url: str, name: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if requests.get(f"{url}/v1/models", timeout=5).status_code == 200:
                return
        except requests.ConnectionError:
            time.sleep(0.5)
    pytest.fail(f"the server did not answer:\n{docker('logs', name)}")


def test_it_serves_as_a_user_without_rights(server: tuple[str, str]) -> None:
    name, url = server
    assert docker("exec", name, "id", "-u") == "10001"
    models = requests.get(f"{url}/v1/models", timeout=30).json()
    assert [model["id"] for model in models["data"]] == ["/models/tiny.gguf"]
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
    # The script runs inside: the image's own health check.
    assert docker("exec", name, "/usr/local/bin/healthcheck", "8000", "v1/models") == ""
    docker("stop", "--time=20", name)
    assert docker("inspect", "--format={{.State.ExitCode}}", name) == "0"
