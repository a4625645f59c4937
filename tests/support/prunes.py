"""Images of many nights in a registry, and the command that prunes them; a plugin of pytest."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.cli.app import main
from builder.engines.layout import CREATED, LABEL_KEY
from builder.publish import attachments
from builder.publish import prune as prune_plan
from builder.publish.prune import survey
from builder.publish.registry import MANIFESTS, Manifest, Repository
from builder.publish.tags import MOVE
from builder.publish.verdicts import UNSIGNED, AttachedFile, kind_of, referrers
from support.environment import REPOSITORY
from support.moves import attach_note
from support.registries import attach

PATH = "me/hello-sm120"
HELLO = (REPOSITORY / "recipes" / "hello-sm120-0.1.0.toml").read_text()
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
BASE = b"the layer that all have" * 100
SIGNED = "application/vnd.dev.cosign.simplesigning.v1+json"
ATTESTED = "application/vnd.dsse.envelope.v1+json"
CYCLONEDX = "application/vnd.cyclonedx+json"  # builder attached one until SPDX was enough
BELONGS = (MOVE, CYCLONEDX, attachments.SPDX)
Prune = Callable[..., Any]


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
    layer_type: str = LAYER,
) -> Manifest:
    """An image of a day of November 2026, or of no age; each has a layer of its own."""
    created = f"2026-11-{day:02}T02:00:00+00:00" if day is not None else None
    labels = {LABEL_KEY: "k"} | ({CREATED: created} if created else {})
    told = {"os": "linux", "architecture": "amd64", "config": {"Labels": labels}, **(config or {})}
    own = f"layer of {tags[:1]} {day}".encode() * 50
    content = json.dumps({**told, "salt": [*tags, day]}).encode()
    parts = [(CONFIG, content), *((layer_type, layer) for layer in (BASE, own, *layers))]
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


def own_bytes(manifest: Manifest) -> int:
    parsed = manifest.parsed()
    parts = [parsed["config"], *parsed["layers"]]
    assert parts[1]["size"] == len(BASE)
    return len(manifest.content) + sum(part["size"] for part in parts) - len(BASE)


def index(
    repository: Repository, *tags: str, of: Sequence[Manifest], architectures: Sequence[str] = ()
) -> Manifest:
    """An index of images, all for amd64 unless ``architectures`` names each image's."""
    platforms = [{"os": "linux", "architecture": each} for each in architectures]
    platforms = platforms or [{"os": "linux", "architecture": "amd64"}] * len(of)
    entries = [
        {**descriptor(part), "platform": platform}
        for part, platform in zip(of, platforms, strict=True)
    ]
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


def dressed(repository: Repository, of: Manifest) -> Manifest:
    """An image with what a night attaches to it."""
    for kind in (CYCLONEDX, attachments.SPDX):
        attach(repository, of, kind, {}, [AttachedFile("bom.json", kind, of.digest.encode())])
    attach_note(repository, of, "nightly", "", "a night")
    return of


def worn(repository: Repository, digest: str) -> list[str]:
    """What is attached to an image, and there."""
    entries = referrers(repository, digest)
    there = [entry for entry in entries if repository.manifest(entry["digest"])]
    return sorted(kind_of(entry) for entry in there)


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


def decide(repository: Repository, keep: int, **options: Any) -> prune_plan.PrunePlan:
    images = survey(repository, "nightly", UNSIGNED)
    return prune_plan.plan_prune(images, "nightly", keep, **options)


def unheard(_: str) -> None:
    pass


def going(plan: prune_plan.PrunePlan) -> set[str]:
    return {tag for gone in plan.deletions for tag in gone.tags}


def reasons(plan: prune_plan.PrunePlan) -> dict[str, str]:
    return {tag: each.kept_because for each in plan.candidates for tag in each.tags}


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.fixture
def repository(registry: str) -> Repository:
    return Repository(f"{registry}/{PATH}", unheard)
