"""The numbers of servers that load model folders: the model, the share, the PTX that is kept."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from builder.checks import simulated
from builder.checks.folder_test import BLOCK, BY_PROGRAM, check_share, write_random_folder
from builder.checks.verdict import CheckState
from simulator.report import CardUse, KernelUse, Report, Violation

CARD = CardUse(name="", memory=1, context=0, used=0, peak=0)
PROJECTION = "model.layers.0.mlp.down_proj.weight"
Tensors = dict[str, tuple[str, NDArray[np.float64]]]


def of_e4m3(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """OCP's e4m3, as its table has it: 0x7e is 448, 0x08 the least normal number."""
    exponent, fraction = (codes >> 3) & 15, codes & 7
    values = np.where(
        exponent > 0, (8 + fraction) * 2.0 ** (exponent.astype(int) - 10), fraction * 2.0**-9
    )
    values = np.where(codes & 127 == 127, np.nan, values)
    return np.where(codes & 128, -values, values)


def tensors(folder: Path) -> Tensors:
    data = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, found = json.loads(data[8 : 8 + length]), Tensors()
    for name, about in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + at for at in about["data_offsets"])
        raw = data[begin:end]
        match about["dtype"]:
            case "BF16":
                bits = np.frombuffer(raw, "<u2").astype("<u4") << 16
                values = bits.view("<f4").astype(np.float64)
            case "F32":
                values = np.frombuffer(raw, "<f4").astype(np.float64)
            case _:
                values = of_e4m3(np.frombuffer(raw, np.uint8))
        found[name] = about["dtype"], values.reshape(about["shape"])
    return found


def test_products_keep_the_size_of_their_input_in_both_formats(tmp_path: Path) -> None:
    write_random_folder(tmp_path / "bf16")
    write_random_folder(tmp_path / "fp8", fp8=True)
    plain, packed = tensors(tmp_path / "bf16"), tensors(tmp_path / "fp8")
    assert {kind for kind, _ in plain.values()} == {"BF16"}
    kind, values = packed[PROJECTION]
    assert kind == "F8_E4M3"
    assert np.isfinite(values).all()
    scales = packed[f"{PROJECTION}_scale_inv"][1]
    assert scales.shape == tuple(each // BLOCK for each in values.shape)
    assert np.unique(scales).size == scales.size  # a kernel that takes another block's is wrong
    found = values * scales.repeat(BLOCK, 0).repeat(BLOCK, 1)
    for weights in (found, plain[PROJECTION][1]):
        assert weights.std() * weights.shape[1] ** 0.5 == pytest.approx(1, rel=0.2)
    config: dict[str, Any] = json.loads((tmp_path / "fp8/config.json").read_text())
    assert config["quantization_config"]["weight_block_size"] == [BLOCK, BLOCK]


def report(computed: int, by_program: int, *whys: str, others: int = 0) -> Report:
    about: dict[str, Any] = {"card": 0, "grid": (1, 1, 1), "block": (32, 1, 1), "shared": 0}
    own = KernelUse(
        kernel="triton_red_fused",
        file="",
        code="",
        count=computed + others,
        computed=computed,
        **about,
    )
    torch = KernelUse(
        kernel="aten::argmax.default", file=BY_PROGRAM, code="none", count=by_program, **about
    )
    found = tuple(
        Violation(kernel="k", error="cudaErrorNotSupported", why=why, stack=0, count=1)
        for why in whys
    )
    return Report(
        version=1,
        cards=(CARD,),
        stacks=((),),
        launches=(own, *([torch] if by_program else [])),
        violations=found,
        called={"cublasGemmEx": 4, "cublasCreate_v2": 1},
    )


def test_shares_are_of_the_requests_and_operators_of_pytorch_are_named() -> None:
    check = check_share("model: kernels", report(2, 8), report(5, 10))
    assert check.passed
    assert check.found == (
        "launches computed 3 (60%), operators by PyTorch's code for CPUs 2 (40%): "
        "aten::argmax.default"
    )
    assert check_share("model: kernels", None, report(5, 0)).found == (
        "launches computed 5 (56%), products of cuBLAS 4 (44%)"
    )


@pytest.mark.parametrize(
    ("found", "why", "state"),
    [
        (report(3, 0), "", CheckState.PASSED),
        (report(3, 1, others=1), "", CheckState.FAILED),
        (report(3, 1, "out of bounds: writes 4 bytes"), "", CheckState.FAILED),
        (report(3, 1, "not computed: no PTX is known"), "it ended", CheckState.SKIPPED),
        (report(3, 1), "it ended", CheckState.FAILED),
        (report(0, 1), "", CheckState.FAILED),
        (None, "", CheckState.FAILED),
    ],
)
def test_a_launch_that_nobody_computed_is_no_success(
    found: Report | None, why: str, state: CheckState
) -> None:
    assert check_share("model: kernels", report(0, 0), found, why).state is state


def test_options_that_a_version_refuses_say_nothing_about_its_kernels() -> None:
    check = check_share("model: kernels", None, report(0, 0), "unknown option --attention-backend")
    assert check.state is CheckState.SKIPPED
    assert "unknown option" in check.found
    faulty = report(1, 0, "out of bounds: writes 4 bytes")
    assert check_share("model: kernels", None, faulty, "it ended").state is CheckState.FAILED


def ptxas(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    """The wrapper with a ptxas of that body; it is called as Triton calls it."""
    real = folder / "ptxas-blackwell"
    real.write_text(f"#!/bin/sh\n{body}\n")
    real.chmod(0o755)
    (folder / "kernel.ptx").write_text(".version 9.0\n")
    env = {**os.environ, "SIMULATOR_PTXAS": str(real), "SIMULATOR_PTX": str(folder)}
    wrapper = simulated.sources() / "torch/ptxas"
    words = ["-v", "--gpu-name=sm_120a", str(folder / "kernel.ptx"), "-o", str(folder / "out.o")]
    return subprocess.run([wrapper, *words], env=env, capture_output=True, text=True, check=False)


def test_the_ptx_is_kept_by_the_digest_of_its_machine_code(tmp_path: Path) -> None:
    done = ptxas(tmp_path, f'echo "$1"; printf code >{tmp_path}/out.o')
    assert (done.returncode, done.stdout) == (0, "-v\n")
    digest = hashlib.sha256(b"code").hexdigest()
    assert (tmp_path / f"{digest}.ptx").read_text() == ".version 9.0\n"


def test_a_ptxas_that_fails_fails_and_one_that_says_its_version_says_it(tmp_path: Path) -> None:
    assert ptxas(tmp_path, "exit 255").returncode == 255
    done = ptxas(tmp_path, "echo V13.0.88")
    assert (done.returncode, done.stdout) == (0, "V13.0.88\n")
    assert [file.name for file in tmp_path.glob("*.ptx")] == ["kernel.ptx"]
