"""The program ``ptx``, as people call it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ptxlab.kernels import HEADER

SCALE = (
    HEADER
    + """.visible .entry scale(.param .u64 x, .param .f32 by) {
  .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .f32 %f<4>;
  mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; ld.param.u64 %d0, [x]; add.u64 %d1, %d0, %d1;
  ld.param.f32 %f1, [by]; ld.global.f32 %f2, [%d1]; mul.f32 %f2, %f1, %f2; st.global.f32 [%d1], %f2; ret; }
"""
)


@pytest.fixture
def scale(tmp_path: Path) -> Path:
    file = tmp_path / "scale.ptx"
    file.write_text(SCALE)
    return file


def ptx(built: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [str(built / "ptx"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_runs_a_kernel_on_a_file(built: Path, scale: Path, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    numbers.write_bytes(bytes.fromhex("0000803f") * 32)
    saved = tmp_path / "saved"
    done = ptx(
        built, "run", scale, "--block", 32, "--arg", f"file:{numbers}", "--arg", "f32:2.5",
        "--print", "0:f32:3", "--save", f"0:{saved}", "--checksum",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2.5 2.5 2.5 \n"
    assert saved.read_bytes() == bytes.fromhex("00002040") * 32
    assert "9 instructions of warps, 288 of lanes" in done.stderr


def test_a_parameter_is_given_byte_by_byte(built: Path, scale: Path, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    numbers.write_bytes(bytes.fromhex("0000803f") * 32)
    given = ("--arg", f"file:{numbers}", "--arg", "hex:0000204F", "--print", "0:f32:1")
    done = ptx(built, "run", scale, "--block", 32, *given)
    assert (done.returncode, done.stdout) == (0, "2.68435456e+09 \n")


def test_it_says_where_a_kernel_leaves_its_memory(built: Path, scale: Path) -> None:
    done = ptx(built, "run", scale, "--block", 32, "--arg", "zeros:124", "--arg", "f32:1")
    assert done.returncode == 1
    assert "after the end of the allocation of 124 bytes" in done.stderr
    assert "thread 31,0,0" in done.stderr


def test_it_lists_kernels(built: Path, scale: Path) -> None:
    done = ptx(built, "list", scale)
    assert done.returncode == 0
    assert done.stdout.splitlines()[:3] == [
        "scale",
        "  parameter of 8 bytes at 0",
        "  parameter of 4 bytes at 8",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "FILE"], "the kernel has 2 parameters, the call 0"),
        (["run", "FILE", "--kernel", "other"], "no kernel other"),
        (
            ["run", "FILE", "--arg", "u32:1", "--arg", "f32:1"],
            "parameter 0 has 8 bytes, the argument 4",
        ),
        (["run", "FILE", "--arg", "what:1"], "an unknown kind of argument"),
        (["run", "FILE", "--arg", "hex:00f"], "expected two hexadecimal digits for each byte"),
        (["run", "FILE", "--arg", "hex:0g"], "expected two hexadecimal digits for each byte"),
        (["run", "/does/not/exist"], "cannot read /does/not/exist"),
        (["walk", "FILE"], "an unknown command walk"),
        ([], "no command"),
    ],
)
def test_a_wrong_call_is_named(built: Path, scale: Path, words: list[str], message: str) -> None:
    done = ptx(built, *[scale if word == "FILE" else word for word in words])
    assert done.returncode == 2
    assert message in done.stderr
