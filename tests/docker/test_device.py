"""Servers on a simulated card: the good ones pass, and each fault with a card is named.

One image has all faults: ``SHAPED_FAULT`` chooses one (tests/data/trees/faulty_card).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from builder.checks import simulated
from builder.checks.device import check_absent, check_device
from builder.checks.subject import DeviceTest
from builder.checks.verdict import Check, DeviceUse
from builder.docker.containers import blobs_of
from builder.image import contents
from builder.image.contents import Contents
from builder.presets import cards
from builder.recipes.probes import Serve
from support.commands import Builder
from support.environment import REPOSITORY, SHARED_CACHE
from support.shaped_card import TREES, recipe_of
from support.smoke_tests import context_of, docker

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

TryServer = Callable[..., tuple[DeviceUse | None, dict[str, Check]]]


@pytest.fixture
def try_server(
    shaped: str, shaped_contents: Contents, cuda_base: dict[str, str], tmp_path: Path
) -> Iterator[TryServer]:
    """What a server did with a simulated card, and its checks by subject."""
    card = cards.load(REPOSITORY, "5060-ti-16gb")
    device, runs = DeviceTest(card, SHARED_CACHE, lambda _: None), count()

    def run(
        gpu: list[str] | None = None,
        reference: str = shaped,
        serve: Mapping[str, Any] | None = None,
        **env: str,
    ) -> tuple[DeviceUse | None, dict[str, Check]]:
        more = {"devel": cuda_base["devel"], "device_test": device}
        recipe = recipe_of(env, gpu)
        if serve is not None and recipe.serve is not None:
            given = recipe.serve.model_dump(exclude_unset=True) | serve
            recipe = recipe.model_copy(update={"serve": Serve.model_validate(given)})
        folder = tmp_path / str(next(runs))
        folder.mkdir()
        context = context_of(shaped_contents, recipe, folder, reference, **more)
        found = {each.subject: each for each in check_device(context)}
        return context.device, found

    yield run
    left = ("--filter=volume=/simulator/lib", f"--filter=ancestor={shaped}")
    assert docker("ps", "--all", "--quiet", *left) == ""


def failed(found: Mapping[str, Check]) -> set[str]:
    return {subject for subject, each in found.items() if not each.passed}


SUBJECTS = [
    *("starts", "model", "completes text", "answers two at once", "memory over requests"),
    *("memory over prompts", "stops", "kernels", "launches", "allocations", "memory"),
]


def test_a_good_server_passes_every_check(try_server: TryServer) -> None:
    use, found = try_server()
    assert failed(found) == set(), found
    assert list(found) == SUBJECTS
    assert found["model"].found == "offloaded 1/1 layers to GPU"
    assert use is not None
    assert set(use.launches) == {
        "_ZN9ggml_cuda20weighted_mean_kernelEPKfS1_Pfi",
        "_ZN9ggml_cuda12scale_kernelEPffi",
    }
    assert set(use.code) == {"sm_120a"}
    assert use.card == "NVIDIA GeForce RTX 5060 Ti"
    assert use.context < use.peak < use.memory
    assert use.called["__cudaLaunchKernel"] == sum(use.launches.values())


REQUEST = {"path": "v1/completions", "body": '{"prompt": "Hello"}', "contains": ["choices"]}
OTHER = {"api_flavor": "none", "health": "health", "request": REQUEST}


def test_a_server_of_another_kind_is_asked_the_request_of_its_recipe(
    try_server: TryServer,
) -> None:
    use, found = try_server(serve=OTHER)
    assert failed(found) == set(), found
    assert list(found) == [
        *("starts", "answers /v1/completions", "memory over requests", "stops", "kernels"),
        *("launches", "allocations", "memory"),
    ]
    assert use is not None
    assert set(use.code) == {"sm_120a"}

    wrong = OTHER | {"request": REQUEST | {"contains": ["choices", "no such text"]}}
    _, found = try_server(serve=wrong, SHAPED_FAULT="leak")
    assert failed(found) == {"answers /v1/completions"}, found
    assert "no 'no such text' in the answer" in found["answers /v1/completions"].found
    _, found = try_server(serve=OTHER, SHAPED_FAULT="leak")
    assert failed(found) == {"memory over requests"}, found


def test_a_server_without_a_model_must_say_so(
    try_server: TryServer, shaped: str, made: set[str]
) -> None:
    name = "builder-test/shaped-card:refuses"
    made.add(name)
    dockerfile = f'FROM {shaped}\nENTRYPOINT ["bash", "-c", "echo no model: bye; exit 3"]\n'
    docker("buildx", "build", "--provenance=false", f"--tag={name}", "-", text=dockerfile)
    refuses = {"api_flavor": "none", "health": "health", "arguments": [], "seconds": 5}
    _, found = try_server(serve=refuses | {"refuses": "no model: bye"}, reference=name)
    assert failed(found) == {"answers"}, found
    assert found["answers"].state == "skipped"
    _, found = try_server(serve=refuses | {"refuses": "another text"}, reference=name)
    assert "starts without a model" in failed(found)
    assert "ended with exit status 3" in found["starts without a model"].found


def test_launches_that_no_card_takes_are_each_named(try_server: TryServer) -> None:
    _, found = try_server(SHAPED_FAULT="shared,threads,registers,unimplemented")
    assert failed(found) == {"launches", "functions"}, found
    launches = found["launches"].found
    assert "204800" in launches  # dynamic shared memory of 200 KiB
    assert "2048 threads" in launches
    assert "ggml_cuda::many_registers" in launches
    assert "168 registers" in launches
    assert "cudaMallocMipmappedArray" in found["functions"].found
    assert found["functions"].state == "untried"  # this says nothing of the image


def test_memory_that_is_lost_or_follows_the_prompt_is_named(try_server: TryServer) -> None:
    _, found = try_server(SHAPED_FAULT="leak,prompt")
    assert failed(found) == {"memory over requests", "memory over prompts"}, found
    assert found["memory over requests"].found.startswith("1.0 MiB more after each request")
    # 64 KiB for each of 315 tokens more, in whole blocks of 2 MiB.
    assert found["memory over prompts"].found.startswith("22 MiB more")
    assert "ggml_cuda" in found["memory over prompts"].found


def test_machine_code_for_another_card_is_refused(try_server: TryServer) -> None:
    _, found = try_server(LD_LIBRARY_PATH="/opt/engine/bin/90-real")
    assert {"completes text", "kernels", "launches"} <= failed(found), found
    assert "cudaErrorNoKernelImageForDevice" in found["launches"].found


def test_ptx_alone_fails_though_the_driver_would_compile_it(try_server: TryServer) -> None:
    _, found = try_server(LD_LIBRARY_PATH="/opt/engine/bin/90-virtual")
    assert failed(found) == {"kernels"}, found
    assert "from compute_90; the driver would compile" in found["kernels"].found


def test_a_server_that_ignores_the_card_fails(try_server: TryServer) -> None:
    use, found = try_server(gpu=["--n-gpu-layers", "0"])
    assert {"model", "kernels"} <= failed(found), found
    assert found["model"].found == "offloaded 0/1 layers to GPU"
    assert found["completes text"].passed  # it serves, from the CPU
    assert use is None or use.launches == {}


def test_a_log_that_the_launches_do_not_confirm_fails(
    try_server: TryServer, shaped: str, made: set[str]
) -> None:
    name = "builder-test/shaped-card:boasts"
    made.add(name)
    boast = "echo offloaded 1/1 layers to GPU >&2"
    server = "exec /opt/engine/bin/llama-server --n-gpu-layers 0 $0 $@ 2> >(grep -v offload >&2)"
    dockerfile = f'FROM {shaped}\nENTRYPOINT ["bash", "-c", "{boast}; {server}"]\n'
    docker("buildx", "build", "--provenance=false", f"--tag={name}", "-", text=dockerfile)
    _, found = try_server(gpu=[], reference=name)
    assert found["model"].passed
    assert found["kernels"].state == "failed"


def test_an_image_with_the_simulators_libraries_fails(
    cuda_base: dict[str, str],
    small_root: str,
    shaped_contents: Contents,
    tmp_path: Path,
    made: set[str],
) -> None:
    [absent] = check_absent(context_of(shaped_contents))
    assert absent.passed
    libraries = simulated.libraries(SHARED_CACHE, cuda_base["devel"], lambda _: None)
    name = "builder-test/small:simulated"
    made.add(name)
    dockerfile = f"FROM {small_root}\nCOPY --from=libraries libcudart.so.13 /opt/engine/lib/\n"
    docker(
        *("buildx", "build", "--provenance=false", f"--tag={name}", "--file=-"),
        *(f"--build-context=libraries={libraries}", str(TREES / "faulty_card")),
        text=dockerfile,
    )
    read = contents.read_contents(blobs_of(name, tmp_path), tmp_path, cache=SHARED_CACHE)
    [found] = check_absent(context_of(read))
    assert (found.state, found.found) == ("failed", "/opt/engine/lib/libcudart.so.13")


def test_the_verdict_on_hello_has_the_figures_of_the_card(hello: dict[str, Any]) -> None:
    device = hello["verdict"]["device"]
    assert device["code"].keys() == {"sm_120"}
    assert len(device["launches"]) == 2
    checks = {c["subject"]: c for c in hello["verdict"]["checks"] if c["kind"] == "device"}
    assert checks["model"]["found"] == "it runs on cuda"
    assert all(each["state"] == "passed" for each in checks.values())
    assert device["context"] < device["peak"] < device["memory"]


def test_a_card_of_another_name_is_an_error_with_the_known_ones(builder: Builder) -> None:
    done = builder("smoke", "hello-sm120", "--card", "5099")
    assert done.returncode == 2
    assert "no card is named 5099" in done.stderr
    assert "5090-laptop" in done.stderr


def test_a_server_on_a_named_card(builder: Builder, hello: dict[str, Any]) -> None:
    done = builder("smoke", hello["references"][0], "--card", "RTX 5090", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"]["device"]["card"] == "NVIDIA GeForce RTX 5090"
