"""The functions that start the docker client: bounded in time and in memory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from builder.core.errors import WorldError
from builder.core.parallel import output_of
from builder.docker import containers, engine


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a client that runs its arguments as a program."""
    file = tmp_path / "docker"
    file.write_text('#!/bin/sh\nexec "$@"\n')
    file.chmod(0o755)
    monkeypatch.setattr(engine, "executable", lambda: str(file))
    return file


@pytest.mark.usefixtures("docker")
def test_a_long_output_keeps_its_beginning_and_its_end() -> None:
    done = engine.output(
        "sh", "-c", "echo first; yes | head -c 5000000; echo last; exit 3", timeout=30
    )
    assert done.status == 3
    assert done.output.startswith("first\n")
    assert done.output.endswith("\nlast\n")
    assert len(done.output) == 2 * engine.MOST_OUTPUT


@pytest.mark.usefixtures("docker")
def test_both_streams_are_one_output_or_two() -> None:
    words = ("sh", "-c", "echo out; echo err >&2")
    assert engine.output(*words, timeout=30).output == "out\nerr\n"
    done = engine.call(*words)
    assert (done.stdout, done.stderr) == ("out\n", "err\n")


@pytest.mark.usefixtures("docker")
def test_a_client_that_does_not_end_is_stopped() -> None:
    began = time.monotonic()
    with pytest.raises(engine.LateError, match="docker sleep 60 did not end"):
        engine.call("sleep", "60", timeout=0.2)
    with pytest.raises(engine.LateError, match="docker sleep 60 did not end"):
        engine.output("sleep", "60", timeout=0.2)
    assert time.monotonic() - began < 30


@pytest.mark.usefixtures("docker")
def test_a_stream_ends_with_its_body() -> None:
    with engine.stream("yes") as process:
        assert output_of(process).read(4) == b"y\ny\n"
    assert process.returncode == -9


def test_an_engine_that_hangs_is_no_fault_of_the_image(
    docker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(containers, "ENGINE_TIMEOUT", 0.2)
    container = containers.Container("name")
    for use in (container.state, container.log, container.health_test):
        with pytest.raises(engine.LateError):
            use()
    with pytest.raises(containers.TimedOutError):  # it is the program's fault, so far as is known
        container.execute(["nvidia-smi"], 0.2)


@pytest.mark.parametrize(
    ("line", "what", "hint"),
    [
        (
            "permission denied while trying to connect to the docker API at unix:///var/run/docker.sock",
            "this user may not use Docker",
            "usermod -aG docker",
        ),
        (
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.",
            "Docker does not answer",
            "systemctl start docker",
        ),
    ],
)
def test_why_docker_cannot_be_used(docker: Path, line: str, what: str, hint: str) -> None:
    docker.write_text(f"#!/bin/sh\necho '{line}' >&2\nexit 1\n")
    with pytest.raises(WorldError) as caught:
        engine.ask_engine()
    assert (caught.value.what, hint in (caught.value.hint or "")) == (what, True)
