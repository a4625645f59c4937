"""``builder paths``: the paths of the records, and what two engines do otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from builder.kernels.work import WorkPath
from builder.records import record
from builder.smoke.verdict import Check, DeviceUse
from support.bills import of_catalog, record_of
from support.commands import Builder

NAMES = ("llama-cpp-b9261", "llama-cpp-b9397")
OLD = (WorkPath("attention", "vec", 4), WorkPath("products", "MMQ", 1000))
NEW = (WorkPath("attention", "mma", 4, compiled=True), WorkPath("products", "MMQ", 900))


def keep(state: Path, name: str, paths: tuple[WorkPath, ...], stated: str = "") -> None:
    found = record_of(of_catalog(name))
    use = DeviceUse("a card", 9, 8, 1, {}, {"kernel": 3}, {}, {}, 0, paths, stated)
    checks = (Check.of("image", "its layers", "can be read", "yes", True),)
    verdict = replace(found.verdict, device=use, checks=checks)
    record.write(state, found.model_copy(update={"verdict": verdict}))


def test_the_paths_of_an_engine(builder: Builder, tmp_path: Path) -> None:
    keep(tmp_path / "state", NAMES[0], OLD, "FLASH_ATTN")
    done = builder("paths", NAMES[0])
    assert done.stdout.splitlines() == [
        f"{NAMES[0]}: FLASH_ATTN",
        "model\twork\tpath\tlaunches",
        "the smoke test's model\tattention\tvec\t4",
        "the smoke test's model\tproducts\tMMQ\t1,000",
    ]
    (found,) = json.loads(builder("paths", NAMES[0], "--json").stdout)
    assert found["by_model"]["the smoke test's model"][0]["path"] == "vec"


def test_what_another_engine_does_otherwise(builder: Builder, tmp_path: Path) -> None:
    keep(tmp_path / "state", NAMES[0], OLD)
    keep(tmp_path / "state", NAMES[1], NEW)
    assert builder("paths", *NAMES).stdout.splitlines() == [
        "\t".join(("model", "work", *NAMES)),
        "the smoke test's model\tattention\tvec\tmma, compiled by the driver",
    ]


def test_an_engine_that_was_not_started(builder: Builder, tmp_path: Path) -> None:
    keep(tmp_path / "state", NAMES[0], ())
    done = builder("paths", NAMES[0])
    assert done.returncode == 4
    assert f"the paths of {NAMES[0]} are not known" in done.stderr
    assert "launched no kernel that builder/kernels/work.toml has" in " ".join(done.stderr.split())
