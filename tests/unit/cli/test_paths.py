"""``builder paths``: the paths of the records, and what two engines do otherwise."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from builder.build import record, reports
from builder.build.record import Record
from builder.checks.simulated import why_never
from builder.checks.verdict import Check, DeviceUse
from builder.engines.families import load_catalog
from simulator.work import WorkPath
from support.bills import of_catalog, record_of
from support.commands import Builder
from support.environment import REPOSITORY

NAMES = ("llama-cpp-b9261", "llama-cpp-b9397")
OLD = (WorkPath("attention", "vec", 4), WorkPath("products", "MMQ", 1000))
NEW = (WorkPath("attention", "mma", 4, compiled=True), WorkPath("products", "MMQ", 900))


def started(name: str, paths: tuple[WorkPath, ...], stated: str = "") -> Record:
    found = record_of(of_catalog(name))
    use = DeviceUse("a card", 9, 8, 1, {}, {"kernel": 3}, {}, {}, 0, paths, stated)
    checks = (Check.of("image", "its layers", "can be read", "yes", True),)
    verdict = replace(found.verdict, device=use, checks=checks)
    return found.model_copy(update={"verdict": verdict})


def keep(state: Path, name: str, paths: tuple[WorkPath, ...], stated: str = "") -> None:
    record.write(state, started(name, paths, stated))


def test_the_paths_of_an_engine(builder: Builder, farm_copy: Path, tmp_path: Path) -> None:
    keep(tmp_path / "state", NAMES[0], OLD, "FLASH_ATTN")
    done = builder("paths", NAMES[0], "--catalog", farm_copy)
    assert done.stdout.splitlines() == [
        f"{NAMES[0]}: FLASH_ATTN",
        "model\twork\tpath\tlaunches",
        "the smoke test's model\tattention\tvec\t4",
        "the smoke test's model\tproducts\tMMQ\t1,000",
    ]
    (found,) = json.loads(builder("paths", NAMES[0], "--catalog", farm_copy, "--json").stdout)
    assert found["by_model"]["the smoke test's model"][0]["path"] == "vec"


def test_what_another_engine_does_otherwise(
    builder: Builder, farm_copy: Path, tmp_path: Path
) -> None:
    keep(tmp_path / "state", NAMES[0], OLD)
    keep(tmp_path / "state", NAMES[1], NEW)
    assert builder("paths", *NAMES, "--catalog", farm_copy).stdout.splitlines() == [
        "\t".join(("model", "work", *NAMES)),
        "the smoke test's model\tattention\tvec\tmma, compiled by the driver",
    ]


def test_an_engine_that_was_not_started(builder: Builder, farm_copy: Path, tmp_path: Path) -> None:
    keep(tmp_path / "state", NAMES[0], ())
    done = builder("paths", NAMES[0], "--catalog", farm_copy)
    assert done.returncode == 4
    assert f"the paths of {NAMES[0]} are not known" in done.stderr
    assert "launched no kernel that simulator/work.toml has" in " ".join(done.stderr.split())


def test_another_machine_reads_what_the_repository_keeps(
    builder: Builder, farm_copy: Path, tmp_path: Path
) -> None:
    reports.write_trials(farm_copy, started(NAMES[0], OLD, "FLASH_ATTN"))
    done = builder("paths", NAMES[0], "--catalog", farm_copy)
    assert done.stdout.splitlines() == [
        f"{NAMES[0]}: FLASH_ATTN",
        "model\twork\tpath\tlaunches",
        "the smoke test's model\tattention\tvec\t4",
        "the smoke test's model\tproducts\tMMQ\t1,000",
    ]
    assert f"{NAMES[0]}: from trials/" in done.stderr
    # An image that was never started here says nothing about its paths.
    unstarted = started(NAMES[0], ())
    verdict = replace(unstarted.verdict, device=None)
    record.write(tmp_path / "state", unstarted.model_copy(update={"verdict": verdict}))
    (found,) = json.loads(builder("paths", NAMES[0], "--catalog", farm_copy, "--json").stdout)
    assert (found["kept"], found["stated"]) == (True, "FLASH_ATTN")
    # This machine's own image comes first, also where its server took other paths.
    keep(tmp_path / "state", NAMES[0], NEW)
    done = builder("paths", NAMES[0], "--catalog", farm_copy)
    assert "attention\tmma, compiled by the driver" in done.stdout
    assert "FLASH_ATTN" not in done.stdout
    assert "trials/" not in done.stderr
    # Two recipes without a difference say so.
    reports.write_trials(farm_copy, started(NAMES[1], NEW))
    done = builder("paths", *NAMES, "--catalog", farm_copy)
    assert (done.returncode, done.stdout) == (0, "")
    assert "no path differs" in done.stderr


@pytest.mark.parametrize(
    ("name", "why", "instead"),
    [
        (
            "vllm-0.20.2",
            "its server is never started on a simulated card: the image extends another one",
            "`builder paths vllm-0.20.2-wheel` and `builder paths vllm-0.33.0-wheel`: other images",
        ),
        (
            "hami-core-pr188",
            "the recipe does not say how its server starts ([serve])",
            "on a GPU, the log of the engine",
        ),
    ],
)
def test_a_server_that_cannot_be_started_is_not_to_be_checked(
    builder: Builder, name: str, why: str, instead: str
) -> None:
    done = builder("paths", name)
    assert done.returncode == 4
    said = " ".join(done.stderr.split())
    assert why in said
    assert instead in said
    assert "smoke" not in said


def test_the_examples_of_the_page_work_on_a_machine_without_records(builder: Builder) -> None:
    page = (REPOSITORY / "docs" / "checks.md").read_text()
    examples = re.findall(r"^\$ \./farm (paths .*)$", page, re.MULTILINE)
    assert len(examples) == 3
    for example in examples[:2]:
        done = builder(*example.split())
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) > 1, example


def test_a_model_is_started_on_a_card(builder: Builder) -> None:
    for half in (("--model", "m.gguf"), ("--card", "5090")):
        done = builder("paths", NAMES[0], *half)
        assert done.returncode == 2
        assert "--model and --card go together" in done.stderr


def test_one_platform_with_a_simulated_card_is_enough() -> None:
    found = load_catalog(REPOSITORY)
    both = found.engine("llama-cpp-b9831").recipe
    assert both.platform == ["linux/amd64", "linux/arm64"]
    assert why_never(found, both) == ""
    only = both.model_copy(update={"platform": ["linux/arm64"]})
    assert why_never(found, only) == "there are simulated cards for linux/amd64 only"
