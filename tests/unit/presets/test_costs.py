"""What the question of `run` says: how long a build takes, and how much is downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.build import record
from builder.build.record import Record
from builder.core.settings import Settings
from builder.presets.models import Fetch, Missing, on_the_hub
from builder.presets.run import build_time
from builder.presets.schema import ModelFile
from support.shipped import RECIPES
from support.verdicts import GOOD, verdict


def took(state: Path, recipe: str, stages: dict[str, float]) -> None:
    """Keep a record of an image of the recipe."""
    digest = "sha256:" + "0" * 64
    kept = Record(
        recipe=recipe,
        key="0" * 64,
        contract="0" * 64,
        references=(),
        digest=digest,
        verdict=verdict(GOOD),
        created="2026-11-20T03:10:00+00:00",
        seconds=stages,
    )
    record.write(state, kept)


def said(state: Path, name: str, jobs: int = 2) -> str:
    settings = Settings(state_dir=state, jobs=jobs)
    return build_time(RECIPES, RECIPES.engine(name).recipe, settings)


def test_the_last_build_says_how_long_the_next_one_takes(tmp_path: Path) -> None:
    took(tmp_path, "hello-sm120-0.1.0", {"plan": 1, "build hello-sm120-0.1.0": 125})
    assert said(tmp_path, "hello-sm120-0.1.0") == "which took 2 min 5 s last time"
    # An image that was checked and not built here has no duration.
    took(tmp_path, "beellama-0.1.1", {"smoke": 9})
    assert "last time" not in said(tmp_path, "beellama-0.1.1")


@pytest.mark.parametrize(
    ("name", "jobs", "text"),
    [
        ("hello-sm120-0.1.0", 2, "which takes about 2 min on 2 cores: 9 compile steps"),
        ("hello-sm120-0.1.0", 1, "which takes about 2 min on one core: 9 compile steps"),
        # 29 minutes were measured: studies/measurements.md
        ("beellama-0.1.1", 2, "which takes about 30 min on 2 cores: 464 compile steps"),
        ("beellama-0.1.1", 16, "which takes about 5 min on 16 cores: 464 compile steps"),
        ("llama-cpp-python-0.3.36", 2, "which takes about 22 min on 2 cores: 339 compile steps"),
        ("buun-b9304", 2, "which takes about 30 min on 2 cores: as similar recipes"),
        ("vllm-0.22.0", 2, "which compiles nothing"),
        ("lucebox-f12a87c", 2, "which compiles for a time that is not known"),
    ],
)
def test_the_first_build_is_estimated_by_its_compile_steps(
    tmp_path: Path, name: str, jobs: int, text: str
) -> None:
    assert said(tmp_path, name, jobs) == text


def test_a_download_has_its_size_and_its_place(tmp_path: Path) -> None:
    file = ModelFile(repository="me/A-GGUF", file="a.gguf")
    fetch = Fetch(on_the_hub("me/A-GGUF", "a.gguf"), "a.gguf", tmp_path / "a.gguf", 14_500_000_000)
    missing = Missing("model", file, tmp_path, (fetch,))
    assert missing.task == f"download me/A-GGUF:a.gguf: 14.50 GB to {tmp_path}"
