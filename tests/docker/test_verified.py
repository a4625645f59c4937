"""What a registry has under a key counts if this machine built it, or a trusted key signed it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from builder.build import record
from builder.publish.attachments import LOCAL, RECIPE, SPDX, attached
from builder.publish.push import local_image, upload
from builder.publish.registry import MANIFESTS, Manifest, Repository
from builder.publish.signing import BUNDLE, statement_in
from builder.publish.tags import MOVE
from builder.publish.verdicts import (
    OLD_VERDICT,
    SIGNATURE,
    SLSA,
    TEXT,
    VERDICT,
    AttachedFile,
    Attachment,
    Trust,
    attach_all,
    files_of,
    kind_of,
    referrers,
)
from support.commands import ForkServer
from support.publishing import own, tags, verified
from support.registries import Proxy, attach
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
    return [each["annotations"] for each in entries if kind_of(each) == VERDICT]


def bundles(repository: Repository, digest: str) -> list[bytes]:
    """The bundles of the signed verdicts on an image."""
    entries = [each for each in referrers(repository, digest) if kind_of(each) == VERDICT]
    signed = [each["digest"] for each in entries if each["artifactType"] == BUNDLE]
    return [files_of(repository, read(repository, each))[0].content for each in signed]


def read(repository: Repository, digest: str) -> Manifest:
    found = repository.manifest(digest)
    assert found is not None
    return found


def backdoored(repository: Repository, image: dict[str, Any], folder: Path, made: set[str]) -> str:
    """Somebody pushes our image with a file more under the tag of its key; its digest."""
    folder.mkdir()
    (folder / "backdoor").write_text("#!/bin/sh\n")
    (folder / "Dockerfile").write_text(f"FROM {image['references'][0]}\nCOPY backdoor /usr/bin/\n")
    name = f"builder-test/backdoored:{uuid4().hex}"
    output = f"--output=type=image,oci-mediatypes=true,name={name}"
    docker("buildx", "build", "--provenance=false", output, str(folder))
    made.add(name)
    digest = docker("image", "inspect", "--format={{.Id}}", name)
    kept = record.read(folder.parent / "state", image["recipe"], image["key"])
    assert kept is not None
    theirs = kept.model_copy(update={"references": (name,), "digest": digest})
    local = local_image(theirs, folder)
    upload(repository, local)
    repository.put_manifest(own(image), local.manifest)
    return digest


def refused(done: Any, theirs: str, ours: str) -> None:
    assert "is not the image that this machine built" in done.stderr
    assert theirs in done.stderr
    assert ours in done.stderr
    assert "builder push --replace --reason TEXT" in done.stderr
    assert "builder compare" in done.stderr


def test_a_backdoored_image_gets_no_tag_and_no_signature(
    image: dict[str, Any],
    push: Any,
    registry: str,
    key: Path,
    repository: Repository,
    tmp_path: Path,
    made: set[str],
) -> None:
    digest = backdoored(repository, image, tmp_path / "attack", made)
    assert digest != image["digest"]
    refused(push(expect=12), digest, image["digest"])
    refused(push("latest", "--reason", "so", command="tag promote", expect=12), digest, "")
    assert tags(registry) == {own(image): digest}
    assert referrers(repository, digest) == []
    assert not verified(f"{repository.name}@{digest}", key.with_name("cosign.pub"))
    # A machine that has not built the image cannot tell either, and needs no engine for that.
    state = tmp_path / "state" / "records" / image["recipe"] / f"{image['key'][:12]}.json"
    kept = state.read_text()
    state.write_text(json.dumps(json.loads(kept) | {"built_here": False}))
    for command in (["push"], ["tag promote", "latest", "--reason", "so"]):
        done = push(*command[1:], command=command[0], expect=12)
        assert f"nothing vouches for {repository.name}:{own(image)}" in done.stderr
        assert f"builder build {image['recipe']} --rebuild" in done.stderr
    assert tags(registry) == {own(image): digest}
    # Replaced for a reason, the verified one has its tag.
    state.write_text(kept)
    push("--replace", "--reason", "somebody forged it")
    assert set(tags(registry).values()) == {image["digest"]}


def test_what_this_machine_did_not_build_is_not_pushed(
    image: dict[str, Any], push: Any, registry: str, builder: Any, tmp_path: Path
) -> None:
    """As after `docker pull` of an image under the tag of its key."""
    (file,) = (tmp_path / "state" / "records" / image["recipe"]).iterdir()
    file.unlink()
    done = builder("build", "overlaid-1", "--catalog", tmp_path / "catalog", "--json")
    assert json.loads(done.stdout)["digest"] == image["digest"]
    for options in ((), ("--replace", "--reason", "so")):
        done = push(*options, expect=12)
        assert "this machine has no record that it built the image of overlaid-1" in done.stderr
        assert "builder build overlaid-1 --rebuild" in done.stderr
    assert tags(registry) == {}


def forget(image: dict[str, Any], state: Path, candidate: str) -> None:
    """Leave an image as one without a verdict, as before its check."""
    docker("image", "tag", image["references"][0], candidate)
    docker("image", "rm", *image["references"])
    shutil.rmtree(state / "records" / image["recipe"])


def test_a_pulled_candidate_is_built_again(
    image: dict[str, Any], push: Any, tmp_path: Path, builder: Any
) -> None:
    """As after `docker pull --all-tags`, which gives it its name."""
    name = image["references"][0].rpartition(":")[0]
    forget(image, tmp_path / "state", f"{name}:unverified-{image['key'][:12]}")
    again = ("build", "overlaid-1", "--catalog", tmp_path / "catalog")
    done = builder(*again)
    assert done.returncode == 0, done.stderr
    assert "is not known to be built here; it is built again" in done.stderr
    kept = record.read(tmp_path / "state", image["recipe"], image["key"])
    assert kept is not None
    assert kept.built_here
    push()


def test_a_run_that_was_stopped_before_the_check_leaves_its_candidate(
    image: dict[str, Any],
    push: Any,
    tmp_path: Path,
    builder: Any,
    fork_server: ForkServer,
) -> None:
    state = tmp_path / "state"
    name = image["references"][0].rpartition(":")[0]
    forget(image, state, f"{name}:unverified-{image['key'][:12]}")
    again = ["build", "overlaid-1", "--catalog", str(tmp_path / "catalog")]
    written = record.candidate_path(state, image["recipe"], image["key"])
    with fork_server.running([*again, "--rebuild"], session=True) as process:
        for _ in range(600):
            if written.exists() or process.poll() is not None:
                break
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    assert record.read(state, image["recipe"], image["key"]) is None
    done = builder(*again)
    assert done.returncode == 0, done.stderr
    assert "exists; it is not built again" in done.stderr
    assert not written.exists()
    push()


def test_a_label_is_no_verdict(
    image: dict[str, Any], push: Any, registry: str, key: Path, repository: Repository
) -> None:
    digest = forged(repository, image)
    refused(push(expect=12), digest, image["digest"])
    assert tags(registry) == {own(image): digest}
    assert not verified(f"{repository.name}@{digest}", key.with_name("cosign.pub"))
    assert digest[7:] not in docker("image", "ls", "--digests", "--no-trunc", repository.name)


def test_another_key_is_no_image_of_ours(
    image: dict[str, Any], push: Any, registry: str, repository: Repository
) -> None:
    digest = forged(repository, {**image, "key": "0" * 64, "references": image["references"]})
    done = push(expect=12)
    assert "has a different build key" in done.stderr
    assert tags(registry) == {own(image): digest}


def test_what_another_machine_made_without_a_key_is_refused(
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
    assert len(verdicts(repository, first)) == 1
    assert bundles(repository, first) == []
    there = [each["digest"] for each in referrers(repository, first)]
    here = built_again()
    monkeypatch.setenv("BUILDER_COSIGN_KEY", str(key))
    refused(push(expect=12), first, here)
    assert [each["digest"] for each in referrers(repository, first)] == there
    assert not verified(f"{repository.name}:1", key.with_name("cosign.pub"))
    assert set(tags(registry).values()) == {first}


def test_a_machine_that_built_the_same_signs_it(
    image: dict[str, Any],
    push: Any,
    key: Path,
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BUILDER_COSIGN_KEY")
    push()
    monkeypatch.setenv("BUILDER_COSIGN_KEY", str(key))
    push()
    assert verified(f"{repository.name}:1", key.with_name("cosign.pub"))
    (signed,) = bundles(repository, image["digest"])
    statement = json.loads(statement_in(signed))
    assert statement["subject"][0]["digest"] == {"sha256": image["digest"][7:]}
    told = statement["predicate"]
    assert (told["result"], told["key"]) == ("passed", image["key"])
    assert told["checks"]["file"] >= 1
    # What was attached without a signature is attached again, signed.
    kinds = [each["artifactType"] for each in referrers(repository, image["digest"])]
    assert kinds.count(BUNDLE) == 2
    assert "signed" not in push().stderr
    assert len(verdicts(repository, image["digest"])) == 2


def test_what_is_missing_of_an_image_that_is_there_is_attached(
    image: dict[str, Any], push: Any, registry: str, repository: Repository, tmp_path: Path
) -> None:
    """As a push leaves an image that broke after its immutable tag."""
    kept = record.read(tmp_path / "state", image["recipe"], image["key"])
    assert kept is not None
    local = local_image(kept, tmp_path)
    upload(repository, local)
    repository.put_manifest(own(image), local.manifest)
    push()
    assert set(tags(registry).values()) == {image["digest"]}
    kinds = [kind_of(each) for each in referrers(repository, image["digest"])]
    assert sorted(kinds) == sorted([SPDX, SLSA, RECIPE, VERDICT, MOVE])
    (provenance,) = attached(repository, "1", SLSA)
    told = json.loads(provenance.content)
    assert told["subject"][0]["digest"] == {"sha256": image["digest"][7:]}
    assert told["predicate"]["runDetails"]["builder"]["id"] == LOCAL
    # Nothing is attached twice.
    push()
    assert len(referrers(repository, image["digest"])) == len(kinds)


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
    assert len(bundles(repository, image["digest"])) == 1
    here = built_again()
    monkeypatch.delenv("BUILDER_COSIGN_KEY")
    # Whoever trusts the public key needs nothing else.
    monkeypatch.setenv("BUILDER_TRUSTED_KEYS", str(key.with_name("cosign.pub")))
    proxy.requests.clear()
    done = push("--json")
    assert json.loads(done.stdout)["digest"] == image["digest"]
    assert proxy.count("GET .*/blobs/") == 1, "only the verdict is read"
    # Another key says nothing, nor does a verdict of another image.
    other = tmp_path / "other"
    other.mkdir()
    subprocess.run(["cosign", "generate-key-pair"], cwd=other, check=True, capture_output=True)
    monkeypatch.setenv("BUILDER_TRUSTED_KEYS", str(other / "cosign.pub"))
    refused(push(expect=12), image["digest"], here)
    monkeypatch.setenv("BUILDER_TRUSTED_KEYS", str(tmp_path / "nowhere.pub"))
    done = push(expect=4)
    assert f"the trusted key {tmp_path / 'nowhere.pub'} cannot be read" in done.stderr


def test_a_probe_that_was_tightened_is_checked_anew(
    image: dict[str, Any], built_again: Again, push: Any, key: Path, tmp_path: Path, builder: Any
) -> None:
    assert key
    push()
    here = built_again()
    push()
    catalog = tmp_path / "catalog"
    recipe = catalog / "recipes" / "overlaid-1.toml"
    text = recipe.read_text()
    recipe.write_text(text.replace('has  = ["CAPABILITY = "]', 'has = ["CAPABILITY = 9"]'))
    done = builder("build", "overlaid-1", "--catalog", catalog, "--json")
    assert json.loads(done.stdout)["key"] == image["key"]
    refused(push(expect=12), image["digest"], here)


def test_a_verdict_speaks_for_one_image(
    image: dict[str, Any],
    push: Any,
    registry: str,
    key: Path,
    repository: Repository,
    tmp_path: Path,
) -> None:
    """The signed verdict of a good image does not help another one that it is attached to."""
    push()
    (verdict,), (bundle,) = (each(repository, image["digest"]) for each in (verdicts, bundles))
    digest = forged(repository, image)
    manifest = repository.manifest(digest)
    assert manifest is not None
    lie = json.loads(verdict[TEXT]) | {"digest": digest}
    parts = json.loads(bundle)
    payload = parts["dsseEnvelope"]["payload"]
    changed = base64.b64decode(payload).replace(image["digest"][7:].encode(), digest[7:].encode())
    parts["dsseEnvelope"]["payload"] = base64.b64encode(changed).decode()
    for content in (bundle, json.dumps(parts).encode(), b"{}", b"garbage", changed):
        file = AttachedFile("verdict.sigstore.json", BUNDLE, content)
        told = {**verdict, TEXT: json.dumps(lie)}
        attach_all(repository, manifest, [Attachment(BUNDLE, (file,), told)])
    # So were verdicts attached before: a signed one of another image, and lies.
    old = Trust(str(key), (), tmp_path / "old").attachment(OLD_VERDICT, TEXT, verdict[TEXT])
    attach(repository, manifest, OLD_VERDICT, dict(old.annotations))
    attach(repository, manifest, OLD_VERDICT, {**old.annotations, TEXT: json.dumps(lie)})
    attach(repository, manifest, OLD_VERDICT, {TEXT: json.dumps(lie), SIGNATURE: "garbage"})
    refused(push(expect=12), digest, image["digest"])
    assert tags(registry)["1"] == image["digest"]
