"""A receipt is taken or refused, with the reason."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from builder.core.errors import ReceiptError, RecipeError
from builder.presets.receipts import checked, parse, require_valid
from builder.publish.registry import RemoteImage, RemotePlatform
from support.receipts import CARD, DIGEST, KEY, measured, receipt, run
from support.shipped import RECIPES

NOW = datetime(2026, 11, 22, tzinfo=UTC)
LABELS = {"builder.recipe": "llama-cpp-b9831", "builder.key": KEY}


def published(labels: dict[str, str] | None) -> Any:
    """A registry that has that image alone."""

    def ask(_: str, digest: str) -> RemoteImage | None:
        there = labels is not None and digest == DIGEST
        return RemoteImage(digest, "", labels or {}) if there else None

    return ask


def check(*, taken: Any = None, labels: dict[str, str] | None = LABELS, **more: Any) -> None:
    require_valid(receipt(**more), RECIPES, taken or {}, published(labels), NOW)


def test_a_receipt_without_a_fault_is_taken() -> None:
    check()
    check(cards=[CARD, CARD], by="@somebody", draft={"name": "d", "size": 1, "sha256": "0" * 64})


def test_a_receipt_may_be_of_any_image_of_an_index() -> None:
    arm64 = {"linux/arm64": RemotePlatform(DIGEST, 1, KEY)}
    labels = {**LABELS, "builder.key": "f" * 64}
    index = RemoteImage(DIGEST, "", labels, platforms=arm64)
    require_valid(receipt(), RECIPES, {}, lambda *_: index, NOW)


CPU: dict[str, Any] = {"device": "CPU", "cards": [], "driver": ""}


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (
            {"measured": [measured(run(9.0, 1, tokens_per_second=0.0))]},
            "context 32768: a run has 0 tokens/s",
        ),
        ({"measured": [measured(run(1e308, 1))]}, "context 32768: a run has 1e+308 tokens/s"),
        ({"measured": [measured(layers=[(0, 65)])]}, "context 32768: no layer is on the GPU"),
        (
            {"cards": [{**CARD, "name": "NVIDIA GeForce RTX 3090", "capability": "8.6"}]},
            "RTX 3090: the image has no code for compute capability 8.6, only sm_",
        ),
        ({"driver": "570.86"}, "the driver 570.86 is too old for the image: it needs 580 or newer"),
        ({"driver": "new"}, "'new' is no version of NVIDIA's driver"),
        ({"created": "2026-11-23T00:00:00Z"}, "it is dated 2026-11-23 00:00 UTC, which is in the"),
        (CPU, "it was measured without a GPU"),
        (
            {"arguments": ["--chat-template-file", "/home/me/qwen.jinja"]},
            "arguments: '/home/me/qwen.jinja' has a path",
        ),
        ({"arguments": ["--api-key", "abc"]}, "arguments: --api-key has a secret"),
        ({"by": "me@box.lan"}, "by: 'me@box.lan' has an e-mail address or USER@HOST"),
        (
            {"model": {"name": "/m/a.gguf", "size": 1, "sha256": "0" * 64}},
            "model.name: '/m/a.gguf' has a path",
        ),
        ({"builder": "http://tower/"}, "builder: 'http://tower/' has a URL"),
        ({"measured": [measured(memory={"~/kv": 1})]}, "measured.0.memory: '~/kv' has a path"),
        ({"labels": None}, f"the image is not published: its registry has no {DIGEST}"),
        (
            {"labels": {**LABELS, "builder.key": "f" * 64}},
            "is another image: of the recipe llama-cpp-b9831 with the key ffffffffffff",
        ),
    ],
)
def test_a_fault_is_refused_with_the_reason(fault: dict[str, Any], why: str) -> None:
    with pytest.raises(ReceiptError) as refused:
        check(**fault)
    assert why in refused.value.why
    assert len(refused.value.why.splitlines()) == 1


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ReceiptError) as refused:
        check(driver="570.86", created="2027-01-01T00:00:00Z", labels=None)
    assert len(refused.value.why.splitlines()) == 2  # the registry was not asked


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(RecipeError, match="no recipe is named llama-cpp-b9832; did you mean"):
        check(recipe="llama-cpp-b9832")


def test_the_same_runs_are_taken_once() -> None:
    there = {"a": receipt()}
    with pytest.raises(ReceiptError, match="it is there already: a"):
        check(taken=there, created="2026-11-02T12:00:00Z", by="another")
    check(taken=there, measured=[measured(run(90.0, 1))])


def test_a_name_cannot_turn_the_text_around_it() -> None:
    content = receipt().model_copy(update={"by": "em\u202e"}).model_dump_json().encode()
    with pytest.raises(ReceiptError) as caught:
        parse(content, "a.json")
    assert "by: contains the control character U+202E" in caught.value.why


def test_the_receipts_of_the_repository_are_valid() -> None:
    checked(RECIPES, datetime.now(UTC)).require_valid()
