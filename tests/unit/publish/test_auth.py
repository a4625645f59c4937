"""Which hosts get a login or a token, and which do not: real servers on loopback."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from builder.core import web
from builder.core.errors import FetchError, RegistryError
from builder.publish.registry import Repository
from builder.publish.tags import open_repository
from builder.publish.transport import may_name
from support.registries import NO_BLOB, Reply, Request, answering

pytestmark = pytest.mark.usefixtures("docker_config")

BASIC = {"WWW-Authenticate": 'Basic realm="x"'}
SECRET = "s3cret"


def log_in(docker_config: Path, address: str) -> None:
    auth = base64.b64encode(f"farm:{SECRET}".encode()).decode()
    docker_config.write_text(json.dumps({"auths": {address: {"auth": auth}}}))


def authorized(asked: list[Request]) -> list[str]:
    return [each.path for each in asked if each.headers.get("Authorization")]


@pytest.mark.parametrize("kind", ["basic", "bearer"])
def test_what_a_blob_redirects_to_gets_no_login(docker_config: Path, kind: str) -> None:
    def other(request: Request) -> Reply:
        if "token" in request.path:
            return 200, {}, b'{"token": "x"}'
        realm = f'Bearer realm="http://{request.headers["Host"]}/token",service="x"'
        return (
            401,
            {"WWW-Authenticate": realm if kind == "bearer" else BASIC[next(iter(BASIC))]},
            b"",
        )

    with answering(other) as (elsewhere, asked_there):

        def front(request: Request) -> Reply:
            if not request.headers.get("Authorization"):
                return 401, BASIC, b""
            return 307, {"Location": f"http://{elsewhere}/blob"}, b""

        with answering(front) as (address, asked):
            log_in(docker_config, address)
            with pytest.raises(RegistryError, match="which it names for this, responds 401"):
                Repository(f"{address}/me/x", print).blob(NO_BLOB)
    assert authorized(asked)
    assert [each.path for each in asked_there] == ["/blob"]
    assert authorized(asked_there) == []


def test_a_realm_without_tls_elsewhere_gets_no_login(docker_config: Path) -> None:
    realm = {"WWW-Authenticate": 'Bearer realm="http://198.51.100.1/token",service="x"'}
    with answering(lambda _: (401, realm, b"")) as (address, _):
        log_in(docker_config, address)
        with pytest.raises(RegistryError, match="wants the login to be sent without TLS") as caught:
            Repository(f"{address}/me/x", print).tags()
    assert "198.51.100.1" in caught.value.why


def test_a_registry_of_this_machine_names_no_realm_elsewhere(
    docker_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    realm = {"WWW-Authenticate": 'Bearer realm="https://auth.example.invalid/token",service="x"'}
    with answering(lambda _: (401, realm, b"")) as (address, asked):
        log_in(docker_config, address)
        with pytest.raises(RegistryError, match=r"is sent to auth\.example") as caught:
            Repository(f"{address}/me/x", print).tags()
        assert len(asked) == 1
        assert "BUILDER_TOKEN_HOSTS=auth.example.invalid" in caught.value.hint
        # Where the user allows it, the host is asked: there is none of that name.
        monkeypatch.setattr(web, "ATTEMPTS", 1)
        monkeypatch.setenv("BUILDER_TOKEN_HOSTS", "other.example, auth.example.invalid")
        with pytest.raises(FetchError) as failed:
            open_repository(f"{address}/me/x", print).tags()
        assert failed.value.why.startswith("auth.example.invalid: the host name cannot be resolved")


def test_without_a_login_any_other_machine_may_issue_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No host has that name; one that names this machine is not even asked."""
    monkeypatch.setattr(web, "ATTEMPTS", 1)
    realm = {"WWW-Authenticate": 'Bearer realm="https://auth.example.invalid/token",service="x"'}
    with answering(lambda _: (401, realm, b"")) as (address, _):
        with pytest.raises(FetchError) as failed:
            Repository(f"{address}/me/x", print).tags()
        assert failed.value.why.startswith("auth.example.invalid: the host name cannot be resolved")
        with answering(lambda _: (200, {}, b'{"token": "x"}')) as (elsewhere, asked):
            port = elsewhere.partition(":")[2]
            named = f"https://0x7f.1:{port}/token"
            realm["WWW-Authenticate"] = f'Bearer realm="{named}",service="x"'
            with pytest.raises(RegistryError, match="which is this machine"):
                Repository(f"{address}/me/x", print).tags()
        assert asked == []


@pytest.mark.parametrize(
    ("registry", "host", "allowed"),
    [
        ("docker.io", "auth.docker.io", True),
        ("docker.io", "hub.docker.com", False),
        ("docker.io", "auth.mydocker.io", False),
        ("ghcr.io", "ghcr.io", True),
        ("ghcr.io", "quay.io", False),
        ("registry.gitlab.com", "gitlab.com", True),
        ("registry.gitlab.com", "notgitlab.com", False),
        ("registry.example.com:5000", "gitlab.example.com", False),
        ("registry.example.com:5000", "registry.example.com", True),
        ("acme.azurecr.io", "acme.azurecr.io", True),
        ("acme.azurecr.io", "other.azurecr.io", False),
        ("a.dkr.ecr.us-east-1.amazonaws.com", "b.dkr.ecr.us-east-1.amazonaws.com", False),
        ("registry.example.com", "example.com.evil.example", False),
        ("example.com", "auth.example.com", False),
        ("example.com", "evil.com", False),
        ("example.co.uk", "evil.co.uk", False),
        ("10.0.0.1:5000", "10.0.0.1", True),
        ("10.0.0.1:5000", "20.0.0.1", False),
        ("farm", "farm", True),
        ("127.0.0.1:5000", "localhost", True),
        ("registry.example.com", "localhost", False),
    ],
)
def test_which_hosts_a_registry_may_name_for_tokens(
    registry: str, host: str, *, allowed: bool
) -> None:
    assert may_name(registry, host) is allowed


def test_a_realm_that_redirects_elsewhere_gets_no_login(docker_config: Path) -> None:
    with answering(lambda _: (200, {}, b'{"token": "x"}')) as (elsewhere, asked_there):

        def front(request: Request) -> Reply:
            if request.path.startswith("/token"):
                return 307, {"Location": f"http://{elsewhere}/token"}, b""
            realm = f'Bearer realm="http://{request.headers["Host"]}/token",service="x"'
            return 401, {"WWW-Authenticate": realm}, b""

        with answering(front) as (address, _):
            log_in(docker_config, address)
            with pytest.raises(RegistryError, match="it redirects GET to"):
                Repository(f"{address}/me/x", print).tags()
    assert asked_there == []


def test_netrc_does_not_replace_the_login(
    docker_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login other password other\n")
    monkeypatch.setenv("NETRC", str(netrc))

    def front(request: Request) -> Reply:
        told = request.headers.get("Authorization", "").removeprefix("Basic ")
        if base64.b64decode(told) != f"farm:{SECRET}".encode():
            return 401, BASIC, b""
        return 200, {}, b'{"tags": ["a"]}'

    with answering(front) as (address, _):
        log_in(docker_config, address)
        assert Repository(f"{address}/me/x", print).tags() == ["a"]


def test_a_token_that_is_no_token_is_not_shown() -> None:
    def front(request: Request) -> Reply:
        if request.path.startswith("/token"):
            return 200, {}, json.dumps({"token": f"{SECRET}\nX: y"}).encode()
        realm = f'Bearer realm="http://{request.headers["Host"]}/token",service="x"'
        return 401, {"WWW-Authenticate": realm}, b""

    with (
        answering(front) as (address, _),
        pytest.raises(RegistryError, match=r"the token for .* is damaged") as caught,
    ):
        Repository(f"{address}/me/x", print).tags()
    assert SECRET not in str(caught.value)


def test_an_upload_address_elsewhere_gets_no_login(
    docker_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "ATTEMPTS", 1)

    def other(request: Request) -> Reply:
        return (201, {}, b"") if request.headers.get("Authorization") else (401, BASIC, b"")

    with answering(other) as (elsewhere, requests_there):

        def front(request: Request) -> Reply:
            if not request.headers.get("Authorization"):
                return 401, BASIC, b""
            if request.command == "POST":
                return 202, {"Location": f"http://{elsewhere}/up"}, b""
            return 404, {}, b""

        with answering(front) as (address, requests):
            log_in(docker_config, address)
            with pytest.raises(RegistryError):
                Repository(f"{address}/me/x", print).put_bytes(b"x")
    assert authorized(requests)
    assert requests_there
    assert authorized(requests_there) == []


def test_a_deletion_asks_for_a_token_with_its_scope() -> None:
    scopes: list[str] = []

    def front(request: Request) -> Reply:
        if request.path.startswith("/token"):
            scopes.extend(parse_qs(urlsplit(request.path).query)["scope"])
            return 200, {}, json.dumps({"token": scopes[-1]}).encode()
        realm = f'Bearer realm="http://{request.headers["Host"]}/token",service="x"'
        allowed = request.headers.get("Authorization", "").endswith(",delete")
        return (202 if allowed else 401), {"WWW-Authenticate": realm}, b""

    with answering(front) as (address, _):
        Repository(f"{address}/me/x", print).delete(NO_BLOB)
    assert scopes == ["repository:me/x:pull,push,delete"]
