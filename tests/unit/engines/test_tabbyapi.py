"""TabbyAPI: what a recipe may set, and how its server starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.engines.families import complete
from builder.engines.logs import read_tabbyapi
from support.catalogs import load
from support.family_recipes import CALL, GIT, LOCKED, problems


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((GIT, CALL), "the family tabbyapi has no use for [[cmake]]"),
        ((GIT, LOCKED), "the family tabbyapi has no use for [python]"),
    ],
)
def test_tables_without_effect_are_refused(
    catalog: Path, parts: tuple[str, ...], message: str
) -> None:
    assert message in problems(catalog, "tabbyapi", *parts)


@pytest.mark.parametrize("cuda", ["120-virtual", "120f"])
def test_only_machine_code_is_compiled(catalog: Path, cuda: str) -> None:
    found = problems(catalog, "tabbyapi", GIT, cuda=cuda)
    assert "the family tabbyapi takes cards as 120 or 120a" in found
    assert "the family tabbyapi takes" not in problems(catalog, "tabbyapi", GIT, cuda="120a")


def test_packages_to_run_with_belong_to_the_base(catalog: Path) -> None:
    found = problems(catalog, "tabbyapi", GIT, '[debian]\nruntime = ["curl"]\n')
    assert "debian.runtime: name them in [runtime] packages of the base" in found


@pytest.mark.parametrize(("image", "port"), [("", 5000), ("port = 8000", 8000)])
def test_the_server_listens_on_the_port_of_the_image(catalog: Path, image: str, port: int) -> None:
    problems(catalog, "tabbyapi", GIT, image=image)
    found = complete(load(catalog).engine("x-1").recipe).image
    assert (found.port, found.health) == (port, "health")
    assert found.entrypoint[-4:] == ["--host", "0.0.0.0", "--port", str(port)]  # noqa: S104


def test_the_card_without_room_is_read_from_the_log() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.37 GiB. GPU 0 has a total "
        "capacity of 23.46 GiB of which 1.50 GiB is free. Including non-PyTorch memory"
    )
    assert read_tabbyapi(text).no_room.startswith("Tried to allocate 2.37 GiB. GPU 0 has")
    split = "RuntimeError: Insufficient VRAM in split for model and cache\n"
    assert read_tabbyapi(split).no_room == "Insufficient VRAM in split for model and cache"
    assert not read_tabbyapi("INFO: Model successfully loaded.").no_room


def test_the_cache_counts_once_the_model_is_loaded() -> None:
    cache = "INFO:     Using configured cache_size: 2048 tokens.\n"
    assert read_tabbyapi(cache).kv_tokens is None
    found = read_tabbyapi(f"{cache}INFO:     Model successfully loaded.\n")
    assert (found.kv_tokens, found.kinds, found.text) == (2048, {}, "2,048 tokens")
