"""A run that is named for a card: refused for the reasons that `choose` has."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.checks import serves
from builder.core.errors import UsageError
from builder.core.settings import Settings
from builder.presets.images import LaunchRequest, prepared
from builder.presets.run import refusal
from support.environment import REPOSITORY
from support.shipped import RECIPES

DFLASH = "qwen3.6-27b-dflash@5090-laptop"
BUUN = "qwen3.6-27b-dflash-buun@5090-laptop"
VLLM = "qwen3.6-27b-autoround-mtp@5090-laptop"
GEMMA = "gemma-4-26b-a4b-mtp@5090-laptop"
AWQ = "gemma-4-26b-a4b-awq@5090-laptop"
PAIR = "qwen3.6-35b-a3b-awq-mtp@2x3090"
LONG = "its model was trained for 262144 tokens of context, not for 1048576"


def why(folder: Path, target: str, card: str, *options: str, **more: object) -> str:
    wanted = LaunchRequest(target, options=options, **more)  # type: ignore[arg-type]
    job = prepared(RECIPES, wanted, Settings(state_dir=folder, models_dir=folder), print)
    found = refusal(job, card)
    assert found is None or found.exit_code == 15
    return found.why if found is not None else ""


@pytest.mark.parametrize(
    ("target", "card", "options", "reason"),
    [
        (DFLASH, "5060", (), "its weights take 13.9 GiB at least"),
        (DFLASH, "3090", (), "no code for compute capability 8.6"),
        (VLLM, "gb10", (), "its image is for linux/amd64, the machine of the card is linux/arm64"),
        ("llama-cpp-b9397", "gb10", (), "the image is for linux/amd64"),
        ("vllm-0.33.0-wheel", "gb10", (), "the image is for linux/amd64"),
        ("beellama-0.1.1", "3090", (), "the image has no code for compute capability 8.6"),
        ("qwen3.6-27b-mtp-turboquant@5090-laptop", "5090", (), "its image was refused"),
        ("qwen3.6-27b-mtp-turboquant@5090-laptop", "auto", (), "its image was refused"),
        ("llama-cpp-mtp-b9074", "auto", (), "checks failed, 32 of numbers (trials/llama-cpp-mtp-b"),
        (PAIR, "5060", (), "its memory is not known; it ran with 47.1 GiB"),
        (DFLASH, "5090", ("--ctx-size", "1048576"), LONG),
        (DFLASH, "auto", ("--ctx-size=1048576",), LONG),
        (DFLASH, "pro-6000-server", ("-c", "4096", "-c", "1048576"), LONG),
        (VLLM, "5090", ("--max-model-len", "1M"), LONG),
        (VLLM, "5090", ("--max_model_len=1048576",), LONG),
        (BUUN, "5090-laptop", ("-c", "200000"), "its weights and its cache take 28.2 GiB at least"),
        (VLLM, "5090-laptop", ("--gpu-memory-utilization", "0.5"), "of which it may take 50%"),
        (VLLM, "5090-laptop", ("--gpu_memory_utilization=0.5",), "of which it may take 50%"),
        (BUUN, "auto", ("-c", "4096", "--ctx_size", "1048576"), LONG),
        # An option that repeats the preset's changes nothing.
        (GEMMA, "5080", ("-ctk", "turbo3"), "its weights take 15.7 GiB at least"),
        (AWQ, "5080", ("--max-num-seqs", "1"), "its weights and its cache take 18.9 GiB at least"),
    ],
)
def test_a_run_is_refused_with_the_reason_of_choose(
    tmp_path: Path, target: str, card: str, options: tuple[str, ...], reason: str
) -> None:
    assert reason in why(tmp_path, target, card, *options)


@pytest.mark.parametrize(
    ("target", "card", "options"),
    [
        (DFLASH, "5090-laptop", ()),
        (DFLASH, "auto", ()),
        (DFLASH, "pro-6000-server", ("--ctx-size", "1048576", "--rope-scaling", "yarn")),
        (VLLM, "5090-laptop", ("--max-model-len", "64k")),
        (VLLM, "auto", ("--max-model-len=1M", "--hf-overrides.rope_scaling.factor", "4")),
        (PAIR, "5090", ()),  # a machine may have two
        ("llama-cpp-b9831", "gb10", ()),
        # Who keeps layers in the machine's memory decides what the card has to hold.
        ("qwen3.6-35b-a3b-mtp@5090-laptop", "5080", ("--n-cpu-moe", "30")),
        (BUUN, "5080", ("--n-gpu-layers", "20")),
        *((BUUN, "5080", words) for words in (("--gpu-layers", "20"), ("--n_gpu_layers=20",))),
        *((BUUN, "5080", (word,)) for word in ("-nkvo", "--no_kv_offload", "--no-kv-offload")),
        (VLLM, "5080", ("--cpu_offload_gb=10",)),
    ],
)
def test_no_run_is_refused_that_may_work(
    tmp_path: Path, target: str, card: str, options: tuple[str, ...]
) -> None:
    assert why(tmp_path, target, card, *options) == ""


def test_the_context_and_the_model_of_the_command_count(tmp_path: Path) -> None:
    assert why(tmp_path, DFLASH, "5090", context=1048576) == LONG
    assert why(tmp_path, DFLASH, "auto", context=1048576, cpu=True) == LONG
    text = why(tmp_path, "qwen3.6-27b-mtp-128k@5090-laptop", "pro-4000", context=262144)
    assert "the published 262144 did not fit the 5090-laptop" in text
    # Another model has another memory and another context.
    other = {"model": REPOSITORY / "README.md"}
    assert why(tmp_path, DFLASH, "5060", given=other) == ""
    assert why(tmp_path, DFLASH, "5060", given=other, context=1048576) == ""


def test_a_file_of_the_user_says_what_it_was_trained_for(tmp_path: Path) -> None:
    serves.write_model(file := tmp_path / "a.gguf")
    given, trained, long = {"model": file}, 2048, 2049
    for target in ("llama-cpp-b9261", DFLASH):
        text = why(tmp_path, target, "auto", given=given, context=long)
        assert text == f"its model was trained for {trained} tokens of context, not for {long}"
        assert why(tmp_path, target, "auto", "--rope-scale", "2", given=given, context=long) == ""
        assert why(tmp_path, target, "auto", given=given, context=trained) == ""


@pytest.mark.parametrize("target", [DFLASH, "llama-cpp-b9261"])
@pytest.mark.parametrize("card", ["nonsense", "5060ti"])
def test_an_unknown_card_is_an_error(tmp_path: Path, target: str, card: str) -> None:
    with pytest.raises(UsageError, match=f"no card is named {card}") as caught:
        why(tmp_path, target, card, cpu=True)
    assert ("5060-ti-16gb or 5060-ti-8gb?" in caught.value.what) is (card == "5060ti")
