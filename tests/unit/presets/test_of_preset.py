"""The receipts that are runs of a preset on the cards of a machine."""

from __future__ import annotations

from typing import Any

import pytest

from builder.presets import cards
from builder.presets.cards import machine_with
from builder.presets.catalog import PresetEntry
from builder.presets.choose import Question, choose, figure_on
from builder.presets.receipts import Receipt, ReceiptModel, is_file, is_run_of, of_presets
from builder.presets.schema import Preset
from support.environment import REPOSITORY
from support.receipts import CARD, measured, of_dflash, receipt, run
from support.shipped import PRESETS, RECIPES

PRESET = PRESETS.preset("qwen3.6-27b-dflash@5090-laptop")
GIVEN = of_dflash(PRESET.preset)
FLAGS, MODEL, DRAFT = GIVEN["arguments"], GIVEN["model"], GIVEN["draft"]


def entry(name: str = "a", **more: Any) -> tuple[str, Receipt]:
    return name, receipt(**of_dflash(PRESET.preset, **more))


def found(
    *entries: tuple[str, Receipt], cards: tuple[str, ...] = ("5090",), context: int = 0
) -> Any:
    here = machine_with(REPOSITORY, cards).cards
    runs = of_presets(dict(entries), RECIPES, [PRESET])[PRESET.name]
    return figure_on(runs, here, context)


def test_the_same_run_on_such_a_card_has_its_figure() -> None:
    one = found(entry())
    assert (one.tokens_per_second, one.runs, one.context) == (102, 2, 32768)
    assert one.interval == (76.59, 127.41)
    assert (one.by, one.receipt) == ("@me", "a")
    short = FLAGS.copy()
    short[short.index("--flash-attn")] = "-fa"
    short[short.index("--parallel") : short.index("--parallel") + 2] = ["--parallel=1"]
    assert found(entry(arguments=short)) == one


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": "beellama-0.1.2"},
        {"model": {**MODEL, "name": "Qwen3.6-27B-UD-Q4_K_XL.gguf"}},
        {"model": {**MODEL, "name": "gemma-4-27B-UD-Q3_K_XL.gguf"}},
        {"draft": None},
        {"draft": {**DRAFT, "name": "other.gguf"}},
        {"arguments": [*FLAGS, "--threads", "4"]},
        {"arguments": FLAGS[:-1]},
        {"arguments": ["q8_0" if each == "turbo3" else each for each in FLAGS]},
        {"cards": [{**CARD, "memory": 16303}]},
        {"cards": [CARD, CARD]},
        {"cards": [{**CARD, "name": "NVIDIA GeForce RTX 5080"}]},
    ],
)
def test_another_run_or_card_has_none(change: dict[str, Any]) -> None:
    assert found(entry(**change)) is None


def test_the_newest_counts_with_the_context_that_is_asked_for() -> None:
    wide = measured(run(50.0, 1), context=65536)
    both = entry("both", measured=[measured(), wide], created="2026-11-02T12:00:00Z")
    assert found(both, entry("old"), context=32768).tokens_per_second == 102
    assert found(both, entry("old"), context=65536).tokens_per_second == 50
    other = found(both, entry("old"), context=4096)
    assert (other.context, other.interval, other.receipt) == (65536, None, "both")


def test_a_file_is_known_by_its_digest_before_its_name() -> None:
    given = {"name": "A", "repository": "me/A-GGUF", "file": "x/a.gguf"}
    wanted = Preset.model_validate(
        {"recipe": "a", "summary": "a", "card": "5090", "model": given}
    ).model
    file = ReceiptModel(name="a.gguf", size=3, sha256="e" * 64)
    assert is_file(wanted, file)
    assert not is_file(wanted.model_copy(update={"size": 4}), file)
    assert not is_file(wanted.model_copy(update={"sha256": "0" * 64}), file)
    assert is_file(wanted.model_copy(update={"sha256": "e" * 64, "file": "b.gguf"}), file)
    assert not is_file(wanted.model_copy(update={"file": None}), file)


def test_a_receipt_comes_before_the_published_figure() -> None:
    slow = PresetEntry("slow", PRESET.file, "", PRESET.preset.model_copy(update={"drafter": None}))
    here = cards.machine_with(REPOSITORY, ["5090"])
    fast = entry(draft=None, measured=[measured(run(300.0, 1), run(310.0, 2))])
    receipts = of_presets(dict([fast]), RECIPES, [PRESET, slow])
    question = Question(here, RECIPES, cards.every(REPOSITORY), receipts=receipts)
    first, second = choose([PRESET, slow], question).fits
    assert first.figure is not None
    assert (first.preset, first.known, first.figure.tokens_per_second) == ("slow", "measured", 305)
    assert (second.preset, second.known) == (PRESET.name, "elsewhere")


def test_a_preset_with_what_no_receipt_tells_has_none() -> None:
    recipe, preset = RECIPES.engine(PRESET.preset.recipe).recipe, PRESET.preset
    _, given = entry()
    assert is_run_of(given, preset, recipe)
    serve = preset.serve.model_copy(update={"environment": {"A": "1"}})
    assert not is_run_of(given, preset.model_copy(update={"serve": serve}), recipe)
    assert not is_run_of(given, preset.model_copy(update={"mmproj": preset.drafter}), recipe)
