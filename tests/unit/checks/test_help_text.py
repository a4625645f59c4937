"""The values of an option, in every form in which the engines' --help lists them."""

from __future__ import annotations

import pytest

from builder.checks.options import option_text, option_values

HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-fa,   --flash-attn [on|off|auto]       Flash Attention ('on', 'off', or 'auto')
                                        (env: LLAMA_ARG_FLASH_ATTN)
--rope-scaling {none,linear,yarn}       RoPE frequency scaling method, defaults to linear by
                                        the model
-ctk,  --cache-type-k TYPE              KV cache data type for K
                                        allowed values: f32, f16, bf16, q8_0, iq4_nl, turbo3_tcq,
                                        turbo2
                                        (default: f16)
                                        (env: LLAMA_ARG_CACHE_TYPE_K)
-sm,   --split-mode {none,layer}
                                        how to split the model across multiple GPUs, one of:
                                        - none: use one GPU only
                                        - layer (default): split layers
                                        - row: split weight across GPUs by rows
                                        (env: LLAMA_ARG_SPLIT_MODE)
--prio N                                set process/thread priority : low(-1), normal(0), medium(1)

----- speculative params -----

--spec-type none,draft-mtp,ngram-mod
                                        comma-separated list of types; mtp is not one of them
--spec-old [none|dflash|copyspec]       which drafter to use, or suffix
--spec-type-other TYPE                  one of: "dflash", "suffix" or "recycle". Others will follow.
--pooling <none|mean>                   pooling type
--threads N                             number of threads
"""


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--flash-attn", {"on", "off", "auto"}),
        ("-fa", {"on", "off", "auto"}),
        ("--rope-scaling", {"none", "linear", "yarn"}),
        (
            "--cache-type-k",
            {"f32", "f16", "bf16", "q8_0", "iq4_nl", "turbo3_tcq", "turbo2"},
        ),
        ("--split-mode", {"none", "layer", "row"}),
        ("--spec-type", {"none", "draft-mtp", "ngram-mod"}),
        ("--spec-old", {"none", "dflash", "copyspec"}),
        ("--spec-type-other", {"dflash", "suffix", "recycle"}),
        ("--pooling", {"none", "mean"}),
    ],
)
def test_a_list_of_values_is_read(option: str, expected: set[str]) -> None:
    text = option_text(HELP, option)
    assert text is not None
    assert option_values(text) == expected


@pytest.mark.parametrize("option", ["--threads", "--prio", "--help"])
def test_an_option_without_a_list_has_none(option: str) -> None:
    text = option_text(HELP, option)
    assert text is not None
    assert option_values(text) is None


@pytest.mark.parametrize("option", ["--spec", "--cache-type", "--type", "-f", "mtp"])
def test_a_part_of_a_name_is_no_option(option: str) -> None:
    assert option_text(HELP, option) is None


def test_an_options_text_ends_where_the_next_one_or_a_title_begins() -> None:
    text = option_text(HELP, "--prio")
    assert text is not None
    assert "speculative" not in text
    assert text.startswith("--prio N")
