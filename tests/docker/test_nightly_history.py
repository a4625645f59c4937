"""The history of nightly runs in a registry, also where it is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import rmtree

import pytest

from builder.core.errors import RegistryError
from builder.image.code_paths import KernelSummary, LibrarySummary, SpillingKernel
from builder.publish import nights, verdicts
from builder.publish.registry import Repository
from support.nights import night
from support.registries import put_image

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("own_cache")]


@pytest.mark.parametrize(
    "damage",
    [
        b"no JSON",
        b'{"a": 1}',
        b'[{"recipe": "x-1"}]',
        b'[{"recipe": "x", "channel": "c", "outcome": "moved", "started": null, "seconds": 1}]',
        b"[" + b" " * nights.LARGEST + b"]",
    ],
    ids=["no JSON", "no list", "no night", "null", "large"],
)
def test_a_damaged_history_is_reported_and_started_anew(
    repository: Repository, damage: bytes
) -> None:
    assert nights.nightly_runs(repository, "nightly") == []
    nights.write(repository, night(reason="one"))
    nights.write(repository, night(reason="two"))
    assert [each.reason for each in nights.nightly_runs(repository, "nightly")] == ["two", "one"]
    file = verdicts.AttachedFile("nights.json", nights.NIGHTLY_RUNS, damage)
    verdicts.store(repository, "nightly.nights", nights.NIGHTLY_RUNS, [file])
    with pytest.raises(RegistryError, match=r"nightly\.nights cannot be read"):
        nights.nightly_runs(repository, "nightly")
    nights.write(repository, night(reason="three"))
    assert [each.reason for each in nights.nightly_runs(repository, "nightly")] == ["three"]


@pytest.mark.parametrize("gone", [False, True], ids=["without a file", "whose file is gone"])
def test_an_empty_history_is_started_anew(
    repository: Repository, tmp_path: Path, *, gone: bool
) -> None:
    if gone:
        nights.write(repository, night(reason="one"))
        kept = repository.manifest("nightly.nights")
        assert kept is not None
        (link,) = tmp_path.rglob(f"_layers/sha256/{(kept.body.layers or [])[0].digest[7:]}")
        rmtree(link)
    else:
        verdicts.store(repository, "nightly.nights", nights.NIGHTLY_RUNS, [])
    later = Repository(repository.name, print)
    with pytest.raises(RegistryError, match=r"nightly\.nights cannot be read"):
        nights.nightly_runs(later, "nightly")
    nights.write(later, night(reason="two"))
    assert [each.reason for each in nights.nightly_runs(later, "nightly")] == ["two"]


def test_a_history_names_no_directory_of_this_machine(repository: Repository) -> None:
    nights.write(repository, night(reason="see /root/.cache/builder/logs/x-1.log"))
    assert [each.reason for each in nights.nightly_runs(repository, "nightly")] == [
        "see .../x-1.log"
    ]


def test_a_history_may_come_from_a_later_builder(repository: Repository) -> None:
    for number in range(3):
        nights.write(repository, night(reason=str(number)))
    known = [{**each.model_dump(), "new": 1} for each in nights.nightly_runs(repository, "nightly")]
    file = verdicts.AttachedFile("nights.json", nights.NIGHTLY_RUNS, json.dumps(known).encode())
    verdicts.store(repository, "nightly.nights", nights.NIGHTLY_RUNS, [file])
    assert len(nights.nightly_runs(repository, "nightly")) == 3  # of a later builder
    put_image(repository, "k", "nightly.nights")
    with pytest.raises(RegistryError, match="cannot be read"):
        nights.nightly_runs(repository, "nightly")


def summary_of(spills: int) -> KernelSummary:
    worst = (SpillingKernel("attention<128>", 255, spills, spills),) if spills else ()
    library = LibrarySummary("libggml-cuda.so", ("sm_120a",), 7, 900, spills, len(worst), worst)
    return KernelSummary("12.0", (library,))


def test_a_night_whose_kernels_spill_more_than_those_of_the_last_good_one_says_so(
    repository: Repository,
) -> None:
    first = nights.compared(repository, night(kernels=summary_of(64)))
    assert first.reason == ""
    for known in (
        first,
        night(outcome="failed", reason="no", kernels=summary_of(9000)),
        night(outcome="unchanged"),
    ):
        nights.write(repository, known)
    worse = nights.compared(repository, night(kernels=summary_of(1064), reason="clean-up"))
    assert worse.reason == (
        "clean-up\nmore spills: libggml-cuda.so: 1 of 7 kernels spill 1,064 bytes, before 1 of 7 "
        "kernels spill 64 bytes; attention<128>: 64 -> 1,064 bytes"
    )
    assert worse.good
    nights.write(repository, worse)
    assert nights.nightly_runs(repository, "nightly")[0].kernels == summary_of(1064)
    for run in (
        night(kernels=summary_of(1064)),
        night(kernels=summary_of(0)),
        night(),
        night(outcome="unchanged", kernels=summary_of(2000)),
    ):
        assert nights.compared(repository, run) == run


def test_nights_without_readable_predecessors_are_not_compared(repository: Repository) -> None:
    file = verdicts.AttachedFile("nights.json", nights.NIGHTLY_RUNS, b"no JSON")
    verdicts.store(repository, "nightly.nights", nights.NIGHTLY_RUNS, [file])
    run = night(kernels=summary_of(8))
    assert nights.compared(repository, run) == run
