"""Signers of images: each cosign that is here, and a Sigstore on loopback for identities.

The public Fulcio and Rekor are out of reach of tests.  ``sigstore.cjs`` serves the ones in
@sigstore/mock instead: real certificates, timestamps and log entries by keys that only the test
trusts, for any token.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.publish import signing
from programs import STRANGERS
from support.environment import REPOSITORY

WORKFLOW = "https://github.com/me/farm/.github/workflows/nightly.yml@refs/heads/main"
ISSUER = "https://token.actions.githubusercontent.com"
MOCK = REPOSITORY / ".ci" / "node_modules" / "@sigstore" / "mock"


def token(identity: str) -> str:
    """A token of an identity, as GitHub issues them, without a valid signature."""

    def part(content: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    now = int(time.time())
    claims = {"iss": ISSUER, "sub": identity, "aud": "sigstore", "iat": now, "exp": now + 3600}
    return f"{part({'alg': 'RS256', 'typ': 'JWT'})}.{part(claims)}.{'A' * 86}"


@pytest.fixture
def cosign3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of cosign 3 and oras, first in PATH."""
    if not (STRANGERS / "oras").exists():
        pytest.skip("cosign 3 and oras are not here: tests/programs.py installs them on Debian")
    monkeypatch.setenv("PATH", f"{STRANGERS}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    forget()
    yield STRANGERS
    forget()


def forget() -> None:
    """Forget what is known of the cosign in PATH."""
    signing._options.cache_clear()
    signing.public_key.cache_clear()


@pytest.fixture
def sigstore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a Sigstore on loopback; the environment has a token of ``WORKFLOW``."""
    node = shutil.which("node", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if node is None or not MOCK.exists():
        pytest.skip("@sigstore/mock is not here: .ci/run installs it (npm ci --prefix .ci)")
    folder = tmp_path / "sigstore"
    folder.mkdir()
    command = [node, str(Path(__file__).with_name("sigstore.cjs")), str(MOCK), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline().startswith("http://127.0.0.1:")
            monkeypatch.setenv("BUILDER_SIGSTORE", str(folder))
            monkeypatch.setenv("SIGSTORE_ID_TOKEN", token(WORKFLOW))
            yield folder
        finally:
            server.kill()
