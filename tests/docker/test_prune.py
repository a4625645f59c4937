"""Pruning: the newest nights stay, and whatever anything else refers to."""

from __future__ import annotations

import hashlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from builder import sbom
from builder.cli.app import main
from builder.errors import GoneError, RegistryError, WorldError
from builder.families.layout import LABEL_KEY
from builder.publish import prune as pruning
from builder.publish import prune_plan, tags
from builder.publish.referrers import File, attach, referrers
from builder.publish.remote_image import CREATED, VERSION
from builder.publish.survey import is_nightly, survey
from builder.publish.tag_history import MOVE, attach_note
from builder.tools.files import named_lock
from builder.tools.registry.client import MANIFESTS, Manifest, Repository
from builder.tools.registry.hub import Hub
from support.environment import REPOSITORY
from support.hub import DockerHub, Page, docker_hub
from support.registries import Fault, proxied

pytestmark = pytest.mark.usefixtures("own_cache")
docker_test = pytest.mark.docker
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
BASE = b"the layer that all have" * 100
PATH = "me/hello-sm120"
HELLO = (REPOSITORY / "recipes" / "hello-sm120-0.1.0.toml").read_text()


def nightly(number: int, channel: str = "nightly") -> str:
    """The tag of the night ``number``."""
    key = hashlib.sha256(f"{channel} {number}".encode()).hexdigest()[:12]
    return f"{channel}-b{9900 + number}-{key}"


def image(
    repository: Repository,
    *tags: str,
    day: int | None = None,
    layers: Sequence[bytes] = (),
    config: Mapping[str, Any] | None = None,
) -> Manifest:
    """An image of a day of November 2026, or of no age; each has a layer of its own."""
    created = f"2026-11-{day:02}T02:00:00+00:00" if day is not None else None
    labels = {LABEL_KEY: "k"} | ({CREATED: created} if created else {})
    told = {"os": "linux", "architecture": "amd64", "config": {"Labels": labels}, **(config or {})}
    own = f"layer of {tags[:1]} {day}".encode() * 50
    content = json.dumps({**told, "salt": [*tags, day]}).encode()
    parts = [(CONFIG, content), *((LAYER, layer) for layer in (BASE, own, *layers))]
    described = []
    for kind, data in parts:
        repository.put_bytes(data)
        described.append(descriptor(Manifest(data, kind)))
    listed = {
        "schemaVersion": 2,
        "mediaType": MANIFESTS[0],
        "config": described[0],
        "layers": described[1:],
    }
    made = Manifest(json.dumps(listed).encode(), MANIFESTS[0])
    for tag in tags or (made.digest,):
        repository.put_manifest(tag, made)
    return made


def index(repository: Repository, *tags: str, of: Sequence[Manifest]) -> Manifest:
    platform = {"os": "linux", "architecture": "amd64"}
    entries = [{**descriptor(part), "platform": platform} for part in of]
    told = {"schemaVersion": 2, "mediaType": MANIFESTS[1], "manifests": entries}
    made = Manifest(json.dumps(told).encode(), MANIFESTS[1])
    for tag in tags:
        repository.put_manifest(tag, made)
    return made


@docker_test
def test_indexes_within_each_other_are_told(registry: str) -> None:
    repository = Repository(f"{registry}/{PATH}", print)
    made = index(repository, nightly(1), of=[image(repository, day=1)])
    assert len(survey(repository, "nightly")[0].manifests) == 2
    for _ in range(6):
        made = index(repository, "deep", of=[made])
    with pytest.raises(RegistryError, match="lists nested indexes") as caught:
        survey(repository, "nightly")
    assert "deep" in str(caught.value)


def descriptor(manifest: Manifest) -> dict[str, Any]:
    size = len(manifest.content)
    return {"mediaType": manifest.media_type, "digest": manifest.digest, "size": size}


def attached_tag(manifest: Manifest, suffix: str = "") -> str:
    return manifest.digest.replace(":", "-") + suffix


SIGNED = "application/vnd.dev.cosign.simplesigning.v1+json"
ATTESTED = "application/vnd.dsse.envelope.v1+json"


def signature(
    repository: Repository, of: Manifest, suffix: str = ".sig", kind: str = SIGNED
) -> Manifest:
    """As cosign 2 keeps one: under a tag that is named after the image."""
    payload = json.dumps({"critical": {"image": {"docker-manifest-digest": of.digest}}}).encode()
    config = json.dumps({"salt": of.digest}).encode()
    for data in (payload, config):
        repository.put_bytes(data)
    told = {
        "schemaVersion": 2,
        "mediaType": MANIFESTS[0],
        "config": descriptor(Manifest(config, CONFIG)),
        "layers": [descriptor(Manifest(payload, kind))],
    }
    made = Manifest(json.dumps(told).encode(), MANIFESTS[0])
    repository.put_manifest(attached_tag(of, suffix), made)
    return made


@pytest.fixture
def repository(registry: str) -> Repository:
    return Repository(f"{registry}/{PATH}", unheard)


Prune = Callable[..., Any]


@pytest.fixture
def catalog_of_nights(catalog: Path) -> Path:
    """A recipe with the channel "nightly"."""
    track = '[track]\nbranch = "main"\nchannel = "nightly"\n\n[cuda]'
    text = HELLO.replace('"0.1.0"', '"nightly"').replace("\n[cuda]", f"\n{track}", 1)
    text = text.replace('["nightly"]\n', '["nightly"]\nmoving = ["nightly"]\n')
    (catalog / "recipes" / "hello-sm120-nightly.toml").write_text(text)
    return catalog


@pytest.fixture
def prune(
    catalog_of_nights: Path,
    registry: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Prune]:
    """Run the command, in this process; the JSON of it, or what it told."""
    monkeypatch.setenv("BUILDER_NAMESPACE", f"{registry}/me")

    def run(*options: str, command: str = "tag prune", expect: int = 0) -> Any:
        arguments = [*command.split(), "hello-sm120-nightly", *options, "--catalog"]
        monkeypatch.setattr(sys, "argv", ["builder", *arguments, str(catalog_of_nights)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        assert left.value.code == expect, said.err + said.out
        assert "Traceback" not in said.err
        return json.loads(said.out) if "--json" in options else said.out + said.err

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


def decide(repository: Repository, keep: int, **options: Any) -> prune_plan.Plan:
    images = survey(repository, "nightly")
    return prune_plan.plan(images, "nightly", keep, **options)


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Where is kept what is being deleted."""
    return tmp_path / "begun.json"


def unheard(_: str) -> None:
    pass


def going(plan: prune_plan.Plan) -> set[str]:
    return {tag for gone in plan.deletions for tag in gone.tags}


def reasons(plan: prune_plan.Plan) -> dict[str, str]:
    return {tag: each.kept_because for each in plan.candidates for tag in each.tags}


# What is a nightly


@pytest.mark.parametrize(
    ("tag", "channel", "names", "expected"),
    [
        ("master-b9900-0123456789ab", "master", (), True),
        ("nightly-main-3f2a91c0d-0123456789ab", "nightly", (), True),
        ("nightly-main-3f2a91c0d-0123456789ab", "nightly-main", ("nightly",), True),
        ("nightly-main-3f2a91c0d-0123456789ab", "nightly", ("nightly-main",), False),
        ("nightly-1acd67a-0123456789ab", "nightly", ("nightly-1acd67a",), False),
        ("nightly-v0.20.2-0123456789ab", "nightly", ("nightly-v0.20",), True),
        ("nightly-0123456789ab", "nightly", (), False),
        ("nightly", "nightly", (), False),
        ("nightly-b1-0123456789AB", "nightly", (), False),
        ("nightly-b1-0123456789abc", "nightly", (), False),
        ("nightlyx-b1-0123456789ab", "nightly", (), False),
        ("0.1.0-0123456789ab", "nightly", (), False),
        ("a.c-b1-0123456789ab", "a.c", (), True),
        ("abc-b1-0123456789ab", "a.c", (), False),
    ],
)
def test_what_a_nightly_is_called(
    tag: str, channel: str, names: tuple[str, ...], expected: bool
) -> None:
    assert is_nightly(tag, channel, names) is expected


# What stays


@docker_test
def test_the_newest_nights_stay(repository: Repository, prune: Prune) -> None:
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
    assert "nothing was deleted: add --delete" in said
    assert f"delete\t{nightly(29)}\t2026-11-01 02:00" in said
    assert "3 of 6 nightlies of nightly can be deleted; one other tag is kept" in said

    done = prune("--keep", "3", "--delete", "--json")
    assert set(done["deleted"]) == {nightly(30 - day) for day in (5, 2, 1)}
    assert set(repository.tags()) == whole - set(done["deleted"])
    for day, manifest in made.items():
        assert (repository.manifest(manifest.digest) is not None) is (day >= 7)
    # What they shared is still referred to.
    gone = sum(_own_bytes(made[day]) for day in (5, 2, 1))
    assert done["bytes"] == shown["bytes"] == gone
    said = prune("--keep", "2", "--delete")
    assert f"deleted\t{nightly(23)}" in said
    assert "1 of 3 nightlies of nightly were deleted" in said
    assert prune("--keep", "2", "--delete", "--json")["deleted"] == []


@docker_test
def test_what_the_channel_would_be_rolled_back_to_stays(
    repository: Repository, prune: Prune
) -> None:
    made = {day: image(repository, nightly(day), day=day) for day in range(1, 7)}
    for day in (2, 4, 6):
        tags.move(repository, "nightly", made[day].digest, f"night {day}", by="night")
    prune("--keep", "1", "--delete")
    left = {tag for tag in repository.tags() if not tag.startswith("sha256-")}
    assert left == {"nightly", nightly(6), nightly(4)}
    prune("nightly", "--reason", "it crashes", command="tag rollback")
    assert repository.resolve("nightly") == made[4].digest


@docker_test
def test_what_any_tag_would_be_rolled_back_to_stays(repository: Repository, prune: Prune) -> None:
    made = {day: image(repository, nightly(day), day=day) for day in range(1, 8)}
    for tag, days in (("nightly", (3, 6)), ("latest", (1, 2, 7)), ("stable", (4,))):
        for day in days:
            tags.move(repository, tag, made[day].digest, f"night {day}")
    done = prune("--keep", "1", "--delete", "--json")
    stays = {tag: each["stays"] for each in done["nightlies"] for tag in each["tags"]}
    assert stays[nightly(2)] == "latest would be rolled back to it"
    assert stays[nightly(3)] == "nightly would be rolled back to it"
    assert set(done["deleted"]) == {nightly(1), nightly(5)}
    prune("latest", "--reason", "it crashes", command="tag rollback")
    assert repository.resolve("latest") == made[2].digest


@docker_test
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


def _own_bytes(manifest: Manifest) -> int:
    parsed = manifest.parsed()
    parts = [parsed["config"], *parsed["layers"]]
    assert parts[1]["size"] == len(BASE)
    return len(manifest.content) + sum(part["size"] for part in parts) - len(BASE)


@docker_test
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
    done = prune("--keep", "2", "--delete", "--json")
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


@docker_test
def test_what_is_signed_stays_unless_told_otherwise(repository: Repository, prune: Prune) -> None:
    made = [image(repository, nightly(day), day=day) for day in range(1, 5)]
    tagged = signature(repository, made[0], ".att", ATTESTED)
    kind = "application/vnd.dev.sigstore.bundle.v0.3+json"
    bundle = attach(repository, made[1], kind, {}, [File("bundle", kind, b'{"bundle": 1}')])
    bill = "application/vnd.cyclonedx+json"
    attach(repository, made[2], bill, {}, [File("sbom.json", bill, b'{"bomFormat": 1}')])
    done = prune("--keep", "1", "--delete", "--json")
    assert done["deleted"] == [nightly(3)]
    assert [each["stays"] for each in done["nightlies"][2:]] == ["it is signed"] * 2
    assert attached_tag(made[0], ".att") in repository.tags()
    done = prune("--keep", "1", "--delete", "--signed", "--json")
    assert set(done["deleted"]) == {nightly(1), nightly(2)}
    for digest in (tagged.digest, bundle, *(each.digest for each in made[:3])):
        assert repository.manifest(digest) is None
    assert repository.tags() == [nightly(4)]


@docker_test
def test_an_image_goes_with_what_is_attached_to_it(repository: Repository, begun: Path) -> None:
    made = [image(repository, nightly(day), day=day) for day in (1, 2)]
    kind = "application/spdx+json"
    bills = [
        attach(repository, each, kind, {}, [File("sbom.json", kind, f"{number}".encode())])
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
    assert pruning.delete(repository, plan, begun, unheard) == (nightly(1),)
    for digest in (made[0].digest, bills[0], deeper):
        assert repository.manifest(digest) is None
    assert repository.manifest(bills[1]) is not None
    assert repository.tags() == sorted([nightly(2), attached_tag(made[1])])


@docker_test
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


@docker_test
@pytest.mark.parametrize(
    "told", [{"Labels": {CREATED: None}}, {"Labels": {CREATED: 5}}, {"Labels": ["x"]}, ["x"]]
)
def test_a_label_that_is_no_date_tells_no_age(repository: Repository, told: Any) -> None:
    image(repository, nightly(1), config={"config": told})
    image(repository, nightly(2), day=2)
    assert "its age is not known" in reasons(decide(repository, 1))[nightly(1)]


@docker_test
def test_an_index_goes_with_its_parts(repository: Repository, begun: Path) -> None:
    parts = [image(repository, day=day, layers=[b"shared"]) for day in (1, 2)]
    index(repository, nightly(1), of=parts)
    kept = image(repository, nightly(2), day=9, layers=[b"shared"])
    index(repository, "0.1.0", of=parts[1:])
    plan = decide(repository, 1)
    assert going(plan) == {nightly(1)}
    signature(repository, parts[0])
    assert reasons(decide(repository, 1))[nightly(1)] == "it is signed"
    pruning.delete(repository, plan, begun, unheard)
    assert repository.manifest(parts[0].digest) is None
    assert repository.manifest(parts[1].digest) is not None  # 0.1.0 lists it, too
    assert repository.manifest(kept.digest) is not None
    (gone,) = plan.deletions[:1]
    size = len(gone.manifests[gone.digest].content)
    assert plan.freed_bytes == size + _own_bytes(parts[0]) - len(b"shared")


@docker_test
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


# What happens meanwhile


@docker_test
def test_tags_are_looked_at_again_before_each_deletion(repository: Repository, begun: Path) -> None:
    made = [image(repository, nightly(day), day=day) for day in range(1, 6)]
    repository.put_manifest("nightly", made[4])
    plan = decide(repository, 1)
    assert going(plan) == {nightly(day) for day in range(1, 5)}
    repository.put_manifest("nightly", made[1])
    repository.put_manifest("fresh", made[2])
    heard: list[str] = []
    gone = pruning.delete(repository, plan, begun, heard.append)
    assert gone == (nightly(1), nightly(4))
    assert f"{nightly(2)} stays: nightly points to it now" in heard
    assert f"{nightly(3)} stays: fresh points to it now" in heard
    for kept in made[1:3]:
        assert repository.manifest(kept.digest) is not None


BELONGS = (MOVE, sbom.CYCLONEDX, sbom.SPDX)


def dressed(repository: Repository, of: Manifest) -> Manifest:
    """An image with what a night attaches to it."""
    for kind in (sbom.CYCLONEDX, sbom.SPDX):
        attach(repository, of, kind, {}, [File("bom.json", kind, of.digest.encode())])
    attach_note(repository, of, "nightly", "", "a night")
    return of


def worn(repository: Repository, digest: str) -> list[str]:
    """What is attached to an image, and there."""
    entries = referrers(repository, digest)
    there = [entry for entry in entries if repository.manifest(entry["digest"])]
    return sorted(entry["artifactType"] for entry in there)


@docker_test
def test_a_channel_that_moves_between_two_deletions(
    registry: str, repository: Repository, begun: Path
) -> None:
    made = [dressed(repository, image(repository, nightly(day), day=day)) for day in (1, 2, 3)]
    repository.put_manifest("nightly", made[2])
    with proxied(registry) as proxy:
        through = Repository(f"{proxy.address}/{PATH}", unheard)
        plan = decide(through, 1)
        proxy.faults = [Fault("DELETE", "slow", 1)]
        heard: list[str] = []
        done = threading.Thread(target=pruning.delete, args=(through, plan, begun, heard.append))
        done.start()
        wait_for(lambda: proxy.count("DELETE") == 1)
        repository.put_manifest("nightly", made[1])
        done.join()
        asked = [each for each in proxy.requests if each.startswith("DELETE")]
    # Nothing is taken from an image that is there.
    assert [made[0].digest in each for each in asked] == [True, *[False] * 4]
    assert worn(repository, made[0].digest) == []
    assert heard == [
        f"deleted {nightly(1)}",
        f"{nightly(2)} stays: nightly points to it now",
    ]
    assert repository.resolve("nightly") == repository.resolve(nightly(2)) == made[1].digest
    for kept in made[1:]:
        assert worn(repository, kept.digest) == sorted(BELONGS)


@docker_test
def test_what_two_have_in_common_goes_with_the_last(
    registry: str, repository: Repository, begun: Path
) -> None:
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
        done = threading.Thread(target=pruning.delete, args=(through, plan, begun, unheard))
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


@docker_test
def test_an_index_that_was_half_deleted_is_finished(
    registry: str, repository: Repository, begun: Path
) -> None:
    parts = [image(repository, day=day) for day in (1, 2, 3)]
    index(repository, nightly(1), of=parts)
    image(repository, nightly(2), day=9)
    with proxied(registry) as proxy:
        through = Repository(f"{proxy.address}/{PATH}", unheard)
        proxy.faults = [Fault("DELETE", "pass", 1), Fault("DELETE", 403, 1)]
        with pytest.raises(RegistryError, match="has no permission"):
            pruning.delete(through, decide(through, 1), begun, unheard)
    assert repository.tags() == [nightly(2)]
    repository.put_manifest("0.1.0", parts[1])  # now it is needed
    plan = decide(repository, 1)
    assert plan.deletions == ()
    heard: list[str] = []
    assert pruning.delete(repository, plan, begun, heard.append) == ()
    assert heard == [f"deleted the rest of {nightly(1)}"]
    assert [repository.manifest(part.digest) is None for part in parts] == [True, False, True]
    assert not begun.exists()
    for damaged in ("{", "[]", '{"tags": ["a"]}', '{"tags": 1}'):
        begun.write_text(damaged)
        with pytest.raises(WorldError, match="cannot be read"):
            pruning.delete(repository, plan, begun, heard.append)


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.005)


@docker_test
def test_a_run_that_was_killed_goes_on(
    repository: Repository,
    registry: str,
    prune: Prune,
    catalog_of_nights: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = [dressed(repository, image(repository, nightly(day), day=day)) for day in range(1, 6)]
    notes = [[entry["digest"] for entry in referrers(repository, each.digest)] for each in made]
    arguments = ["tag", "prune", "hello-sm120-nightly", "--keep", "1", "--delete", "--catalog"]
    command = [sys.executable, "-m", "builder", *arguments, str(catalog_of_nights)]
    with proxied(registry) as proxy:
        monkeypatch.setenv("BUILDER_NAMESPACE", f"{proxy.address}/me")
        # Killed before the second deletion is asked for again: the first image is gone by then,
        # and all that is attached to it is there.  Then while the seventh is done, which is of
        # the second image.
        for deletion, fault in ((2, "cut"), (7, "slow")):
            proxy.requests.clear()
            proxy.faults = [Fault("DELETE", "pass", deletion - 1), Fault("DELETE", fault, 1)]
            with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
                wait_for(lambda many=deletion: proxy.count("DELETE") >= many)
                process.send_signal(signal.SIGKILL)
            assert process.returncode == -signal.SIGKILL
            if fault == "cut":
                assert repository.manifest(made[0].digest) is None
                assert worn(repository, made[0].digest) == sorted(BELONGS)
        assert worn(repository, made[0].digest) == []
        done = prune("--keep", "1", "--delete", "--json")
    assert done["deleted"] == [nightly(3), nightly(4)]
    assert repository.tags() == sorted([nightly(5), attached_tag(made[4])])
    assert worn(repository, made[4].digest) == sorted(BELONGS)
    for gone in notes[:4]:
        assert [repository.manifest(digest) for digest in gone] == [None] * 3


@docker_test
def test_what_passes_is_tried_again_and_what_does_not_is_told(
    repository: Repository, registry: str, prune: Prune, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(1, 4):
        image(repository, nightly(day), day=day)
    with proxied(registry) as proxy:
        monkeypatch.setenv("BUILDER_NAMESPACE", f"{proxy.address}/me")
        proxy.faults = [Fault("DELETE", 403, 1)]
        assert "has no permission" in prune("--keep", "1", "--delete", expect=12)
        assert proxy.count("DELETE") == 1
        proxy.faults = [
            Fault("DELETE", "cut", 1),
            Fault("DELETE", 503, 1, {"Retry-After": "0"}),
            Fault("GET .*manifests", 429, 1, {"Retry-After": "0"}),
        ]
        assert len(prune("--keep", "1", "--delete", "--json")["deleted"]) == 2
        assert all(fault.times == 0 for fault in proxy.faults)


# Registries that differ


@docker_test
def test_a_registry_that_allows_no_deletion(
    tmp_path: Path, prune: Prune, monkeypatch: pytest.MonkeyPatch
) -> None:
    with strict_registry(tmp_path) as address:
        monkeypatch.setenv("BUILDER_NAMESPACE", f"{address}/me")
        repository = Repository(f"{address}/{PATH}", unheard)
        made = [image(repository, nightly(day), day=day) for day in (1, 2)]
        attach_note(repository, made[0], "nightly", "", "a night")
        before = repository.tags()
        assert "2 nightlies" in prune("--keep", "1")
        for _ in range(2):
            told = prune("--keep", "1", "--delete", expect=12)
            assert "does not allow deletion" in told
            assert "REGISTRY_STORAGE_DELETE_ENABLED=true" in told
            assert "deleted the rest" not in told
            assert repository.tags() == before


@contextmanager
def strict_registry(tmp_path: Path) -> Iterator[str]:
    """A registry as Debian's package configures it: without deletion."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file = tmp_path / "strict.yml"
    file.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path / 'strict'}}}}}\n"
        f'http: {{addr: "127.0.0.1:{port}"}}\n'
    )
    with subprocess.Popen(
        ["docker-registry", "serve", str(file)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            with socket.socket() as probe:
                wait_for(lambda: probe.connect_ex(("127.0.0.1", port)) == 0)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


@docker_test
def test_a_registry_that_lists_referrers_itself(registry: str, begun: Path) -> None:
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
        pruning.delete(repository, plan, begun, unheard)
        assert repository.manifest(old) is None
        assert repository.manifest(bundle) is not None
        pruning.delete(repository, decide(repository, 1, signed=True), begun, unheard)
        assert repository.manifest(bundle) is None
        assert repository.tags() == [nightly(3)]


@docker_test
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


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerHub]:
    """Docker Hub's API, and a login for it."""
    monkeypatch.setenv("DOCKERHUB_USERNAME", "me")
    monkeypatch.setenv("DOCKERHUB_TOKEN", "secret")
    with docker_hub() as there:
        there.users = {"me": {"secret": {"read", "write", "delete"}}}
        yield there


@docker_test
def test_on_docker_hub_tags_are_deleted(
    repository: Repository, hub: DockerHub, begun: Path
) -> None:
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
    assert pruning.delete_tags(repository, by, plan, begun, heard.append) == (nightly(1),)
    assert f"{nightly(2)} stays: nightly points to it now" in heard
    expected = set(repository.tags()) - {nightly(1), attached_tag(made[0])}
    assert set(hub.pages[PATH].tags) == expected
    assert repository.manifest(made[0].digest) is not None
    # Again, with the one that is signed; what is gone already is gone.
    plan = decide(repository, 1, signed=True)
    gone = pruning.delete_tags(repository, by, plan, begun, heard.append)
    assert gone == (nightly(1), nightly(3))
    expected -= {nightly(3), attached_tag(made[2], ".sig")}
    assert set(hub.pages[PATH].tags) == expected


@docker_test
def test_on_docker_hub_what_stays_keeps_what_is_attached(
    repository: Repository, hub: DockerHub, begun: Path
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
    # Somebody rolls back to the second one while its tag is deleted.
    hub.faults = [Fault(f"DELETE .*{nightly(3)}", 429, 1, {"Retry-After": "1"})]
    by, heard = Hub(hub.address, unheard), list[str]()
    arguments = (repository, by, plan, begun, heard.append)
    done = threading.Thread(target=pruning.delete_tags, args=arguments)
    done.start()
    wait_for(lambda: hub.count(f"DELETE .*{nightly(3)}") == 1)
    Repository(repository.name, unheard).put_manifest("nightly", old)
    done.join()
    left = {"0.1.0", nightly(2), nightly(4), attached_tag(part, ".sig"), attached_tag(old)}
    assert set(hub.pages[PATH].tags) == left
    assert f"attachments of {old.digest} stay: nightly points to it" in heard


@docker_test
def test_on_docker_hub_a_run_that_was_stopped_goes_on(
    repository: Repository, hub: DockerHub, begun: Path
) -> None:
    old = dressed(repository, image(repository, nightly(1), day=1))
    signature(repository, old)
    image(repository, nightly(2), day=2)
    hub.pages = {PATH: Page(tags=repository.tags())}
    plan = decide(repository, 1, signed=True)
    hub.faults = [Fault("DELETE .*sha256-", 403, 1)]
    by = Hub(hub.address, unheard)
    with pytest.raises(RegistryError, match="has no permission"):
        pruning.delete_tags(repository, by, plan, begun, unheard)
    attached = {attached_tag(old), attached_tag(old, ".sig")}
    assert set(hub.pages[PATH].tags) == {nightly(2), *attached}
    # On the registry its tags are as they are on Docker Hub; another image has its name.
    repository.delete(old.digest)
    image(repository, nightly(1), day=9)
    hub.pages[PATH].tags.append(nightly(1))
    plan = decide(repository, 2, signed=True)
    assert pruning.delete_tags(repository, by, plan, begun, unheard) == ()
    assert hub.pages[PATH].tags == [nightly(2), nightly(1)]


@docker_test
@pytest.mark.parametrize("referring", [False, True])
def test_docker_hub_gives_as_few_manifests_as_can_be(
    registry: str, begun: Path, hub: DockerHub, referring: bool
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
        attach(repository, made[2], kind, {}, [File("bundle", kind, b"{}")])
        proxy.requests.clear()
        plan = decide(repository, 2)
        # Those of the images and, where the registry does not list them, what lists referrers.
        assert proxy.count("GET .*/manifests/") == (6 if referring else 12)
        assert reasons(plan)[nightly(2)] == reasons(plan)[nightly(3)] == "it is signed"
        assert going(plan) == {nightly(1), nightly(4)}
        proxy.requests.clear()
        hub.pages = {PATH: Page(tags=repository.tags())}
        assert pruning.delete_tags(repository, Hub(hub.address, unheard), plan, begun, unheard)
        assert proxy.count("GET .*/manifests/") == 0


@docker_test
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
        assert [bool(each["stays"]) for each in shown["nightlies"]] == [True] * 2 + [False] * 5
        assert len(proxy.requests) <= 40, "\n".join(proxy.requests)
        survey_alone = len(proxy.requests)
        proxy.requests.clear()
        assert len(prune("--keep", "2", "--delete", "--json")["deleted"]) == 5
        deletions = proxy.count("DELETE")
        looks = len(proxy.requests) - survey_alone - deletions
        # An image, what lists its referrers, two bills, two notes: each has a DELETE of its own.
        assert deletions == 5 * 6
        # Before each image: the list of tags, and where each of the five that stay leads.
        assert looks == 5 * 6, "\n".join(proxy.requests)


# What led to a tag


@docker_test
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


# What bad input gets


@docker_test
def test_what_cannot_be_pruned(
    prune: Prune, catalog_of_nights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDER_CACHE_DIR", str(tmp_path / "cache"))
    assert prune("--json")["nightlies"] == []  # there is no such repository yet
    with named_lock(tmp_path / "cache", "nightly"):
        assert "this machine builds the nightly images" in prune("--delete", expect=9)
        prune()
    # What moves a channel is not done while what it may lead to is deleted.
    with named_lock(tmp_path / "cache", tags.TAGS):
        assert "another run on this machine gives or deletes tags" in prune("--delete", expect=9)
        move = ("nightly", "--reason", "why not", "--to", nightly(1))
        for command in ("tag promote", "tag rollback"):
            assert "another run" in prune(*move, command=command, expect=9)
    assert f"has no {nightly(1)}" in prune(*move, command="tag promote", expect=12)
    file = catalog_of_nights / "recipes" / "hello-sm120-nightly.toml"
    file.write_text(file.read_text().replace('channel = "nightly"\n', ""))
    assert "has no channel" in prune(expect=3)


@docker_test
def test_a_blob_is_what_was_asked_for(registry: str, repository: Repository) -> None:
    content = b'{"schemaVersion":2}'
    repository.put_bytes(content)
    digest = Manifest(content, CONFIG).digest
    assert repository.blob(digest) == content
    with pytest.raises(GoneError, match="has no sha256:0000"):
        repository.blob(f"sha256:{'0' * 64}")
    with proxied(registry) as proxy:
        proxy.faults = [Fault("GET .*blobs", "lie", 1)]
        with pytest.raises(RegistryError, match="altered the content"):
            Repository(f"{proxy.address}/{PATH}", unheard).blob(digest)


def test_a_token_for_deleting_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            scope = parse_qs(urlsplit(self.path).query)["scope"][0]
            asked.append(scope)
            self.send(200, json.dumps({"token": scope}).encode())

        def do_DELETE(self) -> None:
            allowed = self.headers.get("Authorization", "").endswith(",delete")
            self.send(202 if allowed else 401)

        def send(self, status: int, content: bytes = b"") -> None:
            self.send_response(status)
            where = f"http://127.0.0.1:{self.server.server_port}/token"
            self.send_header("WWW-Authenticate", f'Bearer realm="{where}",service="x"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            pass

    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "none"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        repository = Repository(f"127.0.0.1:{server.server_port}/{PATH}", unheard)
        assert repository.delete(f"sha256:{'0' * 64}")
        server.shutdown()
    assert asked == [f"repository:{PATH}:pull,push,delete"]
