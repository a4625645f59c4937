"""What a registry, or who stands before it, may do to us: real ones, and servers that misbehave."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from shutil import rmtree

import pytest
import time_machine

from builder.cli.options import build_session
from builder.errors import BuilderError, FetchError, RegistryError, TagMovedError
from builder.images.verified import find_published
from builder.nightly import history
from builder.nightly.run import _held
from builder.publish import push as pushing
from builder.publish import referrers, tag_history
from builder.publish import tags as publish_tags
from builder.publish.remote_image import remote_image
from builder.publish.verdicts import VERDICT, Trust
from builder.records.record import Record
from builder.smoke.verdict import Check, Verdict
from builder.tools.registry import client as registries
from builder.tools.registry.client import MANIFESTS, Manifest, Repository
from builder.tools.web import retry
from support.nights import night
from support.registries import Fault, Proxy, answering, proxied, put_image

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("own_cache")]


@pytest.fixture
def repository(registry: str) -> Repository:
    return Repository(f"{registry}/me/x", print)


def test_a_way_back_leads_further_back_each_time(repository: Repository) -> None:
    made = [put_image(repository, f"k{number}").digest for number in range(4)]
    for number, digest in enumerate(made[:3]):
        publish_tags.move(repository, "latest", digest, f"move {number}")
    for digest in (made[1], made[0]):
        assert tag_history.require_previous(repository, "latest") == digest
        publish_tags.move(repository, "latest", digest, "back")
    with pytest.raises(RegistryError, match=r"before the last move of .* is not known"):
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
    return Repository(f"{proxy.address}/me/x", print)


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


def test_a_registry_that_alters_a_tag_is_told(repository: Repository, proxy: Proxy) -> None:
    ours, theirs = put_image(repository, "ours"), put_image(repository, "theirs")
    passed = Fault("HEAD .*manifests/latest", "pass", 3)
    last = Fault("HEAD .*manifests/latest", "pass", 1, {}, elsewhere(repository, "latest", theirs))
    proxy.faults = [passed, last]
    with pytest.raises(RegistryError, match="latest is not what was pushed"):
        publish_tags.move(through(proxy), "latest", ours.digest, "so")


def test_many_pushes_of_one_image_at_once(repository: Repository) -> None:
    """docker-registry loses sight of a blob for the moment in which it is uploaded again."""

    def push(number: int) -> None:
        mine = Repository(repository.name, print)
        made = put_image(mine, f"round {number}")
        for kind in ("a/1", "a/2"):
            file = referrers.File("x", kind, f"{kind} {number}".encode())
            referrers.attach(mine, made, kind, {}, [file])
        mine.put_tag(f"v{number}", made, "")

    with ThreadPoolExecutor(4) as pool:
        for number in range(25):
            for done in [pool.submit(push, number) for _ in range(4)]:
                done.result()


def test_only_images_of_ours_are_moved_to_and_only_tags_that_move(repository: Repository) -> None:
    ours = put_image(repository, "k1", "1-0123456789ab")
    referrers.store(repository, "nightly.nights", history.NIGHTLY_RUNS, [])
    for tag in ("1-0123456789ab", "nightly.nights", f"sha256-{'0' * 64}"):
        with pytest.raises(RegistryError, match="is not a moving tag"):
            publish_tags.move(repository, tag, ours.digest, "so")
    with pytest.raises(RegistryError, match="is not an image that builder made"):
        publish_tags.move(repository, "latest", "nightly.nights", "so")
    with pytest.raises(RegistryError, match="has no nothing"):
        publish_tags.move(repository, "latest", "nothing", "so")
    assert repository.resolve("latest") == ""
    first = publish_tags.move(repository, "latest", ours.digest, "so")
    assert first.before == ""
    # Once more is no move, and there is nothing to go back to.
    assert publish_tags.move(repository, "latest", "1-0123456789ab", "again").before == ours.digest
    assert [move.reason for move in tag_history.moves(repository, "latest")] == ["so"]
    with pytest.raises(RegistryError, match=r"before the last move of .*:latest is not known"):
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


def test_an_index_is_no_image_of_ours(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of its images runs depends on the machine: a verified one may hide another."""
    monkeypatch.setenv("BUILDER_NAMESPACE", f"{registry}/me")
    session = build_session(None)
    rendered = session.resolve("hello-sm120-0.1.0", "x86_64")
    repository = Repository(f"{registry}/me/hello-sm120", print)
    good, evil = (put_image(repository, rendered.key, n=name) for name in ("good", "evil"))
    entries = [
        {"mediaType": each.media_type, "digest": each.digest, "size": len(each.content)}
        for each in (good, evil)
    ]
    entries[1]["platform"] = {"os": "linux", "architecture": "amd64"}
    told = {"schemaVersion": 2, "mediaType": MANIFESTS[1], "manifests": entries}
    index = Manifest(json.dumps(told).encode(), MANIFESTS[1])
    repository.put_manifest(rendered.immutable_tag, index)
    with pytest.raises(RegistryError, match="is an index of images"):
        find_published(session, rendered, repository, tmp_path)


def test_what_is_no_image_is_told(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "ATTEMPTS", 1)
    for content in (b'{"manifests": 1}', b'{"config": {}}', b'{"config": {"digest": 1}}'):
        parts = json.loads(content) | {"schemaVersion": 2, "mediaType": MANIFESTS[0]}
        manifest = Manifest(json.dumps(parts).encode(), MANIFESTS[0])
        front = Repository("127.0.0.1:1/x", print)
        front.manifest = lambda _, found=manifest: found  # type: ignore[method-assign,misc]
        with pytest.raises(BuilderError):
            remote_image(front, "x")
    assert remote_image(repository, "nothing") is None


def test_a_verified_image_of_another_machine_gets_what_is_missing(
    repository: Repository, tmp_path: Path
) -> None:
    there = put_image(repository, "k", "1-kkkkkkkkkkkk").digest
    verdict = Verdict(there, (Check("runs", "x", "y", "y", passed=True),), 1, 1)
    verified = Record(
        recipe="x-1",
        key="k" * 64,
        contract="c",
        references=(f"{repository.name}:1-k",),
        digest=there,
        verdict=verdict,
        created="",
        seconds={},
    )
    bill = referrers.Attachment("application/spdx+json")
    trust = Trust("", (), tmp_path)

    def missing(attached: Collection[str]) -> list[referrers.Attachment]:
        return [] if bill.kind in attached else [bill]

    def kinds() -> list[str]:
        return sorted(each["artifactType"] for each in referrers.referrers(repository, there))

    how = pushing.Pushing(tmp_path, print, trust, missing, there=there, verified=verified)
    here = verified.model_copy(update={"digest": f"sha256:{'0' * 64}"})
    for _ in range(2):
        pushing.push(repository, here, publish_tags.Tags("1-kkkkkkkkkkkk", ("1",), ()), how)
        assert kinds() == sorted([bill.kind, VERDICT])
        how = replace(how, known=frozenset(repository.tags()))
    other = put_image(repository, "m").digest
    moved = {"digest": other, "verdict": replace(verdict, digest=other)}
    night = verified.model_copy(update=moved)
    for _ in range(2):
        pushing.vouch(repository, night, trust, missing, print)
        assert len(referrers.referrers(repository, other)) == 2


def test_what_is_attached_is_listed_once(repository: Repository) -> None:
    subject = put_image(repository, "k1")
    for kind in ("a/0", "a/1", "a/0"):
        referrers.attach(repository, subject, kind, {})
    found = [entry["artifactType"] for entry in referrers.referrers(repository, subject.digest)]
    assert found == ["a/0", "a/1"]


def test_who_stands_elsewhere_learns_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "ATTEMPTS", 1)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

    def other(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        wanted = {"WWW-Authenticate": 'Basic realm="x"'}
        return (201, {}, b"") if request.headers.get("Authorization") else (401, wanted, b"")

    with answering(other) as (elsewhere, asked_there):

        def front(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
            if not request.headers.get("Authorization"):
                return 401, {"WWW-Authenticate": 'Basic realm="x"'}, b""
            if request.command == "POST":
                return 202, {"Location": f"http://{elsewhere}/up"}, b""
            return 404, {}, b""

        with answering(front) as (address, asked):
            pair = base64.b64encode(b"farm:s3cret").decode()
            auths = {"auths": {address: {"auth": pair}}}
            (tmp_path / "config.json").write_text(json.dumps(auths))
            with pytest.raises(RegistryError):
                Repository(f"{address}/me/x", print).put_bytes(b"x")
            assert any(request.headers.get("Authorization") for request in asked)
            assert asked_there
            assert not any(request.headers.get("Authorization") for request in asked_there)


def test_a_signed_url_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "ATTEMPTS", 1)
    gone = "http://127.0.0.1:9/bucket/x?X-Amz-Signature=SECRET&X-Amz-Token=SECRET"
    with answering(lambda _: (307, {"Location": gone}, b"")) as (address, _):
        with pytest.raises(FetchError) as caught:
            Repository(f"{address}/me/x", print).blob("sha256:" + "0" * 64)
        assert "SECRET" not in str(caught.value)
        assert "connection refused" in str(caught.value)


def test_pages_that_never_end() -> None:
    again = {"Link": '</v2/me/x/tags/list?last=a>; rel="next"'}
    page = json.dumps({"tags": ["a"]}).encode()
    with answering(lambda _: (200, again, page)) as (address, asked):
        assert Repository(f"{address}/me/x", print).tags() == ["a"]
        assert len(asked) == 2


def test_referrers_of_every_page() -> None:

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        more = "page" not in request.path
        headers = {"Content-Type": MANIFESTS[1]}
        if more:
            headers["Link"] = f"<{request.path}?page=2>; rel=next"
        entry = {"digest": "sha256:" + ("1" if more else "2") * 64}
        return 200, headers, json.dumps({"manifests": [entry]}).encode()

    with answering(answer) as (address, _):
        found = referrers.referrers(Repository(f"{address}/me/x", print), "sha256:" + "0" * 64)
        assert [entry["digest"] for entry in found] == ["sha256:" + each * 64 for each in "12"]


def test_a_registry_that_was_given_up_is_asked_once() -> None:
    answers = {"status": 503}
    later = {"Retry-After": "0"}
    with answering(lambda _: (answers["status"], later, b"{}")) as (address, asked):
        with pytest.raises(FetchError, match="fails: GET tags"):
            Repository(f"{address}/me/x", print).tags()
        assert len(asked) == retry.ATTEMPTS
        with pytest.raises(FetchError):
            Repository(f"{address}/me/x", print).tags()
        assert len(asked) == retry.ATTEMPTS + 1
        answers["status"] = 200
        assert Repository(f"{address}/me/x", print).tags() == []
        answers["status"] = 503
        with pytest.raises(FetchError):
            Repository(f"{address}/me/x", print).tags()
        assert len(asked) == 2 * retry.ATTEMPTS + 2


def test_what_a_terminal_would_obey_is_left_out() -> None:
    told = BuilderError("a\x1b[2Jb", "//me:pa@ss@host/x", "c\x9bd\n\te")
    assert str(told) == "a[2Jb\n//***@host/x\ncd\n\te"
