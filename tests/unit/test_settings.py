"""Where settings come from, and what follows from those that choose other machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core import settings
from builder.core.errors import WorldError
from builder.core.settings import Settings


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "builder").mkdir()
    return tmp_path / "builder" / "settings.toml"


def test_the_builder_is_dockers_own_variable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.load().buildx == ""
    file.write_text('buildx = "of-the-file"\njobs = 2\n')
    assert settings.load().buildx == "of-the-file"
    monkeypatch.setenv("BUILDX_BUILDER", "of-the-environment")
    assert settings.load().buildx == "of-the-environment"
    assert settings.load().jobs == 2
    assert Settings(buildx="given").buildx == "given"
    assert settings.load().model_copy(update={"buildx": "chosen"}).buildx == "chosen"


@pytest.mark.parametrize("name", ["registry.example.org/farm/cache", "127.0.0.1:5000/x", "me/x"])
def test_a_layer_cache_is_a_repository(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("BUILDER_LAYER_CACHE", name)
    assert settings.load().layer_cache == name


@pytest.mark.parametrize("name", ["x:tag", "x,mode=min", "Registry/x", "https://x/y", "x y"])
def test_what_is_no_repository_is_told(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("BUILDER_LAYER_CACHE", name)
    with pytest.raises(WorldError, match="BUILDER_LAYER_CACHE must be names"):
        settings.load()


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("", ()),
        ("a.pub", ("a.pub",)),
        ("a.pub, b.pub gcpkms://x", ("a.pub", "b.pub", "gcpkms://x")),
    ],
)
def test_trusted_keys_are_a_list(
    file: Path, monkeypatch: pytest.MonkeyPatch, text: str, keys: tuple[str, ...]
) -> None:
    file.write_text('trusted_keys = ["of-the-file.pub"]\n')
    assert settings.load().trusted_keys == ("of-the-file.pub",)
    monkeypatch.setenv("BUILDER_TRUSTED_KEYS", text)
    assert settings.load().trusted_keys == keys


def test_hosts_that_get_logins_are_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDER_TOKEN_HOSTS", "a.example, b.example")
    assert settings.load().token_hosts == ("a.example", "b.example")
    monkeypatch.setenv("BUILDER_TOKEN_HOSTS", "https://a.example/token")
    with pytest.raises(WorldError) as caught:
        settings.load()
    assert "BUILDER_TOKEN_HOSTS must be host names" in caught.value.why


def test_an_error_names_the_variable_or_the_line_of_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('# mine\nnamespace = "UPPER"\njob = 2\njobs = "many"\n')
    with pytest.raises(WorldError) as caught:
        settings.load()
    assert set(caught.value.why.splitlines()) == {
        f"{file}:2: namespace {settings.WORDS[settings.NAMESPACE]}; it is 'UPPER'",
        f"{file}:3: job: unknown setting; did you mean jobs?",
        f"{file}:4: jobs: must be a whole number; it is 'many'",
    }
    file.write_text("jobs = 2\n")
    monkeypatch.setenv("BUILDER_JOBS", "-1")
    with pytest.raises(WorldError) as caught:
        settings.load()
    assert caught.value.why.startswith("BUILDER_JOBS: must be at least 0")
    monkeypatch.delenv("BUILDER_JOBS")
    file.write_text("jobs = = 2\n")
    with pytest.raises(WorldError, match="is not TOML") as caught:
        settings.load()
    assert "line 1" in caught.value.why
