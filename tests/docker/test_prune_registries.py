"""Pruning on registries that differ: no deletion, the referrers API, Docker Hub."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from builder.core.errors import RegistryError
from builder.publish import prune as pruning
from builder.publish import tags
from builder.publish.hub import Hub
from builder.publish.registry import Repository
from builder.publish.verdicts import AttachedFile
from support.hub import DockerHub, Page
from support.moves import attach_note
from support.prunes import (
    PATH,
    Prune,
    attached_tag,
    decide,
    dressed,
    going,
    image,
    index,
    nightly,
    reasons,
    signature,
    unheard,
    wait_for,
)
from support.registries import Fault, attach, proxied, serving

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("own_cache")]

WITHOUT_DELETION = """version: 0.1
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""
"""A registry as Debian's package configures it."""


def test_a_registry_that_allows_no_deletion(
    tmp_path: Path, prune: Prune, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "strict", WITHOUT_DELETION) as address:
        monkeypatch.setenv("BUILDER_NAMESPACE", f"{address}/me")
        repository = Repository(f"{address}/{PATH}", unheard)
        made = [image(repository, nightly(day), day=day) for day in (1, 2)]
        attach_note(repository, made[0], "nightly", "", "a night")
        before = repository.tags()
        assert "2 nightlies" in prune("--keep", "1")
        for _ in range(2):
            told = prune("--keep", "1", "--yes", expect=12)
            assert "does not allow deletion" in told
            assert "REGISTRY_STORAGE_DELETE_ENABLED=true" in told
            assert repository.tags() == before


def test_a_registry_that_lists_referrers_itself(registry: str) -> None:
    with proxied(registry, referring=True) as proxy:
        repository = Repository(f"{proxy.address}/{PATH}", unheard)
        made = [image(repository, nightly(day), day=day) for day in (1, 2, 3)]
        notes = [attach_note(repository, each, "nightly", "", "a night") for each in made]
        assert len(notes) == 3
        kind = "application/vnd.dev.sigstore.bundle.v0.3+json"
        bundle = attach(repository, made[1], kind, {})
        assert not [tag for tag in repository.tags() if tag.startswith("sha256-")]
        plan = decide(repository, 1)
        assert reasons(plan)[nightly(2)] == "it is signed"
        (gone,) = plan.deletions
        (old,) = gone.attached
        pruning.delete(repository, plan, unheard)
        assert repository.manifest(old) is None
        assert repository.manifest(bundle) is not None
        pruning.delete(repository, decide(repository, 1, signed=True), unheard)
        assert repository.manifest(bundle) is None
        assert repository.tags() == [nightly(3)]


@pytest.mark.parametrize("listed_before", [0, 1, 2])
def test_a_registry_that_fails_to_list_referrers_once(registry: str, listed_before: int) -> None:
    """Else what a tag would be rolled back to would not be known, and would go."""
    with proxied(registry, referring=True) as proxy:
        repository = Repository(f"{proxy.address}/{PATH}", unheard)
        made = [image(repository, nightly(day), day=day) for day in (1, 2, 3)]
        for each in made[:2]:
            tags.move(repository, "nightly", each.digest, "a night")
        asked = "GET .*/referrers/"
        proxy.faults = [Fault(asked, "pass", listed_before), Fault(asked, 404, 1)]
        with pytest.raises(RegistryError, match="does not list the referrers of") as raised:
            decide(repository, 1)
        assert "nothing was deleted" in raised.value.hint
        assert going(decide(repository, 1)) == set()


def test_on_docker_hub_tags_are_deleted(repository: Repository, hub: DockerHub) -> None:
    made = [image(repository, nightly(day), day=day) for day in range(1, 5)]
    repository.put_manifest("nightly", made[3])
    attach_note(repository, made[0], "nightly", "", "a night")
    signature(repository, made[2])
    hub.pages = {PATH: Page(tags=repository.tags())}
    by = Hub(hub.address, unheard)
    plan = decide(repository, 1)
    repository.put_manifest("nightly", made[1])
    hub.faults = [Fault("DELETE", 429, 1, {"Retry-After": "0"})]
    heard: list[str] = []
    assert pruning.delete(repository, plan, heard.append, by) == (nightly(1),)
    assert f"{nightly(2)} stays: nightly points to it now" in heard
    expected = set(repository.tags()) - {nightly(1), attached_tag(made[0])}
    assert set(hub.pages[PATH].tags) == expected
    assert repository.manifest(made[0].digest) is not None
    # Again, with the one that is signed; what is gone already is gone.
    plan = decide(repository, 1, signed=True)
    gone = pruning.delete(repository, plan, heard.append, by)
    assert gone == (nightly(1), nightly(3))
    expected -= {nightly(3), attached_tag(made[2], ".sig")}
    assert set(hub.pages[PATH].tags) == expected


def test_on_docker_hub_an_image_that_the_channel_moves_to_stays(
    repository: Repository, hub: DockerHub
) -> None:
    part = image(repository, day=1)
    index(repository, nightly(1), of=[part])
    index(repository, nightly(2), "0.1.0", of=[part, image(repository, day=2)])
    signature(repository, part)
    old = dressed(repository, image(repository, nightly(3), day=3))
    image(repository, nightly(4), day=9)
    hub.pages = {PATH: Page(tags=repository.tags())}
    plan = decide(repository, 1, signed=True)
    assert going(plan) == {nightly(1), nightly(3)}
    # Somebody rolls back to the second one while its attachments are deleted.
    hub.faults = [Fault(f"DELETE .*{attached_tag(old)}", 429, 1, {"Retry-After": "1"})]
    by, heard = Hub(hub.address, unheard), list[str]()
    arguments = (repository, plan, heard.append, by)
    done = threading.Thread(target=pruning.delete, args=arguments)
    done.start()
    wait_for(lambda: hub.count(f"DELETE .*{attached_tag(old)}") == 1)
    Repository(repository.name, unheard).put_manifest("nightly", old)
    done.join()
    left = {"0.1.0", nightly(2), nightly(3), nightly(4), attached_tag(part, ".sig")}
    assert set(hub.pages[PATH].tags) == left
    assert f"{nightly(3)} stays, without its attachments: push it again" in heard


def test_on_docker_hub_a_run_that_was_stopped_goes_on(
    repository: Repository, hub: DockerHub
) -> None:
    old = dressed(repository, image(repository, nightly(1), day=1))
    signature(repository, old)
    image(repository, nightly(2), day=2)
    hub.pages = {PATH: Page(tags=repository.tags())}
    plan = decide(repository, 1, signed=True)
    hub.faults = [Fault("DELETE .*sha256-", 403, 1)]
    by = Hub(hub.address, unheard)
    with pytest.raises(RegistryError, match="has no permission"):
        pruning.delete(repository, plan, unheard, by)
    attached = {attached_tag(old), attached_tag(old, ".sig")}
    assert set(hub.pages[PATH].tags) == {nightly(1), nightly(2), *attached}
    plan = decide(repository, 1, signed=True)
    assert pruning.delete(repository, plan, unheard, by) == (nightly(1),)
    assert hub.pages[PATH].tags == [nightly(2)]


@pytest.mark.parametrize("referring", [False, True])
def test_docker_hub_gives_as_few_manifests_as_can_be(
    registry: str, hub: DockerHub, referring: bool
) -> None:
    # Each is a pull, of 200 in six hours.
    with proxied(registry, referring=referring) as proxy:
        repository = Repository(f"{proxy.address}/{PATH}", unheard)
        made = [image(repository, nightly(day), day=day) for day in range(1, 7)]
        for each in made:
            dressed(repository, each)
        repository.put_manifest("nightly", made[5])
        repository.put_manifest("latest", made[5])
        signature(repository, made[1])
        kind = "application/vnd.dev.sigstore.bundle.v0.3+json"
        attach(repository, made[2], kind, {}, [AttachedFile("bundle", kind, b"{}")])
        proxy.requests.clear()
        plan = decide(repository, 2)
        # The images' manifests and, where the registry lists no referrers, the tags that list them.
        assert proxy.count("GET .*/manifests/") == (6 if referring else 12)
        assert reasons(plan)[nightly(2)] == reasons(plan)[nightly(3)] == "it is signed"
        assert going(plan) == {nightly(1), nightly(4)}
        proxy.requests.clear()
        hub.pages = {PATH: Page(tags=repository.tags())}
        assert pruning.delete(repository, plan, unheard, Hub(hub.address, unheard))
        assert proxy.count("GET .*/manifests/") == 0


def test_a_prune_makes_few_requests(
    registry: str, repository: Repository, prune: Prune, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(1, 8):
        made = dressed(repository, image(repository, nightly(day), day=day))
        tags.move(repository, "nightly", made.digest, f"night {day}", by="night")
    repository.put_manifest("nightly.nights", image(repository, "x", day=1))
    with proxied(registry) as proxy:
        monkeypatch.setenv("BUILDER_NAMESPACE", f"{proxy.address}/me")
        shown = prune("--keep", "2", "--json")
        # The newest two, and what a second rollback leads to.
        assert [bool(each["stays"]) for each in shown["nightlies"]] == [True] * 3 + [False] * 4
        assert len(proxy.requests) <= 40, "\n".join(proxy.requests)
        survey_alone = len(proxy.requests)
        proxy.requests.clear()
        assert len(prune("--keep", "2", "--yes", "--json")["deleted"]) == 4
        deletions = proxy.count("DELETE")
        looks = len(proxy.requests) - survey_alone - deletions
        # An image, what lists its referrers, two bills, two notes: each has a DELETE of its own.
        assert deletions == 4 * 6
        # Before each image: the list of tags, and where each leads that is no nightly: "x", and the
        # channel, which may have moved; the channel again between the attachments and the image.
        assert looks == 4 * 4, "\n".join(proxy.requests)
