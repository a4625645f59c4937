"""What is kept of the messages of Docker's client."""

from __future__ import annotations

from builder.docker.containers import reason_of


def test_a_container_that_does_not_start_is_explained_without_its_number() -> None:
    # Docker 29: `docker run --detach --gpus all` without NVIDIA's runtime.
    why = 'docker: Error response from daemon: could not select device driver ""'
    said = f"{'c24ae7f1' * 8}\n{why}\n\nRun 'docker run --help' for more information\n"
    assert reason_of(said) == why
