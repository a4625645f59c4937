"""Presets on a machine: those that run, the fastest first, and why the others do not."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core import sizes
from builder.engines.device_code import runs_on
from builder.presets import cards, shapes
from builder.presets.catalog import PresetEntry
from builder.presets.choose import Choice, Option, Question, Standing, choose, matching
from builder.presets.schema import ContextUse, Preset, PresetUse
from builder.presets.shapes import MemoryNeed
from simulator.selection import Capability
from support.environment import REPOSITORY
from support.preset_uses import use_of
from support.shipped import PRESETS, RECIPES

CARDS = cards.every(REPOSITORY)
MEMORY = {name: card.memory for name, card in CARDS.items()}
HERE = f"this card has {sizes.gib(MEMORY['5080'])}"


def lacking(size: int) -> str:
    """How much more an RTX 5080 would need for ``size`` bytes."""
    return f"{HERE}: {sizes.gib(size - MEMORY['5080'])} too little"


HEAD = """
recipe  = "{recipe}"
summary = "a run"
card    = "5090-laptop"
model   = {{ name = "Qwen3.6 27B", repository = "unsloth/Qwen3.6-27B-GGUF" }}
"""
SWEEP = """
serve = { context = 131072 }
result = [
    { context = 32768, tokens_per_second = { mean = 90 }, memory = { total = 12 } },
    { tokens_per_second = { mean = 80 }, memory = { total = 20 } },
]
"""
WIDE = "serve = { context = 131072 }\nresult = [{ tokens_per_second = { mean = 70 } }]"
UNTOLD = "serve = { context = 32768 }\nresult = [{ tokens_per_second = { runs = [70, 72] } }]"


def preset(
    name: str, text: str = UNTOLD, recipe: str = "beellama-0.1.1", **keys: object
) -> PresetEntry:
    known = tomllib.loads(HEAD.format(recipe=recipe) + text)
    return PresetEntry(name, Path(f"{name}.toml"), "", Preset.model_validate(known | keys))


def chosen(
    entries: list[PresetEntry],
    *names: str,
    driver: str = "",
    context: int = 0,
    trial: PresetUse | None = None,
) -> Choice:
    here = cards.machine_with(REPOSITORY, names or ("5090",), driver)
    trials = {entry.name: trial for entry in entries} if trial else {}
    return choose(entries, Question(here, RECIPES, CARDS, context, trials))


def speed(found: Option) -> float | None:
    return found.figure.tokens_per_second if found.figure else None


def why_not(found: Choice) -> str:
    assert not found.fits
    return "; ".join(reason for each in found.excluded for reason in each.why)


def test_the_fastest_is_first_and_one_without_a_figure_last() -> None:
    entries = [
        preset("none", "serve = { context = 4096 }"),
        preset("slow", UNTOLD),
        preset("fast", SWEEP),
    ]
    found = chosen(entries)
    assert [
        (each.preset, each.figure and each.figure.tokens_per_second) for each in found.fits
    ] == [
        ("fast", 80),
        ("slow", 71),
        ("none", None),
    ]
    assert {each.figure.card for each in found.fits if each.figure} == {"5090-laptop"}
    assert not found.excluded


def test_the_best_known_is_first() -> None:
    """A figure for these cards comes before a higher one for others.  Whether a run fits of which
    neither the context nor the memory is known is not known, whatever its figure."""
    fast = "result = [{ tokens_per_second = { mean = 200 } }]"
    entries = [
        preset("m-elsewhere", SWEEP, card="5080"),
        preset("m-here", SWEEP),
        preset("m-here-unsure", fast),
        preset("m-elsewhere-unsure", fast, card="5080"),
        preset("m-unknown", "serve = { context = 4096 }"),
    ]
    found = chosen(entries, "5090-laptop")
    assert [(each.preset, each.known) for each in found.fits] == [
        ("m-here", Standing.PUBLISHED),
        ("m-elsewhere", Standing.ELSEWHERE),
        ("m-here-unsure", Standing.UNKNOWN),
        ("m-elsewhere-unsure", Standing.UNKNOWN),
        ("m-unknown", Standing.UNKNOWN),
    ]
    # Its memory alone shows that it fits.
    (tried,) = chosen(entries[2:3], "5090-laptop", trial=use_of(10**9)).fits
    assert tried.known is Standing.PUBLISHED


def test_a_composed_preset_is_recommended_where_it_was_tried_alone() -> None:
    composed = preset("qwen3.6-27b@5090-laptop", "serve = { context = 32768 }")
    assert composed.preset.composed
    found = chosen([composed], "5090-laptop")
    assert [each.recommended for each in found.fits] == [False]
    assert not found.recommended
    assert "it is composed for" in why_not(chosen([composed], "5080"))
    (tried,) = chosen([composed], "5080", trial=use_of(12 << 30)).recommended
    assert tried.caveats[0].startswith("nobody published this run")


def test_a_preset_whose_models_nobody_can_download_is_last_and_never_recommended() -> None:
    unnamed = {"name": "Qwen3.6 27B DFlash"}
    entries = [
        preset("qwen3.6-27b-nowhere@5090", SWEEP, model={"name": "Qwen3.6 27B"}),
        preset("qwen3.6-27b-drafter@5090", SWEEP, drafter=unnamed),
        preset("qwen3.6-27b@5090", UNTOLD),
    ]
    found = chosen(entries, "5090-laptop")
    assert found.fits[0].preset == "qwen3.6-27b@5090"
    assert [each.needs_file for each in found.fits] == [False, True, True]
    assert [each.preset for each in found.recommended] == ["qwen3.6-27b@5090"]
    assert not chosen(entries[:2], "5090-laptop").recommended


def test_the_flagship_gets_a_preset_that_can_start() -> None:
    answer = choose(
        PRESETS.valid(), Question(cards.machine_with(REPOSITORY, ["5090"]), RECIPES, CARDS)
    )
    (best,) = (each for each in answer.recommended if each.short_name == "qwen3.6-27b")
    assert not best.needs_file
    assert best.context


SIZED = {"name": "Qwen3.6 27B", "repository": "a/b", "file": "a.gguf", "published_size": "14 GB"}


def test_a_computed_speed_is_below_every_published_one_and_above_none() -> None:
    bare = "serve = { context = 4096 }"
    entries = [
        preset("computed", bare, model=SIZED),
        preset(
            "slow-elsewhere",
            "serve = { context = 4096 }\n" + "result = [{ tokens_per_second = { mean = 1 } }]",
        ),
        preset("unknown", bare),
        preset("unsure", "result = []", model=SIZED),
    ]
    found = chosen(entries).fits
    assert [(each.preset, each.known) for each in found] == [
        ("slow-elsewhere", Standing.ELSEWHERE),
        ("computed", Standing.COMPUTED),
        ("unsure", Standing.UNKNOWN),
        ("unknown", Standing.UNKNOWN),
    ]
    assert [each.own is not None for each in found] == [False, True, True, False]
    assert (found[3].figure, found[3].not_computed) == (
        None,
        "the size of its model is not known",
    )


def test_the_faster_of_two_computed_speeds_is_first() -> None:
    bare = "serve = { context = 4096 }"
    large = SIZED | {"published_size": "28 GB"}
    found = chosen([preset("large", bare, model=large), preset("small", bare, model=SIZED)]).fits
    assert [each.preset for each in found] == ["small", "large"]


def test_a_computed_speed_is_for_the_card_that_the_preset_would_run_on() -> None:
    bare = preset("p", "serve = { context = 4096 }", model=SIZED, memory={"total": 15})
    speeds = []
    for name in ("5090", "5080"):
        (found,) = chosen([bare], name).fits
        assert found.own is not None
        speeds.append(found.own.tokens_per_second)
    assert speeds[0] > 1.5 * speeds[1]


def test_the_first_preset_of_each_model_is_recommended() -> None:
    other = {"name": "Gemma 4 E2B", "repository": "a/b"}
    entries = [
        preset("qwen3.6-27b-fast@5090-laptop", SWEEP),
        preset("qwen3.6-27b@5090-laptop"),
        preset("gemma-4-e2b@5090-laptop", model=other),
    ]
    names = [each.preset for each in chosen(entries).recommended]
    assert names == ["qwen3.6-27b-fast@5090-laptop", "gemma-4-e2b@5090-laptop"]


def test_the_largest_model_is_first_unless_it_is_too_slow() -> None:
    def of(name: str, speed: float) -> PresetEntry:
        text = f"serve.context = 4096\nresult = [{{ tokens_per_second = {{ mean = {speed} }} }}]"
        model = {"name": name, "repository": "a/b-4bit"}
        return preset(f"{name.lower().replace(' ', '-')}@5090-laptop", text, model=model)

    entries = [of("Gemma 4 E4B", 200), of("Qwen3.6 35B-A3B", 60), of("Llama 4 109B-A17B", 9)]
    names = [each.model for each in chosen(entries, "5090-laptop").recommended]
    assert names == ["Qwen3.6 35B-A3B", "Gemma 4 E4B", "Llama 4 109B-A17B"]


def test_a_run_that_is_made_for_cards_of_this_memory_comes_before_a_faster_one() -> None:
    bare = "serve = { context = 4096 }"
    fine = SIZED | {"published_size": "28 GB"}
    entries = [
        preset("qwen3.6-27b-fast@5080", bare, model=SIZED, card="5080"),
        preset("qwen3.6-27b-fine@5090", bare, model=fine, card="5090"),
    ]
    found = chosen(entries, "5090", trial=use_of(20 << 30)).fits
    assert [each.preset for each in found] == ["qwen3.6-27b-fine@5090", "qwen3.6-27b-fast@5080"]
    assert chosen(entries, "5080", trial=use_of(12 << 30)).fits[0].preset.endswith("@5080")


def test_a_composed_run_that_drafts_has_a_speed_with_the_acceptance_of_another() -> None:
    words = ["--spec-type", "draft-mtp", "--spec-draft-n-max", "2"]
    text = f"serve = {{ context = 4096, arguments = {words} }}"
    entry = preset("qwen3.6-27b-mtp@5090", text, model=SIZED)
    trial = use_of(20 << 30)
    (unknown,) = chosen([entry], trial=trial).fits
    assert unknown.not_computed == "it drafts, and its acceptance is not known"
    (found,) = chosen([replace(entry, accepted=0.75)], trial=trial).fits
    assert found.known is Standing.COMPUTED
    plain = chosen([preset("a@5090", "serve = { context = 4096 }", model=SIZED)]).fits[0]
    assert speed(found) != speed(plain)


def test_experts_on_the_cpu_make_a_run_slower_and_a_note_says_for_which_memory() -> None:
    model = SIZED | {"name": "Qwen3.6 35B-A3B"}
    text = "serve = {{ context = 4096, arguments = ['--n-cpu-moe', '{}'] }}"
    speeds = []
    for layers in (0, 20, 40, 99):
        entry = preset("a@5090", text.format(layers), model=model)
        (found,) = chosen([entry], trial=use_of(9 << 30)).fits
        speeds.append(speed(found) or 0)
        assert any("96 GB/s" in each for each in found.caveats)
    assert speeds[0] > speeds[1] * 1.2 > speeds[2] * 1.2
    assert speeds[2] == speeds[3]
    published = "\nresult = [{ tokens_per_second = { mean = 50 } }]"
    entry = preset("a@5090", text.format(20) + published, model=model)
    for card, noted in (("5090-laptop", False), ("5090", True)):  # of this card, and of another
        (found,) = chosen([entry], card, trial=use_of(9 << 30)).fits
        assert any("96 GB/s" in each for each in found.caveats) is noted
    other = preset(
        "a@5090", text.replace("--n-cpu-moe", "--override-tensor").format("x"), model=model
    )
    (found,) = chosen([other], trial=use_of(9 << 30)).fits
    assert found.not_computed == "the machine's memory holds a part of it"


def test_a_run_that_is_split_over_more_cards_than_the_preset_has() -> None:
    here = cards.machine_with(REPOSITORY, ["5090", "5090"])
    for count, fits in (("1", True), ("2", False)):
        entry = preset("one", UNTOLD, "vllm-0.21.0")
        question = Question(here, RECIPES, CARDS, options=("-tp", count))
        found = choose([entry], question)
        assert bool(found.fits) is fits
        if not fits:
            assert "takes 2 cards, the preset is for 1" in why_not(found)


def test_the_download_is_known_where_every_file_is() -> None:
    sized = {"name": "Qwen3.6 27B", "repository": "a/b", "file": "a.gguf", "size": 10}
    drafter = {"repository": "a/c", "file": "b.gguf", "published_size": "1.5 GB"}
    (one,) = chosen([preset("one", model=sized, drafter=drafter)]).fits
    assert one.download == 1_500_000_010
    (other,) = chosen([preset("other", drafter=drafter)]).fits
    assert other.download is None


def test_the_largest_published_context_that_fits_is_taken() -> None:
    (wide,) = chosen([preset("sweep", SWEEP)], "5090-laptop").fits
    assert (wide.context, speed(wide)) == (131072, 80)
    (narrow,) = chosen([preset("sweep", SWEEP)], "5080").fits
    assert (narrow.context, speed(narrow)) == (32768, 90)
    assert (narrow.memory, narrow.memory_by) == (12 * 10**9, "source")


def test_the_context_that_is_asked_for_decides() -> None:
    (enough,) = chosen([preset("sweep", SWEEP)], context=32000).fits
    assert (enough.context, speed(enough)) == (32768, 90)
    reason = why_not(chosen([preset("sweep", SWEEP)], "5080", context=64000))
    assert reason == f"it takes 18.6 GiB (as published); {lacking(20 * 10**9)}"
    reason = why_not(chosen([preset("sweep", SWEEP)], context=200000))
    assert reason == "its context is 131072 tokens, 200000 are asked for"
    reason = why_not(chosen([preset("own", "result = []")], context=1000))
    assert reason == "its context is not known, 1000 are asked for"


def test_a_published_context_that_does_not_fit_is_not_taken() -> None:
    text = WIDE.replace("mean = 70 }", "mean = 70 }, context = 262144")
    narrow = preset("narrow", f"{text}\npublished_context = 262144")
    (found,) = chosen([narrow], "5090-laptop").fits
    assert (found.context, speed(found)) == (131072, 70)
    assert why_not(chosen([narrow], "5090-laptop", context=200000)) == (
        "its context is 131072 tokens, 200000 are asked for; "
        "the published 262144 did not fit the 5090-laptop"
    )
    (found,) = chosen([narrow], "5090").fits  # it has more memory than the card that was too small
    assert found.context == 262144
    (found,) = chosen([preset("wide", text)], "5090-laptop").fits
    assert found.context == 262144


def test_without_a_stated_memory_the_card_of_the_run_decides() -> None:
    (found,) = chosen([preset("untold")], "5090").fits
    assert found.memory is None
    assert why_not(chosen([preset("untold")], "5080")) == (
        f"its memory is not known; it ran with {sizes.gib(MEMORY['5090-laptop'])}, {HERE}"
    )
    alike = why_not(chosen([preset("untold", card="5070-ti")], "5080"))
    assert alike.endswith("it ran with 15.5 GiB, this card has 15.5 GiB, a little less")
    elsewhere = preset("elsewhere", card="h100-80gb")
    assert (
        why_not(chosen([elsewhere])) == "its memory is not known, nor the memory of the h100-80gb"
    )


def test_memory_by_kind_counts_where_it_is_all_of_it() -> None:
    kinds = "[memory]\nunit = 'GiB'\nkinds = { weights = 15, 'KV cache' = 1 }"
    assert why_not(chosen([preset("kinds", kinds)], "5080")) == (
        f"it takes 16.0 GiB (as published); {lacking(16 << 30)}"
    )
    part = "serve = { context = 4096 }\n[memory]\nkinds = { 'KV cache' = 1 }"
    assert "its memory is not known" in why_not(chosen([preset("part", part)], "5080"))


def test_a_trial_counts_before_the_source() -> None:
    trial = use_of(25 * 10**9, own=258_998_272)
    reason = why_not(chosen([preset("sweep", SWEEP)], "5080", context=64000, trial=trial))
    assert "it takes 23.3 GiB (as tried)" in reason
    # The trial is of the preset's own context; a smaller one has a figure of its own.
    (narrow,) = chosen([preset("sweep", SWEEP)], "5080", trial=trial).fits
    assert (narrow.context, narrow.memory, narrow.memory_by) == (32768, 12 * 10**9, "source")
    untold = why_not(chosen([preset("untold")], "5080", trial=trial))
    assert "it takes 23.3 GiB (as tried)" in untold
    (found,) = chosen([preset("sweep", SWEEP)], "5090-laptop", trial=trial).fits
    assert (found.memory, found.memory_by) == (25 * 10**9, "trial")


def test_weights_are_a_lower_bound_of_every_figure_but_a_trial() -> None:
    """A source that names less than the model's file is wrong; llama.cpp may keep a part of the
    file in the machine's memory, which a trial shows."""
    large = {"name": "M", "repository": "a/b", "file": "m.gguf", "published_size": "20 GB"}
    stated = preset("stated", "memory = { total = 8 }", model=large)
    least = f"its weights take 18.2 GiB at least; {lacking(19_500_000_000)}"
    assert why_not(chosen([stated], "5080")) == least
    (found,) = chosen([stated], "5080", trial=use_of(10 * 10**9, context=0)).fits
    assert (found.memory, found.memory_by) == (10 * 10**9, "trial")


TWICE = use_of(
    20 << 30,
    kinds={"weights": 12 << 30, "KV cache": 8 << 30},
    smaller=ContextUse(8192, 12800 << 20, {"weights": 12 << 30, "KV cache": 512 << 20}),
)
"""12 GiB, and 64 KiB for each token."""


def test_between_two_trials_a_smaller_card_has_the_largest_context_that_fits() -> None:
    (found,) = chosen([preset("wide", WIDE)], "5080", trial=TWICE).fits
    assert (found.context, found.known) == (49152, Standing.ELSEWHERE)
    assert found.memory is not None
    assert found.memory == (12 << 30) + 49152 * (64 << 10)
    assert found.memory <= MEMORY["5080"] < found.memory + 8192 * (64 << 10)
    kinds = shapes.tried_memory(TWICE, 49152).kinds
    assert kinds == {"weights": 12 << 30, "KV cache": 49152 * (64 << 10)}
    assert shapes.tried_memory(TWICE, 262144).size == (12 << 30) + 262144 * (64 << 10)
    # One that is asked for has to fit, and so has the preset's own.
    (asked,) = chosen([preset("wide", WIDE)], "5080", context=32768, trial=TWICE).fits
    assert asked.context == 32768
    (asked,) = chosen([preset("wide", WIDE)], "5080", context=50000, trial=TWICE).fits
    assert (asked.context, asked.other_context) == (50000, 50000)
    reason = why_not(chosen([preset("wide", WIDE)], "5080", context=65536, trial=TWICE))
    taken = (12 << 30) + 65536 * (64 << 10)
    assert reason == (
        f"it takes {sizes.gib(taken)} (as tried); {lacking(taken)}; a context of 49152 tokens fits"
    )
    # Above the larger trial and below the smaller one nothing is known.
    half = use_of(12 << 30, context=65536, smaller=ContextUse(8192, 10 << 30, {}))
    above = [
        preset(
            "sweep",
            SWEEP.replace("131072", "65536")
            .replace("32768", "131072")
            .replace("total = 12", "total = 17"),
        )
    ]
    assert why_not(chosen(above, "5080", context=100000, trial=half)) == (
        f"it takes 15.8 GiB (as published); {lacking(17 * 10**9)}"
    )
    small = why_not(chosen([preset("wide", WIDE)], "5060-ti-8gb", trial=TWICE))
    assert "tokens fits" not in small
    # What the source states for a context comes first: it has a speed, too.
    (stated,) = chosen([preset("sweep", SWEEP)], "5080", trial=TWICE).fits
    assert (stated.context, speed(stated)) == (32768, 90)


def test_the_context_of_cuda_is_that_of_the_card() -> None:
    laptop, large = (
        cards.machine_with(REPOSITORY, [name]).cards for name in ("5090-laptop", "5090")
    )
    trial = MemoryNeed(10**10, "trial", own=laptop[0].context)
    assert trial.on(laptop) == 10**10
    assert trial.on(large) == 10**10 + large[0].context - laptop[0].context


def test_an_old_driver_is_named_with_both_versions() -> None:
    assert why_not(chosen([preset("untold")], driver="570.172.08")) == (
        "the driver 570.172.08 is too old: it needs 580 or newer"
    )
    (found,) = chosen([preset("untold")], driver="580.65").fits
    assert found.driver == "580"
    # A published image has the CUDA that its base states.
    published = preset("untold", recipe="vllm-0.22.0")
    assert "it needs 580 or newer" in why_not(chosen([published], driver="570.172.08"))
    # Without one, the card decides: no older driver knows it.
    nightly = preset("untold", recipe="vllm-nightly-1acd67a")
    (unknown,) = chosen([nightly], driver="570.172.08").fits
    assert unknown.driver == "570"
    assert not unknown.recommended  # the image may have CUDA 13, which needs 580
    assert chosen([nightly], driver="580.65").fits[0].recommended
    assert "it needs 570 or newer" in why_not(chosen([nightly], driver="565.57.01"))


def test_a_card_without_code_is_named_by_its_compute_capability() -> None:
    assert why_not(chosen([preset("untold")], "3090")) == (
        "its image has no code for compute capability 8.6, only sm_120a"
    )
    # The code of a published image is not known.
    assert why_not(chosen([preset("untold", recipe="vllm-0.22.0")], "3090")) == (
        "its image has no code that was checked for compute capability 8.6, only sm_120"
    )


@pytest.mark.parametrize(
    ("recipe", "capability", "runs"),
    [
        ("beellama-0.1.1", (12, 0), True),
        ("beellama-0.1.1", (12, 1), False),  # ggml's cmake makes 120a of 120
        ("hello-sm120-0.1.0", (12, 1), True),
        ("hello-sm120-0.1.0", (13, 0), True),  # the driver compiles its PTX
        ("hello-sm120-0.1.0", (10, 0), False),
        ("vllm-0.22.0", (12, 0), True),
    ],
)
def test_the_code_of_an_image_decides(recipe: str, capability: tuple[int, int], runs: bool) -> None:
    assert runs_on(RECIPES.engine(recipe).recipe, Capability(*capability)) is runs


def test_a_preset_of_two_cards_needs_two() -> None:
    both = preset("both", cards=2)
    assert why_not(chosen([both])) == "it needs 2 cards: 1 more"
    assert why_not(chosen([both], "5090", "3090")) == "it needs 2 cards: 1 more"
    (found,) = chosen([both], "5090", "5090-laptop").fits
    assert found.figure is not None
    assert found.figure.cards == 2


def test_all_reasons_are_named() -> None:
    found = chosen([preset("both", cards=2)], driver="560.1", context=64000)
    assert len(found.excluded[0].why) == 3


def test_a_preset_that_loses_says_so() -> None:
    slower = "loses_to = 'other'\ncaveat = [{ text = 'It is slow.' }]\n" + UNTOLD.replace(
        "{ tokens", "{ baseline = 139.9, tokens"
    )
    (found,) = chosen([preset("slower", slower)]).fits
    assert found.caveats == (
        "other is faster on the same card",
        "without speculation it was 139.9 tokens/s",
        "It is slow.",
    )


def test_models_are_found_by_their_words() -> None:
    entries = [preset("qwen3.6-27b-mtp@5090"), preset("gemma@5090", model={"name": "Gemma 4 E2B"})]
    for text in ("qwen3.6 27b", "Qwen3.6-27B", "unsloth/qwen", "27b mtp", ""):
        assert matching(entries, text)[0] == entries[0], text
    assert matching(entries, "gemma 4") == entries[1:]
    assert not matching(entries, "llama")


def test_a_problem_is_named_where_it_holds() -> None:
    known = {
        "everywhere": None,
        "no room": "memory",
        "on a vGPU": "HAMi",
        "mended": "source",
    }
    caveats = [{"text": text, "only": only} for text, only in known.items()]
    one = preset("one", f"{UNTOLD}\nmemory = {{ total = 10 }}", caveat=caveats)
    for card, texts in (
        ("5090-laptop", ("everywhere", "no room")),
        ("5080", ("everywhere", "no room")),
        ("5090", ("everywhere",)),
    ):
        (found,) = chosen([one], card).fits
        assert found.caveats == texts, card
