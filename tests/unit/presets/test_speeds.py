"""Computed speeds, with numbers that were checked by hand, and what always holds."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.presets import cards, shapes
from builder.presets.schema import Preset
from builder.presets.shapes import DecodeStep, NotComputedError
from support.environment import REPOSITORY
from support.shipped import PRESETS, RECIPES

LAPTOP, DESKTOP = (cards.load(REPOSITORY, name).bandwidth for name in ("5090-laptop", "5090"))
# Qwen3.6 27B has 26,895,998,464 parameters: 1,271,398,400 in the embedding, as many in the output.
DENSE = 12_812_300_032  # bytes of all but the embedding
CACHE = 1000 * 16 * 2 * 1024 * 2  # tokens, layers with a cache, keys and values, bytes

HALF_A_BYTE = 'name = "Qwen3.6 27B"\nfile = "a"\nsize = 13447999232'
WITH_MTP = 'name = "Qwen3.6 27B"\nfile = "a"\nsize = 13660348928'
RUN = 'recipe = "r"\nsummary = "s"\ncard = "5090-laptop"\n[model]\nrepository = "a/b"\n'


def preset(model: str = HALF_A_BYTE, **keys: object) -> Preset:
    return Preset.model_validate(tomllib.loads(RUN + model) | keys)


def drafting(*options: str, **keys: object) -> Preset:
    return preset(WITH_MTP, serve={"arguments": list(options)}, **keys)


def figure(mean: float, **keys: object) -> dict[str, object]:
    return {"tokens_per_second": {"mean": mean}, **keys}


def test_a_dense_model_reads_all_but_its_embedding() -> None:
    step = shapes.step(preset(), "llama-cpp")
    assert (step.size, step.uneven, step.tokens) == (DENSE + CACHE, False, 1)
    found = shapes.computed_speed(preset(), "llama-cpp", LAPTOP, LAPTOP)
    # 12.88 GB at 74 % of 896 GB/s are 19.42 ms.
    assert found.tokens_per_second == pytest.approx(1 / (19.42e-3 + 2.1e-3), rel=1e-3)


def test_the_kind_of_a_step_decides_how_much_of_the_bandwidth_it_gets() -> None:
    assert DecodeStep(0.74e9, uneven=False, tokens=1).seconds(10**9) == pytest.approx(1 + 2.1e-3)
    assert DecodeStep(0.35e9, uneven=True, tokens=1).seconds(10**9) == pytest.approx(1 + 2.1e-3)


def test_the_type_of_the_cache_counts() -> None:
    options = {"arguments": ["--cache-type-k", "q4_0", "-ctv", "q8_0"]}
    step = shapes.step(preset(serve=options), "llama-cpp")
    assert step.size - DENSE == pytest.approx(CACHE * (4.5 + 8.5) / 32)
    step = shapes.step(preset(serve={"arguments": ["--kv-cache-dtype=fp8"]}), "vllm")
    assert step.size - DENSE == pytest.approx(CACHE / 2)


def test_mtp_reads_its_block_and_the_output_for_each_token() -> None:
    words = ("--spec-type", "draft-mtp", "--spec-draft-n-max", "2")
    accepted = [figure(70, acceptance={"mean": 75})]
    step = shapes.step(drafting(*words, result=accepted), "llama-cpp")
    block, output = 424_699_392 / 2, 1_271_398_400 / 2
    # The block is a layer with full attention, so it has a cache, too.
    assert step.size == pytest.approx(DENSE + 2 * (block + output) + CACHE * 17 / 16)
    assert (step.tokens, step.uneven) == (2.5, True)


def test_vllm_drafts_as_it_computes() -> None:
    config = '{"method":"mtp","num_speculative_tokens":3}'
    run = drafting("--speculative-config", config, result=[figure(90, acceptance={"mean": 90})])
    step = shapes.step(run, "vllm")
    assert (step.tokens, step.uneven) == (pytest.approx(3.7), False)


def test_counted_tokens_are_an_acceptance() -> None:
    words = ("--spec-type", "mtp", "--draft-block-size", "3", "--draft-max", "8")
    result = [figure(140, drafted=[2526], accepted=[1974])]
    drafter = {"repository": "a/c", "file": "d", "published_size": "325 MB"}
    step = shapes.step(drafting(*words, result=result, drafter=drafter), "atomic")
    assert step.tokens == pytest.approx(1 + 2 * 1974 / 2526)
    plain = shapes.step(drafting(), "atomic").size
    assert step.size - plain == 2 * 325e6


def test_without_an_acceptance_the_own_run_gives_the_tokens() -> None:
    drafter = {"repository": "a/dflash", "file": "d", "published_size": "1.85 GB"}
    run = drafting("--spec-type", "dflash", result=[figure(107)], drafter=drafter)
    step = shapes.step(run, "beellama")
    output = 13_660_348_928 * 1_271_398_400 / 26_895_998_464
    plain = shapes.step(preset(WITH_MTP), "beellama").size
    assert step.size - plain == pytest.approx(1.85e9 + output)
    same = shapes.computed_speed(run, "beellama", LAPTOP, LAPTOP)
    assert same.tokens_per_second == pytest.approx(107, abs=0.01)
    faster = shapes.computed_speed(run, "beellama", DESKTOP, LAPTOP)
    assert 1.7 * 107 < faster.tokens_per_second < 2 * 107


def test_a_name_gives_the_active_part_of_a_model_without_a_shape() -> None:
    model = 'name = "Nemotron 30B-A3B"\npublished_size = "19 GB"'
    step = shapes.step(preset(model), "vllm")
    assert (step.size, step.uneven) == (1.9e9, False)
    assert shapes.step(preset(model), "llama-cpp").uneven


def test_the_weights_in_memory_stand_for_the_size() -> None:
    memory = {"unit": "GiB", "kinds": {"weights": 16.87}}
    whole = shapes.step(preset('name = "Qwen3.6 27B"', memory=memory), "vllm")
    sized = preset('name = "Qwen3.6 27B"\npublished_size = "16.87 GiB"')
    assert whole == shapes.step(sized, "vllm")


@pytest.mark.parametrize(
    ("run", "bandwidth", "published", "why"),
    [
        (preset('name = "Qwen3.6 27B"'), LAPTOP, LAPTOP, "the size of its model"),
        (preset('name = "Other 7B"\npublished_size = "4 GB"'), LAPTOP, LAPTOP, "the tensors of"),
        (preset(cards=2), LAPTOP, LAPTOP, "several cards"),
        (preset(), 0, LAPTOP, "the bandwidth of the card"),
        (drafting("--spec-type", "mtp"), LAPTOP, LAPTOP, "its acceptance is not known"),
        (drafting("--speculative-config", "[]"), LAPTOP, LAPTOP, "its acceptance is not known"),
        (drafting("--spec-type=a", "--draft-max=b"), LAPTOP, LAPTOP, "its acceptance is not"),
        (drafting("--spec-type", "mtp", result=[figure(7)]), LAPTOP, 0, "its acceptance is not"),
        (drafting(drafter={"name": "d"}), LAPTOP, LAPTOP, "the size of its drafter"),
        (
            drafting(drafter={"name": "d", "published_size": "1 GB"}),
            LAPTOP,
            LAPTOP,
            "how many tokens it drafts",
        ),
    ],
)
def test_a_missing_fact_is_named(run: Preset, bandwidth: int, published: int, why: str) -> None:
    with pytest.raises(NotComputedError, match=why):
        shapes.computed_speed(run, "llama-cpp", bandwidth, published)


def known() -> list[tuple[Preset, str]]:
    """The shipped presets with a computed speed, and their engines."""
    found = []
    for entry in PRESETS.valid():
        engine = RECIPES.engine(entry.preset.recipe).recipe.engine
        try:
            shapes.computed_speed(entry.preset, engine, LAPTOP, LAPTOP)
        except NotComputedError:
            continue
        found.append((entry.preset, engine))
    return found


KNOWN = known()
BANDWIDTHS = st.integers(10**11, 10**13)


def test_most_shipped_presets_have_a_computed_speed() -> None:
    assert len(KNOWN) > len(PRESETS.valid()) / 2


@given(st.sampled_from(KNOWN), BANDWIDTHS, BANDWIDTHS)
def test_more_bandwidth_is_never_slower(run: tuple[Preset, str], one: int, other: int) -> None:
    less, more = (
        shapes.computed_speed(*run, each, LAPTOP).tokens_per_second for each in sorted((one, other))
    )
    assert less <= more


@given(st.sampled_from(shapes.shape_names()), st.integers(0, 10**6), st.integers(0, 10**6))
def test_more_tokens_never_take_less_of_the_cache(name: str, one: int, other: int) -> None:
    """A step reads the cache: a longer context is never faster."""
    shape = shapes.shape_of(name)
    few, many = (shapes.cache_bytes(shape, 16, 16, each) for each in sorted((one, other)))
    assert few <= many


@given(st.sampled_from(KNOWN), BANDWIDTHS)
def test_a_speed_is_within_its_interval(run: tuple[Preset, str], bandwidth: int) -> None:
    found = shapes.computed_speed(*run, bandwidth, LAPTOP)
    assert found.interval[0] < found.tokens_per_second < found.interval[1]
