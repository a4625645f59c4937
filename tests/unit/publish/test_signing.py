"""Signatures that strangers verify: by keys and identities, with cosign 2 and 3 and with oras.

Fulcio and Rekor are @sigstore/mock's; see tests/support/sigstore.py.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.core.errors import WorldError
from builder.core.settings import Settings
from builder.publish import signing
from builder.publish.registry import Manifest, Repository
from builder.publish.signing import identity_of, require_key, sign_image, signed_by
from builder.publish.verdicts import (
    OLD_VERDICT,
    TEXT,
    VERDICT,
    Statement,
    Trust,
    attach_all,
    referrers,
    signers_of,
    statement_of,
    verdict_signers,
)
from support.prunes import image
from support.sigstore import ISSUER, WORKFLOW, token

KEY, CONTRACT = "1" * 64, "2" * 64
pytestmark = pytest.mark.usefixtures("docker_config")


@pytest.fixture(params=["2", "3"])
def cosign(request: pytest.FixtureRequest) -> str:
    """Each cosign that is here, first in PATH: its major version."""
    if request.param == "3":
        request.getfixturevalue("cosign3")
    return str(request.param)


@pytest.fixture
def repository(registry: str) -> Repository:
    return Repository(f"{registry}/me/hello-sm120", print)


@pytest.fixture
def published(repository: Repository) -> Manifest:
    """An image of the registry."""
    return image(repository, "1")


def verdict(repository: Repository, digest: str, **more: str) -> str:
    told = {"result": "passed", "key": KEY, "contract": CONTRACT, **more}
    return statement_of(repository.name, digest, VERDICT, told)


def signers(repository: Repository, digest: str, trust: Trust) -> list[str]:
    entries = referrers(repository, digest)
    return [*verdict_signers(repository, entries, (digest, KEY, CONTRACT), trust)]


def run(*command: object) -> str:
    words = [str(each) for each in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def statements(output: str) -> list[dict[str, object]]:
    """The statements that ``cosign verify-attestation`` prints."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [json.loads(base64.b64decode(line["payload"])) for line in lines]


def test_strangers_read_what_a_key_signed(
    cosign: str, repository: Repository, published: Manifest, key: Path, tmp_path: Path
) -> None:
    trust = Trust(str(key), (), tmp_path / "work")
    require_key(str(key), tmp_path / "work")
    text = verdict(repository, published.digest)
    attach_all(repository, published, [trust.statement(text, VERDICT, "verdict")])
    assert signers(repository, published.digest, trust) == [str(key)]
    public = key.with_name("cosign.pub")
    reader = Trust("", (str(public),), tmp_path / "reader")
    assert signers(repository, published.digest, reader) == [str(public)]
    reference = f"{repository.name}:1"
    assert sign_image(repository.name, published.digest, str(key), tmp_path / "work")
    assert not sign_image(repository.name, published.digest, str(key), tmp_path / "work")
    (signer,) = signers_of(Settings(cosign_key=str(key)))
    assert signer.key == public.read_text()
    for command in signer.commands(reference):
        words = shlex.split(command.replace("cosign.pub", str(public)))
        if cosign == "3" or words[1] == "verify":
            told = run(*words)
            assert words[1] == "verify" or statements(told) == [json.loads(text)]


def test_oras_finds_a_verdict_and_reads_it(
    cosign3: Path, repository: Repository, published: Manifest, key: Path, tmp_path: Path
) -> None:
    trust = Trust(str(key), (), tmp_path / "work")
    text = verdict(repository, published.digest)
    for signer in (trust, Trust("", (), tmp_path)):
        attach_all(repository, published, [signer.statement(text, VERDICT, "verdict")])
    reference = f"{repository.name}:1"
    told = json.loads(run("oras", "discover", "--plain-http", "--format=json", reference))
    listed = told.get("referrers") or told["manifests"]
    assert [each["annotations"]["dev.sigstore.bundle.predicateType"] for each in listed] == [
        VERDICT,
        VERDICT,
    ]
    for each in listed:
        folder = tmp_path / each["digest"][7:]
        run("oras", "pull", "--plain-http", f"--output={folder}", each["reference"])
        (file,) = folder.iterdir()
        content = file.read_bytes()
        assert (signing.statement_in(content) or content.decode()) == text
    assert cosign3.is_dir()


def test_an_identity_signs_without_a_key(
    cosign3: Path, sigstore: Path, repository: Repository, published: Manifest, tmp_path: Path
) -> None:
    assert cosign3.is_dir()
    work = tmp_path / "work"
    require_key(WORKFLOW, work)
    trust = Trust(WORKFLOW, (), work)
    assert sign_image(repository.name, published.digest, WORKFLOW, work)
    assert not sign_image(repository.name, published.digest, WORKFLOW, work)
    text = verdict(repository, published.digest)
    attach_all(repository, published, [trust.statement(text, VERDICT, "verdict")])
    other = WORKFLOW.replace("nightly", "other")
    for known, expected in ((WORKFLOW, WORKFLOW), (other, ""), (f"{WORKFLOW};https://x.org", "")):
        assert signers(repository, published.digest, Trust("", (known,), work)) == [expected]
    # Notes of moves are texts.
    note = trust.attachment("note", "text", "a note").annotations
    assert trust.signer("a note", note["text.signature"]) == WORKFLOW
    assert trust.signer("another note", note["text.signature"]) == ""
    assert trust.signer("a note", '{"mediaType": "x"}') == ""
    assert Trust("", (other,), work).signer("a note", note["text.signature"]) == ""
    # The commands of the pages.
    (signer,) = signers_of(Settings(trusted_keys=(WORKFLOW,)))
    assert (signer.identity, signer.issuer) == (WORKFLOW, ISSUER)
    root = f"--trusted-root={sigstore / 'trusted_root.json'}"
    for command in signer.commands(f"{repository.name}:1"):
        told = run(*shlex.split(command), root)
        assert "verify-attestation" not in command or statements(told) == [json.loads(text)]
    # A root that does not know the log cannot tell: that is no forged signature.
    (sigstore / "trusted_root.json").unlink()
    with pytest.raises(WorldError, match="cannot verify a signature"):
        trust.signer("a note", note["text.signature"])


def test_an_identity_without_a_token_is_refused_before_anything_is_pushed(
    cosign3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cosign3.is_dir()
    for name in signing.TOKENS:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(WorldError) as error:
        require_key(WORKFLOW, tmp_path)
    assert "id-token: write" in error.value.hint
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", token(WORKFLOW))
    require_key(WORKFLOW, tmp_path)


def test_cosign_2_5_cannot_sign_by_an_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", token(WORKFLOW))
    if "--statement" in run("cosign", "attest-blob", "--help"):
        pytest.skip("the cosign of this machine is newer")
    with pytest.raises(WorldError, match="cannot sign statements by an identity"):
        require_key(WORKFLOW, tmp_path)


def test_a_verdict_that_was_attached_before_counts(
    cosign: str, repository: Repository, published: Manifest, key: Path, tmp_path: Path
) -> None:
    assert cosign
    trust = Trust(str(key), (), tmp_path / "work")
    short = Statement(
        recipe="x-1", key=KEY, digest=published.digest, contract=CONTRACT, checks={}, created=""
    )
    text = short.model_dump_json()
    attach_all(repository, published, [trust.attachment(OLD_VERDICT, TEXT, text)])
    assert signers(repository, published.digest, trust) == [str(key)]


@pytest.mark.parametrize(
    "change",
    [
        {"payload": base64.b64encode(b"{}").decode()},
        {"payload": "not base64"},
        {"payloadType": "text/plain"},
        {"signatures": []},
        {"signatures": [{"sig": "aGVsbG8="}]},
        {"signatures": [{"sig": "not base64"}]},
        {"signatures": [{"sig": 7}]},
        {"signatures": "MEUC"},
    ],
)
def test_a_damaged_bundle_is_not_signed(
    change: dict[str, object], key: Path, tmp_path: Path
) -> None:
    trust = Trust(str(key), (), tmp_path / "work")
    bundle = json.loads(signing.sign_statement("{}\n", str(key), tmp_path / "work"))
    assert trust.signer_of(json.dumps(bundle).encode()) == str(key)
    bundle["dsseEnvelope"] |= change
    assert trust.signer_of(json.dumps(bundle).encode()) == ""
    assert trust.signer_of(b"[]") == ""


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cosign that knows an option of ours no longer."""
    folder = tmp_path / "lost"
    folder.mkdir()
    program = folder / "cosign"
    program.write_text('#!/bin/sh\necho "Error: unknown flag: --signature" >&2\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return


def test_what_cannot_be_verified_is_not_forged(
    key: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    public = str(key.with_name("cosign.pub"))
    signature = signing.sign_text("a note", str(key), tmp_path / "work")
    assert signed_by("a note", signature, public, tmp_path / "work")
    assert not signed_by("another", signature, public, tmp_path / "work")
    request.getfixturevalue("lost")
    with pytest.raises(WorldError) as error:
        signed_by("a note", signature, public, tmp_path / "work")
    assert "unknown flag: --signature" in error.value.why
    assert "not known" in error.value.hint


def test_an_identity_has_an_issuer() -> None:
    assert identity_of(WORKFLOW) == (WORKFLOW, ISSUER)
    assert identity_of("me@x.org;https://accounts.x.org") == ("me@x.org", "https://accounts.x.org")
    for name in ("cosign.pub", "env://COSIGN_KEY", "https://x.org/cosign.pub", "awskms:///alias/x"):
        assert identity_of(name) is None
    with pytest.raises(WorldError, match="the issuer of https"):
        identity_of("https://git.x.org/me/farm/.forgejo/workflows/x.yml@refs/heads/main")
