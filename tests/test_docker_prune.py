"""Pruning: the newest nights stay, and whatever anything else refers to."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from builder import pruning
from builder.artifacts import File, attach, referrers
from builder.errors import GoneError, RegistryError
from builder.moves import note
from builder.tools.hub import Hub
from builder.tools.registry import MANIFESTS, Manifest, Repository
from builder.workspace import alone
from conftest import REPOSITORY, Builder
from hub import Page, docker_hub
from registries import Fault, proxied

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
    repository: Repository, *tags: str, day: int | None = None, layers: Sequence[bytes] = ()
) -> Manifest:
    """An image of a day of November 2026, or of no age; each has a layer of its own."""
    created = f"2026-11-{day:02}T02:00:00+00:00" if day is not None else None
    labels = {"org.opencontainers.image.created": created} if created else {}
    config = {"os": "linux", "architecture": "amd64", "config": {"Labels": labels}}
    own = f"layer of {tags[:1]} {day}".encode() * 50
    content = json.dumps({**config, "salt": [*tags, day]}).encode()
    parts = [(CONFIG, content), *((LAYER, layer) for layer in (BASE, own, *layers))]
    described = []
    for kind, data in parts:
        repository.put_bytes(data)
        described.append(descriptor(Manifest(data, kind)))
    told = {
        "schemaVersion": 2,
        "mediaType": MANIFESTS[0],
        "config": described[0],
        "layers": described[1:],
    }
    made = Manifest(json.dumps(told).encode(), MANIFESTS[0])
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
    return Repository(f"{registry}/{PATH}", lambda _: None)


Prune = Callable[..., Any]


@pytest.fixture
def catalogue_of_nights(catalogue: Path) -> Path:
    """A recipe with the channel "nightly"."""
    track = '[track]\nbranch = "main"\nchannel = "nightly"\n\n[cuda]'
    text = HELLO.replace('"0.1.0"', '"nightly"').replace("\n[cuda]", f"\n{track}", 1)
    text = text.replace('["nightly"]\n', '["nightly"]\nmoving = ["nightly"]\n')
    (catalogue / "recipes" / "hello-sm120-nightly.toml").write_text(text)
    return catalogue


@pytest.fixture
def prune(
    builder: Builder, catalogue_of_nights: Path, registry: str, monkeypatch: pytest.MonkeyPatch
) -> Prune:
    """Run the command; the JSON of it, or what it told where it fails."""
    monkeypatch.setenv("BUILDER_NAMESPACE", f"{registry}/me")

    def run(*options: str, expect: int = 0) -> Any:
        done = builder("prune", "hello-sm120-nightly", *options, "--catalogue", catalogue_of_nights)
        assert done.returncode == expect, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout) if "--json" in options else done.stdout + done.stderr

    return run


def decided(repository: Repository, keep: int, **options: Any) -> pruning.Plan:
    return pruning.plan(pruning.survey(repository, "nightly"), "nightly", keep, **options)


def going(plan: pruning.Plan) -> set[str]:
    return {tag for gone in plan.going for tag in gone.tags}


def reasons(plan: pruning.Plan) -> dict[str, str]:
    return {tag: fate.why for fate in plan.fates for tag in fate.tags}


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
    assert pruning.is_nightly(tag, channel, names) is expected


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
    assert "nothing was deleted: say --delete" in said
    assert f"goes\t{nightly(29)}\t2026-11-01 02:00" in said
    assert "3 of 6 nightlies of nightly go; 1 other tags stay" in said

    done = prune("--keep", "3", "--delete", "--json")
    assert set(done["deleted"]) == {nightly(30 - day) for day in (5, 2, 1)}
    assert set(repository.tags()) == whole - set(done["deleted"])
    for day, manifest in made.items():
        assert (repository.manifest(manifest.digest) is not None) is (day >= 7)
    # What they shared is still referred to.
    gone = sum(_own_bytes(made[day]) for day in (5, 2, 1))
    assert done["bytes"] == shown["bytes"] == gone
    said = prune("--keep", "2", "--delete")
    assert f"gone\t{nightly(23)}" in said
    assert "1 of 3 nightlies of nightly are gone" in said
    assert prune("--keep", "2", "--delete", "--json")["deleted"] == []


def _own_bytes(manifest: Manifest) -> int:
    parsed = manifest.parsed()
    parts = [parsed["config"], *parsed["layers"]]
    assert parts[1]["size"] == len(BASE)
    return len(manifest.content) + sum(part["size"] for part in parts) - len(BASE)


@docker_test
def test_what_another_tag_refers_to_stays(
    repository: Repository, prune: Prune, catalogue_of_nights: Path
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
    (catalogue_of_nights / "recipes" / "hello-sm120-nightly-pr5.toml").write_text(recipe)
    done = prune("--keep", "2", "--delete", "--json")
    stays = {tag: each["stays"] for each in done["nightlies"] for tag in each["tags"]}
    assert stays[nightly(1)] == "it is nightly"
    assert stays[nightly(2)] == "it is 0.1.0"
    assert stays[nightly(3)] == "it is nightly-main"
    assert stays[nightly(5)] == "both refers to it"
    assert stays[nightly(8)] == stays[nightly(9)] == "one of the last 2"
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
def test_an_image_goes_with_what_is_attached_to_it(repository: Repository) -> None:
    made = [image(repository, nightly(day), day=day) for day in (1, 2)]
    kind = "application/spdx+json"
    bills = [
        attach(repository, each, kind, {}, [File("sbom.json", kind, f"{number}".encode())])
        for number, each in enumerate(made)
    ]
    for each in made:
        note(repository, each, "nightly", "", "a night")
    bill = repository.manifest(bills[0])
    assert bill is not None
    deeper = attach(repository, bill, "application/vnd.example.review", {"by": "me"})
    plan = decided(repository, 1)
    assert going(plan) == {nightly(1)}
    assert len(plan.going[0].attached) == 5  # two lists by tag, a bill, a note, a review
    assert pruning.delete(repository, plan, lambda _: None) == (nightly(1),)
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
    plan = decided(repository, 1)
    assert "does not tell its age" in reasons(plan)[nightly(1)]
    assert going(plan) == {nightly(2)}
    assert set(plan.others) == {"nightly.nights", "other"}


@docker_test
def test_an_index_goes_with_its_parts(repository: Repository) -> None:
    parts = [image(repository, day=day, layers=[b"shared"]) for day in (1, 2)]
    index(repository, nightly(1), of=parts)
    kept = image(repository, nightly(2), day=9, layers=[b"shared"])
    index(repository, "0.1.0", of=parts[1:])
    plan = decided(repository, 1)
    assert going(plan) == {nightly(1)}
    signature(repository, parts[0])
    assert reasons(decided(repository, 1))[nightly(1)] == "it is signed"
    pruning.delete(repository, plan, lambda _: None)
    assert repository.manifest(parts[0].digest) is None
    assert repository.manifest(parts[1].digest) is not None  # 0.1.0 lists it, too
    assert repository.manifest(kept.digest) is not None
    assert plan.freed == len(plan.going[0].manifests[plan.going[0].digest].content) + _own_bytes(
        parts[0]
    ) - len(b"shared")


@docker_test
def test_what_attached_things_are_of_stays(repository: Repository) -> None:
    old = image(repository, nightly(1), day=1)
    image(repository, nightly(2), day=2)
    kind = "application/vnd.example"
    digest = attach(repository, old, kind, {"x": "y"})
    tagged = repository.manifest(digest)
    assert tagged is not None
    repository.put_manifest("report", tagged)
    plan = decided(repository, 1)
    assert reasons(plan)[nightly(1)] == "report refers to it"
    assert plan.freed == 0


# What happens meanwhile


@docker_test
def test_tags_are_looked_at_again_before_each_deletion(repository: Repository) -> None:
    made = [image(repository, nightly(day), day=day) for day in range(1, 6)]
    repository.put_manifest("nightly", made[4])
    plan = decided(repository, 1)
    assert going(plan) == {nightly(day) for day in range(1, 5)}
    repository.put_manifest("nightly", made[1])
    repository.put_manifest("fresh", made[2])
    heard: list[str] = []
    gone = pruning.delete(repository, plan, heard.append)
    assert gone == (nightly(1), nightly(4))
    assert f"{nightly(2)} stays: nightly leads to it by now" in heard
    assert f"{nightly(3)} stays: fresh leads to it by now" in heard
    for kept in made[1:3]:
        assert repository.manifest(kept.digest) is not None


@docker_test
def test_a_channel_that_moves_between_two_deletions(registry: str, repository: Repository) -> None:
    old = image(repository, nightly(1), day=1)
    repository.put_manifest("nightly", image(repository, nightly(2), day=2))
    note(repository, old, "nightly", "", "a night")
    with proxied(registry) as proxy:
        through = Repository(f"{proxy.address}/{PATH}", lambda _: None)
        plan = decided(through, 1)
        proxy.faults = [Fault("DELETE", "slow", 1)]  # of the note: the image itself comes later
        heard: list[str] = []
        done = threading.Thread(target=pruning.delete, args=(through, plan, heard.append))
        done.start()
        wait_for(lambda: proxy.count("DELETE") == 1)
        repository.put_manifest("nightly", old)
        done.join()
    assert heard == [f"{nightly(1)} stays: nightly leads to it by now"]
    assert repository.leads_to("nightly") == repository.leads_to(nightly(1)) == old.digest


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.005)


@docker_test
def test_a_run_that_was_killed_goes_on(
    repository: Repository, registry: str, prune: Prune, catalogue_of_nights: Path
) -> None:
    made = [image(repository, nightly(day), day=day) for day in range(1, 6)]
    for each in made:
        note(repository, each, "nightly", "", "a night")
    notes = [entry["digest"] for each in made for entry in referrers(repository, each.digest)]
    arguments = ["prune", "hello-sm120-nightly", "--keep", "1", "--delete", "--catalogue"]
    # Killed before the first deletion is asked for again, and while the fourth is done.
    for deletion, fault in ((1, "cut"), (4, "slow")):
        with proxied(registry) as proxy:
            proxy.faults = [Fault("DELETE", "pass", deletion - 1), Fault("DELETE", fault, 1)]
            command = [sys.executable, "-m", "builder", *arguments, str(catalogue_of_nights)]
            environment = os.environ | {"BUILDER_NAMESPACE": f"{proxy.address}/me"}
            with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
                wait_for(lambda proxy=proxy, many=deletion: proxy.count("DELETE") >= many)
                process.send_signal(signal.SIGKILL)
            assert process.returncode == -signal.SIGKILL
            time.sleep(1.1 if fault == "slow" else 0)  # the proxy passes it on by then
    assert len([tag for tag in repository.tags() if tag.startswith("nightly")]) > 1
    done = prune("--keep", "1", "--delete", "--json")
    assert repository.tags() == sorted([nightly(5), attached_tag(made[4])])
    assert done["nightlies"][0]["tags"] == [nightly(5)]
    assert [repository.manifest(digest) is None for digest in notes] == [True] * 4 + [False]


@docker_test
def test_what_passes_is_tried_again_and_what_does_not_is_told(
    repository: Repository, registry: str, prune: Prune, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(1, 4):
        image(repository, nightly(day), day=day)
    with proxied(registry) as proxy:
        monkeypatch.setenv("BUILDER_NAMESPACE", f"{proxy.address}/me")
        proxy.faults = [Fault("DELETE", 403, 1)]
        assert "may not do that" in prune("--keep", "1", "--delete", expect=12)
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
        repository = Repository(f"{address}/{PATH}", lambda _: None)
        made = [image(repository, nightly(day), day=day) for day in (1, 2)]
        note(repository, made[0], "nightly", "", "a night")
        before = repository.tags()
        assert "2 nightlies" in prune("--keep", "1")
        told = prune("--keep", "1", "--delete", expect=12)
        assert "does not allow that anything is deleted" in told
        assert "REGISTRY_STORAGE_DELETE_ENABLED=true" in told
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
            repository = Repository(f"127.0.0.1:{port}/any", lambda _: None)
            repository.tags()  # waits for it
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


@docker_test
def test_a_registry_that_lists_referrers_itself(registry: str) -> None:
    with referring(registry) as address:
        repository = Repository(f"{address}/{PATH}", lambda _: None)
        made = [image(repository, nightly(day), day=day) for day in (1, 2, 3)]
        notes = [note(repository, each, "nightly", "", "a night") for each in made]
        assert len(notes) == 3
        kind = "application/vnd.dev.sigstore.bundle.v0.3+json"
        bundle = attach(repository, made[1], kind, {})
        assert not [tag for tag in repository.tags() if tag.startswith("sha256-")]
        plan = decided(repository, 1)
        assert reasons(plan)[nightly(2)] == "it is signed"
        (gone,) = plan.going
        (old,) = gone.attached
        pruning.delete(repository, plan, lambda _: None)
        assert repository.manifest(old) is None
        assert repository.manifest(bundle) is not None
        pruning.delete(repository, decided(repository, 1, signed=True), lambda _: None)
        assert repository.manifest(bundle) is None
        assert repository.tags() == [nightly(3)]


@contextmanager
def referring(registry: str) -> Iterator[str]:
    """A registry with the referrers API of the specification 1.1, which Debian's does not have.

    "Pushing Manifests with Subject" and "Listing Referrers"; all else is the real registry's.
    """
    subjects: dict[str, list[dict[str, Any]]] = {}

    def listed(content: bytes) -> str:
        told = json.loads(content)
        subject = (told.get("subject") or {}).get("digest", "")
        if subject:
            kind = told.get("artifactType") or told["config"]["mediaType"]
            entry = {**descriptor(Manifest(content, told["mediaType"])), "artifactType": kind}
            subjects.setdefault(subject, []).append(entry)
        return subject

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            _, asked, digest = self.path.rpartition("/referrers/")
            if asked:
                manifests = subjects.get(digest, [])
                told = {"schemaVersion": 2, "mediaType": MANIFESTS[1], "manifests": manifests}
                self.send(200, json.dumps(told).encode(), {"Content-Type": MANIFESTS[1]})
                return
            connection = http.client.HTTPConnection(registry)
            connection.request(self.command, self.path, content, dict(self.headers))
            answer = connection.getresponse()
            left_out = {"content-length", "transfer-encoding", "date"}
            kept = {k: v for k, v in answer.getheaders() if k.lower() not in left_out}
            body = answer.read()
            if self.command == "PUT" and "/manifests/" in self.path and answer.status == 201:
                subject = listed(content)
                kept |= {"OCI-Subject": subject} if subject else {}
            size = answer.getheader("Content-Length") if self.command == "HEAD" else None
            self.send(answer.status, body, kept, size)
            connection.close()

        def send(
            self, status: int, content: bytes, headers: dict[str, str], size: str | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", size or str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_one  # noqa: N815

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@docker_test
def test_on_docker_hub_tags_are_deleted(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [image(repository, nightly(day), day=day) for day in range(1, 5)]
    repository.put_manifest("nightly", made[3])
    note(repository, made[0], "nightly", "", "a night")
    signature(repository, made[2])
    monkeypatch.setenv("DOCKERHUB_USERNAME", "me")
    monkeypatch.setenv("DOCKERHUB_TOKEN", "secret")
    with docker_hub() as there:
        there.users = {"me": {"secret": {"read", "write", "delete"}}}
        there.pages = {PATH: Page(tags=repository.tags())}
        hub = Hub(there.address, lambda _: None)
        plan = decided(repository, 1)
        repository.put_manifest("nightly", made[1])
        there.faults = [Fault("DELETE", 429, 1, {"Retry-After": "0"})]
        heard: list[str] = []
        assert pruning.delete_tags(repository, hub, plan, heard.append) == (nightly(1),)
        assert f"{nightly(2)} stays: nightly leads to it by now" in heard
        expected = set(repository.tags()) - {nightly(1), attached_tag(made[0])}
        assert set(there.pages[PATH].tags) == expected
        assert repository.manifest(made[0].digest) is not None
        # Again, with the one that is signed; what is gone already is gone.
        plan = decided(repository, 1, signed=True)
        assert pruning.delete_tags(repository, hub, plan, heard.append) == (nightly(1), nightly(3))
        expected -= {nightly(3), attached_tag(made[2], ".sig")}
        assert set(there.pages[PATH].tags) == expected


# What bad input gets


@docker_test
def test_what_cannot_be_pruned(
    prune: Prune, catalogue_of_nights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDER_CACHE_DIR", str(tmp_path / "cache"))
    assert prune("--json")["nightlies"] == []  # there is no such repository yet
    with alone(tmp_path / "cache", "nightly"):
        assert "another run is at work on nightly" in prune("--delete", expect=9)
        prune()
    file = catalogue_of_nights / "recipes" / "hello-sm120-nightly.toml"
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
        with pytest.raises(RegistryError, match="altered it"):
            Repository(f"{proxy.address}/{PATH}", lambda _: None).blob(digest)


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
        repository = Repository(f"127.0.0.1:{server.server_port}/{PATH}", lambda _: None)
        assert repository.delete(f"sha256:{'0' * 64}")
        server.shutdown()
    assert asked == [f"repository:{PATH}:pull,push,delete"]
