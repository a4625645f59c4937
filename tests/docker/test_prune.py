"""Pruning: the newest nights stay, and whatever anything else refers to."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import RegistryError
from builder.core.files import named_lock
from builder.engines.layout import CREATED, LABEL_KEY, VERSION
from builder.publish import prune as pruning
from builder.publish import tags
from builder.publish.prune import survey
from builder.publish.registry import Manifest, Repository
from builder.publish.signing import UNSIGNED
from builder.publish.verdicts import AttachedFile
from support.moves import attach_note
from support.prunes import (
    ATTESTED,
    HELLO,
    PATH,
    Prune,
    attached_tag,
    decide,
    dressed,
    going,
    image,
    index,
    nightly,
    own_bytes,
    reasons,
    signature,
    unheard,
    worn,
)
from support.registries import attach

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("own_cache")]


def test_indexes_within_each_other_are_told(registry: str) -> None:
    repository = Repository(f"{registry}/{PATH}", print)
    made = index(repository, nightly(1), of=[image(repository, day=1)])
    assert len(survey(repository, "nightly", UNSIGNED)[0].manifests) == 2
    for _ in range(6):
        made = index(repository, "deep", of=[made])
    with pytest.raises(RegistryError, match="lists nested indexes") as caught:
        survey(repository, "nightly", UNSIGNED)
    assert "deep" in str(caught.value)


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


def test_the_newest_nights_stay(
    repository: Repository, prune: Prune, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Their age is what they say, not the order in which they came, nor their names.
    made = {day: image(repository, nightly(30 - day), day=day) for day in (5, 9, 1, 8, 2, 7)}
    repository.put_manifest("nightly", made[9])
    whole = set(repository.tags())
    shown = prune("--keep", "3", "--json")
    fates = [(each["tags"][0], bool(each["stays"])) for each in shown["nightlies"]]
    assert fates == [(nightly(30 - day), day >= 7) for day in (9, 8, 7, 5, 2, 1)]
    assert shown["deleted"] == []
    assert set(repository.tags()) == whole
    said = prune("--keep", "3")
    assert "nothing was deleted: --yes agrees" in said
    assert f"delete\t{nightly(29)}\t2026-11-01 02:00" in said
    assert "3 of 6 nightlies of nightly can be deleted; one other tag is kept" in said

    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich: standard error is a terminal, too
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert "nothing was deleted: --yes agrees" in prune("--keep", "5")
    assert "Delete them?" not in prune("--keep", "5", "--dry-run")
    assert set(repository.tags()) == whole
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    said = prune("--keep", "5")
    assert "Delete them? [y/N]:" in said
    assert f"deleted {nightly(29)}" in said
    assert set(repository.tags()) == whole - {nightly(29)}
    monkeypatch.delenv("TTY_COMPATIBLE")
    done = prune("--keep", "3", "--yes", "--json")
    assert set(done["deleted"]) == {nightly(30 - day) for day in (5, 2)}
    assert set(repository.tags()) == whole - {nightly(29), *done["deleted"]}
    for day, manifest in made.items():
        assert (repository.manifest(manifest.digest) is not None) is (day >= 7)
    # What they shared is still referred to.
    gone = sum(own_bytes(made[day]) for day in (5, 2, 1))
    assert shown["bytes"] == gone
    said = prune("--keep", "2", "--yes")
    assert f"deleted\t{nightly(23)}" in said
    assert "1 of 3 nightlies of nightly were deleted" in said
    assert prune("--keep", "2", "--yes", "--json")["deleted"] == []


def night_of_two(repository: Repository, day: int) -> tuple[Manifest, tuple[Manifest, Manifest]]:
    """A night of two platforms: the index and the images, each with a tag of its own."""
    told = {"os": "linux", "architecture": "arm64", "config": {"Labels": {LABEL_KEY: "k"}}}
    both = (
        image(repository, nightly(10 * day + 1), day=day),
        image(repository, nightly(10 * day + 2), day=day, config=None if day == 2 else told),
    )
    made = index(repository, nightly(10 * day), of=both, architectures=("amd64", "arm64"))
    for each in (*both, made):
        dressed(repository, each)
    return made, both


def test_an_index_and_its_images_are_one_night(repository: Repository, prune: Prune) -> None:
    nights = {day: night_of_two(repository, day) for day in range(1, 5)}
    alone = image(repository, nightly(99), day=5)  # before the recipe had a second platform
    repository.put_manifest("latest", nights[2][0])
    done = prune("--keep", "2", "--yes", "--json")
    stays = {tag: each["stays"] for each in done["nightlies"] for tag in each["tags"]}
    assert stays[nightly(99)] == stays[nightly(40)] == "one of the newest 2"
    assert stays[nightly(41)] == stays[nightly(42)] == f"{nightly(40)} refers to it"
    assert stays[nightly(20)] == "it is tagged latest"
    assert stays[nightly(21)] == stays[nightly(22)] == "latest refers to it"
    # An image of no known age goes with the index that lists it.
    assert done["deleted"][:2] == [nightly(10), nightly(30)]
    assert set(done["deleted"][2:]) == {nightly(night) for night in (11, 12, 31, 32)}
    for day, (made, both) in nights.items():
        for each in (made, *both):
            assert (repository.manifest(each.digest) is not None) == (day in {2, 4})
            assert bool(worn(repository, each.digest)) == (day in {2, 4})
    assert repository.manifest(alone.digest) is not None
    assert prune("--keep", "2", "--yes", "--json")["deleted"] == []


def test_what_the_channel_would_be_rolled_back_to_stays(
    repository: Repository, prune: Prune
) -> None:
    made = {day: image(repository, nightly(day), day=day) for day in range(1, 7)}
    for day in (2, 4, 6):
        tags.move(repository, "nightly", made[day].digest, f"night {day}", by="night")
    prune("--keep", "1", "--yes")
    left = {tag for tag in repository.tags() if not tag.startswith("sha256-")}
    assert left == {"nightly", nightly(6), nightly(4)}
    prune("nightly", "--reason", "it crashes", command="tag rollback")
    assert repository.resolve("nightly") == made[4].digest


def test_what_any_tag_would_be_rolled_back_to_stays(repository: Repository, prune: Prune) -> None:
    made = {day: image(repository, nightly(day), day=day) for day in range(1, 8)}
    for tag, days in (("nightly", (3, 6)), ("latest", (1, 2, 7)), ("stable", (4,))):
        for day in days:
            tags.move(repository, tag, made[day].digest, f"night {day}")
    done = prune("--keep", "1", "--yes", "--json")
    stays = {tag: each["stays"] for each in done["nightlies"] for tag in each["tags"]}
    assert stays[nightly(2)] == "latest would be rolled back to it"
    assert stays[nightly(3)] == "nightly would be rolled back to it"
    assert set(done["deleted"]) == {nightly(1), nightly(5)}
    prune("latest", "--reason", "it crashes", command="tag rollback")
    assert repository.resolve("latest") == made[2].digest


def test_the_images_of_as_many_rollbacks_as_nightlies_stay(
    repository: Repository, prune: Prune
) -> None:
    made = {day: image(repository, nightly(day), day=day) for day in range(1, 8)}
    for day in (1, 2, 3):
        tags.move(repository, "latest", made[day].digest, f"night {day}")
    done = prune("--keep", "2", "--yes", "--json")
    assert set(done["deleted"]) == {nightly(4), nightly(5)}
    for day in (2, 1):
        prune("latest", "--reason", "it crashes", command="tag rollback")
        assert repository.resolve("latest") == made[day].digest


def test_a_version_stays_what_it_is_though_its_recipe_is_gone(
    repository: Repository, prune: Prune
) -> None:
    versions = [
        image(repository, tag, config={"config": {"Labels": {LABEL_KEY: "k", VERSION: version}}})
        for tag, version in (("0.9", "0.9"), ("1.0", "1.0"), ("nightly", "nightly"))
    ]
    for command in ("tag promote", "tag rollback"):
        move = ("0.9", "--to", versions[1].digest, "--reason", "so")
        told = prune(*move, command=command, expect=12)
        assert "0.9 is the version tag of an image of version 0.9, whose recipe is not" in told
    assert repository.resolve("0.9") == versions[0].digest
    # A tag that no image calls its version moves, and so does one that a recipe calls moving.
    for tag in ("latest", "nightly"):
        told = prune(tag, "--to", versions[1].digest, "--reason", "so", command="tag promote")
        assert "its verdict is not checked" in " ".join(told.split())
        assert repository.resolve(tag) == versions[1].digest


def test_what_another_tag_refers_to_stays(
    repository: Repository, prune: Prune, catalog_of_nights: Path
) -> None:
    made = [image(repository, nightly(day), day=day) for day in range(1, 10)]
    repository.put_manifest("nightly", made[0])  # rolled back, far
    repository.put_manifest("0.1.0", made[1])
    repository.put_manifest("nightly-main", made[2])
    repository.put_manifest(nightly(99), made[3])  # two nights, one image
    index(repository, "both", of=[made[4]])
    theirs = image(repository, nightly(1, "nightly-main"), day=1)
    known = image(repository, "nightly-1acd67a-0123456789ab", "nightly-1acd67a", day=1)
    version = image(repository, "nightly-pr5-0123456789ab", day=1)  # of a recipe, by its key
    recipe = HELLO.replace('"0.1.0"', '"nightly-pr5"')
    (catalog_of_nights / "recipes" / "hello-sm120-nightly-pr5.toml").write_text(recipe)
    done = prune("--keep", "2", "--yes", "--json")
    stays = {tag: each["stays"] for each in done["nightlies"] for tag in each["tags"]}
    assert stays[nightly(1)] == "it is tagged nightly"
    assert stays[nightly(2)] == "it is tagged 0.1.0"
    assert stays[nightly(3)] == "it is tagged nightly-main"
    assert stays[nightly(5)] == "both refers to it"
    assert stays[nightly(8)] == stays[nightly(9)] == "one of the newest 2"
    assert set(done["deleted"]) == {nightly(4), nightly(99), nightly(6), nightly(7)}
    for kept in (*made[:3], made[4], *made[7:], theirs, known, version):
        assert repository.manifest(kept.digest) is not None
    assert {"both", nightly(1, "nightly-main"), "nightly-1acd67a-0123456789ab"} <= set(
        repository.tags()
    )


def test_what_is_signed_stays_unless_told_otherwise(repository: Repository, prune: Prune) -> None:
    made = [image(repository, nightly(day), day=day) for day in range(1, 5)]
    tagged = signature(repository, made[0], ".att", ATTESTED)
    kind = "application/vnd.dev.sigstore.bundle.v0.3+json"
    bundle = attach(repository, made[1], kind, {}, [AttachedFile("bundle", kind, b'{"bundle": 1}')])
    bill = "application/vnd.cyclonedx+json"
    attach(repository, made[2], bill, {}, [AttachedFile("sbom.json", bill, b'{"bomFormat": 1}')])
    done = prune("--keep", "1", "--yes", "--json")
    assert done["deleted"] == [nightly(3)]
    assert [each["stays"] for each in done["nightlies"][2:]] == ["it is signed"] * 2
    assert attached_tag(made[0], ".att") in repository.tags()
    done = prune("--keep", "1", "--yes", "--signed", "--json")
    assert set(done["deleted"]) == {nightly(1), nightly(2)}
    for digest in (tagged.digest, bundle, *(each.digest for each in made[:3])):
        assert repository.manifest(digest) is None
    assert repository.tags() == [nightly(4)]


def test_an_image_goes_with_what_is_attached_to_it(repository: Repository) -> None:
    made = [image(repository, nightly(day), day=day) for day in (1, 2)]
    kind = "application/spdx+json"
    bills = [
        attach(repository, each, kind, {}, [AttachedFile("sbom.json", kind, f"{number}".encode())])
        for number, each in enumerate(made)
    ]
    for each in made:
        attach_note(repository, each, "nightly", "", "a night")
    bill = repository.manifest(bills[0])
    assert bill is not None
    deeper = attach(repository, bill, "application/vnd.example.review", {"by": "me"})
    plan = decide(repository, 1)
    assert going(plan) == {nightly(1)}
    assert len(plan.deletions[0].attached) == 5  # two lists by tag, a bill, a note, a review
    assert pruning.delete(repository, plan, unheard) == (nightly(1),)
    for digest in (made[0].digest, bills[0], deeper):
        assert repository.manifest(digest) is None
    assert repository.manifest(bills[1]) is not None
    assert repository.tags() == sorted([nightly(2), attached_tag(made[1])])


def test_what_does_not_tell_its_age_stays(repository: Repository) -> None:
    image(repository, nightly(1))
    image(repository, nightly(2), day=2)
    image(repository, nightly(3), day=3)
    repository.put_manifest("nightly.nights", image(repository, day=1))
    attach(repository, image(repository, "other"), "application/vnd.example", {})
    plan = decide(repository, 1)
    assert "its age is not known" in reasons(plan)[nightly(1)]
    assert going(plan) == {nightly(2)}
    assert set(plan.others) == {"nightly.nights", "other"}


@pytest.mark.parametrize(
    "told", [{"Labels": {CREATED: None}}, {"Labels": {CREATED: 5}}, {"Labels": ["x"]}, ["x"]]
)
def test_a_label_that_is_no_date_tells_no_age(repository: Repository, told: Any) -> None:
    image(repository, nightly(1), config={"config": told})
    image(repository, nightly(2), day=2)
    assert "its age is not known" in reasons(decide(repository, 1))[nightly(1)]


def test_an_index_goes_with_its_parts(repository: Repository) -> None:
    parts = [image(repository, day=day, layers=[b"shared"]) for day in (1, 2)]
    index(repository, nightly(1), of=parts)
    kept = image(repository, nightly(2), day=9, layers=[b"shared"])
    index(repository, "0.1.0", of=parts[1:])
    plan = decide(repository, 1)
    assert going(plan) == {nightly(1)}
    signature(repository, parts[0])
    assert reasons(decide(repository, 1))[nightly(1)] == "it is signed"
    pruning.delete(repository, plan, unheard)
    assert repository.manifest(parts[0].digest) is None
    assert repository.manifest(parts[1].digest) is not None  # 0.1.0 lists it, too
    assert repository.manifest(kept.digest) is not None
    (gone,) = plan.deletions[:1]
    size = len(gone.manifests[gone.digest].content)
    assert plan.freed_bytes == size + own_bytes(parts[0]) - len(b"shared")


def test_what_attached_things_are_of_stays(repository: Repository) -> None:
    old = image(repository, nightly(1), day=1)
    image(repository, nightly(2), day=2)
    kind = "application/vnd.example"
    digest = attach(repository, old, kind, {"x": "y"})
    tagged = repository.manifest(digest)
    assert tagged is not None
    repository.put_manifest("report", tagged)
    plan = decide(repository, 1)
    assert reasons(plan)[nightly(1)] == "report refers to it"
    assert plan.freed_bytes == 0


def test_a_history_says_what_it_does_not_know(repository: Repository, prune: Prune) -> None:
    first, second = image(repository, "0.1.0", day=1), image(repository, day=2)
    assert prune("0.1.0", "--json", command="tag history") == []
    assert f"0.1.0 is {first.digest}; it was never moved" in prune("0.1.0", command="tag history")
    # A tag that was given without a note, and then moved.
    repository.put_manifest("latest", first)
    tags.move(repository, "latest", second.digest, "newer")
    told = prune("latest", command="tag history")
    assert f"before that it was {first.digest}" in told
    assert "newer" in told
    assert "has no tag unheard" in prune("unheard", command="tag history", expect=12)


def test_what_cannot_be_pruned(
    prune: Prune, catalog_of_nights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDER_CACHE_DIR", str(tmp_path / "cache"))
    assert prune("--json")["nightlies"] == []  # there is no such repository yet
    with named_lock(tmp_path / "cache", "nightly"):
        assert "this machine builds the nightly images" in prune("--yes", expect=9)
        prune()
    # What moves a channel is not done while what it may lead to is deleted.
    with named_lock(tmp_path / "cache", tags.TAGS):
        assert "another run on this machine gives or deletes tags" in prune("--yes", expect=9)
        move = ("nightly", "--reason", "why not", "--to", nightly(1))
        for command in ("tag promote", "tag rollback"):
            assert "another run" in prune(*move, command=command, expect=9)
    assert f"has no tag {nightly(1)}" in prune(*move, command="tag promote", expect=12)
    file = catalog_of_nights / "recipes" / "hello-sm120-nightly.toml"
    file.write_text(file.read_text().replace('channel = "nightly"\n', ""))
    assert "has no channel" in prune(expect=3)
