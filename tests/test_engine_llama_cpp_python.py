"""The real engine: compiled, proved, and serving a model.  Half an hour; only with --engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Builder
from serving import check_answers, check_stops, docker, server

pytestmark = [pytest.mark.docker, pytest.mark.engine, pytest.mark.network]


def test_it_serves_as_a_user_without_rights(builder: Builder, tmp_path: Path) -> None:
    done = builder("build", "llama-cpp-python", "--json", timeout=5400)
    assert done.returncode == 0, done.stderr
    image = json.loads(done.stdout)["references"][0]
    with server(image, tmp_path, 8000, "v1/models", "--n_ctx", "256") as (name, url):
        check_answers(name, url)
        # The script runs inside: the image's own health check.
        assert docker("exec", name, "/usr/local/bin/healthcheck", "8000", "v1/models") == ""
        check_stops(name)
