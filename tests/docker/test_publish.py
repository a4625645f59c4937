"""Publishing: exactly what was verified, all of it before any tag, and no tag without a reason."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from builder.build import ccache
from builder.core.errors import RegistryError
from builder.core.files import named_lock
from builder.docker.engine import split
from builder.publish import tags as publish_tags
from builder.publish.registry import Repository, layer_sizes
from builder.publish.tags import MOVE
from builder.publish.verdicts import VERDICT, AttachedFile
from support.commands import Builder
from support.overlaid import Build, change
from support.prunes import CYCLONEDX, worn
from support.publishing import PUSHED, made, own, tags
from support.registries import Fault, Proxy, attach, put_image
from support.smoke_tests import docker

pytestmark = [pytest.mark.xdist_group("pushed"), pytest.mark.usefixtures("own_cache")]
docker_test = pytest.mark.docker


@docker_test
def test_exactly_what_was_verified_gets_its_tags(
    image: dict[str, Any], push: Any, registry: str, proxy: Proxy
) -> None:
    done = push("--json")
    told = json.loads(done.stdout)
    assert told["digest"] == image["digest"]
    assert told["uploaded"] >= 3
    assert tags(registry) == dict.fromkeys([own(image), "1", "latest"], image["digest"])
    puts = [line.rpartition("/")[2] for line in proxy.requests if "PUT" in line]
    given = [name for name in puts if "digest=" not in name and not name.startswith("sha256")]
    assert given == [own(image), "1", "latest"]
    # What tries the registry comes first.
    tried = [name for name in puts[: puts.index(image["digest"])] if "digest=" not in name]
    puts = puts[puts.index(tried[-1], len(tried)) + 1 :] if tried else puts
    assert len(tried) == 4
    # Before the first tag: the image under its digest, three documents, the verdict and the note.
    by_digest = [name for name in puts[: puts.index(own(image))] if name.startswith("sha256:")]
    assert by_digest[0] == image["digest"]
    assert len(by_digest) == 6
    uploads = puts[: puts.index(image["digest"])]
    assert len(uploads) == told["uploaded"] == sum("digest=" in name for name in uploads)
    # Again: nothing is uploaded, no tag is touched.
    proxy.requests.clear()
    assert json.loads(push("--json").stdout)["uploaded"] == 0
    assert not proxy.count("uploads")
    assert tags(registry) == dict.fromkeys([own(image), "1", "latest"], image["digest"])


@docker_test
def test_an_image_that_has_a_second_bill_of_an_earlier_builder_needs_no_other(
    image: dict[str, Any], push: Any, registry: str, proxy: Proxy
) -> None:
    push()
    repository = Repository(f"{registry}/{PUSHED}", print)
    there = repository.manifest(image["digest"])
    assert there is not None
    attach(repository, there, CYCLONEDX, {}, [AttachedFile("bom.cdx.json", CYCLONEDX, b"{}")])
    kinds = worn(repository, image["digest"])
    proxy.requests.clear()
    push()
    assert not proxy.count("uploads")
    assert worn(repository, image["digest"]) == kinds


@docker_test
def test_a_version_that_is_there_stays(
    image: dict[str, Any], build: Build, push: Any, registry: str, tmp_path: Path
) -> None:
    push()
    other = made(build, patch=change(tmp_path, worker="x = 2\n"))
    assert other["digest"] != image["digest"]
    done = push(expect=12)
    assert "is not pushed: its tags are taken" in done.stderr
    assert f":1 is {image['digest']}" in done.stderr
    assert tags(registry) == dict.fromkeys([own(image), "1", "latest"], image["digest"])
    done = push("--replace", "--reason", "the first one was broken")
    assert f"replaced 1, which was {image['digest']}" in done.stdout
    found = tags(registry)
    assert found[own(image)] == image["digest"]
    assert found["1"] == found["latest"] == found[own(other)] == other["digest"]
    told = json.loads(push("1", "--json", command="tag history").stdout)
    assert [(move["digest"], move["before"], move["reason"]) for move in told] == [
        (other["digest"], image["digest"], "the first one was broken"),
    ]
    assert told[0]["version"] == "1"
    told = json.loads(push("latest", "--json", command="tag history").stdout)
    assert told[-1]["reason"] == f"push of overlaid-1 {image['key'][:12]}"


@docker_test
def test_an_update_over_its_budget_is_not_pushed_without_a_reason(
    image: dict[str, Any], build: Build, push: Any, registry: str, tmp_path: Path, proxy: Proxy
) -> None:
    assert json.loads(push("--json").stdout)["updates"] == []  # the first image updates nothing
    replace = ("--replace", "--reason", "more data")
    large = change(tmp_path, worker=f"DATA = '{Random(1).randbytes(1_500_000).hex()}'\n")
    other = build.once(more='moving = ["latest"]\n\n[budget]\nupdate = 1', patch=large)
    proxy.requests.clear()
    done = push(*replace, expect=12)
    assert "is not pushed: the update has more than the 1 MB of [budget]" in done.stderr
    assert re.search(r"[3-4]\.\d MB for somebody who has the image of 1 and latest, ", done.stderr)
    assert not proxy.count("PUT ")
    assert tags(registry) == dict.fromkeys([own(image), "1", "latest"], image["digest"])
    done = push("--over-budget", *replace)
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("download")]
    assert "for somebody who has the image of 1 and latest" in said
    assert tags(registry)["1"] == tags(registry)["latest"] == other["digest"]
    # Only the layers that are new were uploaded, and counted.
    repository = Repository(f"{registry}/{PUSHED}", print)
    before, after = (repository.manifest(each["digest"]) for each in (image, other))
    assert before is not None
    assert after is not None
    known = layer_sizes(before)
    new = [size for digest, size in layer_sizes(after).items() if digest not in known]
    told = json.loads(push("latest", "--json", command="tag history").stdout)
    assert [move["update"] for move in told] == [sum(new), None]
    assert [move["reason"] for move in told][:1] == ["more data"]


@docker_test
def test_what_passes_is_tried_again(
    image: dict[str, Any], push: Any, registry: str, proxy: Proxy
) -> None:
    proxy.faults = [
        Fault("POST .*uploads", 429, 1, {"Retry-After": "2"}),
        Fault("PUT .*uploads", "cut", 1),
        Fault("HEAD .*blobs", 503, 2),
        Fault("PUT .*manifests", 500, 2),
        Fault("GET .*manifests", "slow", 1),
    ]
    done = push()
    assert "429 Too Many Requests; it asks to wait 2 seconds" in done.stderr
    assert all(fault.times == 0 for fault in proxy.faults)
    assert tags(registry) == dict.fromkeys([own(image), "1", "latest"], image["digest"])


@docker_test
def test_a_push_that_broke_goes_on(
    image: dict[str, Any], push: Any, registry: str, proxy: Proxy
) -> None:
    put = f"PUT .*manifests/{image['digest']}"
    proxy.faults = [Fault(put, 429, 99, {"Retry-After": "9999"})]
    done = push(expect=5)
    assert f"asks to wait: put {image['digest']}" in done.stderr
    assert "finished uploads are not repeated" in done.stderr
    assert tags(registry) == {}
    uploaded = proxy.count("PUT .*uploads")
    assert uploaded >= 3
    proxy.faults.clear()
    proxy.requests.clear()
    push()
    assert proxy.count("PUT .*uploads") == 4  # three documents, and what notes are made of
    assert tags(registry) == dict.fromkeys([own(image), "1", "latest"], image["digest"])


@docker_test
def test_a_version_that_somebody_else_gives_meanwhile_stays(
    image: dict[str, Any], push: Any, registry: str, proxy: Proxy
) -> None:
    repository = Repository(f"{registry}/{PUSHED}", print)
    theirs = put_image(repository, "theirs")

    def give() -> None:
        repository.put_manifest("1", theirs)

    proxy.faults = [Fault("PUT .*uploads", "pass", 1, {}, give)]
    done = push(expect=12)
    assert f"{PUSHED}:1 was moved by another client" in done.stderr
    assert f"these tags were already pushed: {own(image)}" in done.stderr
    assert tags(registry) == {own(image): image["digest"], "1": theirs.digest}
    # A night, a promotion and a push keep out of each other's way on one machine.
    with named_lock(Path(os.environ["BUILDER_CACHE_DIR"]), "tags"):
        assert "another run on this machine gives or deletes tags" in push(expect=9).stderr


@docker_test
def test_what_another_machine_attaches_during_the_upload_stays(
    image: dict[str, Any], push: Any, registry: str, proxy: Proxy
) -> None:
    """It pushes the same image, and the note of its move is attached first."""
    repository = Repository(f"{registry}/{PUSHED}", print)
    repository.put_manifest("other", put_image(repository, "other"))

    def attach_note() -> None:
        there = repository.manifest(image["digest"])
        assert there is not None
        attach(repository, there, "application/vnd.example.note", {})

    put = "PUT .*manifests/sha256:"
    proxy.faults = [Fault(put, "pass", 3), Fault(put, "pass", first=attach_note)]
    push()
    kinds = worn(repository, image["digest"])
    assert {"application/vnd.example.note", VERDICT, MOVE} <= {*kinds}


@docker_test
def test_what_a_push_needs_is_checked_before_anything_is_built(
    image: dict[str, Any], push: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert image
    assert "accepts pushes; images will not be signed" in push("--dry-run").stdout
    proxy.requests.clear()
    proxy.faults = [Fault("POST .*uploads", 401, 9)]
    push("--dry-run", expect=12)
    push(expect=12)
    assert not proxy.count("PUT .*uploads")  # of the tiny artifact, the registry has all files
    proxy.requests.clear()
    (tmp_path / "no.key").write_text("this is no key\n")
    monkeypatch.setenv("BUILDER_COSIGN_KEY", str(tmp_path / "no.key"))
    for options in (("--dry-run",), ()):
        assert "check BUILDER_COSIGN_KEY" in push(*options, expect=4).stderr
    assert not proxy.requests


@docker_test
@pytest.mark.parametrize("moving", [False, True])
def test_a_push_makes_as_many_requests_as_documented(
    proxy: Proxy, build: Build, push: Any, tmp_path: Path, *, moving: bool
) -> None:
    """studies/measurements.md has the numbers; on Docker Hub each GET of a manifest is a pull."""
    record = made(build) if moving else build.once()
    documents, tags_of_image = 4, 2
    if moving:
        folder = tmp_path / "ptx"
        folder.mkdir()
        (folder / f"{'ab' * 32}.gz").write_bytes(gzip.compress(b".version 9.0"))
        state = Path(os.environ["BUILDER_STATE_DIR"])
        ccache.pack(folder, ccache.path_of(state, record["recipe"], record["key"]))
        documents += 1
    name = record["references"][0]
    layers = int(docker("image", "inspect", "--format={{len .RootFS.Layers}}", name))
    first = 3 * (layers + 1) + 4 * documents + 3 * tags_of_image + 4 * moving + 7
    first += 9  # a tiny artifact: four manifests are put and deleted, a list is read
    if moving:
        assert first - 3 * layers == 70 - 3 * 7
    # At first, the list of attachments is not there yet: on Docker Hub that is no pull.
    for many, most in ((first, 3), (8 if moving else 7, 2)):
        proxy.requests.clear()
        done = push("--json")
        assert len(proxy.requests) == many, "\n".join(proxy.requests)
        assert proxy.count("GET .*/manifests/") <= most
    assert json.loads(done.stdout)["uploaded"] == 0


@docker_test
def test_a_registry_that_alters_what_it_is_given(
    image: dict[str, Any], push: Any, registry: str, proxy: Proxy
) -> None:
    proxy.faults = [Fault(f"GET .*manifests/{own(image)}", "lie", 99)]
    done = push(expect=12)
    assert "is not what was pushed" in done.stderr
    assert "the remaining tags were not given" in done.stderr
    assert set(tags(registry)) == {own(image)}


@docker_test
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, "check the namespace"),
        (401, "authentication failed without a login"),
        (400, "refuses"),
    ],
)
def test_what_will_not_pass_is_told_at_once(
    image: dict[str, Any], push: Any, proxy: Proxy, registry: str, status: int, said: str
) -> None:
    assert image
    proxy.faults = [Fault("POST .*uploads", status, 99)]
    done = push(expect=12)
    assert said in done.stderr
    assert proxy.count("POST .*uploads") <= 2
    assert tags(registry) == {}


@docker_test
def test_tags_move_by_digest_and_back(
    image: dict[str, Any], build: Build, push: Any, registry: str, tmp_path: Path, proxy: Proxy
) -> None:
    push()
    done = push("nightly", "--reason", "first", command="tag promote")
    assert f"nightly is {image['digest']}" in done.stdout
    other = made(build, patch=change(tmp_path, worker="x = 3\n"))
    push("--replace", "--reason", "newer")
    proxy.requests.clear()
    push("nightly", "--reason", "second", command="tag promote")
    assert not proxy.count("PUT .*uploads")
    assert tags(registry)["nightly"] == other["digest"]
    push("nightly", "--reason", "it crashes", command="tag rollback")
    assert tags(registry)["nightly"] == image["digest"]
    done = push("nightly", "--reason", "once more", command="tag rollback", expect=12)
    assert "nightly points to its first image: there is no earlier one" in done.stderr
    told = push("nightly", command="tag history").stdout
    reasons = [line.split("\t")[-1] for line in told.splitlines()]
    assert reasons == ["reason", "it crashes", "second", "first"]
    gone = f"sha256:{'0' * 64}"
    done = push("nightly", "--to", gone, "--reason", "x", command="tag rollback", expect=12)
    assert f"has no image {gone}" in done.stderr
    done = push("unheard", "--reason", "x", command="tag rollback", expect=12)
    assert "has no tag unheard" in done.stderr
    push("unheard", command="tag history", expect=12)
    push("nightly", "--reason", " ", command="tag promote", expect=2)
    push("--replace", "--reason", "", expect=2)
    assert tags(registry)["nightly"] == image["digest"]


@docker_test
def test_what_was_not_verified_is_not_pushed(
    image: dict[str, Any], push: Any, registry: str, tmp_path: Path
) -> None:
    recipe = tmp_path / "catalog" / "recipes" / "overlaid-1.toml"
    text = recipe.read_text()
    recipe.write_text(text.replace('has  = ["CAPABILITY = "]', 'has = ["CAPABILITY = 9"]'))
    done = push(expect=4)
    assert "there is no verified image of the current recipe overlaid-1" in done.stderr
    assert tags(registry) == {}
    recipe.write_text(text)
    state = Path(os.environ["BUILDER_STATE_DIR"]) / "records" / "overlaid-1"
    for file in state.iterdir():
        kept = json.loads(file.read_text())
        kept["verdict"]["checks"][0]["state"] = "failed"
        file.write_text(json.dumps(kept))
    push(expect=4)
    assert tags(registry) == {}
    assert image


def test_docker_hub_wants_a_namespace(builder: Builder) -> None:
    done = builder("push", "hello-sm120", "--dry-run")
    assert done.returncode == 12
    assert "BUILDER_NAMESPACE" in done.stderr
    with pytest.raises(RegistryError, match="BUILDER_NAMESPACE is not set"):
        publish_tags.open_repository("hello", print)
    assert publish_tags.open_repository("me/hello", print).path == "me/hello"


def test_names_are_read_as_docker_reads_them() -> None:
    assert split("hello") == ("docker.io", "library/hello")
    assert split("me/hello") == ("docker.io", "me/hello")
    assert split("ghcr.io/me/hello") == ("ghcr.io", "me/hello")
    assert split("localhost/hello") == ("localhost", "hello")
    assert split("127.0.0.1:5000/a/b") == ("127.0.0.1:5000", "a/b")
