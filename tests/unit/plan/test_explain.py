"""A recipe explained: what its patches print and install."""

from __future__ import annotations

from builder.plan.explain import _probe, explained
from builder.recipes.probes import FileProbe, RunProbe
from support.catalogs import load
from support.environment import REPOSITORY


def test_no_regular_expression_is_shown() -> None:
    run = RunProbe(run=["/x", "--version"], matches=[r"^version: \d+"])
    assert _probe(run) == "/x --version exits 0, matches the expected pattern"
    file = FileProbe(file="/x", matches=["a+", "b+"])
    assert _probe(file) == "/x is there, matches expected pattern 1, matches expected pattern 2"


def test_explain_tells_what_must_be_printed_and_what_is_installed() -> None:
    told = explained(load(REPOSITORY), "vllm-0.20.0-genesis")
    (start,) = told["starts"]
    assert "kv_cache_utils=applied" in start["prints"]
    plugin = (
        "genesis-vllm-plugin 7.0.0.dev0, vllm.general_plugins: genesis_v7 = genesis_v7:register"
    )
    assert [patch["installed_as"] for patch in told["patches"]] == ["", plugin]
    (patch,) = explained(load(REPOSITORY), "vllm-0.20.2")["patches"]
    assert patch["prints"] == ["Site A=applied", "Site B=applied"]
    checks = "\n".join(explained(load(REPOSITORY), "vllm-nightly")["checks"])
    assert "vllm/_C.abi3.so or vllm/_C_stable_libtorch.abi3.so is there" in checks


def test_one_platform_of_several_is_explained() -> None:
    amd64 = explained(load(REPOSITORY), "llama-cpp-b9831")
    arm64 = explained(load(REPOSITORY), "llama-cpp-b9831", "linux/arm64")
    assert (amd64["platform"], arm64["platform"]) == ("linux/amd64", "linux/arm64")
    assert amd64["platforms"] == {"linux/amd64": ["120"], "linux/arm64": ["121"]}
    for found, code in ((amd64, "120"), (arm64, "121")):
        values = {each["name"]: each["value"] for each in found["definitions"][0]}
        assert values["CMAKE_CUDA_ARCHITECTURES"] == code
        assert [f"sm_{code}a" in check for check in found["checks"]].count(True) == 1
