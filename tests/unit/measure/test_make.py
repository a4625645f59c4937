"""A receipt is made of a benchmark, and redacted."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from builder.checks.server import ServeSpec
from builder.core.errors import ReceiptError
from builder.docker.engine import Image
from builder.measure.bench import Loaded, Point, loaded, of_benchmark, require_receipt
from builder.presets.schema import Generation
from support.benchmarks import GPU, benchmark
from support.receipts import DIGEST, KEY

SUBJECT = {"image": "a:1", "digest": DIGEST, "recipe": "llama-cpp-b9831", "key": KEY}
SETTINGS: dict[str, Any] = {
    "prompt": "p",
    "tokens": 100,
    "temperature": 0.6,
    "top_k": 20,
    "min_p": 0.0,
    "seed": 1,
    "fill": 0.0,
}
LOG = """
load_tensors: offloaded 65/65 layers to GPU
load_tensors:        CUDA0 model buffer size = 15000.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =  2048.00 MiB
llama_context:      CUDA0 compute buffer size =   500.00 MiB
"""


def test_a_receipt_has_what_the_benchmark_and_the_log_state() -> None:
    runs = tuple(Generation(100, speed, 10, 9.0, 1) for speed in (20.0, 22.5))
    flags = ["--model", "{model}", "--api-key", "abc", "--lora", "/home/me/a.gguf"]
    found = benchmark(
        [],
        subject={**SUBJECT, "flags": flags},
        settings=SETTINGS,
        points=(Point(1024, runs[:1], runs, loaded(LOG)),),
    )
    receipt = of_benchmark(found, "me")
    assert (receipt.image.digest, receipt.image.key) == (DIGEST, KEY)
    assert receipt.arguments == ["--model", "{model}", "--api-key", "***", "--lora", "a.gguf"]
    assert receipt.hardware == GPU["name"]
    assert receipt.driver == GPU["driver"]
    assert receipt.request.prompt.startswith("148de9c5")  # printf p | sha256sum
    (measured,) = receipt.measured
    assert (measured.mean, measured.layers) == (21.25, [(65, 65)])
    sizes = {kind: size >> 20 for kind, size in measured.memory.items()}
    assert sizes == {"weights": 15000, "KV cache": 2048, "compute": 500}
    assert "abc" not in json.dumps(receipt.model_dump(mode="json"))


def test_a_run_on_the_cpu_is_one_on_the_cpu() -> None:
    machine = {"gpus": [], "cpu": "a"}
    found = benchmark([1.0], subject={**SUBJECT, "flags": []}, settings=SETTINGS, machine=machine)
    receipt = of_benchmark(found)
    assert (receipt.device, receipt.cards, receipt.driver) == ("CPU", [], "")
    assert receipt.measured[0].layers == []


def test_a_log_without_a_word_of_the_load() -> None:
    assert loaded("ready\n") == Loaded((), {})


def target(model: Path, *flags: str, key: str = KEY) -> tuple[Image, ServeSpec]:
    labels = {"builder.recipe": "llama-cpp-b9831", "builder.key": key}
    names: frozenset[str] = frozenset()
    image = Image(DIGEST, DIGEST, "linux/amd64", names, names, 1, {"Labels": labels})
    return image, ServeSpec(model, 0, extra=flags)


@pytest.mark.parametrize(
    ("flags", "model", "by", "why"),
    [
        (["--rpc", "192.168.1.20:50052"], "a.gguf", "", "'192.168.1.20:50052' has an IP address"),
        ([], "a.gguf", "me@example.org", "--by has an e-mail address"),
        (["--alias", "tower"], "a.gguf", "", "'tower' has the name of this machine"),
        ([], "Tower-27B.gguf", "", "'--model' has the name of this machine"),
        (["--alias", "a\x1b[1m"], "a.gguf", "", "contains the control character U\\+001B"),
        ([], "a\n.gguf", "", "--model: contains the control character"),
        ([], "a.gguf", "\t", "--by: contains the control character"),
    ],
)
def test_a_run_that_can_have_no_receipt_is_refused_before_it(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], model: str, by: str, why: str
) -> None:
    monkeypatch.setattr(platform, "node", lambda: "tower.example.org")
    with pytest.raises(ReceiptError, match=why):
        require_receipt(*target(Path("/m") / model, *flags), by)


def test_directories_and_secrets_of_flags_are_no_fault() -> None:
    flags = ["--lora", "/home/x/a.gguf", "--api-key", "abc"]
    require_receipt(*target(Path("/home/x/m.gguf"), *flags), "@somebody")


def test_an_image_without_a_key_can_have_no_receipt() -> None:
    with pytest.raises(ReceiptError, match="key: is not valid"):
        require_receipt(*target(Path("m.gguf"), key=""), None)


def test_a_card_that_nvidia_smi_does_not_describe_gives_no_receipt() -> None:
    machine = {"gpus": [{**GPU, "capability": "[N/A]"}], "cpu": "a"}
    found = benchmark([1.0], subject={**SUBJECT, "flags": []}, settings=SETTINGS, machine=machine)
    with pytest.raises(ReceiptError, match="capability: is not valid"):
        of_benchmark(found)
