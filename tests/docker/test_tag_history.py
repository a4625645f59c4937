"""How tags move: their history, interrupted moves, and other clients."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import time_machine

from builder.core.errors import BuilderError, RegistryError
from builder.publish import nights, tags, verdicts
from builder.publish import registry as registries
from builder.publish import tags as publish_tags
from builder.publish.prune import survey, targets_of
from builder.publish.registry import Manifest, Repository
from builder.publish.signing import UNSIGNED, Trust
from builder.upstream.night import _held
from support.moves import attach_note
from support.prunes import PATH
from support.registries import Fault, Proxy, attach, proxied, put_image

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("own_cache")]


def test_a_way_back_leads_further_back_each_time(repository: Repository) -> None:
    made = [put_image(repository, f"k{number}").digest for number in range(4)]
    for number, digest in enumerate(made[:3]):
        publish_tags.move(repository, "latest", digest, f"move {number}")
    for digest in (made[1], made[0]):
        assert tags.require_previous(repository, "latest", UNSIGNED) == digest
        publish_tags.move(repository, "latest", digest, "back")
    with pytest.raises(RegistryError, match=r":latest points to its first image"):
        tags.require_previous(repository, "latest", UNSIGNED)
    # What is new is on top of where one has gone back to.
    publish_tags.move(repository, "latest", made[3], "mended")
    assert tags.require_previous(repository, "latest", UNSIGNED) == made[0]
    with pytest.raises(RegistryError, match="has no tag nightly"):
        tags.require_previous(repository, "nightly", UNSIGNED)


def test_a_tag_goes_back_as_often_as_a_prune_keeps_images_for_it(repository: Repository) -> None:
    """After 20 rollbacks, the last note no longer lists the next target."""
    keep = 30
    made = [put_image(repository, f"night {number}").digest for number in range(keep + 2)]
    for digest in made:
        publish_tags.move(repository, "nightly", digest, f"night {digest[-4:]}", by="night")
    kept = targets_of(survey(repository, "nightly", UNSIGNED), keep)
    for target in made[-2::-1][:keep]:
        assert target in kept
        assert tags.require_previous(repository, "nightly", UNSIGNED) == target
        publish_tags.move(repository, "nightly", target, "it crashes", by="rollback")
    assert {made[0], made[-1]}.isdisjoint(kept)


def test_a_number_of_thousands_of_digits_is_none(repository: Repository) -> None:
    one = put_image(repository, "k1")
    publish_tags.move(repository, "latest", one.digest, "first")
    told = {"tag": "latest", "reason": "odd", "number": "9" * 5000}
    named = {f"builder.move.{name}": value for name, value in told.items()}
    attach(repository, one, tags.MOVE, named)
    found = tags.moves(repository, "latest", UNSIGNED)
    assert [move.reason for move in found] == ["first"]
    publish_tags.move(repository, "latest", put_image(repository, "k2").digest, "second")
    assert tags.require_previous(repository, "latest", UNSIGNED) == one.digest


def delete(repository: Repository, digest: str) -> None:
    """An image goes, and with it what is attached to it."""
    attached = [each["digest"] for each in verdicts.referrers(repository, digest)]
    for each in (digest, repository.resolve(digest.replace(":", "-")), *attached):
        repository.delete(each)


def roll_back(repository: Repository, tag: str, reason: str) -> None:
    before = tags.require_previous(repository, tag, UNSIGNED)
    publish_tags.move(repository, tag, before, reason, by="rollback")


def test_a_way_back_is_known_though_images_between_are_gone(repository: Repository) -> None:
    a, b, c, d, e = (put_image(repository, name).digest for name in "abcde")
    for digest in (a, b, c, d):
        publish_tags.move(repository, "main", digest, f"night of {digest[-4:]}", by="night")
    roll_back(repository, "main", "bad night")
    publish_tags.move(repository, "main", e, "night of e", by="night")
    assert "bad night" in _held(repository, "main", d, UNSIGNED)
    assert _held(repository, "main", b, UNSIGNED) == ""
    delete(repository, d)
    roll_back(repository, "main", "not this one")
    assert repository.resolve("main") == c
    reasons = [move.reason for move in tags.moves(repository, "main", UNSIGNED)]
    assert reasons[:3] == ["not this one", "night of e", "bad night"]
    assert reasons[-3:] == [f"night of {digest[-4:]}" for digest in (c, b, a)]
    assert tags.require_previous(repository, "main", UNSIGNED) == b, (
        "what was taken back is no way back"
    )
    for digest in (a, b):
        delete(repository, digest)
    with pytest.raises(RegistryError, match="was deleted, or was never there"):
        roll_back(repository, "main", "so")
    # If a history begins with a rollback, nobody knows more than where it led.
    other = put_image(repository, "other").digest
    publish_tags.move(repository, "late", d := put_image(repository, "d").digest, "first")
    publish_tags.move(repository, "late", other, "bad", by="rollback")
    delete(repository, d)
    with pytest.raises(RegistryError, match=r"before the last move of .* is not known"):
        tags.require_previous(repository, "late", UNSIGNED)


@pytest.fixture
def proxy(registry: str, repository: Repository) -> Iterator[Proxy]:
    assert repository
    with proxied(registry) as found:
        yield found


def through(proxy: Proxy) -> Repository:
    return Repository(f"{proxy.address}/{PATH}", print)


def reasons(repository: Repository, tag: str) -> list[str]:
    return [move.reason for move in tags.moves(repository, tag, UNSIGNED)]


def test_a_move_that_was_interrupted_did_not_happen(repository: Repository, proxy: Proxy) -> None:
    a, b, c, d = (put_image(repository, name).digest for name in "abcd")
    for digest in (a, b, c):
        publish_tags.move(repository, "latest", digest, f"to {digest[-4:]}")
    before = [f"to {digest[-4:]}" for digest in (c, b, a)]
    proxy.faults = [Fault("PUT .*manifests/latest", 403, 2)]
    for to, reason in ((b, "it crashes"), (d, "mended")):
        with pytest.raises(RegistryError):
            publish_tags.move(through(proxy), "latest", to, reason, "rollback")
    # The notes of both are there, and neither counts.
    assert len(verdicts.referrers(repository, b)) == 2
    assert repository.resolve("latest") == c
    assert reasons(repository, "latest") == before
    for digest in (b, a):
        assert tags.require_previous(repository, "latest", UNSIGNED) == digest
        publish_tags.move(repository, "latest", digest, f"back to {digest[-4:]}", "rollback")
    assert reasons(repository, "latest") == [f"back to {each[-4:]}" for each in (a, b)] + before
    publish_tags.move(repository, "latest", d, "mended at last")
    assert tags.require_previous(repository, "latest", UNSIGNED) == a


def test_a_move_that_was_interrupted_is_not_taken_for_one_whose_image_is_gone(
    repository: Repository, proxy: Proxy
) -> None:
    a, b, c, d = (put_image(repository, name).digest for name in "abcd")
    for digest in (a, b):
        publish_tags.move(repository, "latest", digest, f"to {digest[-4:]}")
    proxy.faults = [Fault("PUT .*manifests/latest", 403, 1)]
    with pytest.raises(RegistryError):
        publish_tags.move(through(proxy), "latest", a, "interrupted", "rollback")
    for digest in (c, d, a):
        publish_tags.move(repository, "latest", digest, f"to {digest[-4:]}")
    delete(repository, c)
    told = reasons(repository, "latest")
    assert told[:2] == [f"to {digest[-4:]}" for digest in (a, d)]
    assert "interrupted" not in told


def test_a_move_that_was_interrupted_is_left_out_though_two_images_are_gone(
    repository: Repository,
) -> None:
    a, b, c, d, e = (put_image(repository, name) for name in "abcde")
    for made in (a, b, c):
        publish_tags.move(repository, "latest", made.digest, f"to {made.digest[-4:]}")
    attach_note(repository, a, "latest", c.digest, "interrupted")
    for made in (d, e, a):
        publish_tags.move(repository, "latest", made.digest, f"to {made.digest[-4:]}")
    for made in (d, e):
        delete(repository, made.digest)
    assert reasons(repository, "latest") == [f"to {each.digest[-4:]}" for each in (a, c, b, a)]
    numbers = [move.number for move in tags.moves(repository, "latest", UNSIGNED)]
    assert numbers == [6, 3, 2, 1]


def elsewhere(repository: Repository, tag: str, manifest: Manifest) -> Callable[[], object]:
    """Somebody else gives a tag, straight to the registry."""
    return lambda: repository.put_manifest(tag, manifest)


@pytest.mark.parametrize(
    ("fault", "conditional"),
    [
        (Fault("PUT .*manifests/sha256:", "pass"), False),
        (Fault("PUT .*manifests/latest", 503, headers={"Retry-After": "0"}), False),
        (Fault("PUT .*manifests/latest", "pass"), True),
    ],
    ids=["while the note is written", "between two attempts", "after the last look"],
)
def test_a_tag_that_somebody_else_moved_meanwhile_stays(
    repository: Repository, proxy: Proxy, fault: Fault, *, conditional: bool
) -> None:
    first, ours, theirs = (put_image(repository, name) for name in ("first", "ours", "theirs"))
    publish_tags.move(repository, "latest", first.digest, "first")
    proxy.conditional = conditional
    proxy.faults = [replace(fault, first=elsewhere(repository, "latest", theirs))]
    with pytest.raises(RegistryError, match="was moved by another client") as caught:
        publish_tags.move(through(proxy), "latest", ours.digest, "second", by="night")
    assert f"it was at {first.digest}, and now it is at {theirs.digest}" in str(caught.value)
    assert repository.resolve("latest") == theirs.digest


def test_a_tag_that_somebody_else_gave_first_stays(repository: Repository, proxy: Proxy) -> None:
    ours, theirs = put_image(repository, "ours"), put_image(repository, "theirs")
    proxy.conditional = True
    fault = Fault("PUT .*manifests/1.0", "pass", first=elsewhere(repository, "1.0", theirs))
    proxy.faults = [fault]
    with pytest.raises(RegistryError, match="it was at no digest, and now it is"):
        through(proxy).put_tag("1.0", ours, "")
    assert repository.resolve("1.0") == theirs.digest


def test_a_tag_that_leads_there_already_is_no_failure(repository: Repository, proxy: Proxy) -> None:
    first, ours = put_image(repository, "first"), put_image(repository, "ours")
    publish_tags.move(repository, "latest", first.digest, "first")
    same = elsewhere(repository, "latest", ours)
    # An attempt of ours whose answer was lost looks the same.
    proxy.faults = [Fault("PUT .*manifests/latest", 503, 1, {"Retry-After": "0"}, same)]
    publish_tags.move(through(proxy), "latest", ours.digest, "second")
    assert reasons(repository, "latest") == ["second", "first"]


def test_only_images_of_ours_are_moved_to_and_only_tags_that_move(repository: Repository) -> None:
    ours = put_image(repository, "k1", "1-0123456789ab")
    verdicts.store(repository, "nightly.nights", nights.NIGHTLY_RUNS, [])
    for tag in ("1-0123456789ab", "nightly.nights", f"sha256-{'0' * 64}"):
        with pytest.raises(RegistryError, match="is not a moving tag"):
            publish_tags.move(repository, tag, ours.digest, "so")
    with pytest.raises(RegistryError, match="is not an image that builder made"):
        publish_tags.move(repository, "latest", "nightly.nights", "so")
    with pytest.raises(RegistryError, match="has no tag nothing"):
        publish_tags.move(repository, "latest", "nothing", "so")
    assert repository.resolve("latest") == ""
    first = publish_tags.move(repository, "latest", ours.digest, "so")
    assert first.before == ""
    # Once more is no move, and there is nothing to go back to.
    assert publish_tags.move(repository, "latest", "1-0123456789ab", "again").before == ours.digest
    assert [move.reason for move in tags.moves(repository, "latest", UNSIGNED)] == ["so"]
    with pytest.raises(RegistryError, match=r":latest points to its first image"):
        tags.require_previous(repository, "latest", UNSIGNED)


def test_moves_are_in_order_whatever_the_clocks_said(repository: Repository) -> None:
    one, two = put_image(repository, "k1"), put_image(repository, "k2")
    publish_tags.move(repository, "nightly", one.digest, "first", by="night")
    with time_machine.travel(registries.LARGEST_SKEW / 2 + time.time()):
        publish_tags.move(repository, "nightly", two.digest, "second", by="night")
    assert _held(repository, "nightly", one.digest, UNSIGNED) == ""  # upstream went back by itself
    publish_tags.move(repository, "nightly", one.digest, "it crashes")
    told = [move.reason for move in tags.moves(repository, "nightly", UNSIGNED)]
    assert told == ["it crashes", "second", "first"]
    assert "it crashes" in _held(repository, "nightly", two.digest, UNSIGNED)
    publish_tags.move(repository, "nightly", two.digest, "it does not")
    told = [move.reason for move in tags.moves(repository, "nightly", UNSIGNED)]
    assert told == ["it does not", "it crashes", "second", "first"]


def test_a_clock_that_is_wrong_moves_nothing(repository: Repository) -> None:
    one = put_image(repository, "k1")
    with (
        time_machine.travel(registries.LARGEST_SKEW * 2 + time.time()),
        pytest.raises(BuilderError, match="the clock of this machine is 20 minutes ahead of"),
    ):
        publish_tags.move(repository, "nightly", one.digest, "so")
    assert repository.resolve("nightly") == ""


def test_a_registry_that_alters_a_tag_is_told(repository: Repository, proxy: Proxy) -> None:
    ours, theirs = put_image(repository, "ours"), put_image(repository, "theirs")
    passed = Fault("HEAD .*manifests/latest", "pass", 2)
    last = Fault("HEAD .*manifests/latest", "pass", 1, {}, elsewhere(repository, "latest", theirs))
    proxy.faults = [passed, last]
    with pytest.raises(RegistryError, match="latest is not what was pushed"):
        publish_tags.move(through(proxy), "latest", ours.digest, "so")


def test_a_move_that_was_lost_to_another_machine_can_be_repeated(
    repository: Repository, proxy: Proxy
) -> None:
    """The registry ignores conditions: of two moves at once, the later one stays."""
    first, ours, theirs = (put_image(repository, name) for name in ("first", "ours", "theirs"))
    publish_tags.move(repository, "latest", first.digest, "first")

    def other() -> None:
        publish_tags.move(repository, "latest", theirs.digest, "theirs")

    proxy.faults = [Fault("PUT .*manifests/latest", "pass", first=other)]
    assert publish_tags.move(through(proxy), "latest", ours.digest, "ours").before == first.digest
    assert reasons(repository, "latest") == ["ours", "first"]
    # The note of the lost move is attached to its image.
    lost = tags.last_note(repository, "latest", theirs.digest, UNSIGNED)
    assert lost is not None
    assert lost.move.reason == "theirs"
    publish_tags.move(repository, "latest", theirs.digest, "theirs again")
    assert reasons(repository, "latest") == ["theirs again", "ours", "first"]


def forge(repository: Repository, image: Manifest, **told: object) -> None:
    """Attach a note that nobody signed."""
    annotations = {tags.TEXT: forged_text(repository, image, **told)}
    attach(repository, image, tags.MOVE, annotations)


def forged_text(repository: Repository, image: Manifest, **told: object) -> str:
    text = {
        "repository": repository.path,
        "tag": "latest",
        "digest": image.digest,
        "number": 1,
        "created": "9999-01-01T00:00:00+00:00",
        "reason": "forged",
    }
    return json.dumps(text | told)


def test_a_forged_number_does_not_stop_a_tag(repository: Repository) -> None:
    one, two, three = (put_image(repository, name) for name in ("k1", "k2", "k3"))
    publish_tags.move(repository, "latest", one.digest, "first")
    for number in (tags.HIGHEST, tags.HIGHEST - 1):
        forge(repository, one, number=number)
        forge(repository, two, number=number)
        for digest in (two.digest, three.digest, one.digest):
            publish_tags.move(repository, "latest", digest, f"to {digest[-4:]}")
            assert repository.resolve("latest") == digest


def test_with_a_key_only_signed_notes_count(
    repository: Repository, key: Path, tmp_path: Path
) -> None:
    ours = Trust(str(key), (), tmp_path / "ours")
    reader = Trust("", (str(key.with_name("cosign.pub")),), tmp_path / "reader")
    one, two, evil = (put_image(repository, name) for name in ("one", "two", "evil"))
    for each in (one, two):
        reason = f"to {each.digest[-4:]}"
        publish_tags.move(repository, "latest", each.digest, reason, trust=ours)
    step = {"number": 7, "digest": evil.digest, "by": ""}
    forge(repository, two, before=evil.digest, number=8, past=[step])
    assert tags.require_previous(repository, "latest", UNSIGNED) == evil.digest
    for trust in (ours, reader):
        assert tags.require_previous(repository, "latest", trust) == one.digest
        told = [move.reason for move in tags.moves(repository, "latest", trust)]
        assert told == [f"to {each.digest[-4:]}" for each in (two, one)]
    (image,) = [each for each in survey(repository, "nightly", reader) if "latest" in each.tags]
    assert [note.move.reason for note in image.notes] == [f"to {two.digest[-4:]}"]
    assert "held" not in _held(repository, "latest", evil.digest, reader)
    assert _held(repository, "latest", evil.digest, UNSIGNED)
    # A signed note of another repository, or of another image, is none either.
    (good, _) = verdicts.referrers(repository, two.digest)
    other = Repository(f"{repository.registry}/me/other", print)
    there = put_image(other, "two")
    for subject, where in ((there, other), (evil, repository)):
        attach(where, subject, tags.MOVE, good["annotations"])
        assert tags.last_note(where, "latest", subject.digest, reader) is None


def test_a_move_makes_as_many_requests_after_many_nights(
    registry: str, repository: Repository
) -> None:
    made = [put_image(repository, f"night {number}").digest for number in range(50)]
    counts = []
    with proxied(registry) as proxy:
        for number, digest in enumerate(made):
            proxy.requests.clear()
            mine = through(proxy)
            assert _held(mine, "nightly", digest, UNSIGNED) == ""
            publish_tags.move(mine, "nightly", digest, f"night {number}", by="night")
            counts.append(len(proxy.requests))
        proxy.requests.clear()
        assert tags.require_previous(through(proxy), "nightly", UNSIGNED) == made[-2]
        assert len(proxy.requests) <= 4
    assert len({*counts[2:]}) == 1
    assert counts[-1] <= 20, proxy.requests
    told = [move.reason for move in tags.moves(repository, "nightly", UNSIGNED)]
    assert told == [f"night {number}" for number in range(49, -1, -1)]
