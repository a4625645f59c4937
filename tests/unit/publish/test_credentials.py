"""Who one is to a registry: Docker's store, its helpers, the variables of CI, and what is shown."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from builder.core.errors import RegistryError, WorldError
from builder.publish import transport
from builder.publish.registry import Repository
from builder.publish.transport import Login, login_for
from support.damaged import damaged, fuzzed
from support.loopback import Quiet, serving_with

SECRET = "dckr_pat_s3cret"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Docker's configuration file, of the test's own."""
    folder = tmp_path / "docker"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    for name in ("DOCKERHUB_USERNAME", "DOCKERHUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return folder / "config.json"


def auth(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_what_docker_login_keeps(store: Path) -> None:
    assert login_for("docker.io") is None
    hub = "https://index.docker.io/v1/"
    kept = {hub: auth("me", f"{SECRET}:1"), "127.0.0.1:5000": auth("you", "x")}
    store.write_text(json.dumps({"auths": kept}))
    assert login_for("docker.io") == Login("me", f"{SECRET}:1")
    assert login_for("127.0.0.1:5000") == Login("you", "x")
    assert login_for("ghcr.io") is None
    assert SECRET not in repr(login_for("docker.io"))


def test_variables_of_ci_go_before_it(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write_text(json.dumps({"auths": {"https://index.docker.io/v1/": auth("me", "x")}}))
    monkeypatch.setenv("DOCKERHUB_USERNAME", "ci")
    assert login_for("docker.io") == Login("me", "x")  # without a token it says nothing
    monkeypatch.setenv("DOCKERHUB_TOKEN", SECRET)
    assert login_for("docker.io") == Login("ci", SECRET)
    assert login_for("ghcr.io") is None


def test_variables_that_are_no_utf8_are_told(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not store.exists()
    monkeypatch.setenv("DOCKERHUB_USERNAME", "ci")
    monkeypatch.setenv("DOCKERHUB_TOKEN", "\udcff\udcfe")
    with pytest.raises(WorldError, match="DOCKERHUB_TOKEN is not UTF-8"):
        login_for("docker.io")
    monkeypatch.setenv("DOCKERHUB_TOKEN", SECRET)
    monkeypatch.setenv("DOCKERHUB_USERNAME", "\udcff")
    with pytest.raises(WorldError, match="DOCKERHUB_USERNAME is not UTF-8"):
        login_for("docker.io")


def test_a_helper_is_asked(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "docker-credential-seen"
    answer = json.dumps({"Username": "me", "Secret": SECRET})
    known = "read name; [ $name = ghcr.io ] || { echo not found; exit 1; }"
    helper.write_text(f"#!/bin/sh\n{known}\necho '{answer}'\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    store.write_text(json.dumps({"credHelpers": {"ghcr.io": "seen"}}))
    assert login_for("ghcr.io") == Login("me", SECRET)
    store.write_text(json.dumps({"credsStore": "seen"}))
    assert login_for("docker.io") is None
    store.write_text(json.dumps({"credsStore": "absent"}))
    with pytest.raises(WorldError, match="docker-credential-absent does not work"):
        login_for("ghcr.io")
    helper.write_text("#!/bin/sh\necho nothing\n")
    store.write_text(json.dumps({"credsStore": "seen"}))
    with pytest.raises(WorldError, match="is not a login"):
        login_for("ghcr.io")


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", "5", '{"auths": []}', '{"auths": 5}', '{"auths": {"ghcr.io": 5}}'),
        *('{"auths": {"ghcr.io": {"auth": "%%%"}}}', '{"auths": {"ghcr.io": {"auth": "\u00e4"}}}'),
        *('{"credHelpers": []}', '{"credsStore": 5}', "[" * 200_000, "\udcff"),
    ],
)
def test_a_broken_store(store: Path, text: str) -> None:
    store.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(WorldError, match="cannot be read") as caught:
        login_for("ghcr.io")
    assert caught.value.why
    assert caught.value.hint


def test_an_entry_that_is_null_is_no_login(store: Path) -> None:
    for text in ("null", "{}", '{"auth": null}'):
        store.write_text(f'{{"auths": {{"ghcr.io": {text}}}, "credHelpers": null}}')
        assert login_for("ghcr.io") is None


def test_a_damaged_store_shows_no_password(store: Path) -> None:
    store.write_text(json.dumps({"auths": {"ghcr.io": {"auth": [SECRET]}}}))
    with pytest.raises(WorldError) as caught:
        login_for("ghcr.io")
    assert caught.value.why == "auths.ghcr.io.auth: must be a text"


def test_no_store_is_an_internal_error(store: Path) -> None:
    good = {"auths": {"ghcr.io": auth("me", SECRET)}, "credHelpers": {"a": "b"}}

    @fuzzed
    def fuzz(seed: bytes) -> None:
        content = damaged(good, seed)
        with suppress(WorldError):
            config = transport.parse_config(content, store)
            transport.stored_login(config, "ghcr.io")

    fuzz()


@pytest.fixture
def guarded() -> Iterator[tuple[str, list[str]]]:
    """A registry that wants a token, as Docker Hub does; its address, and what it was asked."""
    asked: list[str] = []

    class Handler(Quiet):
        def do_GET(self) -> None:
            said = self.headers.get("Authorization", "")
            asked.append(f"{self.path} {said}")
            url = urlsplit(self.path)
            if url.path == "/token":
                self.token(parse_qs(url.query), said)
            elif said == "Bearer let-in":
                self.answer(200, {"name": "me/seen", "tags": ["b", "a"]})
            else:
                where = f"http://{self.headers['Host']}/token"
                challenge = f'Bearer realm="{where}",service="seen",scope="any"'
                self.answer(401, {"errors": []}, {"WWW-Authenticate": challenge})

        def token(self, query: dict[str, list[str]], said: str) -> None:
            user = base64.b64decode(said.removeprefix("Basic ")).decode()
            known = user == f"me:{SECRET}" and query["scope"] == ["repository:me/seen:pull"]
            self.answer(200, {"token": "let-in" if known else "stay-out"})

        def answer(
            self, status: int, content: dict[str, Any], headers: dict[str, str] | None = None
        ) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    with serving_with(Handler) as address:
        yield address, asked


def test_a_token_is_asked_for_once(store: Path, guarded: tuple[str, list[str]]) -> None:
    address, asked = guarded
    store.write_text(json.dumps({"auths": {address: auth("me", SECRET)}}))
    repository = Repository(f"{address}/me/seen", print)
    assert repository.tags() == ["a", "b"]
    assert repository.tags() == ["a", "b"]
    assert sum("/token" in line for line in asked) == 1


@pytest.mark.parametrize("login", [None, auth("me", "wrong-one"), auth("you", SECRET)])
def test_who_is_not_let_in_is_told_so(
    store: Path,
    guarded: tuple[str, list[str]],
    login: dict[str, str] | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address, asked = guarded
    store.write_text(json.dumps({"auths": {address: login} if login else {}}))
    with pytest.raises(RegistryError, match="authentication failed") as caught:
        Repository(f"{address}/me/seen", print).tags()
    assert f"docker login {address}" in caught.value.hint
    assert len(asked) == 3  # it is not tried again: that would lock the account
    shown = str(caught.value) + "".join(capsys.readouterr())
    assert SECRET not in shown
    assert "wrong-one" not in shown
