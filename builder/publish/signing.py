"""cosign: signatures of images and texts, by keys and by the identity of a workflow.

A *signer* is either a key (a file, or one of cosign's key URIs), or an identity: the address in the
certificates that Fulcio gives a workflow, and the issuer of its tokens, ``IDENTITY;ISSUER``.  The
issuers of GitHub and GitLab may be left out.

A signature by a key is base64, and nothing goes to a transparency log: a verifier needs the public
key and no other server.  A signature by an identity is a bundle of Sigstore (JSON,
https://docs.sigstore.dev/about/bundle/) with its certificate and its entry in Rekor's log.

``work`` is a directory for cosign's input.  cosign takes a key's password from COSIGN_PASSWORD, a
token from the workflow (``id-token: write``) or from SIGSTORE_ID_TOKEN.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shutil
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

from builder.core import settings
from builder.core.errors import RegistryError, WorldError
from builder.docker.engine import HUB, split
from builder.publish.transport import HUB_KEY, certificate_of, login_for

TIMEOUT = 300.0  # seconds
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
IN_TOTO = "application/vnd.in-toto+json"
NO_SIGNATURE = re.compile(
    r"no (?:matching )?(?:signatures|attestations)|invalid signature when validating", re.IGNORECASE
)
"""cosign's messages (2.5, 3.1) for an image without a signature, or without one by that signer."""
NOT_SIGNED = re.compile(
    r"invalid signature when validating|Invalid IEEE_P1363|failed to verify signature|"
    r"crypto/rsa: verification error|no matching CertificateIdentity|malformed certificate|"
    r"transparency log signature does not match|payload hash \w+ does not match"
)
"""cosign's messages (2.5, 3.1) for a signature that is not by that signer, or not of that text.
Any other failure says nothing about a signature."""
UNREADABLE_KEY = re.compile(r"loading public key")
"""cosign's message (2.5, 3.1) for a key that it cannot use."""
SAMPLE = "builder tries its signing key"
WORKFLOW = re.compile(r"https://[^\s;@]+@refs/\S+")
ISSUERS = {
    "https://github.com/": "https://token.actions.githubusercontent.com",
    "https://gitlab.com/": "https://gitlab.com",
}
"""The issuers of the tokens of workflows, by the start of their identities."""
TOKENS = ("ACTIONS_ID_TOKEN_REQUEST_URL", "SIGSTORE_ID_TOKEN")
"""Variables that say where cosign gets a token; without one it asks a browser."""


def identity_of(signer: str) -> tuple[str, str] | None:
    """The identity of a signer and its issuer; None: the signer is a key.

    Raises ``WorldError`` where the issuer is not known.
    """
    identity, _, issuer = signer.partition(";")
    if not issuer and not WORKFLOW.fullmatch(identity):
        return None
    known = (url for start, url in ISSUERS.items() if identity.startswith(start))
    issuer = issuer or next(known, "")
    if not issuer:
        raise WorldError(
            f"the issuer of {identity}'s tokens is not known",
            "the issuers of github.com and gitlab.com are known",
            "name it in BUILDER_COSIGN_KEY and BUILDER_TRUSTED_KEYS: IDENTITY;ISSUER",
        )
    return identity, issuer


def require_cosign() -> None:
    """Raise ``WorldError`` where there is no cosign."""
    if shutil.which("cosign") is None:
        raise WorldError(
            "there is no cosign on this machine",
            "a signing key is set (BUILDER_COSIGN_KEY)",
            "install cosign (in Debian since trixie), or unset the key",
        )


@cache
def _options(command: str) -> frozenset[str]:
    """The options in the help of a command of cosign: Debian's says that its version is "devel"."""
    return frozenset(re.findall(r"--[a-z][a-z-]+", _run((command, "--help"), "help").decode()))


def require_key(signer: str, work: Path) -> None:
    """Raise ``WorldError`` where there is no cosign, or it cannot sign as a signer.

    An identity signs nothing for a try: whatever it signs is in a public log for good.
    """
    require_cosign()
    if identity_of(signer) is None:
        public = verifier_of(signer, work)
        if not signed_by(SAMPLE, sign_text(SAMPLE, signer, work), public, work):
            raise WorldError(
                "cosign cannot verify its own signature by the signing key",
                hint="check BUILDER_COSIGN_KEY",
            )
        return
    if "--statement" not in _options("attest-blob"):
        raise WorldError(
            "this cosign cannot sign statements by an identity",
            "it is older than 2.6",
            "install cosign 2.6 or 3, or sign with a key",
        )
    if not any(os.environ.get(name) for name in TOKENS):
        raise WorldError(
            f"there is no token for {signer.partition(';')[0]}",
            f"none of {' and '.join(TOKENS)} is set",
            "on GitHub, give the job `permissions: id-token: write`; elsewhere, set "
            "SIGSTORE_ID_TOKEN to a token of the identity",
        )


def verifier_of(signer: str, work: Path) -> str:
    """Verifies the signatures of a signing key: its public key, as a PEM file in ``work``; of an
    identity the identity."""
    if identity_of(signer) is not None:
        return signer
    return str(_written(work, "cosign.pub", public_key(signer)))


@cache  # with a password, cosign takes 0.2 s to read a key
def public_key(key: str) -> bytes:
    """The public key of a signing key, as PEM."""
    return _run(("public-key", f"--key={key}"), "read its public key")


def key_text(key: str) -> str:
    """The public key (PEM) of a key, which may be public itself."""
    with suppress(OSError):
        if "PUBLIC KEY" in (text := Path(key).read_text()):
            return text
    require_cosign()
    return public_key(key).decode()


def _written(work: Path, name: str, content: bytes) -> Path:
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    (work / name).write_bytes(content)
    return work / name


def _instance(*names: str) -> tuple[str, ...]:
    """The options that name a Sigstore of one's own: its trusted root, its signing config."""
    folder = settings.load().sigstore
    return tuple(f"--{name}={folder / name.replace('-', '_')}.json" for name in names if folder)


def _signing(signer: str) -> tuple[str, ...]:
    """The options that sign as a signer."""
    if identity_of(signer) is not None:
        return ("--yes", *_instance("trusted-root", "signing-config"))
    config = ("--use-signing-config=false",) if _as_before() else ()
    return ("--yes", "--tlog-upload=false", *config, *_as_before(), f"--key={signer}")


def _as_before() -> tuple[str, ...]:
    """The option by which cosign 3, whose help hides it, signs and reads like cosign 2."""
    third = "--new-bundle-format" not in _options("sign-blob")
    return ("--new-bundle-format=false",) if third else ()


def verifying(verifier: str) -> tuple[str, ...]:
    """The options of cosign that verify signatures of a public key or an identity."""
    identity = identity_of(verifier)
    if identity is None:
        return ("--insecure-ignore-tlog=true", f"--key={verifier}")
    named = (f"--certificate-identity={identity[0]}", f"--certificate-oidc-issuer={identity[1]}")
    return (*named, *_instance("trusted-root"))


def sign_text(text: str, signer: str, work: Path) -> str:
    """The signature of a text."""
    file = _written(work, "text", text.encode())
    if identity_of(signer) is None:
        signing = ("sign-blob", *_signing(signer), str(file))
        return _run(signing, "sign a text").decode().strip()
    return _bundle(("sign-blob", *_signing(signer)), (str(file),), work)


def sign_statement(statement: str, signer: str, work: Path) -> str:
    """The bundle (JSON) of an in-toto statement that a signer signed: a DSSE envelope.

    https://github.com/secure-systems-lab/dsse/blob/master/protocol.md.  By a key it is put
    together here: cosign before 2.6 signs no statement of version 1.
    """
    if identity_of(signer) is not None:
        file = _written(work, "statement", statement.encode())
        signing = ("attest-blob", *_signing(signer), f"--statement={file}")
        return _bundle(signing, (), work)
    signature = sign_text(_encoded(statement.encode()), signer, work)
    payload = base64.b64encode(statement.encode()).decode()
    envelope = {"payload": payload, "payloadType": IN_TOTO, "signatures": [{"sig": signature}]}
    material = {"publicKey": {"hint": ""}}
    bundle = {"mediaType": BUNDLE, "verificationMaterial": material, "dsseEnvelope": envelope}
    return json.dumps(bundle, separators=(",", ":"))


def _bundle(signing: tuple[str, ...], files: tuple[str, ...], work: Path) -> str:
    made = work / "bundle.json"
    made.unlink(missing_ok=True)
    _run((*signing, "--new-bundle-format", f"--bundle={made}", *files), "sign a text")
    return made.read_text().strip()


def _encoded(statement: bytes) -> str:
    """What a DSSE envelope signs: its pre-authentication encoding."""
    return f"DSSEv1 {len(IN_TOTO)} {IN_TOTO} {len(statement)} {statement.decode()}"


def statement_in(bundle: bytes) -> str:
    """The in-toto statement in a bundle, not verified; empty: there is none."""
    try:
        envelope = json.loads(bundle)["dsseEnvelope"]
        if envelope["payloadType"] != IN_TOTO:
            return ""
        return base64.b64decode(envelope["payload"], validate=True).decode()
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""


def statement_signed_by(bundle: bytes, verifier: str, work: Path) -> bool:
    """Whether the statement in a bundle is signed by a public key or an identity.

    Raises ``WorldError`` where cosign cannot tell.
    """
    statement = statement_in(bundle)
    if not statement:
        return False
    if identity_of(verifier) is None:
        signatures = json.loads(bundle)["dsseEnvelope"].get("signatures")
        first = signatures[0] if isinstance(signatures, list) and signatures else {}
        signature = first.get("sig") if isinstance(first, dict) else None
        encoded = _encoded(statement.encode())
        return isinstance(signature, str) and signed_by(encoded, signature, verifier, work)
    try:
        found = json.loads(statement)
        kind, subject = str(found["predicateType"]), str(found["subject"][0]["digest"]["sha256"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return False
    if not _complete(bundle):
        return False
    stored = _written(work, "bundle.json", bundle)
    options = ("--new-bundle-format", *verifying(verifier), f"--bundle={stored}", f"--type={kind}")
    subject = f"--digest={subject}"  # whose it is, the caller compares
    return _holds(("verify-blob-attestation", *options, subject, "--digestAlg=sha256"), verifier)


def signed_by(text: str, signature: str, verifier: str, work: Path) -> bool:
    """Whether a signature of a text is by a public key (a file or a key URI) or an identity.

    A damaged signature is not.  Raises ``WorldError`` where cosign cannot tell.
    """
    file = _written(work, "text", text.encode())
    if identity_of(verifier) is None:
        try:
            base64.b64decode(signature, validate=True)
        except (ValueError, binascii.Error):
            return False
        options: tuple[str, ...] = ()
    elif not _complete(signature.encode()):
        return False
    else:
        options = ("--new-bundle-format",)
    kind = "bundle" if options else "signature"
    options = (*options, f"--{kind}={_written(work, kind, signature.encode())}")
    return _holds(("verify-blob", *options, *verifying(verifier), str(file)), verifier)


def _complete(bundle: bytes) -> bool:
    """Whether a bundle has a certificate and entries of a log; cosign has many words for others."""
    try:
        found = json.loads(bundle)
        material = found["verificationMaterial"]
        return bool(
            found["mediaType"] == BUNDLE and material["certificate"] and material["tlogEntries"]
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


def _holds(arguments: tuple[str, ...], verifier: str) -> bool:
    try:
        _run(arguments, "verify a signature")
    except WorldError as error:
        if NOT_SIGNED.search(error.why):
            return False
        if UNREADABLE_KEY.search(error.why):
            raise WorldError(
                f"the trusted key {verifier} cannot be read",
                error.why,
                "check BUILDER_TRUSTED_KEYS: files of public keys, cosign's key URIs, identities",
            ) from error
        error.hint = "whether the signature is good is not known: try with cosign 2.4 to 3.1"
        raise
    return True


def sign_image(repository: str, digest: str, signer: str, work: Path) -> bool:
    """Sign an image of a registry unless it has a valid signature; whether it was signed now.

    Raises ``WorldError`` where cosign cannot sign as the signer or does not end in time,
    ``RegistryError`` where the registry then has no valid signature.
    """
    image, registry = f"{repository}@{digest}", split(repository)[0]
    certificate = certificate_of(registry)
    options = (f"--registry-cacert={certificate}",) if certificate is not None else ()
    verifier = verifier_of(signer, work)
    login = login_for(registry)
    name = HUB_KEY if registry == HUB else registry
    auths = {name: {"auth": login.basic}} if login is not None else {}
    config = _written(work, "config.json", b"")  # the login is in a file while cosign runs
    config.chmod(0o600)
    try:
        config.write_text(json.dumps({"auths": auths}))
        if _verifies(image, verifier, options, work):
            return False
        signing = ("sign", *_signing(signer), *options, image)
        _run(signing, f"sign {image}", work)
        if not _verifies(image, verifier, options, work):
            raise RegistryError(
                f"{image} was signed, but has no signature by {signer.partition(';')[0]}",
                "the token may be of another workflow" if identity_of(signer) else "",
                "try again",
            )
    finally:
        config.unlink(missing_ok=True)
    return True


def _verifies(image: str, verifier: str, options: tuple[str, ...], config: Path) -> bool:
    # By a key, the signature that cosign 2 reads: for cosign 3, a signed statement is one, too.
    form = () if identity_of(verifier) else _as_before()
    try:
        _run(("verify", *form, *verifying(verifier), *options, image), f"verify {image}", config)
    except WorldError as error:
        if NO_SIGNATURE.search(error.why):
            return False
        raise
    return True


def _run(arguments: tuple[str, ...], what: str, config: Path | None = None) -> bytes:
    """cosign's output; ``config`` is the directory with its login for the registry."""
    try:
        done = subprocess.run(
            ("cosign", *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env=os.environ | ({"DOCKER_CONFIG": str(config)} if config else {}),
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise WorldError(f"cosign did not {what} within {TIMEOUT:.0f} s") from error
    if done.returncode != 0:
        raise WorldError(
            f"cosign cannot {what}",
            done.stderr.decode(errors="replace").strip()[-1000:],
            "check BUILDER_COSIGN_KEY, and the key's password in COSIGN_PASSWORD",
        )
    return done.stdout
