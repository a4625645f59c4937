"""The real engine: compiled, smoke-tested, serving a model.  Half an hour; only with --engine."""

from __future__ import annotations

import json

import pytest

from support.commands import Builder

pytestmark = [pytest.mark.docker, pytest.mark.engine, pytest.mark.network]


def test_every_check_passes(builder: Builder) -> None:
    done = builder("build", "llama-cpp-python", "--json", timeout=5400)
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)["verdict"]
    checks = verdict["checks"]
    served = [check["subject"] for check in checks if check["kind"] == "serves"]
    assert served[0] == "starts"
    assert served[-1] == "stops"
    assert len(served) == 9
    device = verdict["device"]
    assert device["code"].keys() == {"sm_120a"}
    assert device["by_kind"].keys() == {"weights", "KV cache", "compute"}
    tried = {check["subject"]: check for check in checks if check["kind"] == "device"}
    assert tried["memory"]["expected"] == "as its own log states"
    assert tried["model"]["found"].endswith(": offloaded 3/3 layers to GPU")
