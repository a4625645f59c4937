"""What Docker and buildx print about a registry's image, as they word it."""

from __future__ import annotations

import pytest

from builder.core.errors import BuilderError, FetchError, GoneError, RegistryError
from builder.docker.engine import refusal

HEAD = 'failed to do request: Head "https://r.example/v2/geoff/x/manifests/1": '


@pytest.mark.parametrize(
    ("reference", "why", "kind", "words"),
    [
        ("r.example/geoff/x:1", "r.example/geoff/x:1: not found", GoneError, "has no"),
        ("geoff/timeout:1", "docker.io/geoff/timeout:1: not found", GoneError, "has no"),
        ("me/denied:1", "docker.io/me/denied:1: not found", GoneError, "has no"),
        ("r.example/o:1", HEAD + "dial tcp: i/o timeout", FetchError, "does not answer"),
        ("r.example/geoff/x:1", HEAD + "EOF", FetchError, "does not answer"),
        ("r.example/me/x:1", "error from registry: denied", RegistryError, "refuses"),
        ("r.example/me/x:1", "denied: Your token has expired.", RegistryError, "refuses"),
        (
            "r.example/me/x:1",
            HEAD + "tls: failed to verify certificate: x509: certificate has expired",
            FetchError,
            "no secure connection",
        ),
        ("me/x:1", "toomanyrequests: You have reached your pull limit", FetchError, "fails"),
    ],
)
def test_the_cause_is_read_from_the_message_and_not_from_the_name(
    reference: str, why: str, kind: type[BuilderError], words: str
) -> None:
    error = refusal(reference, why)
    assert type(error) is kind
    assert words in error.what
