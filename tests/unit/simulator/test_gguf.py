"""Headers of GGUF files: read as llama.cpp's own package reads them; damaged ones are named."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import gguf as reference
import pytest

from builder.checks import serves, simulated
from builder.presets import made_models
from simulator import gguf

SCALARS = {
    "general.alignment": 64,
    "x.u8": 200,
    "x.i16": -5,
    "x.u64": 1 << 40,
    "x.f32": 0.5,
    "x.f64": 0.1,
    "x.yes": True,
}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A small file with a value of each kind."""
    file = tmp_path / "all.gguf"
    writer = reference.GGUFWriter(file, "llama")
    writer.add_custom_alignment(64)
    writer.add_uint8("x.u8", 200)
    writer.add_int16("x.i16", -5)
    writer.add_uint64("x.u64", 1 << 40)
    writer.add_float32("x.f32", 0.5)
    writer.add_float64("x.f64", 0.1)
    writer.add_bool("x.yes", True)
    writer.add_array("x.numbers", list(range(5000)))
    writer.add_array("x.texts", ["é", "", "b"])
    for name, kind in (("a", reference.GGMLQuantizationType.Q4_K), ("b", None)):
        shape = (3, 512)
        writer.add_tensor_info(name, shape, reference.np.dtype("float32"), 864, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return file


def read(content: bytes) -> gguf.Header:
    return gguf.read(io.BytesIO(content))


def test_a_header_is_read_as_the_reference_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    serves.write_model(file)
    found = read(file.read_bytes())
    expected = reference.GGUFReader(file)
    assert found.size == expected.data_offset
    assert found.end == file.stat().st_size
    assert found.architecture == "llama"
    assert found.of_architecture("context_length") == 2048
    assert [(each.name, each.shape, each.size) for each in found.tensors] == [
        (each.name, tuple(each.shape.tolist()), each.n_bytes) for each in expected.tensors
    ]
    assert len(found.values) == len(expected.fields) - 3  # its reader adds version and counts
    tokens = found.array("tokenizer.ggml.tokens")
    assert tokens is not None
    assert tokens.first[ord("A")] == "A"
    assert tokens.count == found.vocabulary


def test_values_of_every_kind(written: Path) -> None:
    found = read(written.read_bytes())
    assert {key: found.values[key] for key in SCALARS} == SCALARS
    numbers = found.array("x.numbers")
    assert numbers == gguf.Array(5000, tuple(range(gguf.KEPT)))
    assert found.array("x.texts") == gguf.Array(3, ("é", "", "b"))
    assert found.size % 64 == 0
    first, second = found.tensors
    assert (first.shape, first.size) == ((512, 3), 512 * 3 // 256 * 144)
    assert second.offset == 896  # after 864 bytes, aligned


def header_of(*tensors: tuple[tuple[int, ...], int, int]) -> gguf.Header:
    """A header with tensors of these shapes, types and offsets."""
    listed = tuple(gguf.Tensor(str(index), *tensor) for index, tensor in enumerate(tensors))
    return gguf.Header(3, {}, listed, 1024)


@pytest.mark.parametrize(
    ("tensors", "weights", "end"),
    [
        # A fork's type 199: up to the next tensor.
        ([((256, 4), 199, 0), ((8,), 0, 416)], 416 + 32, 1024 + 416 + 32),
        # The last tensor: by another one of its type: 448 bytes with at most 31 of padding.
        ([((256, 4), 199, 0), ((256, 8), 199, 448)], 448 + 834, 1024 + 448 + 834),
        # Nothing else has its type: one bit an element.
        ([((256, 64), 199, 0)], 2048, 1024 + 2048),
        # A fork gave ggml's type 12 (Q4_K, 144 bytes for 256) another meaning: 2 bits an element.
        ([((256, 4), 12, 0), ((8,), 0, 256)], 256 + 32, 1024 + 256 + 32),
        # Padding is no weight.
        ([((256, 3), 12, 0), ((8,), 0, 448)], 432 + 32, 1024 + 448 + 32),
        ([((3,), 199, 0)], 1, 1025),
        ([((0,), 199, 0), ((8,), 0, 0)], 32 + 1, 1024 + 32),
        ([], 0, 1024),
    ],
)
def test_the_size_of_a_type_that_only_a_fork_knows_follows_from_the_offsets(
    tensors: list[tuple[tuple[int, ...], int, int]], weights: int, end: int
) -> None:
    found = header_of(*tensors)
    assert (found.weights, found.end) == (weights, end)


@pytest.mark.parametrize("length", [0, 3, 4, 11, 23, 40, 300, 5000])
def test_a_cut_header_is_told_with_its_length(written: Path, length: int) -> None:
    with pytest.raises(gguf.CutError, match=f"it ends after {length} bytes"):
        read(written.read_bytes()[:length])


def test_a_big_endian_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "big.gguf"
    writer = reference.GGUFWriter(file, "llama", endianess=reference.GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with file.open("rb") as stream, pytest.raises(gguf.NotGgufError, match="it is big-endian"):
        gguf.read(stream)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<!doctype html>", "it begins with '<!do', not with 'GGUF'"),
        (b"GGUF" + struct.pack("<I", 1), "version 1 of the format"),
        (b"GGUF" + struct.pack("<I", 4), "version 4 of the format"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 1), "announces 1099511627776 tensors"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 1 << 50), "a text of 1125899906842624 bytes"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 1, 1, 1, b"k", 77), "of the unknown type 77"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 1, 1, 1, b"k", 9, 9, 2), "array of the unknown"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 1, 1, 1, b"k", 9, 0, 1 << 60), "array of 11529"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 1, 0, 1, b"t", 9), "tensor t has 9 dimensions"),
    ],
)
def test_damage_is_named(content: bytes, words: str) -> None:
    with pytest.raises(gguf.NotGgufError, match=words):
        read(content)


def test_version_2_has_the_same_layout(written: Path) -> None:
    content = bytearray(written.read_bytes())
    content[4] = 2
    assert read(bytes(content)).version == 2


def test_an_alignment_that_is_no_power_of_two_is_refused(written: Path) -> None:
    content = bytearray(written.read_bytes())
    place = content.index(b"general.alignment") + len("general.alignment") + 4
    content[place] = 48
    with pytest.raises(gguf.NotGgufError, match="its alignment is 48"):
        read(bytes(content))


@pytest.mark.parametrize(
    ("name", "gigabytes", "words"),
    [("qwen3.6-27b", 15, 248320), ("gemma-4-26b-a4b", 15, 262144)],
)
def test_large_models_are_read_without_their_weights(
    tmp_path: Path, name: str, gigabytes: int, words: int
) -> None:
    file = made_models.write_shape(name, tmp_path / "large.gguf")
    with file.open("rb") as stream:
        found = gguf.read(stream)
    assert found.end == file.stat().st_size > gigabytes * 1_000_000_000
    assert file.stat().st_blocks * 512 < 16 << 20
    assert found.vocabulary == words
    tokens = found.array("tokenizer.ggml.tokens")
    assert tokens is not None
    chosen = [tokens.first[number] for number in simulated.printable(found)]
    assert len(chosen) == simulated.WANTED
    assert "".join(map(str, chosen)).replace("\u0120", " ").replace("\u2581", " ").isprintable()


def test_control_and_byte_tokens_are_not_chosen(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    made_models.write_tiny(made_models.TinyModel("gemma4", "Q8_0"), file)
    found = read(file.read_bytes())
    assert min(simulated.printable(found)) >= len(made_models.SPECIAL_GEMMA) + 256
