"""`receipts` with Debian's registry: an image that it has, and one that it has not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.publish.registry import Repository
from support.commands import Builder
from support.receipts import KEY, data
from support.registries import put_image


@pytest.mark.usefixtures("docker_config")
def test_a_published_image_has_a_receipt_once(
    builder: Builder,
    farm_copy: Path,
    registry: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BUILDER_NAMESPACE", f"{registry}/me")
    listed = builder("receipts", "--catalog", farm_copy)
    assert (listed.returncode, listed.stdout[:25]) == (0, "there are no receipts yet"), listed
    repository = Repository(f"{registry}/me/llama-cpp", lambda _: None)
    image = put_image(repository, KEY, builder_recipe="llama-cpp-b9831")
    given = data()
    file = tmp_path / "a.json"
    file.write_text(json.dumps(given))
    monkeypatch.delenv("BUILDER_NAMESPACE")
    done = builder("receipts", "add", file, "--catalog", farm_copy)
    assert (done.returncode, "account that published" in done.stderr) == (12, True), done.stderr
    monkeypatch.setenv("BUILDER_NAMESPACE", f"{registry}/me")
    done = builder("receipts", "add", file, "--catalog", farm_copy)
    assert done.returncode == 16
    assert f"not published: its registry has no {given['image']['digest']}" in done.stderr
    assert not (farm_copy / "receipts").exists()

    given["image"]["digest"] = image.digest
    file.write_text(json.dumps(given))
    assert builder("receipts", "add", file, "--catalog", farm_copy, "--dry-run").returncode == 0
    assert not (farm_copy / "receipts").exists()
    done = builder("receipts", "add", file, "--catalog", farm_copy)
    assert done.returncode == 0, done.stderr
    name = f"llama-cpp-b9831-5090-20261101T120000Z-{image.digest[7:19]}"
    assert [each.name for each in (farm_copy / "receipts").iterdir()] == [f"{name}.json"]
    again = builder("receipts", "add", "--catalog", farm_copy, file)
    assert again.returncode == 16
    assert f"it is there already: {name}" in again.stderr
    given["measured"][0]["runs"][0]["seed"] = 7
    file.write_text(json.dumps(given))
    again = builder("receipts", "add", "--catalog", farm_copy, file)
    assert (again.returncode, "and second is there" in again.stderr) == (16, True), again.stderr
    rows = builder("receipts", "--catalog", farm_copy).stdout.splitlines()
    assert rows[1].split("\t")[:5] == [
        *("llama-cpp-b9831", "NVIDIA GeForce RTX 5090", "102.00", "32768", "2")
    ]
    shown = json.loads(builder("receipts", "--catalog", farm_copy, "--json").stdout)
    assert shown[0]["name"] == name


def test_a_file_that_is_no_receipt_is_named(
    builder: Builder, farm_copy: Path, tmp_path: Path
) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"version": 1}')
    done = builder("receipts", "add", file, "--catalog", farm_copy)
    assert done.returncode == 16
    assert f"{file} is not a receipt" in done.stderr
    assert "Traceback" not in done.stderr
