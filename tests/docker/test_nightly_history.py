"""The history of nightly runs in a registry, also where it is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import rmtree

import pytest

from builder.errors import RegistryError
from builder.nightly import history
from builder.publish import referrers
from builder.tools.registry.client import Repository
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
        b"[" + b" " * history.LARGEST + b"]",
    ],
    ids=["no JSON", "no list", "no night", "null", "large"],
)
def test_a_damaged_history_is_reported_and_started_anew(
    repository: Repository, damage: bytes
) -> None:
    assert history.nightly_runs(repository, "nightly") == []
    history.write(repository, night(reason="one"))
    history.write(repository, night(reason="two"))
    assert [each.reason for each in history.nightly_runs(repository, "nightly")] == ["two", "one"]
    file = referrers.File("nights.json", history.NIGHTLY_RUNS, damage)
    referrers.store(repository, "nightly.nights", history.NIGHTLY_RUNS, [file])
    with pytest.raises(RegistryError, match=r"nightly\.nights cannot be read"):
        history.nightly_runs(repository, "nightly")
    history.write(repository, night(reason="three"))
    assert [each.reason for each in history.nightly_runs(repository, "nightly")] == ["three"]


@pytest.mark.parametrize("gone", [False, True], ids=["without a file", "whose file is gone"])
def test_an_empty_history_is_started_anew(
    repository: Repository, tmp_path: Path, *, gone: bool
) -> None:
    if gone:
        history.write(repository, night(reason="one"))
        kept = repository.manifest("nightly.nights")
        assert kept is not None
        (link,) = tmp_path.rglob(f"_layers/sha256/{(kept.body.layers or [])[0].digest[7:]}")
        rmtree(link)
    else:
        referrers.store(repository, "nightly.nights", history.NIGHTLY_RUNS, [])
    later = Repository(repository.name, print)
    with pytest.raises(RegistryError, match=r"nightly\.nights cannot be read"):
        history.nightly_runs(later, "nightly")
    history.write(later, night(reason="two"))
    assert [each.reason for each in history.nightly_runs(later, "nightly")] == ["two"]


def test_a_history_names_no_directory_of_this_machine(repository: Repository) -> None:
    history.write(repository, night(reason="see /root/.cache/builder/logs/x-1.log"))
    assert [each.reason for each in history.nightly_runs(repository, "nightly")] == [
        "see .../x-1.log"
    ]


def test_a_history_may_come_from_a_later_builder(repository: Repository) -> None:
    for number in range(3):
        history.write(repository, night(reason=str(number)))
    known = [
        {**each.model_dump(), "new": 1} for each in history.nightly_runs(repository, "nightly")
    ]
    file = referrers.File("nights.json", history.NIGHTLY_RUNS, json.dumps(known).encode())
    referrers.store(repository, "nightly.nights", history.NIGHTLY_RUNS, [file])
    assert len(history.nightly_runs(repository, "nightly")) == 3  # of a later builder
    put_image(repository, "k", "nightly.nights")
    with pytest.raises(RegistryError, match="cannot be read"):
        history.nightly_runs(repository, "nightly")
