"""Pruning while tags move, and after a run that was stopped."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from builder.publish import prune as pruning
from builder.publish.registry import Repository
from builder.publish.verdicts import referrers
from support.commands import ForkServer
from support.prunes import (
    BELONGS,
    PATH,
    Prune,
    attached_tag,
    decide,
    dressed,
    going,
    image,
    index,
    nightly,
    unheard,
    wait_for,
    worn,
)
from support.registries import Fault, proxied

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("own_cache")]


def test_tags_are_looked_at_again_before_each_deletion(repository: Repository) -> None:
    made = [image(repository, nightly(day), day=day) for day in range(1, 6)]
    repository.put_manifest("nightly", made[4])
    plan = decide(repository, 1)
    assert going(plan) == {nightly(day) for day in range(1, 5)}
    repository.put_manifest("nightly", made[1])
    repository.put_manifest("fresh", made[2])
    heard: list[str] = []
    gone = pruning.delete(repository, plan, heard.append)
    assert gone == (nightly(1), nightly(4))
    assert f"{nightly(2)} stays: nightly points to it now" in heard
    assert f"{nightly(3)} stays: fresh points to it now" in heard
    for kept in made[1:3]:
        assert repository.manifest(kept.digest) is not None


def test_a_channel_that_moves_between_two_deletions(registry: str, repository: Repository) -> None:
    made = [dressed(repository, image(repository, nightly(day), day=day)) for day in (1, 2, 3)]
    repository.put_manifest("nightly", made[2])
    with proxied(registry) as proxy:
        through = Repository(f"{proxy.address}/{PATH}", unheard)
        plan = decide(through, 1)
        proxy.faults = [Fault("DELETE", "slow", 1)]
        heard: list[str] = []
        done = threading.Thread(target=pruning.delete, args=(through, plan, heard.append))
        done.start()
        wait_for(lambda: proxy.count("DELETE") == 1)
        repository.put_manifest("nightly", made[1])
        done.join()
        asked = [each for each in proxy.requests if each.startswith("DELETE")]
    # Its attachments go first, and nothing is taken from the image that the channel moved to.
    assert [made[0].digest in each for each in asked] == [*[False] * 4, True]
    assert worn(repository, made[0].digest) == []
    assert heard == [
        f"deleted {nightly(1)}",
        f"{nightly(2)} stays: nightly points to it now",
    ]
    assert repository.resolve("nightly") == repository.resolve(nightly(2)) == made[1].digest
    for kept in made[1:]:
        assert worn(repository, kept.digest) == sorted(BELONGS)


def test_what_two_have_in_common_goes_with_the_last(registry: str, repository: Repository) -> None:
    shared = image(repository, day=1)
    both = [
        index(repository, nightly(day), of=[shared, image(repository, day=day)]) for day in (1, 2)
    ]
    image(repository, nightly(3), day=9)
    with proxied(registry) as proxy:
        through = Repository(f"{proxy.address}/{PATH}", unheard)
        plan = decide(through, 1)
        assert len(plan.deletions) == 2
        proxy.faults = [Fault("DELETE", "slow", 1)]
        done = threading.Thread(target=pruning.delete, args=(through, plan, unheard))
        done.start()
        wait_for(lambda: proxy.count("DELETE") == 1)
        last = plan.deletions[1]
        repository.put_manifest(
            "nightly", next(each for each in both if each.digest == last.digest)
        )
        done.join()
    assert set(last.tags) <= set(repository.tags())
    assert [repository.manifest(part) is not None for part in last.manifests] == [True] * 3
    assert repository.manifest(plan.deletions[0].digest) is None


def test_a_run_that_was_killed_goes_on(
    repository: Repository,
    registry: str,
    prune: Prune,
    catalog_of_nights: Path,
    fork_server: ForkServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = [dressed(repository, image(repository, nightly(day), day=day)) for day in range(1, 6)]
    notes = [[entry["digest"] for entry in referrers(repository, each.digest)] for each in made]
    arguments = ["tag", "prune", "hello-sm120-nightly", "--keep", "1", "--yes", "--catalog"]
    with proxied(registry) as proxy:
        monkeypatch.setenv("BUILDER_NAMESPACE", f"{proxy.address}/me")
        # Killed before the second deletion is asked for again: one attachment of the first image
        # is gone by then.  Then while the seventh is done, which is of the second image.
        for deletion, fault in ((2, "cut"), (7, "slow")):
            proxy.requests.clear()
            proxy.faults = [Fault("DELETE", "pass", deletion - 1), Fault("DELETE", fault, 1)]
            with fork_server.running([*arguments, str(catalog_of_nights)]) as process:
                wait_for(lambda many=deletion: proxy.count("DELETE") >= many)
                os.kill(process.pid, signal.SIGKILL)
                assert process.wait() == -signal.SIGKILL
            if fault == "cut":
                assert repository.manifest(made[0].digest) is not None
                assert len(worn(repository, made[0].digest)) == len(BELONGS) - 1
        assert repository.manifest(made[0].digest) is None
        assert worn(repository, made[0].digest) == []
        done = prune("--keep", "1", "--yes", "--json")
    assert done["deleted"] == [nightly(2), nightly(3), nightly(4)]
    assert repository.tags() == sorted([nightly(5), attached_tag(made[4])])
    assert worn(repository, made[4].digest) == sorted(BELONGS)
    for gone in notes[:4]:
        assert [repository.manifest(digest) for digest in gone] == [None] * 3


def test_what_passes_is_tried_again_and_what_does_not_is_told(
    repository: Repository, registry: str, prune: Prune, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(1, 4):
        image(repository, nightly(day), day=day)
    with proxied(registry) as proxy:
        monkeypatch.setenv("BUILDER_NAMESPACE", f"{proxy.address}/me")
        proxy.faults = [Fault("DELETE", 403, 1)]
        assert "has no permission" in prune("--keep", "1", "--yes", expect=12)
        assert proxy.count("DELETE") == 1
        proxy.faults = [
            Fault("DELETE", "cut", 1),
            Fault("DELETE", 503, 1, {"Retry-After": "0"}),
            Fault("GET .*manifests", 429, 1, {"Retry-After": "0"}),
        ]
        assert len(prune("--keep", "1", "--yes", "--json")["deleted"]) == 2
        assert all(fault.times == 0 for fault in proxy.faults)
