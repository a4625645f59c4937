"""Where settings come from, and what follows from those that choose other machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import settings
from builder.errors import WorldError
from builder.images.session import BuildOptions
from builder.images.stages import layer_cache
from builder.settings import Settings
from support.catalogs import rendered
from support.environment import REPOSITORY


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
    with pytest.raises(WorldError, match="layer_cache"):
        settings.load()


def cached(name: str, stage: str = "image", *, base: bool = False, **options: bool) -> str:
    """Where the layers of a recipe, or of its base, are kept."""
    found = rendered(REPOSITORY, name)
    chosen = Settings(layer_cache="r.example/farm/cache")
    return layer_cache(found.base if base else found, BuildOptions(chosen, **options), stage)


def test_layers_are_kept_where_making_them_again_takes_longer_than_fetching_them() -> None:
    assert cached("hello-sm120") == "r.example/farm/cache:hello-sm120-0.1.0"
    assert cached("hello-sm120", "devel", base=True) == "r.example/farm/cache:cuda-13.0-devel"
    assert cached("hello-sm120", "runtime", base=True) == "r.example/farm/cache:cuda-13.0-runtime"
    # Laid over gigabytes that somebody else publishes, in seconds.
    assert cached("vllm-0.20.2") == ""
    assert cached("vllm-0.20.2", "runtime", base=True) == ""


def test_nothing_is_asked_of_a_registry_offline_and_nothing_useless_is_kept() -> None:
    assert cached("hello-sm120", offline=True) == ""
    assert cached("hello-sm120", "devel", base=True, offline=True) == ""
    assert cached("hello-sm120", rebuild=True) == ""
    assert cached("hello-sm120", "devel", base=True, rebuild=True) != ""  # bases stay


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
    assert "must be host names" in caught.value.why
