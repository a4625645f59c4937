"""`choose`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from builder.presets.catalog import load
from support import receipts
from support.commands import Builder
from support.environment import REPOSITORY
from support.shipped import RECIPES


def test_choose_lists_what_runs_and_what_does_not(builder: Builder) -> None:
    done = builder("choose", "--card", "5060-ti-16gb", "--driver", "580.65.06")
    assert done.returncode == 0, done.stderr
    runs, _, not_here = done.stdout.partition("Does not run here")
    row = next(line for line in runs.splitlines() if line.startswith("gemma-4-e2b-mtp@5090"))
    cells = row.split("\t")
    assert cells[1:3] == ["206.56", "published on 5090-laptop"]
    assert re.fullmatch(r"~\d+ \(\d+-\d+\)", cells[3]), row
    memory = "5.6 of 15.5 GiB (published, unverified); 3.2 tried, short prompt"
    assert cells[4:7] == ["131072", memory, "Q8_0"]
    assert cells[8:10] == ["", "atomic-b8995"]
    first, _, header = done.stdout.splitlines()[:3]
    assert first.endswith("RTX 5060 Ti (12.0), 16 GB (15.5 GiB usable), driver 580.65.06")
    assert header.split("\t")[5:10] == [
        *("memory", "quantization", "download", "capabilities", "engine")
    ]
    lost = [row for row in not_here.splitlines() if row.startswith("qwen3.6-35b-a3b-mtp@5090")]
    least = r"its weights and its cache take 15\.\d GiB at least, and here"
    assert re.match(least, lost[0].split("\t")[1]), lost


def test_what_nobody_knows_is_unknown(builder: Builder, farm_copy: Path) -> None:
    (presets := farm_copy / "presets").unlink()  # a link to the repository's
    presets.mkdir()
    text = (REPOSITORY / "presets" / "qwen3.6-27b-mtp@5090-laptop.toml").read_text()
    text = text[: text.index("[[result]]")] + text[text.index("[[caveat]]") :]
    (presets / "qwen3.6-27b-mtp@5090-laptop.toml").write_text(text)
    done = builder("choose", "--card", "5090", "--model", "27b mtp", "--catalog", farm_copy)
    (row,) = [row for row in done.stdout.splitlines() if row.startswith("qwen3.6-27b-mtp@")]
    assert row.split("\t") == [
        *("qwen3.6-27b-mtp@5090-laptop", "unknown", "unknown", "", *["unknown"] * 4),
        *("no thinking", "llama-cpp-b9261", "580 or newer", "llama-cpp:b9261"),
    ]


def test_a_card_without_a_file_is_given_by_its_memory_and_capability(builder: Builder) -> None:
    done = builder("choose", "--memory", "12G", "--capability", "12.0")
    assert done.returncode == 0, done.stderr
    assert "a card without a file (12.0), 12 GB (11.3 GiB usable)" in done.stdout
    assert "\ngemma-4-e2b-mtp@5090-laptop\t" in done.stdout.partition("Does not run")[0]
    assert "here are 11.3 GiB" in done.stdout
    older = builder("choose", "--memory", "24GB", "--capability", "8.6")
    assert older.returncode == 15
    assert "no code for compute capability 8.6" in older.stdout


def test_one_preset_of_each_model_is_recommended(builder: Builder) -> None:
    done = builder("choose", "--card", "5090-laptop")
    best, _, others = done.stdout.partition("\nMore presets of these models\n")
    rows = [line.split("\t")[0] for line in best.splitlines()[3:] if line]
    models = [row.partition("-mtp")[0].partition("-dflash")[0] for row in rows]
    assert len({*models}) == len(models) > 3, done.stdout
    assert "qwen3.6-27b-dflash@5090-laptop" in rows
    assert "\nqwen3.6-27b-mtp@5090-laptop\t" in others
    assert f"Start one: `builder run {rows[0]}`" in others
    # A problem of a preset that is not recommended is shown by `show`.
    assert "Known problems of qwen3.6-27b-dflash@" in others
    assert "Known problems of qwen3.6-27b-mtp@" not in others


def test_a_computed_speed_stands_beside_a_figure_of_another_card_alone(builder: Builder) -> None:
    done = builder("choose", "--card", "5090-laptop", "--model", "gemma 4 e2b")
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("gemma-4-e2b-mtp@")]
    assert row.split("\t")[1:4] == ["206.56", "published on such cards", ""]
    done = builder("choose", "--card", "5090", "--model", "gemma 4 e2b", "--json")
    (found,) = json.loads(done.stdout)["fits"]
    low, high = found["computed"]["interval"]
    assert 206.56 < low < found["computed"]["tokens_per_second"] < high
    assert found["tokens_per_second"] == 206.56


def test_choose_as_json(builder: Builder) -> None:
    done = builder(
        "choose", "--card", "5090", "--model", "35b-a3b mtp", "--context", "64K", "--json"
    )
    found = json.loads(done.stdout)
    assert found["cards"][0]["capability"] == "12.0"
    assert found["recommended"] == ["qwen3.6-35b-a3b-mtp@5090-laptop"]
    best = next(each for each in found["fits"] if each["recommended"])
    assert (best["image"], best["context"]) == ("llama-cpp:b9261", 65536)
    assert best["tokens_per_second"] == 252.64
    # Its trials in trials/ are of 262144 and 8192 tokens.
    assert best["memory"]["by"] == "trial"
    assert 18 << 30 < best["memory"]["size"] < 19 << 30


def test_a_least_context_is_in_units_of_1024(builder: Builder) -> None:
    words = ("choose", "--card", "5090-laptop", "--context")
    tokens = {each["context"] for each in _fitting(builder(*words, "32000", "--json"))}
    assert 32000 in tokens
    for text, least in (("32K", 32768), ("65K", 65536), ("262K", 262144)):
        found = _fitting(builder(*words, text, "--json"))
        assert min(each["context"] for each in found) >= least
        assert found == _fitting(builder(*words, str(least), "--json"))


def _fitting(done: CompletedProcess[str]) -> list[dict[str, Any]]:
    return list(json.loads(done.stdout)["fits"])


def test_a_receipt_decides_and_is_attributed(builder: Builder, farm_copy: Path) -> None:
    folder = farm_copy / "receipts"
    folder.mkdir()
    (folder / "c.json").write_text("{}")
    words = ("choose", "--card", "5090", "--model", "27b", "--catalog", farm_copy)
    before = builder(*words)
    assert "1 receipt left out as invalid: `builder receipts`" in before.stderr
    name = "qwen3.6-27b-dflash@5090-laptop"
    assert "measured on such cards" not in before.stdout
    preset = load(RECIPES).preset(name).preset
    runs = receipts.measured(receipts.run(900.0, 1), receipts.run(910.0, 2))
    (folder / "c.json").write_text(json.dumps(receipts.of_dflash(preset, measured=[runs])))
    done = builder(*words)
    first = done.stdout.splitlines()[3].split("\t")
    assert first[:3] == [name, "905 at 32768", "measured on such cards, by @me"], done.stdout
    told = json.loads(builder(*words, "--json").stdout)["fits"][0]
    assert (told["measured"]["receipt"], told["measured"]["runs"]) == ("c", 2)


def test_nothing_that_runs_is_an_error(builder: Builder) -> None:
    done = builder("choose", "--card", "3090")
    assert done.returncode == 15
    assert "no preset runs on NVIDIA GeForce RTX 3090" in done.stderr
    assert "no code for compute capability 8.6" in done.stdout
    assert "add the card's architecture to `arch` in [cuda] of a recipe" in done.stderr
    new = builder("choose", "--card", "5090", "--driver", "580.65.06", "--model", "nemotron")
    assert "(vllm-project/vllm#40082)" in new.stdout  # the thread of a caveat
    old = builder("choose", "--card", "5090", "--driver", "550.1", "--model", "gemma e2b")
    assert (old.returncode, "install a newer driver" in old.stderr) == (15, True), old.stderr


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--card", "5091"), 2, "no card is named 5091; did you mean 5090?"),
        (("--card", "5090", "--model", "llama 4"), 3, "no preset is of a model llama 4"),
        (("--card", "5090", "--context", "much"), 2, "such as 8192 or 32K"),
        (("--card", "5090", "--driver", "new"), 2, "such as 580.65.06"),
        (("--memory", "12G"), 2, "give --memory and --capability together, and no --card"),
        (("--capability", "12.0"), 2, "give --memory and --capability together"),
        (("--memory", "12G", "--capability", "12.0", "--card", "5090"), 2, "and no --card"),
        (("--memory", "12", "--capability", "12.0"), 2, "such as 12G or 12288M"),
        (("--memory", "12G", "--capability", "120"), 2, "is no compute capability"),
    ],
)
def test_a_mistake_is_named(
    builder: Builder, words: tuple[str, ...], status: int, message: str
) -> None:
    done = builder("choose", *words)
    assert done.returncode == status
    assert message in " ".join(done.stderr.replace("│", " ").split())
