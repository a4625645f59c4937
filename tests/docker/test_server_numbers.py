"""The numbers of hello-sm120's server: on a card that computes, against its CPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.checks.logit_test import TOKENS, Numbers
from builder.checks.simulated import SimulatedServer
from builder.checks.verdict import Check, CheckState
from builder.docker import containers, engine
from builder.docker.containers import blobs_of
from builder.image import contents as reading
from builder.image.contents import ReadOptions
from builder.presets import cards
from simulator.selection import Capability
from support.environment import REPOSITORY, SHARED_CACHE
from support.simulators import digest_of
from support.smoke_tests import SmokeTest, hello_recipe

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

Checked = Callable[..., dict[str, Check]]
LIBRARY = "/opt/engine/lib/libhello-cuda.so.0.1.0"
# The good engine with a library that has machine code alone, and the PTX of its kernels beside.
MACHINE_CODE = """
FROM {devel} AS build
COPY --from=source / /source
WORKDIR /out
RUN set -eu; \\
    call="nvcc -std=c++17 -I/source/include -DHELLO_CUDA_NO_VMM /source/src/hello_cuda.cu"; \\
    $call -ptx -arch=compute_120 -o /kernels.ptx; \\
    $call -shared -cudart=shared -gencode=arch=compute_120,code=sm_120 -lcublas \\
        -Xcompiler=-fPIC,-fvisibility=hidden -Xlinker=-soname=libhello-cuda.so.0 \\
        -o libhello-cuda.so.0.1.0
FROM {good}
COPY --from=build /kernels.ptx /kernels.ptx
COPY --from=build /out/ /opt/engine/lib/
"""


# A server with types of the cache, which change nothing; its CPU does not have q4_0.
WITH_CACHES = """
FROM {image}
USER root
RUN cd /opt/engine/bin && mv hello-server real && printf '%s\\n' '#!/bin/sh' \\
    'kind=; for word; do shift; case $word in --cache-type-k) kind=$1 ;;' \\
    'q8_0 | q4_0 | turbo3 | --cache-type-v | --flash-attn | on) ;; *) set -- "$@" "$word" ;;' \\
    'esac; done' \\
    '[ "$kind$BUILDER_CPU" != q4_01 ] || exit 1' \\
    'exec /opt/engine/bin/real "$@"' > hello-server && chmod 755 hello-server
USER 10001:10001
"""


@pytest.fixture
def image(hello: dict[str, Any], devel: str, made: set[str], tmp_path: Path) -> str:
    dockerfile = MACHINE_CODE.format(devel=devel, good=hello["references"][0])
    source = f"--build-context=source={REPOSITORY / 'engines/hello-sm120'}"
    return SmokeTest(tmp_path, made).build(dockerfile, source)


@pytest.fixture
def ptx(image: str, tmp_path: Path) -> Path:
    """The PTX of its kernels, by the digest of their machine code."""
    folder = tmp_path / "ptx"
    folder.mkdir(0o755)
    containers.copy_out(image, LIBRARY, tmp_path / "hello.so")
    containers.copy_out(image, "/kernels.ptx", folder / f"{digest_of(tmp_path / 'hello.so')}.ptx")
    return folder


@pytest.fixture
def checked(image: str, devel: str, made: set[str], tmp_path: Path) -> Checked:
    """Checks the numbers of the image with a directory of PTX: the checks by subject."""
    recipe = hello_recipe()
    assert recipe.serve is not None
    assert recipe.image.port is not None
    found = engine.image(image)
    assert found is not None
    work = tmp_path / "layers"
    work.mkdir()
    options = ReadOptions(card=Capability(12, 0))
    contents = reading.read_contents(
        blobs_of(image, work, found.digest), work, options, SHARED_CACHE
    )
    serving = (recipe.serve, recipe.image.port, devel)

    def with_caches(image: str) -> str:
        return SmokeTest(tmp_path, made).build(WITH_CACHES.format(image=image))

    def run(ptx: Path, caches: Sequence[str] = ()) -> dict[str, Check]:
        folder = tmp_path / "numbers"
        folder.mkdir(0o755)
        trial = SimulatedServer(
            with_caches(image) if caches else image, contents, *serving, SHARED_CACHE, print
        )
        help_text = f"--cache-type-k TYPE  allowed values: f16, {', '.join(caches)}"
        card = cards.load(REPOSITORY, "5090")
        found = Numbers(trial, card, ptx, help_text if caches else "").checks(folder)
        return {check.subject.partition(": ")[2]: check for check in found}

    return run


def changed(ptx: Path, folder: Path, old: str, new: str) -> Path:
    """The PTX with a text that it has changed everywhere."""
    folder.mkdir(0o755)
    [file] = ptx.glob("*.ptx")
    text = file.read_text()
    assert old in text
    (folder / file.name).write_text(text.replace(old, new))
    return folder


def test_a_card_has_the_numbers_of_the_cpu(checked: Checked, ptx: Path) -> None:
    checks = checked(ptx)
    assert {subject: check.state for subject, check in checks.items()} == dict.fromkeys(
        ("kernels", "card and CPU", "after a reuse of the cache", "beside another prompt"),
        CheckState.PASSED,
    )
    assert f"{TOKENS} of {TOKENS} tokens are equal" in checks["card and CPU"].found
    assert "launches of 2 kernels" in checks["kernels"].found


def test_a_sum_that_leaves_out_a_lane_is_found(checked: Checked, ptx: Path, tmp_path: Path) -> None:
    # The last step of the warp's sum adds what is two lanes further, not one.
    folder = changed(ptx, tmp_path / "changed", ", 1, 31, -1;", ", 2, 31, -1;")
    checks = checked(folder, ["q8_0"])
    check = checks["card and CPU"]
    assert check.state is CheckState.FAILED
    assert "first beyond the limit at token 1;" in check.found
    assert "launched by no model that agrees: " in check.found
    assert "compute_logits" in check.found
    assert check.found.endswith("; no race was found for the prompt alone")
    assert checks["kernels"].passed, "the fault is in the numbers alone"
    assert checks["beside another prompt"].passed, "the same numbers, wrong twice"
    assert checks["cache of q8_0"].state is CheckState.FAILED


def test_the_race_of_a_wrong_kernel_is_named(checked: Checked, ptx: Path, tmp_path: Path) -> None:
    # The logits of 16 rows, which four blocks compute, go to one place, too.
    [file] = ptx.glob("*.ptx")
    kernel = file.read_text().partition("compute_logits")[2]
    [(store, address)] = re.findall(r"(st\.global\.f32\s+\[(%rd\d+)[^;]*;)", kernel)
    folder = changed(
        ptx, tmp_path / "changed", store, f"{store} and.b64 {address}, {address}, -64; {store}"
    )
    check = checked(folder)["card and CPU"]
    assert check.state is CheckState.FAILED
    assert "compute_logits" in check.found
    # Warps of a block do, before its other blocks.
    race = "race: writes global memory, which warp 0 of the block wrote with no barrier between"
    assert race in check.found, check.found


def test_an_instruction_that_is_not_computed_says_nothing_of_the_image(
    checked: Checked, ptx: Path, tmp_path: Path
) -> None:
    [(subject, check)] = checked(
        changed(ptx, tmp_path / "changed", "cvt.rni.f32.f32", "cvt.nonsense.f32.f32")
    ).items()
    assert subject == "its answers"
    assert check.state is CheckState.SKIPPED
    assert "not computed" in check.found


def test_a_kernel_without_ptx_is_named(checked: Checked, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir(0o755)
    [check] = checked(empty).values()
    assert check.state is CheckState.SKIPPED
    assert "no PTX is known for the machine code" in check.found


def test_each_type_of_the_cache_is_compared_with_the_same_type_on_the_cpu(
    checked: Checked, ptx: Path
) -> None:
    checks = checked(ptx, ["q8_0", "q4_0", "turbo3"])
    own, on_the_card, of_a_fork = (
        checks[f"cache of {kind}"] for kind in ("q8_0", "q4_0", "turbo3")
    )
    assert {each.state for each in (own, on_the_card, of_a_fork)} == {"passed"}
    assert f"{TOKENS} of {TOKENS} tokens are equal" in own.found
    assert "within 0.1" in own.expected
    assert "compared with f16" not in own.found
    # The CPU of a fork may take another type without a word.
    for each in (on_the_card, of_a_fork):
        assert each.found.endswith("; compared with f16")
    assert "within 0.5" in on_the_card.expected
    assert "within 1.8" in of_a_fork.expected
