"""What a registry has under a key counts only where a trusted machine has verified it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from builder import sbom
from builder.publish.attachments import NAMES, RECIPE, attached
from builder.publish.referrers import attach, referrers
from builder.publish.tag_history import MOVE
from builder.publish.upload import local_image, upload
from builder.publish.verdicts import SIGNATURE, TEXT, VERDICT
from builder.records import record
from builder.sbom.provenance import LOCAL
from builder.tools.registry.client import MANIFESTS, Manifest, Repository
from support.publishing import own, tags, verified
from support.registries import Proxy
from support.smoke_tests import docker

pytestmark = [
    pytest.mark.docker,
    pytest.mark.xdist_group("pushed"),
    pytest.mark.usefixtures("own_cache"),
]


@pytest.fixture
def repository(image: dict[str, Any]) -> Repository:
    return Repository(image["references"][0].rpartition(":")[0], print)


def forged(repository: Repository, made: dict[str, Any]) -> str:
    """An empty image with the label of a verified image's key, under that image's immutable tag."""
    labels = {"builder.key": made["key"], "builder.recipe": made["recipe"]}
    platform = {"os": "linux", "architecture": "amd64"}
    rootfs = {"type": "layers", "diff_ids": []}
    config = json.dumps({**platform, "config": {"Labels": labels}, "rootfs": rootfs}).encode()
    repository.put_bytes(config)
    kind = "application/vnd.oci.image.config.v1+json"
    described = {"mediaType": kind, "digest": Manifest(config, "").digest, "size": len(config)}
    parts = {"schemaVersion": 2, "mediaType": MANIFESTS[0], "config": described, "layers": []}
    manifest = Manifest(json.dumps(parts).encode(), MANIFESTS[0])
    repository.put_manifest(own(made), manifest)
    return manifest.digest


Again = Callable[[], str]


@pytest.fixture
def built_again(image: dict[str, Any], tmp_path: Path, made: set[str]) -> Again:
    """Have another verified image of the same key take the place of the first one here, as if
    another machine had pushed the first; its digest."""
    first, *others = image["references"]
    file = tmp_path / "state" / "records" / image["recipe"] / f"{image['key'][:12]}.json"

    def run() -> str:
        text = f"FROM {first}\nLABEL again={uuid4().hex}\n"
        output = f"--output=type=image,oci-mediatypes=true,name={first}"
        docker("buildx", "build", "--provenance=false", output, "-", text=text)
        for reference in others:
            docker("image", "tag", first, reference)
        digest = docker("image", "inspect", "--format={{.Id}}", first)
        file.write_text(json.dumps(json.loads(file.read_text()) | {"digest": digest}))
        kept = f"builder-test/again:{digest[-12:]}"  # others take its names
        docker("image", "tag", first, kept)
        made.add(kept)
        return digest

    return run


def verdicts(repository: Repository, digest: str) -> list[dict[str, str]]:
    """The annotations of the verdicts that are attached to an image."""
    entries = referrers(repository, digest)
    return [each["annotations"] for each in entries if each["artifactType"] == VERDICT]


def test_a_label_is_no_verdict(
    image: dict[str, Any], push: Any, registry: str, key: Path, repository: Repository
) -> None:
    digest = forged(repository, image)
    done = push(expect=7)
    assert f"{own(image)} is refused: its smoke test did not pass" in done.stderr
    assert digest in done.stderr
    assert "builder push --replace --reason TEXT" in done.stderr
    assert tags(registry) == {own(image): digest}
    assert not verified(f"{repository.name}@{digest}", key.with_name("cosign.pub"))
    assert digest[7:] not in docker("image", "ls", "--digests", "--no-trunc", repository.name)
    push("latest", "--reason", "so", command="tag promote", expect=7)
    # Replaced for a reason, it is the verified one that has its tag.
    push("--replace", "--reason", "somebody forged it")
    assert set(tags(registry).values()) == {image["digest"]}


def test_another_key_is_no_image_of_ours(
    image: dict[str, Any], push: Any, registry: str, repository: Repository
) -> None:
    digest = forged(repository, {**image, "key": "0" * 64, "references": image["references"]})
    done = push(expect=12)
    assert "has a different build key" in done.stderr
    assert tags(registry) == {own(image): digest}


def test_what_another_machine_made_is_smoke_tested_before_it_is_trusted(
    image: dict[str, Any],
    built_again: Again,
    push: Any,
    registry: str,
    key: Path,
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BUILDER_COSIGN_KEY")
    push()
    first = image["digest"]
    (unsigned,) = verdicts(repository, first)
    assert SIGNATURE not in unsigned
    here = built_again()
    assert here != first
    monkeypatch.setenv("BUILDER_COSIGN_KEY", str(key))
    done = push()
    assert "has no verdict that counts here: pulling and testing it" in done.stderr
    assert set(tags(registry).values()) == {first}
    assert verified(f"{repository.name}:1", key.with_name("cosign.pub"))
    signed = verdicts(repository, first)[-1]
    assert signed[SIGNATURE]
    told = json.loads(signed[TEXT])
    assert (told["digest"], told["key"]) == (first, image["key"])
    assert told["checks"]["file"] >= 1
    # The record knows it now: it is neither pulled nor signed again, and the engine keeps its own.
    done = push()
    assert "pulling" not in done.stderr
    assert "signed" not in done.stderr
    assert len(verdicts(repository, first)) == 2
    assert docker("image", "inspect", image["references"][0], "--format", "{{.Id}}") == here


def test_what_is_missing_of_an_image_that_was_pulled_is_attached(
    image: dict[str, Any],
    built_again: Again,
    push: Any,
    registry: str,
    repository: Repository,
    tmp_path: Path,
) -> None:
    """As a push leaves an image that broke between its immutable tag and another machine's."""
    kept = record.read(tmp_path / "state", image["recipe"], image["key"])
    assert kept is not None
    local = local_image(kept, tmp_path)
    upload(repository, local, new=True)
    repository.put_manifest(own(image), local.manifest)
    here = built_again()
    assert "pulling and testing it" in push().stderr
    assert set(tags(registry).values()) == {image["digest"]}
    kinds = [each["artifactType"] for each in referrers(repository, image["digest"])]
    assert sorted(kinds) == sorted([*NAMES, RECIPE, VERDICT, MOVE])
    (provenance,) = attached(repository, "1", sbom.PROVENANCE)
    told = json.loads(provenance.content)
    assert told["subject"][0]["digest"] == {"sha256": image["digest"][7:]}
    assert told["predicate"]["runDetails"]["builder"]["id"] == LOCAL
    # The engine keeps its own, and nothing is attached twice.
    names = docker("image", "ls", "--digests", "--no-trunc", repository.name)
    assert image["digest"][7:] not in names
    push()
    assert len(referrers(repository, image["digest"])) == len(kinds)
    assert docker("image", "inspect", image["references"][0], "--format", "{{.Id}}") == here


def test_a_signed_verdict_counts_on_another_machine(
    image: dict[str, Any],
    built_again: Again,
    push: Any,
    proxy: Proxy,
    key: Path,
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    push()
    assert verdicts(repository, image["digest"])[0][SIGNATURE]
    built_again()
    monkeypatch.delenv("BUILDER_COSIGN_KEY")
    # Whoever trusts the public key needs nothing else.
    monkeypatch.setenv("BUILDER_TRUSTED_KEYS", str(key.with_name("cosign.pub")))
    proxy.requests.clear()
    done = push("--json")
    assert json.loads(done.stdout)["digest"] == image["digest"]
    assert "pulling" not in done.stderr
    assert not proxy.count("GET .*/blobs/")
    # Another key says nothing, nor does a verdict of another image.
    other = tmp_path / "other"
    other.mkdir()
    subprocess.run(["cosign", "generate-key-pair"], cwd=other, check=True, capture_output=True)
    monkeypatch.setenv("BUILDER_TRUSTED_KEYS", str(other / "cosign.pub"))
    assert "pulling and testing it" in push().stderr
    monkeypatch.setenv("BUILDER_TRUSTED_KEYS", str(tmp_path / "nowhere.pub"))
    built_again()
    for file in (tmp_path / "state" / "records" / "overlaid-1").glob("*-*.json"):
        file.unlink()
    done = push(expect=4)
    assert f"the trusted key {tmp_path / 'nowhere.pub'} cannot be read" in done.stderr


def test_a_probe_that_was_tightened_is_checked_anew(
    image: dict[str, Any], built_again: Again, push: Any, key: Path, tmp_path: Path, builder: Any
) -> None:
    assert key
    push()
    built_again()
    assert "pulling" not in push().stderr
    catalog = tmp_path / "catalog"
    recipe = catalog / "recipes" / "overlaid-1.toml"
    text = recipe.read_text()
    recipe.write_text(text.replace('has  = ["CAPABILITY = "]', 'has = ["CAPABILITY = 9"]'))
    done = builder("build", "overlaid-1", "--catalog", catalog, "--json")
    assert json.loads(done.stdout)["key"] == image["key"]
    assert "pulling and testing it" in push().stderr


def test_a_verdict_speaks_for_one_image(
    image: dict[str, Any], push: Any, registry: str, key: Path, repository: Repository
) -> None:
    """The signed verdict of a good image does not help another one that it is attached to."""
    assert key
    push()
    (verdict,) = verdicts(repository, image["digest"])
    digest = forged(repository, image)
    manifest = repository.manifest(digest)
    assert manifest is not None
    attach(repository, manifest, VERDICT, verdict)
    lie = json.loads(verdict[TEXT]) | {"digest": digest}
    attach(repository, manifest, VERDICT, {**verdict, TEXT: json.dumps(lie)})
    attach(repository, manifest, VERDICT, {TEXT: json.dumps(lie), SIGNATURE: "garbage"})
    assert "is refused" in push(expect=7).stderr
    assert tags(registry)["1"] == image["digest"]
