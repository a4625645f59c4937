"""The contract that a verdict holds for, and the error where it is not good."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.build.lookup import contract_of, simulators, smoke_error
from builder.core.errors import RecipeError
from builder.plan.resolver import Resolver
from support.catalogs import load, rendered
from support.environment import REPOSITORY
from support.farms import RECIPE
from support.verdicts import BAD, GOOD, UNTRIED, verdict


def test_a_failure_and_what_could_not_be_tried_exit_differently() -> None:
    failed = smoke_error("a-1", "a:1", verdict(GOOD, BAD, UNTRIED))
    assert (failed.exit_code, failed.what) == (7, "a-1 is built, and 1 of 3 checks failed")
    untried = smoke_error("a-1", "a:1", verdict(GOOD, UNTRIED))
    assert untried.exit_code == 8
    assert "no container" in untried.why


@pytest.mark.parametrize(
    ("recipe", "needed"),
    [
        ("hello-sm120-0.1.0", [False]),
        ("llama-cpp-b9831", [False, True]),
        ("llama-cpp-python-0.3.36", [False, True]),
        ("lucebox-f12a87c", []),
        ("vllm-0.20.2", []),
        ("vllm-0.20.2-wheel", [False]),
        ("hami-core-pr188", []),
    ],
)
def test_the_interpreter_is_compiled_only_where_numbers_are_compared(
    recipe: str, needed: list[bool]
) -> None:
    plan = Resolver(load(REPOSITORY), "amd64", "mmdebstrap").plans(recipe)[0]
    assert simulators(plan) == needed


PRESET = """
recipe  = "eng-1"
summary = "a run"
card    = "5090"
model   = { name = "M" }
serve   = { arguments = ["-ngl", "99"] }
result  = [{ tokens_per_second = { mean = 80 } }]
"""


@pytest.fixture
def presets(catalog: Path) -> Path:
    """The presets of a catalog with the recipe eng-1."""
    values = {"version": "1", "url": "https://x.invalid/eng", "ref": "v1", "commit": "c" * 40}
    text = RECIPE.format(**values, number=1, patches="")
    (catalog / "recipes" / "eng-1.toml").write_text(text)
    (catalog / "presets").mkdir()
    return catalog / "presets"


def test_a_changed_preset_makes_the_verdict_stale_and_keeps_the_key(presets: Path) -> None:
    def contract(text: str) -> tuple[str, str]:
        (presets / "m@5090.toml").write_text(text)
        plan = rendered(presets.parent, "eng-1")
        return contract_of(plan), plan.key

    first, key = contract(PRESET)
    for old, new in (('"99"', '"98"'), ('"5090"', '"5080"'), ('"M"', '"N"')):
        changed, unchanged_key = contract(PRESET.replace(old, new))
        assert changed != first
        assert unchanged_key == key
    # Neither figures nor presets of other recipes are checked.
    assert contract(PRESET.replace("80", "90"))[0] == first
    (presets / "n@5090.toml").write_text(PRESET.replace("eng-1", "eng-2"))
    assert contract(PRESET)[0] == first


def test_an_invalid_preset_of_the_recipe_is_an_error(presets: Path) -> None:
    plan = rendered(presets.parent, "eng-1")
    (presets / "m@5090.toml").write_text(PRESET + "unknown = 1\n")
    with pytest.raises(RecipeError, match="the preset m@5090 is invalid"):
        contract_of(plan)
    (presets / "m@5090.toml").write_text(PRESET.replace("eng-1", "eng-2") + "unknown = 1\n")
    assert contract_of(plan)


def test_the_budget_of_an_update_is_no_check_of_the_image(presets: Path) -> None:
    file = presets.parent / "recipes" / "eng-1.toml"
    text = file.read_text()

    def contract(budget: str) -> str:
        file.write_text(f"{text}\n[budget]\n{budget}\n")
        return contract_of(rendered(presets.parent, "eng-1"))

    assert contract("update = 1") == contract("update = 2") == contract("")
    assert contract("download = 1") != contract("")
