"""Kernels run by the program ``ptx``, and how their ends are told apart."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from builder.build.compilers import is_wrong
from builder.checks import simulated
from ptxlab.build import build
from simulator.compilers import KernelError, KernelLaunch, interpret
from support.environment import SHARED_CACHE

# out[tid] = in[tid + pair.y] + add
PTX = """
.version 9.0
.target sm_120a
.address_size 64
.visible .entry shift(.param .u64 a, .param .u64 b, .param .align 4 .b8 pair[8], .param .u32 add)
{
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u32 %r1, [pair+4];
    ld.param.u32 %r2, [add];
    mov.u32 %r3, %tid.x;
    add.u32 %r4, %r3, %r1;
    mul.wide.u32 %rd3, %r4, 4;
    add.u64 %rd4, %rd1, %rd3;
    ld.global.u32 %r5, [%rd4];
    add.u32 %r5, %r5, %r2;
    mul.wide.u32 %rd5, %r3, 4;
    add.u64 %rd6, %rd2, %rd5;
    st.global.u32 [%rd6], %r5;
    ret;
}
.visible .entry odd(.param .u64 a)
{
    .reg .b32 %r<2>;
    mov.u32 %r1, 0;
    vadd4.u32.u32.u32 %r1, %r1, %r1, %r1;
    ret;
}
"""


MAKE = """#!/bin/sh
{make} --dry-run "$@" || exit
for word; do
    case $word in
        OUT=*) out=${{word#OUT=}} && mkdir -p "$out" ;;
        "$out"/ptx) touch "$word" ;;
    esac
done
"""


@pytest.fixture(scope="module")
def program() -> Path:
    """The program that the tests of the interpreter compile."""
    return build() / "ptx"


def test_the_program_is_made_by_the_makefile_once(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "make").write_text(MAKE.format(make=shutil.which("make")))
    (tmp_path / "make").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    said: list[str] = []
    made = simulated.ptx_program(own_cache, said.append)
    assert made.is_file()
    assert simulated.ptx_program(own_cache, said.append) == made
    assert [line.partition(":")[0] for line in said] == [
        "compiling the PTX interpreter, once for these sources"
    ]


@pytest.mark.engine
def test_the_program_with_portable_loops(module: Path) -> None:
    test_arguments_and_the_result(simulated.ptx_program(SHARED_CACHE, print), module)


@pytest.fixture
def module(tmp_path: Path) -> Path:
    (file := tmp_path / "shift.ptx").write_text(PTX)
    return file


def pair(shift: int) -> bytes:
    return np.array([0, shift], np.uint32).tobytes()


def test_arguments_and_the_result(program: Path, module: Path) -> None:
    numbers = np.arange(8, dtype=np.uint32)
    launch = KernelLaunch(module, "shift", (1, 1), (6, 1))
    out = np.zeros(6, np.uint32)
    found, same = interpret(program, launch, [numbers, out, pair(2), 100], [1, 0])
    assert found.view(np.uint32).tolist() == [102, 103, 104, 105, 106, 107]
    assert same.view(np.uint32).tolist() == numbers.tolist()


def test_a_fault_is_named_without_addresses_and_is_wrong(program: Path, module: Path) -> None:
    numbers = np.arange(8, dtype=np.uint32)
    launch = KernelLaunch(module, "shift", (1, 1), (6, 1))
    with pytest.raises(KernelError) as fault:
        interpret(program, launch, [numbers, np.zeros(6, np.uint32), pair(3), 0], [1])
    assert str(fault.value) == "out of bounds, PTX line 17: ld.global.u32 %r5, [%rd4]"
    assert is_wrong(str(fault.value))


def test_what_the_interpreter_lacks_says_nothing_about_a_compiler(
    program: Path, module: Path
) -> None:
    with pytest.raises(KernelError) as fault:
        interpret(program, KernelLaunch(module, "odd", (1, 1), (1, 1)), [np.zeros(1)], [0])
    assert str(fault.value).startswith("not computed, PTX line")
    assert not is_wrong(str(fault.value))
    with pytest.raises(KernelError) as fault:
        interpret(program, KernelLaunch(module, "gone", (1, 1), (1, 1)), [np.zeros(1)], [0])
    assert str(fault.value).startswith("not run: no kernel gone in")
    assert not is_wrong(str(fault.value))
