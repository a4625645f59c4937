"""Text that a receipt must not have."""

from __future__ import annotations

import pytest

from builder.presets.receipts import private, private_argument, redacted


@pytest.mark.parametrize(
    "text",
    [
        "Qwen3.6-27B-UD-Q4_K_XL.gguf",
        "unsloth/Qwen3.6-27B-GGUF:Q4_K_M",
        "{model}",
        "0.0.0.0",  # noqa: S104
        "127.0.0.1",
        "3,1",
        "AMD Ryzen 9 9950X 16-Core Processor x 32",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
        "@somebody",
        '{"enable_thinking": false}',
        "blk\\.[0-9]+\\.ffn=CPU",
    ],
)
def test_ordinary_text_is_not_private(text: str) -> None:
    assert private(text) is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("/home/me/model.gguf", "a path"),
        ("--file=/srv/x", "a path"),
        ("~/models", "a path"),
        ("../models", "a path"),
        ("C:\\Users\\me", "a path"),
        ("http://box:8080", "a URL"),
        ("me@box", "an e-mail address or USER@HOST"),
        ("192.168.1.20", "an IP address"),
        ("tower.lan", "a host name"),
        ("GPU-5dbe4ad1-36dc-4a9b-9d04-0f8f8d9a1b2c", "an identity (UUID)"),
        ("52:54:00:12:34:56", "a hardware address"),
        ("00000000:01:00.0", "a PCI address"),
        ("hf_abcdefghijklmnopqrstuvwxyz", "a secret"),
    ],
)
def test_private_text_is_named(text: str, what: str) -> None:
    assert private(text) == what


def test_arguments_lose_directories_and_secrets() -> None:
    given = ["--model", "/m/a.gguf", "--lora=/m/b.gguf", "--api-key", "abc", "--hf-token=x"]
    assert private_argument(["--hf-token=x"]) == "--hf-token has a secret"
    kept = redacted(given)
    assert kept == ["--model", "a.gguf", "--lora=b.gguf", "--api-key", "***", "--hf-token=***"]
    assert private_argument(kept) is None
    assert private_argument(redacted(["--rpc", "192.168.1.20:50052"])) is not None
