"""Which card is simulated, and which servers are not tried on one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.checks.device import card_for, check_absent, check_device
from builder.checks.subject import DeviceTest, InapplicableError
from builder.core.errors import UsageError
from builder.engines import families
from builder.image.contents import Contents, File, Layer
from builder.presets import cards
from builder.recipes.catalog import parse
from builder.recipes.schema import Recipe
from simulator.elf import ElfFile
from support.environment import REPOSITORY
from support.smoke_tests import context_of, extended_image, hello_recipe, of_arch


def elf_file(soname: str, *needed: str) -> File:
    parsed = ElfFile("x86-64", "dyn", soname, needed, (), (), None, ())
    return File(f"/opt/engine/lib/{soname}", "file", elf=parsed)


def contents(*files: File, architecture: str = "amd64") -> Contents:
    image = {"os": "linux", "architecture": architecture}
    return Contents({file.path: file for file in files}, image, (), 0)


HELLO = hello_recipe()
RUNTIME = contents(elf_file("libcudart.so.13"))


def without_device(why: str) -> Recipe:
    assert HELLO.serve is not None
    serve = HELLO.serve.model_copy(update={"no_device": why})
    return HELLO.model_copy(update={"serve": serve})


def test_the_card_is_the_smallest_that_runs_the_code() -> None:
    found = card_for(REPOSITORY, HELLO, None)
    assert found is not None
    known = [cards.load(REPOSITORY, name) for name in cards.names(REPOSITORY)]
    assert found.capability == "12.0"
    assert found.memory == min(card.memory for card in known if card.capability == "12.0")
    assert found.memory < max(card.memory for card in known if card.capability == "12.0")
    older = card_for(REPOSITORY, of_arch("86-real", "120a"), None)
    assert older == found
    assert card_for(REPOSITORY, of_arch("90"), None) is None


def test_a_named_card_runs_the_code_or_is_refused() -> None:
    found = card_for(REPOSITORY, HELLO, "RTX 5090 Laptop")
    assert found is not None
    assert found.name == "NVIDIA GeForce RTX 5090 Laptop GPU"
    with pytest.raises(UsageError, match=r"RTX 3090 does not run the code of hello-sm120") as error:
        card_for(REPOSITORY, HELLO, "3090")
    assert error.value.why == "it has compute capability 8.6, the recipe asks for 12.0"
    with pytest.raises(UsageError, match="no card is named 5099"):
        card_for(REPOSITORY, HELLO, "5099")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"recipe": HELLO.model_copy(update={"serve": None})},
            "the recipe does not say how its server starts ([serve])",
        ),
        ({"recipe": without_device("it needs NCCL")}, "it needs NCCL"),
        ({"extended": extended_image(1, {}), "devel": None}, "the image extends another one"),
        (
            {"contents": contents(architecture="arm64")},
            "there are simulated cards for linux/amd64 only",
        ),
        ({"devel": None}, "the base has no image to compile in"),
        ({"contents": contents(elf_file("libcudart.so.12"))}, "the image has no libcudart.so.13"),
        ({"recipe": of_arch("90")}, "no card is known for 90"),
    ],
)
def test_a_server_that_cannot_be_tried_is_no_fault_of_its_image(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    given = {"recipe": HELLO, "contents": RUNTIME, "devel": "devel", **changes}
    test = DeviceTest(card_for(REPOSITORY, given["recipe"], None), tmp_path, print)
    context = context_of(**given, work=tmp_path, device_test=test)
    [found] = check_device(context)
    assert (found.kind, found.state) == ("device", "skipped")
    assert found.found.startswith(why)
    assert context.device is None


@pytest.mark.parametrize(
    ("name", "devel", "model"),
    [
        ("vllm-0.20.2", None, None),  # published: no image to compile in
        ("vllm-0.20.2-wheel", "devel", ("{model}",)),
        ("sglang-0.5.23-wheel", "devel", ("--model-path", "{model}")),
        ("lmdeploy-0.18.0-wheel", "devel", ("{model}",)),
    ],
)
def test_a_server_of_a_base_of_ours_is_started_with_a_folder(
    name: str, devel: str | None, model: tuple[str, ...] | None, tmp_path: Path
) -> None:
    file = REPOSITORY / "recipes" / f"{name}.toml"
    recipe, problems = parse(file.read_text(), file, Recipe)
    assert recipe is not None, problems
    recipe = families.complete(recipe)
    test = DeviceTest(card_for(REPOSITORY, recipe, None), tmp_path, print)
    extended = extended_image(1, {})
    context = context_of(
        RUNTIME, recipe, tmp_path, extended=extended, devel=devel, device_test=test
    )
    with pytest.raises(InapplicableError, match="its server loads a model folder"):
        _ = context.server
    assert context.folder is not None
    if model is None:
        with pytest.raises(InapplicableError, match="the image extends another one"):
            _ = context.simulated
    else:
        assert tuple(context.simulated.serve.arguments[: len(model)]) == model
    assert context.stub is None  # as for every image that extends another


@pytest.mark.parametrize("ggml", [True, False])
def test_kernels_of_ggml_are_compared_without_a_server(ggml: bool, tmp_path: Path) -> None:
    recipe = HELLO.model_copy(update={"serve": None})
    files = [elf_file("libcudart.so.13"), *([elf_file("libggml-base.so.0")] if ggml else [])]
    test = DeviceTest(card_for(REPOSITORY, recipe, None), tmp_path, print)
    context = context_of(contents(*files), recipe, tmp_path, devel="devel", device_test=test)
    assert context.wants_numbers is ggml
    with pytest.raises(InapplicableError, match="does not say how its server starts"):
        _ = context.server if ggml else context.computing


@pytest.mark.parametrize("family", ["cmake", "vllm-overlay"])
def test_a_server_of_the_smoke_test_is_started_with_a_file(family: str, tmp_path: Path) -> None:
    recipe = HELLO.model_copy(update={"family": family})
    test = DeviceTest(card_for(REPOSITORY, HELLO, None), tmp_path, print)
    context = context_of(RUNTIME, recipe, tmp_path, devel="devel", device_test=test)
    assert context.folder is None
    assert context.server.serve == HELLO.serve


def test_a_library_of_the_simulator_is_found_in_every_layer() -> None:
    def state(file: File) -> str:
        layer = Layer("sha256:x", 1, 1, 0, "COPY", (file,))
        (found,) = check_absent(context_of(replace(RUNTIME, layers=(layer,))))
        return found.state

    assert state(elf_file("libcudart.so.13", "libsimulator.so")) == "failed"
    for name in ("libsimulator.so", "libpages.so"):
        assert state(elf_file(name)) == "failed", name
    assert state(elf_file("libcudart.so.13", "libc.so.6")) == "passed"
