"""The server's numbers with models: the first wrong layer, drafts, a block that is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from builder.build.compare import servers_compared
from builder.checks import logit_test
from builder.checks.kernel_test import CaseResult
from builder.checks.logit_test import Drafting, ModelNumbers, ModelTrial, Numbers
from builder.checks.simulated import SimulatedServer
from builder.checks.verdict import Check, CheckState
from builder.docker import engine
from builder.docker.containers import blobs_of
from builder.image import contents as reading
from builder.image.contents import ReadOptions
from builder.presets import cards
from builder.presets.made_models import TinyModel
from builder.recipes.probes import Serve
from simulator.selection import Capability
from support.environment import REPOSITORY, SHARED_CACHE
from support.smoke_tests import SmokeTest

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

Checked = Callable[..., dict[str, Check]]
DOCKERFILE = """
FROM {devel}
COPY --from=servers layers.py /layers.py
USER 10001:10001
ENTRYPOINT ["python3", "/layers.py"]
"""
LLAMA = ModelTrial(TinyModel("llama", "Q8_0", 27), 0.2)
BLOCK, DFLASH = (
    Drafting("draft-mtp"),
    Drafting("draft-dflash", TinyModel("dflash", "Q8_0", 5, "qwen35")),
)
QWEN = ModelTrial(TinyModel("qwen35", "Q8_0", 5), 0.2, (BLOCK, DFLASH))
OF_TEXT = ModelTrial(LLAMA.model, LLAMA.limit, (Drafting("ngram-simple", of_text=True),))

HELP = "--spec-type none,draft-mtp,draft-dflash,ngram-simple,draft-new  ways to draft"


@pytest.fixture
def numbers(devel: str, made: set[str], tmp_path: Path) -> Callable[[str], Numbers]:
    """What tries the small server with a fault."""
    source = f"--build-context=servers={REPOSITORY / 'tests/data/servers'}"
    image = SmokeTest(tmp_path, made).build(DOCKERFILE.format(devel=devel), source)
    found = engine.image(image)
    assert found is not None
    work = tmp_path / "layers"
    work.mkdir()
    options = ReadOptions(card=Capability(12, 0))
    contents = reading.read_contents(
        blobs_of(image, work, found.digest), work, options, SHARED_CACHE
    )
    ptx = tmp_path / "ptx"
    ptx.mkdir(0o755)

    def of(fault: str) -> Numbers:
        serve = Serve(
            api_flavor="llama-server",
            arguments=["-m", "{model}", "-c", "{context}"],
            draft=["-md", "{draft}"],
            env={"FAULT": fault},
        )
        server = SimulatedServer(image, contents, serve, 8080, devel, SHARED_CACHE, print)
        return Numbers(server, cards.load(REPOSITORY, "5090"), ptx, HELP)

    return of


@pytest.fixture
def checked(numbers: Callable[[str], Numbers], tmp_path: Path) -> Checked:
    """The checks of a model's numbers by subject, with a server that has a fault."""

    def run(trial: ModelTrial, fault: str = "") -> dict[str, Check]:
        folder = tmp_path / "numbers"
        folder.mkdir(0o755)
        found = ModelNumbers(numbers(fault), trial, folder, set()).checks()
        return {check.subject: check for check in found}

    return run


def test_the_first_layer_that_makes_the_numbers_differ_is_named(checked: Checked) -> None:
    check = checked(LLAMA, "layer")["llama Q8_0: card and CPU"]
    assert check.state is CheckState.FAILED
    assert check.found.endswith("; from layer 2 of 2 on; no race was found for the prompt alone")


def test_drafts_change_no_text(checked: Checked) -> None:
    checks = checked(QWEN)
    assert {check.state for check in checks.values()} == {CheckState.PASSED}
    for kind in ("draft-mtp", "draft-dflash"):
        found = checks[f"qwen35 Q8_0: drafts by {kind}"].found
        assert "16 of 16 tokens are equal" in found
        assert found.endswith("; 3 of 6 drafts accepted")


def test_a_draft_that_changes_the_text_is_found(checked: Checked) -> None:
    checks = checked(QWEN, "drafts")
    check = checks["qwen35 Q8_0: drafts by draft-mtp"]
    assert check.state is CheckState.FAILED
    assert "6 of 16 tokens are equal" in check.found
    assert checks["qwen35 Q8_0: card and CPU"].passed


@pytest.mark.parametrize(("fault", "state"), [("", "passed"), ("drafts", "failed")])
def test_drafts_of_the_text_itself_are_compared_on_the_cpu(
    checked: Checked, fault: str, state: str, tmp_path: Path
) -> None:
    check = checked(OF_TEXT, fault)["llama Q8_0: drafts by ngram-simple"]
    assert check.state == state
    assert f"{6 if fault else 96} of 96 tokens are equal" in check.found
    assert not (tmp_path / "numbers" / "ngram-simple").exists(), "no card was made"


def test_ways_to_draft_that_nothing_compared_are_named(
    numbers: Callable[[str], Numbers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logit_test, "TRIALS", (QWEN,))
    *_, last = numbers("drafter").checks(tmp_path)
    assert (last.subject, last.state) == ("the server's drafts", CheckState.SKIPPED)
    assert last.found == "not compared: draft-dflash, draft-new, ngram-simple"


def test_a_drafter_of_an_unknown_architecture_is_skipped(checked: Checked) -> None:
    checks = checked(QWEN, "drafter")
    check = checks["qwen35 Q8_0: drafts by draft-dflash"]
    assert check.state is CheckState.SKIPPED
    assert check.found == "the engine does not know the architecture of dflash"
    assert checks["qwen35 Q8_0: drafts by draft-mtp"].passed


def test_a_model_that_is_refused_with_its_block_is_tried_without(checked: Checked) -> None:
    checks = checked(QWEN, "block")
    refused = checks.pop("qwen35 Q8_0")
    assert refused.state is CheckState.SKIPPED
    assert "error: wrong number of tensors" in refused.found
    without = "qwen35 Q8_0 without its block"
    assert checks[f"{without}: card and CPU"].passed
    # The block cannot draft; a model of its own can.
    assert f"{without}: drafts by draft-mtp" not in checks
    assert checks[f"{without}: drafts by draft-dflash"].passed


def test_two_servers_part_at_the_launch_that_stores_other_bytes(
    numbers: Callable[[str], Numbers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logit_test, "TRIALS", (LLAMA, QWEN))
    right, wrong, refusing = (
        replace(numbers(fault), outputs=True) for fault in ("", "layer", "block")
    )
    folders = [tmp_path / name for name in ("wrong", "refusing")]
    for folder in folders:
        folder.mkdir(0o755)
    found = [*servers_compared(right, wrong, folders[0])]
    assert [each.name for each in found] == ["server(llama Q8_0)", "server(qwen35 Q8_0)"]
    for each in found:
        assert "first beyond the limit at token 1" in why(each.after)
        assert each.launch == "launch 2, add, stores other bytes"
    same, refused = servers_compared(right, refusing, folders[1])
    assert same.before == same.after
    assert why(refused.before) == ""
    assert "error: wrong number of tensors" in why(refused.after)


def why(result: CaseResult | None) -> str:
    assert result is not None
    return result.why
