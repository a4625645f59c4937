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

COLUMNS = (
    *("model", "preset", "quantization", "context", "memory", "download", "tokens/s", "source"),
    *("command", "why"),
)


def rows(done: CompletedProcess[str]) -> list[dict[str, str]]:
    """The table of a pipe; nothing else is on standard output."""
    header, *lines = done.stdout.splitlines()
    assert tuple(header.split("\t")) == COLUMNS
    return [
        dict(zip(COLUMNS, [*line.split("\t"), *[""] * len(COLUMNS)], strict=False))
        for line in lines
    ]


@pytest.fixture
def terminal(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> Builder:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    return builder


def test_a_pipe_gets_one_table_and_the_prose_goes_to_standard_error(builder: Builder) -> None:
    done = builder("choose", "--card", "5060-ti-16gb", "--driver", "580.65.06")
    assert done.returncode == 0, done.stderr
    found = {row["model"]: row for row in rows(done)}
    best = found["gemma-4-e2b"]
    assert (best["preset"], best["quantization"]) == ("gemma-4-e2b-mtp@5090-laptop", "Q8_0")
    assert (best["context"], best["memory"], best["source"]) == ("131072", "6 of 15G", "computed")
    assert 60 < float(best["tokens/s"]) < 206  # of this card, not of the laptop's
    assert best["command"].endswith(" run gemma-4-e2b-mtp@5090-laptop")
    assert done.stderr.startswith(
        "NVIDIA GeForce RTX 5060 Ti, 16 GB (15.5 GiB usable), driver 580.65.06\n"
    )
    assert "Start the first:\n  builder run " in done.stderr
    # Each model of the catalog has one row: a preset, a proposal, or why there is none.
    models = {each.preset.model.name.split(" AWQ")[0] for each in load(RECIPES).valid()}
    assert len(found) == len(rows(done)) >= len({name.split(" Hi-Fi")[0] for name in models})
    for row in found.values():
        assert row["preset"] or row["why"]
        assert bool(row["command"]) == (row["why"] in {"", "proposed, not published"})


def test_eighty_columns_are_enough_on_a_terminal(terminal: Builder) -> None:
    for card in ("5090", "5060-ti-16gb", "5060"):
        done = terminal("choose", "--card", card)
        assert done.returncode == 0, done.stderr
        table, _, commands = done.stdout.partition("\nStart the first:\n")
        assert max(map(len, table.splitlines())) <= 80, table
        header = next(line for line in table.splitlines() if line.startswith("builder run"))
        titles = ["quant", "context", "memory", "size", "tokens/s"]
        assert header.split()[2:] == titles
        ends = [header.index(title) + len(title) for title in titles[1:]]
        found = [line for line in table.splitlines() if re.search(r" of \d+G ", line)]
        assert len(found) >= 4
        for line in found:  # right-aligned, and the letter behind the number
            cells = [line[:end].split()[-1] for end in ends]
            assert re.fullmatch(r"\d+K|\d{5}", cells[0]), line
            assert re.fullmatch(r"\d+G", cells[1]), line
            assert re.fullmatch(r"[\d.]+G|\?", cells[2]), line
            assert re.search(r" (~\d+ c\*?|[\d.]+ p|\?\*?)$", line.rstrip()), line
        assert "c computed from its bandwidth" in table
        first = found[0].split()[0]
        assert commands.splitlines()[0] == f"  builder run {first}"
        assert first == "qwen3.6-35b-a3b"  # the largest model that is fast enough to read along
        names = [line.split()[0] for line in found if not line[0].isdigit()]
        assert names[-1] == "gemma-4-e2b"


def test_only_problems_of_the_recommended_presets_on_this_card_are_shown(
    terminal: Builder,
) -> None:
    small, large = (terminal("choose", "--card", card).stdout for card in ("5090-laptop", "5090"))
    assert "UD-Q4_K_XL (22 GB) loads" in small
    assert "UD-Q4_K_XL (22 GB) loads" not in large
    assert "A multimodal projector (--mmproj) does not work together with MTP" in large
    assert large.index("Start the first") < large.index("Known problems of")
    assert "which this image has" not in large + small
    assert "HAMi" not in large + small
    assert "Known problems of qwen3.6-27b-autoround" not in large


def test_all_presets_that_run_and_the_reasons_of_the_others(
    builder: Builder, terminal: Builder
) -> None:
    done = terminal("choose", "--card", "5090", "--all")
    _, _, rest = done.stdout.partition("More presets:")
    assert "qwen3.6-27b-autoround-mtp@5090-laptop " in rest
    assert "\nMore cards needed\n" in rest or "\nImage refused by its checks\n" in rest
    names = {each.name for each in load(RECIPES).valid()}
    found = json.loads(builder("choose", "--card", "5090", "--json").stdout)
    assert {each["preset"] for each in (*found["fits"], *found["excluded"])} == names
    for each in found["excluded"]:
        assert f"  {each['preset']}: " in rest


def test_a_proposal_has_both_commands(terminal: Builder) -> None:
    done = terminal("choose", "--card", "5060", "--context", "200000")
    assert "Proposed, not published:" in done.stdout
    text = done.stdout[done.stdout.index("qwen3.6-35b-a3b, by llama-cpp-") :]
    title, get, run = text.splitlines()[:3]
    assert re.search(r", ~\d+ GiB of host memory:$", title)
    repository, file = get.split()[2:4]
    assert get.startswith("  hf download ")
    assert f"/{repository}/{file} --context 200000 -- --parallel 1 --n-cpu-moe " in run


def test_what_nobody_knows_is_unknown(builder: Builder, farm_copy: Path) -> None:
    (presets := farm_copy / "presets").unlink()  # a link to the repository's
    presets.mkdir()
    text = (REPOSITORY / "presets" / "qwen3.6-27b-mtp@5090-laptop.toml").read_text()
    text = text[: text.index("[[result]]")] + text[text.index("[[caveat]]") :]
    (presets / "qwen3.6-27b-mtp@5090-laptop.toml").write_text(text)
    words = ("choose", "--card", "5090", "--model", "27b mtp", "--catalog", farm_copy)
    row, without = rows(builder(*words, "--all"))
    start = "builder run qwen3.6-27b-mtp@5090-laptop --model FILE"
    assert without["why"].startswith(f"it needs a file of yours: `{start}`; ")
    assert (row["quantization"], row["context"], row["memory"]) == ("", "", "? of 31G")
    assert (row["tokens/s"], row["source"], row["download"]) == ("", "", "")


def test_a_card_without_a_file_is_given_by_its_memory_and_capability(builder: Builder) -> None:
    done = builder("choose", "--memory", "12G", "--capability", "12.0", "--all")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("a card without a file, 12 GB (11.3 GiB usable)\n")
    assert "gemma-4-e2b" in {row["model"] for row in rows(done) if not row["why"]}
    assert "this card has 11.3 GiB" in done.stdout
    assert "--card CARD" in done.stderr
    older = builder("choose", "--memory", "24GB", "--capability", "8.6", "--all")
    assert older.returncode == 15
    assert "no code for compute capability 8.6" in older.stdout


def test_choose_as_json(builder: Builder) -> None:
    done = builder(
        "choose", "--card", "5090", "--model", "35b-a3b mtp", "--context", "64K", "--json"
    )
    found = json.loads(done.stdout)
    assert found["cards"] == [
        {"name": "NVIDIA GeForce RTX 5090", "capability": "12.0", "memory": 33680457728}
    ]
    assert found["recommended"] == ["qwen3.6-35b-a3b-mtp@5090"]  # made for cards of this memory
    assert found["command"].split()[1:] == ["run", "qwen3.6-35b-a3b-mtp@5090"]
    best = next(each for each in found["fits"] if each["preset"].endswith("-laptop"))
    assert best["command"].split()[1:] == [
        *("run", "qwen3.6-35b-a3b-mtp@5090-laptop", "--context", "65536")
    ]
    assert (best["recipe"], best["context"]) == ("llama-cpp-b9261", 65536)
    assert best["figure"]["tokens_per_second"] == 252.64
    low, high = best["computed"]["interval"]
    assert 252.64 < low < best["tokens_per_second"] < high
    assert best["source"] == "computed"
    # Its trials in trials/ are of 262144 and 8192 tokens.
    assert best["memory_by"] == "trial"
    assert 18 << 30 < best["memory"] < 19 << 30
    laptop = builder("choose", "--card", "5090-laptop", "--model", "gemma 4 e2b", "--json")
    (own,) = json.loads(laptop.stdout)["fits"]
    assert (own["tokens_per_second"], own["source"]) == (206.56, "published")


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
    assert "\treceipt\t" not in before.stdout
    preset = load(RECIPES).preset(name).preset
    runs = receipts.measured(receipts.run(900.0, 1), receipts.run(910.0, 2))
    (folder / "c.json").write_text(json.dumps(receipts.of_dflash(preset, measured=[runs])))
    first = rows(builder(*words))[0]
    assert (first["preset"], first["tokens/s"], first["source"]) == (name, "905.0", "receipt")
    told = json.loads(builder(*words, "--json").stdout)["fits"][0]
    assert (told["figure"]["receipt"], told["figure"]["runs"]) == ("c", 2)


def test_nothing_that_runs_is_an_error(builder: Builder) -> None:
    done = builder("choose", "--card", "3090", "--all")
    assert done.returncode == 15
    assert "no preset runs on NVIDIA GeForce RTX 3090" in done.stderr
    assert "no code for compute capability 8.6" in done.stdout
    assert "add the card's architecture to `arch` in [cuda] of a recipe" in done.stderr
    old = builder("choose", "--card", "5090", "--driver", "550.1", "--model", "gemma e2b")
    assert (old.returncode, "install a newer driver" in old.stderr) == (15, True), old.stderr


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--card", "5091"), 2, "no card is named 5091; did you mean 5090?"),
        (("--card", "5090", "--model", "llama3"), 2, "the models: Gemma 4 26B-A4B, Gemma 4 E2B"),
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
