"""The next step where nothing fits, by what was refused."""

from __future__ import annotations

import pytest

from builder.presets.fit import (
    CardPeak,
    Fit,
    FitTrial,
    Refused,
    advice,
    is_final,
)

GIB = 1 << 30
LEFT = "only 10 of 65 layers are on the card"


def trial(kind: str | None, context: int = 32768) -> FitTrial:
    """A trial that was refused memory of this kind; None: layers were left to the CPU."""
    card = CardPeak(name="card", memory=16 * GIB, context=GIB, peak=10 * GIB)
    if kind is None:
        return FitTrial(context=context, fits=False, why=LEFT, cards=(card,))
    refused = Refused(requested=18 * GIB, free=5 * GIB, card="card", function="f", kind=kind)
    return FitTrial(context=context, fits=False, why="no room", cards=(card,), refused=refused)


def found(first: FitTrial, options: tuple[str, ...] = (), step: int | None = 1024) -> Fit:
    return Fit(
        recipe="engine-1",
        image="engine:1",
        digest="sha256:0",
        model={"name": "m.gguf", "context": 262144},
        cards=({"name": "card", "memory": 16 * GIB},),
        options=options,
        trials=(first, trial("KV cache", 131072)),
        step=step,
    )


@pytest.mark.parametrize(
    ("kind", "options", "words", "absent"),
    [
        ("weights", (), "a smaller quantization, or more memory", "cache"),
        ("KV cache", (), "-- --cache-type-k q8_0", "--context"),
        ("compute", ("-ctk", "q8_0"), "a smaller quantization", "cache"),
        (None, (), "a smaller quantization", "cache"),
        (None, ("-ngl", "10"), "leave out -ngl", "quantization"),
        ("weights", ("-ngl", "10"), "a smaller quantization", "-ngl"),
    ],
)
def test_the_next_step_is_one_that_can_help(
    kind: str | None, options: tuple[str, ...], words: str, absent: str
) -> None:
    text = advice(found(trial(kind), options))
    assert words in text
    assert absent not in text


def test_without_a_search_a_smaller_context_is_named() -> None:
    assert "a smaller --context" in advice(found(trial("KV cache"), step=None))


@pytest.mark.parametrize(
    ("kind", "options", "final"),
    [
        ("weights", (), True),
        ("KV cache", (), False),
        ("compute", ("-ngl", "99"), False),
        (None, (), False),
        (None, ("--n-gpu-layers", "10"), True),
    ],
)
def test_what_no_other_context_changes_is_final(
    kind: str | None, options: tuple[str, ...], final: bool
) -> None:
    assert is_final(trial(kind), options) is final
    assert not is_final(FitTrial(context=1024, fits=True), options)


def test_the_least_memory_that_is_needed_counts_what_was_refused() -> None:
    assert trial("weights").needed == (16 - 5 + 18) * GIB
    assert trial(None).needed is None


@pytest.mark.parametrize(("estimate", "final"), [(0, True), (4096, False)])
def test_vllm_decides_for_every_context_where_none_fits(estimate: int, final: bool) -> None:
    first = trial(None).model_copy(update={"estimate": estimate})
    assert is_final(first, ()) is final
    room = ("--gpu-memory-utilization", "--kv-cache-dtype")
    vllm = found(first).model_copy(update={"room": room})
    assert "--gpu-memory-utilization or --kv-cache-dtype after --" in advice(vllm)
    options = ("--gpu-memory-utilization=0.97", "--kv-cache-dtype", "fp8")
    given = advice(vllm.model_copy(update={"options": options}))
    assert given == "take a smaller quantization, or a card with more memory"
