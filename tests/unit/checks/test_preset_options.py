"""Arguments of a preset against an engine's --help."""

from __future__ import annotations

import pytest

from builder.checks.options import help_options, option_faults, option_text, placeholder_of

# As llama.cpp's common/arg.cpp writes it.
LLAMA = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-c,    --ctx-size N                     size of the prompt context (default: 0)
                                        (env: LLAMA_ARG_CTX_SIZE)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use ('on', 'off', or 'auto')
                                        (env: LLAMA_ARG_FLASH_ATTN)
-ctk,  --cache-type-k TYPE              KV cache data type for K
                                        allowed values: f32, f16, q8_0, q4_0
-ngl,  --gpu-layers, --n-gpu-layers N   max. number of layers to store in VRAM, either an exact
                                        number, 'auto', or 'all' (default: auto)
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        use single unified KV buffer shared across all sequences
--mlock                                 keep the model in RAM, as in --swap off
--spec-type none,draft-mtp,ngram-mod    comma-separated list of types
--chat-template-kwargs STRING           must be a valid json object string
--draft, --draft-n, --draft-max N       the argument has been removed. use --spec-draft-n-max
--lora-scaled FNAME SCALE               path to an adapter with its scale
"""
# As Python's argparse writes it, for vLLM.
VLLM = """\
usage: vllm serve [model_tag] [options]

Config Groups:
  --headless            Run in headless mode. (default: False)
  --api-server-count API_SERVER_COUNT, -asc API_SERVER_COUNT
                        How many API server processes to run.
  --dtype {auto,bfloat16,float16}
                        Data type for model weights and activations.
  --enable-prefix-caching, --no-enable-prefix-caching
                        Whether to enable prefix caching.
  --speculative-config SPECULATIVE_CONFIG, -sc SPECULATIVE_CONFIG
                        Speculative decoding configuration.
"""


@pytest.mark.parametrize(
    "words",
    [
        "--ctx-size 262144 -fa on -ctk q4_0 -ngl 99 --kv-unified --mlock",
        "--spec-type draft-mtp,ngram-mod -ngl all --no-kv-unified",
        "--ctx-size=4096 --flash-attn=auto --lora-scaled FILE 0.5",
        '--chat-template-kwargs {"enable_thinking":false}',
    ],
)
def test_arguments_that_llama_cpp_takes(words: str) -> None:
    assert option_faults(words.split(), {"LLAMA_ARG_CTX_SIZE": "1", "GGML_CUDA": "1"}, LLAMA) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--spec-dflash-cross-ctx 1024", "--spec-dflash-cross-ctx is not listed"),
        ("--spec-typ mtp", "--spec-typ is not listed; did you mean --spec-type?"),
        ("-ctk turbo3", "-ctk does not have turbo3, only f16, f32, q4_0, q8_0"),
        ("--spec-type mtp", "--spec-type does not have mtp, only draft-mtp, ngram-mod, none"),
        ("--spec-type draft-mtp,dflash", "--spec-type does not have dflash, only"),
        ("--flash-attn=maybe", "--flash-attn does not have maybe, only auto, off, on"),
        ("--kv-unified on", "--kv-unified takes no value, and gets on"),
        ("--mlock off", "--mlock takes no value, and gets off"),
        ("--ctx-size --mlock", "--ctx-size gets no value for N"),
        ("-ngl every", "-ngl gets every for the number N"),
        ("--draft-max 16", "--draft-max was removed: --draft, --draft-n, --draft-max N the"),
    ],
)
def test_arguments_that_llama_cpp_refuses(words: str, expected: str) -> None:
    (fault,) = option_faults(words.split(), {}, LLAMA)
    assert fault.startswith(expected)


def test_a_variable_of_no_option_is_named() -> None:
    (fault,) = option_faults([], {"LLAMA_ARG_SPEC_DFLASH": "1"}, LLAMA)
    assert fault == "LLAMA_ARG_SPEC_DFLASH is the variable of no option"


def test_arguments_of_vllm() -> None:
    words = ["a/model", "--dtype", "auto", "--enable-prefix-caching", "--headless", "-asc", "2"]
    words += ["--speculative-config", '{"method":"mtp"}']
    assert option_faults(words, {"VLLM_USE_FLASHINFER_SAMPLER": "1"}, VLLM) == []
    wrong = ["--dtype", "fp4", "--headless", "yes", "--speculative-config"]
    assert option_faults(wrong, {}, VLLM) == [
        "--dtype does not have fp4, only auto, bfloat16, float16",
        "--headless takes no value, and gets yes",
        "--speculative-config gets no value for SPECULATIVE_CONFIG",
    ]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("-c", "N"),
        ("-fa", "[on|off|auto]"),
        ("--mlock", ""),
        ("--help", ""),
        ("--lora-scaled", "FNAME"),
        ("--spec-type", "none,draft-mtp,ngram-mod"),
    ],
)
def test_the_placeholder_of_an_option(option: str, expected: str) -> None:
    assert placeholder_of(option_text(LLAMA, option) or "") == expected


def test_a_text_without_options_is_known() -> None:
    assert help_options(LLAMA)[:2] == ["-h", "--help"]
    assert "--speculative-config" in help_options(VLLM)
    assert not help_options("Traceback (most recent call last):\nImportError: libcuda.so.1\n")
