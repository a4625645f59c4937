"""cosign: signatures of images and texts, with self-managed keys.

https://docs.sigstore.dev/cosign/key_management/signing_with_self-managed_keys/.  Nothing goes to a
transparency log: a verifier needs the public key and no other server.  cosign takes the key's
password from COSIGN_PASSWORD.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from builder.errors import RegistryError, WorldError
from builder.tools.registry.credentials import HUB, HUB_KEY, login_for
from builder.tools.registry.transport import certificate_of, split

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
    """Raise ``WorldError`` where there is no cosign, or it cannot sign with a key.

    ``key`` is a file or one of cosign's key URIs, ``work`` a directory for cosign's input.
    """
    require_cosign()
    public = public_key(key, work)
    if not signed_by(SAMPLE, sign_text(SAMPLE, key, work), str(public), work):
        raise WorldError(
            "cosign cannot verify its own signature by the signing key",
            hint="check BUILDER_COSIGN_KEY",
        )


def public_key(key: str, work: Path) -> Path:
    """The public key of a signing key, as a PEM file in ``work``.  Raises ``WorldError``."""
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    public = work / "cosign.pub"
    public.write_bytes(_public_key(key))
    return public


@cache  # with a password, cosign takes 0.2 s to read a key
def _public_key(key: str) -> bytes:
    return _run(("public-key", f"--key={key}"), dict(os.environ), "read its public key")


def sign_text(text: str, key: str, work: Path) -> str:
    """The signature (base64) of a text.  Raises ``WorldError`` where cosign cannot sign."""
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = work / "text"
    file.write_text(text, "utf-8")
    signing = ("sign-blob", "--yes", "--tlog-upload=false", f"--key={key}", str(file))
    return _run(signing, dict(os.environ), "sign a verdict").decode().strip()


def signed_by(text: str, signature: str, public: str, work: Path) -> bool:
    """Whether a signature (base64) of a text is by a public key, which is a file or a key URI.

    A damaged signature is not.  Raises ``WorldError`` where the key cannot be read.
    """
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    file, stored = work / "text", work / "signature"
    file.write_text(text, "utf-8")
    stored.write_text(signature, "utf-8")
    options = ("--insecure-ignore-tlog=true", f"--key={public}", f"--signature={stored}")
    try:
        _run(("verify-blob", *options, str(file)), dict(os.environ), "verify a verdict")
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

    ``key`` is a file or one of cosign's key URIs, ``work`` an empty directory for cosign's input.
    Raises ``WorldError`` where cosign cannot sign with the key or does not end in time,
    ``RegistryError`` where the registry then has no valid signature.
    """
    image, options = f"{repository}@{digest}", _options(repository)
    with _environment(repository, work) as environment:
        public = public_key(key, work)
        if _verifies(image, public, options, environment):
            return False
        signing = ("sign", "--yes", "--tlog-upload=false", f"--key={key}", *options, image)
        _run(signing, environment, f"sign {image}")
        if not _verifies(image, public, options, environment):
            raise RegistryError(
                f"{image} was signed, but has no signature by that key", hint="try again"
            )
    return True


def _verifies(
    image: str, public: Path, options: tuple[str, ...], environment: dict[str, str]
) -> bool:
    """Whether an image has a valid signature by a public key.  Raises like ``_run``."""
    verifying = ("verify", "--insecure-ignore-tlog=true", f"--key={public}", *options, image)
    try:
        _run(verifying, environment, f"verify {image}")
    except WorldError as error:
        if UNSIGNED.search(error.why):
            return False
        raise
    return True


def _options(repository: str) -> tuple[str, ...]:
    certificate = certificate_of(split(repository)[0])
    return (f"--registry-cacert={certificate}",) if certificate is not None else ()


@contextmanager
def _environment(repository: str, work: Path) -> Iterator[dict[str, str]]:
    """cosign's environment; the login for the registry is in a file while cosign runs."""
    registry, _ = split(repository)
    login = login_for(registry)
    auths = {}
    if login is not None:
        auths[HUB_KEY if registry == HUB else registry] = {"auth": login.basic}
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = work / "config.json"
    config.touch(0o600)
    try:
        config.write_text(json.dumps({"auths": auths}))
        yield os.environ | {"DOCKER_CONFIG": str(work)}
    finally:
        config.unlink(missing_ok=True)


def _run(arguments: tuple[str, ...], environment: dict[str, str], what: str) -> bytes:
    try:
        done = subprocess.run(
            ("cosign", *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env=environment,
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
