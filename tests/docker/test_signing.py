"""What goes with an image: signatures that cosign verifies, bills of materials, its recipe; and
registries with a password and a certificate of one's own."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import trustme

from builder.publish import lock
from builder.publish.registry import Repository
from builder.publish.signing import signed_by
from builder.publish.verdicts import (
    REPRODUCTION,
    REPRODUCTION_SIGNATURE,
    REPRODUCTION_TEXT,
    AttachedFile,
    referrers,
)
from support.commands import Builder
from support.overlaid import Build, change
from support.publishing import made, own, tags, verified
from support.registries import attach
from support.smoke_tests import docker

pytestmark = [
    pytest.mark.docker,
    pytest.mark.xdist_group("pushed"),
    pytest.mark.usefixtures("own_cache"),
]
USER, PASSWORD = "farm", "s3cret"
# bcrypt of PASSWORD: the only kind that the registry takes.
HTPASSWD = "farm:$2b$04$2fxsnnoUHbiXUqE1.PcTu.c2h82W9m8iGPJd5eLptuG0CL1UlhR42\n"
CONFIG = """version: 0.1
storage: {{filesystem: {{rootdirectory: {root}}}}}
http:
  addr: "127.0.0.1:{port}"
  tls: {{certificate: {root}.crt, key: {root}.key}}
auth: {{htpasswd: {{realm: test, path: {root}.htpasswd}}}}
"""


def test_a_signature_is_there_before_any_tag(
    image: dict[str, Any], push: Any, registry: str, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = image["references"][0].rpartition(":")[0]
    monkeypatch.setenv("COSIGN_PASSWORD", "wrong")
    done = push(expect=4)
    assert "cosign cannot read its public key" in done.stderr
    assert "COSIGN_PASSWORD" in done.stderr
    assert tags(registry) == {}
    monkeypatch.setenv("COSIGN_PASSWORD", "p4ss")
    done = push()
    assert f"signed {name}@{image['digest'][:19]}" in done.stderr
    assert verified(f"{name}:1", key.with_name("cosign.pub"))
    assert verified(f"{name}@{image['digest']}", key.with_name("cosign.pub"))
    # It is signed once; and no other key verifies it.
    assert "signed" not in push().stderr
    folder = key.parent / "other"
    folder.mkdir()
    subprocess.run(["cosign", "generate-key-pair"], cwd=folder, check=True, capture_output=True)
    assert not verified(f"{name}:1", folder / "cosign.pub")


def test_an_image_that_is_built_again_gets_a_signed_statement(
    image: dict[str, Any], push: Any, key: Path, tmp_path: Path
) -> None:
    gone = push("--attest", command="reproduce", expect=12)
    assert "has no tag" in gone.stderr
    push()
    done = push("--attest", command="reproduce")
    assert f"the statement is attached to {image['digest']}" in done.stderr
    name = image["references"][0].rpartition(":")[0]
    entries = referrers(Repository(name, print), image["digest"])
    (entry,) = [each for each in entries if each["artifactType"] == REPRODUCTION]
    text, signature = (
        entry["annotations"][each] for each in (REPRODUCTION_TEXT, REPRODUCTION_SIGNATURE)
    )
    assert json.loads(text)["digest"] == image["digest"]
    assert signed_by(text, signature, str(key.with_name("cosign.pub")), tmp_path / "work")


def test_an_image_that_only_the_registry_has_is_built_again(
    image: dict[str, Any], push: Any, key: Path, builder: Builder, tmp_path: Path, monkeypatch: Any
) -> None:
    push()
    catalog, (name, *_) = tmp_path / "catalog", image["references"]
    docker("image", "rm", *image["references"])
    done = builder("reproduce", name, "--attest", "--catalog", catalog)
    assert done.returncode == 0, done.stderr
    assert f"Docker does not have {name}: pulling it" in done.stderr
    assert f"reproduced  {image['digest']}" in re.sub(r"\s+", "  ", done.stdout)
    assert docker("image", "ls", "--quiet", f"--filter=reference={name}") == ""
    # Whoever trusts the key reads it; whoever does not is told so.
    monkeypatch.delenv("BUILDER_COSIGN_KEY")
    assert "unverified: no trusted key signed the statement" in push(command="status").stdout
    monkeypatch.setenv("BUILDER_TRUSTED_KEYS", str(key.with_name("cosign.pub")))
    (status,) = json.loads(push("--json", command="status").stdout)
    assert status["reproduced"]["key"] == str(key.with_name("cosign.pub"))


def test_without_cosign_nothing_is_pushed(
    image: dict[str, Any], push: Any, registry: str, key: Path, tmp_path: Path
) -> None:
    assert image
    assert key
    folder = tmp_path / "path"
    folder.mkdir()
    for program in ("docker", "git"):
        found = subprocess.run(["which", program], capture_output=True, text=True, check=True)
        (folder / program).symlink_to(found.stdout.strip())
    before, os.environ["PATH"] = os.environ["PATH"], str(folder)
    try:
        done = push(expect=4)
    finally:
        os.environ["PATH"] = before
    assert "there is no cosign on this machine" in done.stderr
    assert tags(registry) == {}


def test_what_belongs_to_an_image_is_attached(
    image: dict[str, Any], build: Build, push: Any, tmp_path: Path
) -> None:
    push()
    here = json.loads(push(command="sbom").stdout)
    there = json.loads(push("--from", "1", command="sbom").stdout)
    assert here == there
    assert there["spdxVersion"] == "SPDX-2.3"
    assert json.loads(push("--from", "latest", command="sbom").stdout) == there
    slsa = ("--from", image["digest"], "--format", "provenance")
    statement = json.loads(push(*slsa, command="sbom").stdout)
    assert statement["subject"][0]["digest"]["sha256"] == image["digest"].removeprefix("sha256:")
    # Its recipe, to be built again.
    recipe = tmp_path / "catalog" / "recipes" / "overlaid-1.toml"
    text = recipe.read_text()
    push("1", "--output", tmp_path / "thawed", command="recipe export")
    assert (tmp_path / "thawed" / "overlaid-1.toml").read_text() == text
    recipe.write_text(text + "\n# changed\n")
    assert "exists with different contents" in push("1", command="recipe export", expect=4).stderr
    # What it was pushed with stays, though the words of its recipe have changed.
    push()
    push("1", "--output", tmp_path / "later", command="recipe export")
    assert (tmp_path / "later" / "overlaid-1.toml").read_text() == text
    other = made(build, patch=change(tmp_path, worker="x = 2\n"))
    done = push("--from", own(other), command="sbom", expect=12)
    assert f"has no tag {own(other)}" in done.stderr


def test_a_lock_from_elsewhere_is_written_nowhere_else(
    image: dict[str, Any], push: Any, tmp_path: Path
) -> None:
    push()
    repository = Repository(image["references"][0].rpartition(":")[0], print)
    manifest = repository.manifest("1")
    assert manifest is not None
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        member = tarfile.TarInfo("signed/../../../out.toml")
        member.size = 6
        tar.addfile(member, io.BytesIO(b"x = 1\n"))
    file = AttachedFile("signed", lock.LAYER, packed.getvalue())
    attach(repository, manifest, lock.KIND, {}, [file])
    done = push("1", "--output", tmp_path / "a" / "b", command="recipe lock", expect=5)
    assert "out.toml" in done.stderr
    assert not list(tmp_path.rglob("out.toml"))


@contextmanager
def guarded(work: Path, home: Path) -> Iterator[str]:
    """A registry with a password and a certificate that Docker is told of: its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root = work / "guarded"
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(f"{root}.key")
    certificate.cert_chain_pems[0].write_to_path(f"{root}.crt")
    Path(f"{root}.htpasswd").write_text(HTPASSWD)
    trusted = home / ".config" / "docker" / "certs.d" / f"127.0.0.1:{port}"
    trusted.mkdir(parents=True)
    authority.cert_pem.write_to_path(str(trusted / "ca.crt"))
    Path(f"{root}.yml").write_text(CONFIG.format(root=root, port=port))
    with subprocess.Popen(
        ["docker-registry", "serve", f"{root}.yml"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            for _ in range(100):
                try:
                    requests.get(
                        f"https://127.0.0.1:{port}/v2/", verify=str(trusted / "ca.crt"), timeout=5
                    )
                    break
                except requests.ConnectionError:
                    time.sleep(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def test_a_registry_with_a_password_and_its_own_certificate(
    build: Build,
    push: Any,
    key: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = tmp_path / "docker"
    store.mkdir()
    with guarded(tmp_path, Path.home()) as address:
        monkeypatch.setenv("BUILDER_NAMESPACE", f"{address}/me")
        record = made(build)
        monkeypatch.setenv("DOCKER_CONFIG", str(store))
        done = push(expect=12)
        assert "authentication failed without a login" in done.stderr
        assert f"docker login {address}" in done.stderr
        login(store, address, "wr0ng")
        done = push(expect=12)
        assert f"authentication failed as {USER}" in done.stderr
        assert "wr0ng" not in done.stderr
        login(store, address, PASSWORD)
        done = push("--json")
        assert json.loads(done.stdout)["digest"] == record["digest"]
        assert PASSWORD not in done.stderr + done.stdout
        repository = Repository(f"{address}/me/builder-test/overlaid", print)
        assert repository.resolve("1") == record["digest"]
        # cosign was let in as well, and its signature is there.
        assert f"{record['digest'].replace(':', '-')}.sig" in repository.tags()
        told = json.loads(push("latest", "--json", command="tag history").stdout)
        assert told[0]["digest"] == record["digest"]
    assert key


def login(store: Path, address: str, password: str) -> None:
    """As `docker login` keeps it."""
    pair = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (store / "config.json").write_text(json.dumps({"auths": {address: {"auth": pair}}}))
