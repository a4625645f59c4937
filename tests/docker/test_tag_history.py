"""How tags move: their history, interrupted moves, and other clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import time_machine

from builder.errors import BuilderError, RegistryError, TagMovedError
from builder.nightly import history
from builder.nightly.run import _held
from builder.publish import referrers, tag_history
from builder.publish import tags as publish_tags
from builder.tools.registry import client as registries
from builder.tools.registry.client import Manifest, Repository
from support.prunes import PATH
from support.registries import Fault, Proxy, proxied, put_image

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("own_cache")]


def test_a_way_back_leads_further_back_each_time(repository: Repository) -> None:
    made = [put_image(repository, f"k{number}").digest for number in range(4)]
    for number, digest in enumerate(made[:3]):
        publish_tags.move(repository, "latest", digest, f"move {number}")
    for digest in (made[1], made[0]):
        assert tag_history.require_previous(repository, "latest") == digest
        publish_tags.move(repository, "latest", digest, "back")
    with pytest.raises(RegistryError, match=r":latest points to its first image"):
        tag_history.require_previous(repository, "latest")
    # What is new is on top of where one has gone back to.
    publish_tags.move(repository, "latest", made[3], "mended")
    assert tag_history.require_previous(repository, "latest") == made[0]
    with pytest.raises(RegistryError, match="has no tag nightly"):
        tag_history.require_previous(repository, "nightly")


def test_a_number_of_thousands_of_digits_is_none(repository: Repository) -> None:
    one = put_image(repository, "k1")
    publish_tags.move(repository, "latest", one.digest, "first")
    told = {"tag": "latest", "reason": "odd", "number": "9" * 5000}
    named = {f"builder.move.{name}": value for name, value in told.items()}
    referrers.attach(repository, one, tag_history.MOVE, named)
    assert "first" in {move.reason for move in tag_history.moves(repository, "latest")}


def delete(repository: Repository, digest: str) -> None:
    """An image goes, and with it what is attached to it."""
    attached = [each["digest"] for each in referrers.referrers(repository, digest)]
    for each in (digest, repository.resolve(digest.replace(":", "-")), *attached):
        repository.delete(each)


def test_a_way_back_is_known_though_images_between_are_gone(repository: Repository) -> None:
    a, b, c, d, e = (put_image(repository, name).digest for name in "abcde")
    for digest in (a, b, c, d):
        publish_tags.move(repository, "main", digest, f"night of {digest[-4:]}", by="night")
    publish_tags.move(
        repository,
        "main",
        tag_history.require_previous(repository, "main"),
        "bad night",
        by="rollback",
    )
    publish_tags.move(repository, "main", e, "night of e", by="night")
    assert "bad night" in _held(repository, "main", d)
    assert _held(repository, "main", b) == ""
    delete(repository, d)
    publish_tags.move(
        repository,
        "main",
        tag_history.require_previous(repository, "main"),
        "not this one",
        by="rollback",
    )
    assert repository.resolve("main") == c
    reasons = [move.reason for move in tag_history.moves(repository, "main")]
    assert reasons[:3] == ["not this one", "night of e", "bad night"]
    assert reasons[-3:] == [f"night of {digest[-4:]}" for digest in (c, b, a)]
    assert tag_history.require_previous(repository, "main") == b, (
        "what was taken back is no way back"
    )
    for digest in (a, b):
        delete(repository, digest)
    with pytest.raises(RegistryError, match="was deleted, or was never there"):
        publish_tags.move(
            repository,
            "main",
            tag_history.require_previous(repository, "main"),
            "so",
            by="rollback",
        )
    # Of a history that begins with a rollback nobody knows more than where it led.
    other = put_image(repository, "other").digest
    publish_tags.move(repository, "late", d := put_image(repository, "d").digest, "first")
    publish_tags.move(repository, "late", other, "bad", by="rollback")
    delete(repository, d)
    with pytest.raises(RegistryError, match=r"before the last move of .* is not known"):
        tag_history.require_previous(repository, "late")


@pytest.fixture
def proxy(registry: str, repository: Repository) -> Iterator[Proxy]:
    assert repository
    with proxied(registry) as found:
        yield found


def through(proxy: Proxy) -> Repository:
    return Repository(f"{proxy.address}/{PATH}", print)


def reasons(repository: Repository, tag: str) -> list[str]:
    return [move.reason for move in tag_history.moves(repository, tag)]


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
    assert len(referrers.referrers(repository, b)) == 2
    assert repository.resolve("latest") == c
    assert reasons(repository, "latest") == before
    for digest in (b, a):
        assert tag_history.require_previous(repository, "latest") == digest
        publish_tags.move(repository, "latest", digest, f"back to {digest[-4:]}", "rollback")
    assert reasons(repository, "latest") == [f"back to {each[-4:]}" for each in (a, b)] + before
    publish_tags.move(repository, "latest", d, "mended at last")
    assert tag_history.require_previous(repository, "latest") == a


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
    tag_history.attach_note(repository, a, "latest", c.digest, "interrupted")
    for made in (d, e, a):
        publish_tags.move(repository, "latest", made.digest, f"to {made.digest[-4:]}")
    for made in (d, e):
        delete(repository, made.digest)
    # The moves to b and c are no longer known, for only those to d and e lead to them.
    assert reasons(repository, "latest") == [f"to {a.digest[-4:]}"] * 2
    assert [move.number for move in tag_history.moves(repository, "latest")] == [6, 1]


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
    with pytest.raises(TagMovedError, match="was moved by another client") as caught:
        publish_tags.move(through(proxy), "latest", ours.digest, "second", by="night")
    assert f"it was at {first.digest}, and now it is at {theirs.digest}" in str(caught.value)
    assert repository.resolve("latest") == theirs.digest


def test_a_tag_that_somebody_else_gave_first_stays(repository: Repository, proxy: Proxy) -> None:
    ours, theirs = put_image(repository, "ours"), put_image(repository, "theirs")
    proxy.conditional = True
    fault = Fault("PUT .*manifests/1.0", "pass", first=elsewhere(repository, "1.0", theirs))
    proxy.faults = [fault]
    with pytest.raises(TagMovedError, match="it was at no digest, and now it is"):
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
    referrers.store(repository, "nightly.nights", history.NIGHTLY_RUNS, [])
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
    assert [move.reason for move in tag_history.moves(repository, "latest")] == ["so"]
    with pytest.raises(RegistryError, match=r":latest points to its first image"):
        tag_history.require_previous(repository, "latest")


def test_moves_are_in_order_whatever_the_clocks_said(repository: Repository) -> None:
    one, two = put_image(repository, "k1"), put_image(repository, "k2")
    publish_tags.move(repository, "nightly", one.digest, "first", by="night")
    with time_machine.travel(registries.LARGEST_SKEW / 2 + time.time()):
        publish_tags.move(repository, "nightly", two.digest, "second", by="night")
    assert _held(repository, "nightly", one.digest) == ""  # upstream went back by itself
    publish_tags.move(repository, "nightly", one.digest, "it crashes")
    told = [move.reason for move in tag_history.moves(repository, "nightly")]
    assert told == ["it crashes", "second", "first"]
    assert "it crashes" in _held(repository, "nightly", two.digest)
    publish_tags.move(repository, "nightly", two.digest, "it does not")
    told = [move.reason for move in tag_history.moves(repository, "nightly")]
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
    passed = Fault("HEAD .*manifests/latest", "pass", 3)
    last = Fault("HEAD .*manifests/latest", "pass", 1, {}, elsewhere(repository, "latest", theirs))
    proxy.faults = [passed, last]
    with pytest.raises(RegistryError, match="latest is not what was pushed"):
        publish_tags.move(through(proxy), "latest", ours.digest, "so")
