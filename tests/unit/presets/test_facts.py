"""`choose` on every card, for every preset, against an arithmetic of its own.

Nothing here uses ``presets/choose.py`` but its answer: recipes, bases, cards, shapes and trials are
read as text.  A row that fails here would start a server that cannot run.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pytest

from builder.presets import cards
from builder.presets.cards import Machine
from builder.presets.choose import Choice, Option, known
from simulator.selection import Capability
from support.environment import REPOSITORY
from support.shipped import PRESETS, RECIPES

GIB = 1 << 30
UNITS = {"MB": 10**6, "GB": 10**9, "GiB": GIB}
NAMES = sorted(file.stem for file in (REPOSITORY / "cards").glob("*.toml"))
GROUPS = [
    *([name] for name in NAMES),
    *([name] * 2 for name in ("5060", "5080", "5090-laptop", "5090", "pro-6000-max-q", "gb10")),
    *(["pro-5000-48gb", "5060"], ["5060", "pro-5000-48gb"], ["5090", "5080"], ["5090", "3090"]),
    *(["pro-6000-server", "5090-laptop"], ["5090", "5090", "5060"]),
]
SIZES = (8, 12, 16, 20, 22, 24, 26, 28, 32, 48, 96, 128)
DRIVERS = ("535.12", "565.57.01", "570.172.08", "575.57", "580.65.06", "580.126.09", "590.10")
OFFLOAD = {"--n-cpu-moe", "--cpu-moe", "--override-tensor", "-ot", "--cpu-offload-gb"}


@cache
def toml(path: str) -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / path).read_text("utf-8"))


def preset_of(name: str) -> dict[str, Any]:
    return toml(f"presets/{name}.toml")


def recipe_of(preset: str) -> dict[str, Any]:
    found = toml(f"recipes/{preset_of(preset)['recipe']}.toml")
    while above := found.get("extends"):
        more = toml(f"recipes/{above}.toml")
        found = more | found | {"extends": more.get("extends")}
    return found


@cache
def trial_of(recipe: str) -> dict[str, Any]:
    file = REPOSITORY / "trials" / f"{recipe}.json"
    return json.loads(file.read_text("utf-8")) if file.exists() else {}


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def oldest_driver(preset: str, capabilities: Sequence[str]) -> str:
    """The newest of all drivers that a text of the repository requires."""
    recipe = recipe_of(preset)
    wanted = ["570"] if any(each.startswith("12.") for each in capabilities) else []
    wanted += [recipe["cuda"]["driver"]] if "driver" in recipe.get("cuda", {}) else []
    notes = " ".join(recipe.get("notes", []))
    wanted += re.findall(r"driver (\d{3}[\d.]*\d) or newer", notes)
    name = recipe.get("base")
    while name:
        base = toml(f"recipes/bases/{name}.toml")
        text = f"{base['summary']} {base.get('published', {}).get('image', '')}"
        found = re.findall(r"-cu(\d\d)\d|with CUDA (\d\d)\.", text)
        majors = [int(a or b) for a, b in found]
        wheels = {each["name"]: each["version"] for each in base.get("wheel", [])}
        if "nvidia-cuda-runtime" in wheels:
            majors.append(numbers(wheels["nvidia-cuda-runtime"])[0])
        wanted += [{12: "570", 13: "580"}[max(majors)]] if majors else []
        name = base.get("base")
    return max(wanted, key=numbers, default="0")


@cache
def parameters(name: str) -> dict[str, int]:
    """The number of elements of each tensor of a shape."""
    shape = toml(f"shapes/{name}.toml")
    common = toml(f"shapes/tensors/{shape['tensors']}.toml")
    kinds = [kind for each in shape["layers"] for kind in each["kinds"] * each["times"]]
    values = {**shape["values"], "vocabulary": shape.get("tokenizer", {}).get("size", 0)}

    def size(dimension: int | str, layer: int) -> int:
        def factor(text: str) -> int:
            found = int(text) if text.isdigit() else values[text]
            return int(found[layer] if isinstance(found, list) else found)

        terms = (term.split("*") for term in str(dimension).split("+"))
        return sum(math.prod(factor(each.strip()) for each in term) for term in terms)

    groups = [(part, 0, "") for part in shape["parts"]]
    for layer, kind in enumerate(kinds):
        groups += [(part, layer, f"{layer}.") for part in shape["kinds"][kind]]
    return {
        f"{before}{name}": math.prod(size(each, layer) for each in dimensions)
        for part, layer, before in groups
        for name, dimensions in common["group"][part].items()
    }


def size_of(text: str) -> float:
    number, unit = text.split()
    step = 10.0 ** -len(number.partition(".")[2]) / 2
    return (float(number) - step) * UNITS[unit]


def options(preset: str) -> list[str]:
    return preset_of(preset).get("serve", {}).get("arguments", [])


def least_weights(preset: str) -> float:
    """The bytes of the weights that lie on the cards at least; 0: not known."""
    text = preset_of(preset)
    model = text["model"]
    if OFFLOAD & {*options(preset)}:
        return 0
    known: list[float] = [0]
    shape = model["name"].lower().replace(" ", "-")
    counts = parameters(shape) if (REPOSITORY / "shapes" / f"{shape}.toml").exists() else {}
    whole = "repository" in model and "file" not in model and "quantization" not in model
    if "published_size" in model:
        rows = [counts.get(f"{name}.weight", 0) for name in ("token_embd", "per_layer_token_embd")]
        if "output.weight" not in counts:
            rows[0] = 0
        known.append(size_of(model["published_size"]) - (0 if whole else 2 * sum(rows)))
    if whole:
        memory = text.get("memory", {})
        if "weights" in memory.get("kinds", {}):
            known.append(memory["kinds"]["weights"] * UNITS[memory.get("unit", "GB")] * 0.99)
        name = model["repository"].lower()
        bits = 4 if re.search(r"awq|int4|4bit|fp4|gptq", name) else 8 if "fp8" in name else 16
        known.append(sum(counts.values()) * bits / 8)
    trial = trial_of(text["recipe"]).get("presets", {}).get(preset)
    known += [trial["by_kind"]["weights"]] if trial else []
    return max(known)


def published(preset: str) -> float:
    """The bytes that the source states for the preset's context; 0: it states none."""
    memory = preset_of(preset).get("memory", {})
    unit, kinds = UNITS[memory.get("unit", "GB")], memory.get("kinds", {})
    if "total" in memory:
        return memory["total"] * unit
    return sum(kinds.values()) * unit if {"weights", "KV cache"} <= {*kinds} else 0


def filled(preset: str) -> Iterator[tuple[int, int]]:
    """Contexts, and the bytes that prompts took which filled them, by the preset's remarks."""
    for text in preset_of(preset).get("unverified", {}).values():
        for mib, tokens in re.findall(r"(\d+) MiB when prompts fill ([\d,]+)", text):
            yield int(tokens.replace(",", "")), int(mib) << 20


def contradictions(row: Option, here: Machine) -> Iterator[str]:
    yield from of_image(row, here)
    preset = preset_of(row.preset)
    count = preset.get("cards", 1)
    memory = sorted((card.memory for card in here.cards), reverse=True)[:count]
    if len(memory) < count:
        yield "too few cards"
        return
    equal = recipe_of(row.preset)["engine"] in {"vllm", "sglang"}
    room = min(memory) * count if equal else sum(memory)
    yield from of_figures(row, room)
    yield from of_prompts(row, room, min(memory))
    ran = REPOSITORY / "cards" / f"{preset['card']}.toml"
    least = toml(f"cards/{preset['card']}.toml")["memory"] if ran.exists() else 0
    tried = trial_of(preset["recipe"]).get("presets", {}).get(row.preset)
    if not (least_weights(row.preset) or published(row.preset) or tried) and min(memory) < least:
        yield "nothing is known of its memory, and it ran on a larger card"


def of_image(row: Option, here: Machine) -> Iterator[str]:
    recipe = recipe_of(row.preset)
    capabilities = [str(card.capability) for card in here.cards]
    platform = "linux/arm64" if "12.1" in capabilities else "linux/amd64"  # docs/builders.md
    if platform not in recipe.get("platform", ["linux/amd64"]):
        yield f"no image for {platform}"
    if trial_of(preset_of(row.preset)["recipe"]).get("failed"):
        yield "its image was refused"
    if here.driver and numbers(here.driver) < numbers(oldest_driver(row.preset, capabilities)):
        yield f"driver {here.driver}"


def of_figures(row: Option, room: int) -> Iterator[str]:
    preset = preset_of(row.preset)
    given = dict(zip(options(row.preset), options(row.preset)[1:], strict=False))
    share = float(given.get("--gpu-memory-utilization", given.get("--mem-fraction-static", 1)))
    weights, figure = least_weights(row.preset), published(row.preset)
    if weights > share * room:
        yield f"weights of {weights / GIB:.2f} GiB in {share * room / GIB:.2f} GiB"
    if row.memory is not None and row.memory < weights:
        yield f"{row.memory / GIB:.2f} GiB for weights of {weights / GIB:.2f} GiB"
    if preset.get("serve", {}).get("context", 0) != row.context or figure <= weights:
        return
    parts = "total" not in preset["memory"]  # weights and cache, which the share is for
    if figure > (share if parts else 1) * room:
        yield f"published {figure / GIB:.2f} GiB in {room / GIB:.2f} GiB"
    trial = trial_of(preset["recipe"]).get("presets", {}).get(row.preset)
    largest = max(round(figure), trial["peak"] if trial else 0)
    if row.memory is not None and row.memory < largest:
        yield "not the larger of the figures"


def of_prompts(row: Option, room: int, smallest: int) -> Iterator[str]:
    preset = preset_of(row.preset)
    for tokens, size in filled(row.preset):
        if row.context >= tokens and size > room:
            yield f"{size >> 20} MiB when prompts fill {tokens}"
    larger = row.context > preset.get("serve", {}).get("context", 0)
    if "published_context" in preset and larger:
        failed = toml(f"cards/{preset['card']}.toml")["memory"]
        if smallest < 1.06 * failed:
            yield f"{row.context} tokens did not fit cards of this size"


def unconfirmed(row: Option, here: Machine) -> bool:
    """Whether nothing but a figure that nobody confirmed says that it fits."""
    preset = preset_of(row.preset)
    keys = {key.split(".")[0] for key in preset.get("unverified", {})}
    tried = trial_of(preset["recipe"]).get("presets", {}).get(row.preset)
    larger = (
        max(card.memory for card in here.cards) >= toml(f"cards/{preset['card']}.toml")["memory"]
    )
    return "memory" in keys and not tried and not larger


def wrong(answer: Choice) -> list[str]:
    here = answer.machine
    found = [
        f"{row.preset} with {row.context}: {why}"
        for row in answer.fits
        for why in contradictions(row, here)
    ]
    found += [
        f"{row.preset} is recommended by an unverified figure"
        for row in answer.recommended
        if unconfirmed(row, here)
    ]
    return found


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return known(RECIPES, PRESETS.valid(), tmp_path_factory.mktemp("state"))


@pytest.mark.parametrize("names", GROUPS, ids="+".join)
def test_no_row_contradicts_the_repository(facts: Any, names: list[str]) -> None:
    found = []
    for driver in ("", *(DRIVERS if {"5090", "gb10", "pro-6000-server"} & {*names} else ())):
        answer = facts.choice(cards.machine_with(REPOSITORY, names, driver))
        found += [f"driver {driver}: {each}" for each in wrong(answer)]
        assert len(answer.fits) + len(answer.excluded) == len(PRESETS.valid())
    assert not found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("capability", ["12.0", "12.1"])
def test_a_card_that_has_no_file(facts: Any, size: int, capability: str) -> None:
    here = cards.unnamed_card(size * GIB, Capability.parse(capability))
    assert not wrong(facts.choice(here))


def test_a_context_that_is_asked_for(facts: Any) -> None:
    for name in NAMES:
        for context in (8192, 65536, 131072, 262144):
            answer = facts.choice(cards.machine_with(REPOSITORY, [name]), context)
            assert not wrong(answer), (name, context)


def test_every_preset_runs_where_it_was_published(facts: Any) -> None:
    """No rule refuses a run that was made, but for a refused image and a card without code."""
    refused = {each.name for each in PRESETS.valid() if trial_of(each.preset.recipe).get("failed")}
    for entry in PRESETS.valid():
        preset = entry.preset
        if entry.name in refused or not preset.card.startswith("50"):
            continue
        here = cards.machine_with(REPOSITORY, [preset.card] * preset.cards, "590.10")
        assert entry.name in {row.preset for row in facts.choice(here).fits}, entry.name
    here = cards.machine_with(REPOSITORY, ["pro-6000-workstation"] * 2, "590.10")
    assert {row.preset for row in facts.choice(here).excluded} == refused


MODELS = {8: 3, 12: 4, 16: 5}
"""Models of the catalog that a GeForce RTX 50 runs at least, by its GB of memory."""


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("50")])
def test_a_card_has_models_that_were_tried(facts: Any, name: str) -> None:
    card = cards.load(REPOSITORY, name)
    answer = facts.choice(cards.machine_with(REPOSITORY, [name], "590.10"))
    tried = {
        row.short_name
        for row in answer.fits
        if row.preset in trial_of(row.recipe).get("presets", {}) and not row.needs_file
    }
    assert tried <= {row.short_name for row in answer.recommended}
    least = max(count for size, count in MODELS.items() if card.memory > size * 10**9 * 0.9)
    assert len(tried) >= least, f"{name}: {sorted(tried)}"


def test_the_places_of_the_notes(facts: Any) -> None:
    """What choose said of these was wrong: it would have cost a download of 17 GB each."""

    def on(*names: str, driver: str = "") -> Mapping[str, Option]:
        answer = facts.choice(cards.machine_with(REPOSITORY, names, driver))
        return {row.preset: row for row in answer.fits}

    for name in ("5060", "5080", "5070-ti", "pro-2000"):
        assert "gemma-4-e4b-mtp@5090-laptop" not in on(name)
    assert {*on("gb10")} == {"qwen3.8-27b-mtp@5090"}
    for name in ("pro-4000", "pro-4000-sff", "5090-laptop"):
        assert on(name)["qwen3.6-27b-mtp-128k@5090-laptop"].context == 131072
    assert on("5090")["qwen3.6-27b-mtp-128k@5090-laptop"].context == 262144
    assert "qwen3.6-27b-mtp-turboquant@5090-laptop" not in on("pro-6000-server")
    assert not on("5090", driver="565.57.01")
    assert "qwen3.6-27b-turboquant-mtp@5090-laptop" not in on("5090", driver="580.65.06")
    rows = facts.choice(cards.unnamed_card(22 * GIB, Capability(12, 0))).fits
    assert "qwen3.6-27b-autoround-mtp@5090-laptop" not in {row.preset for row in rows}
    rows = facts.choice(cards.unnamed_card(20 * GIB, Capability(12, 0))).fits
    (gemma,) = (row for row in rows if row.preset == "gemma-4-26b-a4b-mtp@5090-laptop")
    assert gemma.context < 65536
