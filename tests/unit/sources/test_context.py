"""The Dockerfile that is built keeps PTX; the one in the plan, and so the key, does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.platforms import Platforms
from builder.plan.plan import instructions, lints
from builder.sources import gather
from support.catalogs import rendered
from support.environment import REPOSITORY

WITH_NVCC = ("hello-sm120-0.1.0", "llama-cpp-b9831", "llama-cpp-python-0.3.36", "lucebox-f12a87c")
WITHOUT = ("hami-core-pr188", "vllm-0.20.2", "vllm-0.20.2-wheel")


@pytest.mark.parametrize("name", WITH_NVCC)
def test_each_step_that_compiles_has_the_wrapper(name: str, tmp_path: Path) -> None:
    plan = rendered(REPOSITORY, name)
    text, contexts = gather.keeping_ptx(plan, tmp_path)
    assert [*lints(text)] == []
    before, after = instructions(plan.text), instructions(text)
    added = [rest for keyword, rest in after if keyword == "FROM" and rest.endswith(" AS toolkit")]
    assert len(after) == len(before) + len(added) == len(before) + 1
    changed = {*after} - {*before}
    compiles = [rest for _, rest in before if '"/inside/jobs"' in rest]
    assert compiles
    without = {rest.replace(gather.MOUNTS, "").replace('"/counted", ', "") for _, rest in changed}
    assert without == {*added, *compiles}
    for script in gather.SCRIPTS:
        assert Path(contexts[gather.WRAPPERS], script).stat().st_mode & 0o111


@pytest.mark.parametrize("name", WITHOUT)
def test_without_nvcc_the_dockerfile_stays(name: str, tmp_path: Path) -> None:
    plan = rendered(REPOSITORY, name)
    assert gather.keeping_ptx(plan, tmp_path) == (plan.text, {})


def test_a_cross_build_takes_the_toolkit_of_the_machine_that_compiles(tmp_path: Path) -> None:
    arm64 = rendered(REPOSITORY, "hello-sm120-0.1.0", Platforms("arm64", "amd64"))
    text, _ = gather.keeping_ptx(arm64, tmp_path)
    [toolkit] = [rest for _, rest in instructions(text) if rest.endswith(" AS toolkit")]
    assert toolkit.startswith("--platform=linux/arm64 base-devel")
