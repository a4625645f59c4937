"""cosign: signatures of images and texts, with self-managed keys.

https://docs.sigstore.dev/cosign/key_management/signing_with_self-managed_keys/.  Nothing goes to a
transparency log: a verifier needs the public key and no other server.  cosign takes the key's
password from COSIGN_PASSWORD.  A ``key`` is a file or one of cosign's key URIs, ``work`` a
directory for cosign's input.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from builder.core.errors import RegistryError, WorldError
from builder.docker.engine import HUB, split
from builder.publish.transport import HUB_KEY, certificate_of, login_for

TIMEOUT = 300.0  # seconds
UNSIGNED = re.compile(
    r"no (?:matching )?signatures|invalid signature when validating", re.IGNORECASE
)
"""cosign's messages (2.5) for an image without a signature, or without one by that key."""
UNREADABLE_KEY = re.compile(r"loading public key")
"""cosign's message (2.5) for a key that it cannot use."""
SAMPLE = "builder tries its signing key"


def require_cosign() -> None:
    """Raise ``WorldError`` where there is no cosign."""
    if shutil.which("cosign") is None:
        raise WorldError(
            "there is no cosign on this machine",
            "a signing key is set (BUILDER_COSIGN_KEY)",
            "install cosign (in Debian since trixie), or unset the key",
        )


def require_key(key: str, work: Path) -> None:
    """Raise ``WorldError`` where there is no cosign, or it cannot sign with a key."""
    require_cosign()
    public = public_key(key, work)
    if not signed_by(SAMPLE, sign_text(SAMPLE, key, work), str(public), work):
        raise WorldError(
            "cosign cannot verify its own signature by the signing key",
            hint="check BUILDER_COSIGN_KEY",
        )


def public_key(key: str, work: Path) -> Path:
    """The public key of a signing key, as a PEM file in ``work``."""
    return _written(work, "cosign.pub", _public_key(key))


@cache  # with a password, cosign takes 0.2 s to read a key
def _public_key(key: str) -> bytes:
    return _run(("public-key", f"--key={key}"), "read its public key")


def _written(work: Path, name: str, content: bytes) -> Path:
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    (work / name).write_bytes(content)
    return work / name


def sign_text(text: str, key: str, work: Path) -> str:
    """The signature (base64) of a text."""
    file = _written(work, "text", text.encode())
    signing = ("sign-blob", "--yes", "--tlog-upload=false", f"--key={key}", str(file))
    return _run(signing, "sign a verdict").decode().strip()


def signed_by(text: str, signature: str, public: str, work: Path) -> bool:
    """Whether a signature (base64) of a text is by a public key, which is a file or a key URI.

    A damaged signature is not.
    """
    file = _written(work, "text", text.encode())
    stored = _written(work, "signature", signature.encode())
    options = ("--insecure-ignore-tlog=true", f"--key={public}", f"--signature={stored}")
    try:
        _run(("verify-blob", *options, str(file)), "verify a verdict")
    except WorldError as error:
        if not error.why:  # cosign did not end in time
            raise
        if not UNREADABLE_KEY.search(error.why):
            return False
        raise WorldError(
            f"the trusted key {public} cannot be read",
            error.why,
            "check BUILDER_TRUSTED_KEYS: files of public keys, or cosign's key URIs",
        ) from error
    return True


def sign(repository: str, digest: str, key: str, work: Path) -> bool:
    """Sign an image of a registry unless it has a valid signature; whether it was signed now.

    Raises ``WorldError`` where cosign cannot sign with the key or does not end in time,
    ``RegistryError`` where the registry then has no valid signature.
    """
    image, registry = f"{repository}@{digest}", split(repository)[0]
    certificate = certificate_of(registry)
    options = (f"--registry-cacert={certificate}",) if certificate is not None else ()
    public = public_key(key, work)
    login = login_for(registry)
    name = HUB_KEY if registry == HUB else registry
    auths = {name: {"auth": login.basic}} if login is not None else {}
    config = work / "config.json"  # the login is in a file while cosign runs
    config.touch(0o600)
    try:
        config.write_text(json.dumps({"auths": auths}))
        if _verifies(image, public, options, work):
            return False
        signing = ("sign", "--yes", "--tlog-upload=false", f"--key={key}", *options, image)
        _run(signing, f"sign {image}", work)
        if not _verifies(image, public, options, work):
            raise RegistryError(
                f"{image} was signed, but has no signature by that key", hint="try again"
            )
    finally:
        config.unlink(missing_ok=True)
    return True


def _verifies(image: str, public: Path, options: tuple[str, ...], config: Path) -> bool:
    verifying = ("verify", "--insecure-ignore-tlog=true", f"--key={public}", *options, image)
    try:
        _run(verifying, f"verify {image}", config)
    except WorldError as error:
        if UNSIGNED.search(error.why):
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
