"""Model folders without their weights: of this machine, and of the Hub; faults are one message."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.checks import serves
from builder.core.errors import FetchError
from builder.presets import hollow
from builder.presets.hollow import HollowModel, is_hole
from simulator import gguf
from support import model_hub

REPO = "me/Model"
SIZE = 256 << 20  # bytes of each tensor: more than a hole may take


def weights_of(file: Path, *names: str) -> None:
    """A file of safetensors with zeros; spaces end its header at eight bytes."""
    tensors = {
        name: {"dtype": "U8", "shape": [SIZE], "data_offsets": [at * SIZE, (at + 1) * SIZE]}
        for at, name in enumerate(names)
    }
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    header += b" " * (-len(header) % 8)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.truncate(8 + len(header) + len(names) * SIZE)


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A model folder of two files with weights."""
    folder = tmp_path / "hub" / REPO
    folder.parent.mkdir(parents=True)
    serves.write_model_folder(folder)
    (folder / serves.WEIGHTS).unlink()
    weights_of(folder / "model-00001-of-00002.safetensors", "a", "b")
    weights_of(folder / "model-00002-of-00002.safetensors", "c")
    (folder / "model.safetensors.index.json").write_text("{}")
    (folder / "README.md").write_text("not for an engine")
    return folder


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def hub(real: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[model_hub.Hub]:
    with model_hub.served(real.parents[1]) as served:
        model_hub.use(monkeypatch, HF_ENDPOINT=f"{served.endpoint}/")
        yield served


def write(text: str | Path, folder: Path) -> HollowModel:
    return hollow.write_checkpoint(str(text), folder, lambda _: None)


def require_hollow(found: HollowModel, real: Path) -> None:
    """The folder has the real headers, tokenizer and configuration, and holes."""
    assert (found.name, found.architecture) == ("Model", "Qwen3ForCausalLM")
    assert found.context == serves.FOLDER_CONTEXT
    assert found.weights == 3 * SIZE
    assert found.size == sum(file.stat().st_size for file in real.glob("*.safetensors"))
    assert found.read < 1 << 20
    there = {file.name for file in found.file.iterdir()}
    assert there == {file.name for file in real.iterdir()} - {"README.md"}
    for file in real.iterdir():
        if file.suffix == ".safetensors":
            copy = found.file / file.name
            assert copy.stat().st_size == file.stat().st_size
            assert is_hole(copy)
            with copy.open("rb") as one, file.open("rb") as other:
                assert gguf.read_safetensors(one) == gguf.read_safetensors(other)
        elif file.name != "README.md":
            assert (found.file / file.name).read_bytes() == file.read_bytes()


def test_a_folder_becomes_hollow(real: Path, work: Path) -> None:
    require_hollow(write(real, work), real)


def test_only_headers_of_a_repository_are_fetched(
    hub: model_hub.Hub, real: Path, work: Path
) -> None:
    require_hollow(write(REPO, work), real)
    assert hub.sent < 16 << 20


def test_without_weights_the_engine_makes_them_up(work: Path, tmp_path: Path) -> None:
    serves.write_model_folder(tmp_path / "tiny")
    (tmp_path / "tiny" / serves.WEIGHTS).unlink()
    found = write(tmp_path / "tiny", work)
    assert (found.size, found.weights) == (0, 0)


def test_the_context_of_a_model_that_takes_pictures_is_its_texts(
    work: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "both"
    folder.mkdir()
    text = {"architectures": ["Both"], "text_config": {"max_position_embeddings": 4096}}
    (folder / "config.json").write_text(json.dumps(text))
    assert write(folder, work).context == 4096


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("config.json", None, "it has no config.json"),
        ("config.json", b"{}", "it needs architectures"),
        ("config.json", b"\xff", "it needs architectures"),
        ("model-00001-of-00002.safetensors", b"", "it has 0 bytes"),
        ("model-00001-of-00002.safetensors", b"\xff" * 8, "its header would have"),
        ("model-00001-of-00002.safetensors", struct.pack("<Q", 9) + b"{", "ends within its header"),
        ("model-00001-of-00002.safetensors", struct.pack("<Q", 2) + b"[]", "describe tensors"),
        ("model-00001-of-00002.safetensors", struct.pack("<Q", 2) + b"{}x", "it has 11 bytes"),
    ],
)
def test_a_damaged_folder_is_refused(
    name: str, content: bytes | None, why: str, real: Path, work: Path
) -> None:
    (real / name).unlink()
    if content is not None:
        (real / name).write_bytes(content)
    with pytest.raises(FetchError) as caught:
        write(real, work)
    assert why in caught.value.why


def test_weights_in_another_format_are_not_left_out(real: Path, work: Path) -> None:
    for file in real.glob("*.safetensors"):
        file.rename(file.with_suffix(".bin"))
    with pytest.raises(FetchError, match="cannot be read") as caught:
        write(real, work)
    assert caught.value.why == "model-00001-of-00002.bin is not in safetensors"


@pytest.mark.parametrize("text", ["no-such-folder", "me/Model:model.gguf", "https://host/model"])
def test_what_is_no_folder_and_no_repository_is_refused(text: str, work: Path) -> None:
    with pytest.raises(FetchError, match=f"there is no model {text}"):
        write(text, work)
