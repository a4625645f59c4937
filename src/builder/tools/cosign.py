"""cosign: signatures of images, with a key of one's own.

https://docs.sigstore.dev/cosign/key_management/signing_with_self-managed_keys/.  Nothing goes to a
transparency log: who verifies needs the public key, and nobody else's server.  The key's password
is where cosign looks for it, in COSIGN_PASSWORD.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

from builder.errors import RegistryError, WorldError
from builder.tools.credentials import HUB, HUB_KEY, login_for
from builder.tools.registry import certificate_of, split

PATIENCE = 300.0  # seconds


def need() -> None:
    """Raise ``WorldError`` where there is no cosign."""
    if shutil.which("cosign") is None:
        raise WorldError(
            "there is no cosign on this machine",
            "a key to sign with is set (BUILDER_COSIGN_KEY)",
            "install cosign (Debian has it from trixie on), or unset the key",
        )


def sign(repository: str, digest: str, key: str, work: Path) -> bool:
    """Have a valid signature on an image of a registry; whether it had none before.

    ``key`` is a file or one of cosign's key URIs, ``work`` an empty directory for what cosign is
    told.  Raises ``WorldError`` where cosign cannot sign with it; ``RegistryError`` where the
    signature that the registry then gives is not ours.
    """
    environment = _environment(repository, work)
    public = work / "cosign.pub"
    public.write_bytes(_run(("public-key", f"--key={key}"), environment, "read its public key"))
    image, options = f"{repository}@{digest}", _options(repository)
    if _verifies(image, public, options, environment) == "":
        return False
    signing = ("sign", "--yes", "--tlog-upload=false", f"--key={key}", *options, image)
    _run(signing, environment, f"sign {image}")
    why = _verifies(image, public, options, environment)
    if why:
        raise RegistryError(
            f"the signature of {image} cannot be verified", why, "no tag was moved; try again"
        )
    return True


def _verifies(
    image: str, public: Path, options: tuple[str, ...], environment: dict[str, str]
) -> str:
    """Why an image has no valid signature by a public key; empty where it has one."""
    command = ("cosign", "verify", "--insecure-ignore-tlog=true", f"--key={public}")
    done = subprocess.run(
        (*command, *options, image),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=PATIENCE,
    )
    return "" if done.returncode == 0 else done.stderr.strip() or "cosign verify says no"


def _options(repository: str) -> tuple[str, ...]:
    certificate = certificate_of(split(repository)[0])
    return (f"--registry-cacert={certificate}",) if certificate is not None else ()


def _environment(repository: str, work: Path) -> dict[str, str]:
    """What cosign runs in: the login for the registry in a file that only we can read."""
    registry, _ = split(repository)
    login = login_for(registry)
    auths = {}
    if login is not None:
        pair = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
        auths[HUB_KEY if registry == HUB else registry] = {"auth": pair}
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    (work / "config.json").write_text(json.dumps({"auths": auths}))
    return os.environ | {"DOCKER_CONFIG": str(work)}


def _run(arguments: tuple[str, ...], environment: dict[str, str], what: str) -> bytes:
    try:
        done = subprocess.run(
            ("cosign", *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env=environment,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired as error:
        raise WorldError(f"cosign could not {what} within {PATIENCE:.0f} s") from error
    if done.returncode != 0:
        raise WorldError(
            f"cosign cannot {what}",
            done.stderr.decode(errors="replace").strip()[-1000:],
            "check BUILDER_COSIGN_KEY, and the key's password in COSIGN_PASSWORD",
        )
    return done.stdout
