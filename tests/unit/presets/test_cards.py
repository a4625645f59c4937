"""Cards: data with sources, found by name, written for the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core import sizes
from builder.core.errors import RecipeError, UsageError
from builder.presets import cards
from support.environment import REPOSITORY

ALL = cards.names(REPOSITORY)
NOMINAL = {  # GiB, as on the box
    "3090": 24,
    "4090": 24,
    "5050": 8,
    "5050-laptop": 8,
    "5060": 8,
    "5060-laptop": 8,
    "5060-ti-16gb": 16,
    "5060-ti-8gb": 8,
    "5070": 12,
    "5070-laptop": 8,
    "5070-ti": 16,
    "5070-ti-laptop": 12,
    "5080": 16,
    "5080-laptop": 16,
    "5090": 32,
    "5090-laptop": 24,
    "a100-80gb": 80,
    "gb10": 128,
    "pro-2000": 16,
    "pro-4000": 24,
    "pro-4000-sff": 24,
    "pro-4500": 32,
    "pro-5000-48gb": 48,
    "pro-5000-72gb": 72,
    "pro-6000-max-q": 96,
    "pro-6000-server": 96,
    "pro-6000-workstation": 96,
}


def copied(root: Path, name: str, old: str, new: str) -> Path:
    """A farm with one card, whose file was edited."""
    text = (REPOSITORY / "cards" / f"{name}.toml").read_text()
    assert old in text
    (root / "cards").mkdir()
    (root / "cards" / f"{name}.toml").write_text(text.replace(old, new))
    return root


@pytest.mark.parametrize("name", ALL)
def test_a_shipped_card_is_valid_and_near_its_nominal_memory(name: str) -> None:
    card = cards.load(REPOSITORY, name)
    assert name in NOMINAL, f"tests/unit/presets/test_cards.py: NOMINAL needs {name}"
    nominal = NOMINAL[name] << 30
    assert cards.USABLE * nominal < card.memory < nominal
    assert sizes.card(card.memory).startswith(f"{NOMINAL[name]} GB (")
    assert 64 << 20 < card.context < 640 << 20
    assert all(each.url.startswith("https://") for each in card.source)


@pytest.mark.parametrize(
    ("name", "bandwidth"), [("5090", 1792), ("5090-laptop", 896), ("3090", 936), ("4090", 1008)]
)
def test_the_bandwidth_is_the_one_of_specifications(name: str, bandwidth: int) -> None:
    assert cards.load(REPOSITORY, name).bandwidth == pytest.approx(bandwidth * 1e9, rel=1e-3)


@pytest.mark.parametrize("name", NOMINAL)
def test_the_cards_that_people_have_are_there(name: str) -> None:
    assert name in ALL, f"cards/{name}.toml is missing"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("RTX 5090 Laptop", "5090-laptop"),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", "5090-laptop"),
        ("RTX 5060 Ti 8GB", "5060-ti-8gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "pro-6000-workstation"),
        ("NVIDIA RTX PRO 4000 Blackwell SFF Edition", "pro-4000-sff"),
        ("NVIDIA GB10", "gb10"),
    ],
)
def test_a_card_is_found_by_its_full_name(name: str, file: str) -> None:
    assert cards.load(REPOSITORY, name) == cards.load(REPOSITORY, file)


@pytest.mark.parametrize("name", ALL)
def test_cards_of_one_name_are_told_by_their_memory(name: str) -> None:
    card = cards.load(REPOSITORY, name)
    others = [cards.load(REPOSITORY, other) for other in ALL if other != name]
    memory = [other.memory for other in others if other.name == card.name]
    assert all(1.3 * min(card.memory, each) < max(card.memory, each) for each in memory)


def test_a_typo_is_told_with_the_card_that_is_meant() -> None:
    with pytest.raises(UsageError, match="no card is named 5090-latpop; did you mean 5090-lap"):
        cards.load(REPOSITORY, "5090-latpop")
    with pytest.raises(UsageError, match="did you mean 5060-ti-16gb or 5060-ti-8gb"):
        cards.load(REPOSITORY, "5060-ti")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("bus_width = 512", 'bus_width = "512"', "bus_width: must be a whole number"),
        ("bus_width = 512", "bus_wdth = 512", "unknown key; did you mean bus_width"),
        ('capability = "12.0"', 'capability = "sm_120"', "must be a compute capability: 12.0"),
        ('"peer"', '"l2"', "l2: named by more than one source"),
        ('figures = ["peer"]', "figures = []", "peer: without a source, and not in"),
        ('figures = ["peer"]', 'figures = ["peer", "pear"]', "pear: a source of no figure"),
        ("context = 5", "context = 99999999", "the context takes more than the card has"),
    ],
)
def test_a_broken_card_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    root = copied(tmp_path, "5090", old, new)
    with pytest.raises(RecipeError, match="the card 5090 is invalid") as caught:
        cards.load(root, "5090")
    assert words in str(caught.value)


def test_a_farm_without_cards_has_the_installed_ones(tmp_path: Path) -> None:
    assert cards.names(tmp_path) == ALL


def test_the_configuration_has_a_line_for_each_figure_of_each_card() -> None:
    pair = [cards.load(REPOSITORY, name) for name in ("5090", "5090-laptop")]
    lines = cards.text(pair, vocabulary=151936, tokens=(264, 279)).splitlines()
    assert lines[:3] == ["vocabulary 151936", "tokens 264 279", "card 0"]
    first, second = lines.index("card 0"), lines.index("card 1")
    described = dict(line.split(" ", 1) for line in lines[first + 1 : second])
    assert described["name"] == "NVIDIA GeForce RTX 5090"
    assert described["memory"] == "33680457728"
    assert described["shared_per_block_optin"] == "101376"
    assert described["peer"] == "0"
    assert [line.split(" ", 1)[0] for line in lines[second + 1 :]] == list(described)


def test_a_card_computes_where_that_is_asked_for() -> None:
    card = cards.load(REPOSITORY, "5090")
    asked = cards.Compute(ptx="/simulator/ptx", races=True, outputs=True)
    lines = cards.text([card], compute=asked).splitlines()
    assert lines[1:5] == ["mode compute", "races 1", "outputs 1", "ptx /simulator/ptx"]
    assert cards.text([card], compute=cards.Compute()).splitlines()[1:5] == [
        *("mode compute", "races 0", "outputs 0", "card 0")
    ]


def test_what_is_not_known_of_the_model_is_left_out() -> None:
    lines = cards.text([cards.load(REPOSITORY, "3090")]).splitlines()
    assert lines[:2] == ["vocabulary 0", "card 0"]
    sampling = cards.text([cards.load(REPOSITORY, "3090")], samples=True).splitlines()
    assert sampling[:3] == ["vocabulary 0", "launches_write 1", "card 0"]
