"""Programs with a server in Python: what a recipe may set, and every CMake call's flags."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.engines.families import ENGINES
from builder.plan.plan import link_lints
from support.catalogs import rendered
from support.environment import REPOSITORY
from support.family_recipes import ADDED, CALL, GIT, LOCKED, problems


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((GIT, LOCKED, CALL, CALL.replace("]\n", ']\nplace = "b"\n', 1)), "needs an entrypoint"),
        ((GIT, CALL), "needs a [python] table"),
        ((GIT, LOCKED, CALL, CALL), "two cmake calls would put their libraries in"),
        ((GIT, LOCKED, "[[cmake]]\n"), "name the targets"),
        (
            (GIT, LOCKED, CALL + "define = { GGML_CUDA_NO_VMM = true }\n"),
            "use vmm in [cuda]",
        ),
        (
            (GIT, LOCKED, CALL + "define = { GGML_NATIVE = true }\n"),
            "is set by the family for every tree",
        ),
        ((GIT, LOCKED, CALL, ADDED), "has no installed packages to add to"),
    ],
)
def test_programs_and_a_server_in_python(
    catalog: Path, parts: tuple[str, ...], message: str
) -> None:
    assert message in problems(catalog, "ggml-python", *parts)


@pytest.mark.parametrize(
    ("image", "wrong"),
    [
        ('entrypoint = ["x"]\nport = 8000', True),
        ('entrypoint = ["x", "--port", "80001"]\nport = 8000', True),
        ('entrypoint = ["x", "--port", "8000"]\nport = 8000', False),
        ('entrypoint = ["x"]\nport = 8000\nenv = { PORT = "8000" }', False),
        ('entrypoint = ["x"]', False),
    ],
)
def test_a_server_is_told_the_port_that_its_image_exposes(
    catalog: Path, image: str, wrong: bool
) -> None:
    found = problems(catalog, "ggml-python", GIT, LOCKED, CALL, image=image)
    assert ("pass 8000 to the server in entrypoint, command or env" in found) is wrong
    assert bool(found) is wrong


@pytest.mark.parametrize("vmm", ["false", "true"])
def test_both_cmake_calls_say_how_the_driver_is_linked(catalog: Path, vmm: str) -> None:
    text = (REPOSITORY / "recipes" / "lucebox-f12a87c.toml").read_text()
    text = text.replace("[[cmake]]", f"[cuda]\nvmm = {vmm}\n\n[[cmake]]", 1)
    (catalog / "recipes" / "lucebox-f12a87c.toml").write_text(text)
    found = rendered(catalog, "lucebox-f12a87c")
    recipe = found.recipe

    def faults(text: str) -> list[str]:
        return list(link_lints(text, recipe, ENGINES["ggml-python"].no_vmm))

    assert not faults(found.text)
    assert found.text.count("-DGGML_CUDA_NO_VMM=ON") == (2 if vmm == "false" else 0)
    word = ":/usr/local/cuda/lib64/stubs" if vmm == "true" else ', "-DGGML_CUDA_NO_VMM=ON"'
    first = found.text.replace(word, "", 1)
    last = word.join(found.text.split(word)[:-1]) + found.text.split(word)[-1]
    for broken in (first, last, found.text.replace(word, "")):
        assert broken != found.text
        assert faults(broken)
    if vmm == "false":
        off = re.sub("NO_VMM=ON", "NO_VMM=OFF", found.text, count=1)
        assert "without GGML_CUDA_NO_VMM=ON would link the driver" in faults(off)[0]
