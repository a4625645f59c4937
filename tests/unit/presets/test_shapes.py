"""Shapes of models: what published files and engines' logs say of the same models."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path

import pytest

from builder.core.errors import RecipeError
from builder.presets import made_models, shapes
from builder.presets.shapes import ListedFile, Shape, ShapeFile, read_shape
from builder.recipes.catalog import read_model
from simulator import gguf
from support.environment import REPOSITORY

# Tensors and parameters: unsloth's files in logs of llama.cpp (pull requests 23269, 23398, 22105),
# AtomicChat's in one of its fork; "expected 866" in Anbeeld/beellama.cpp's message.
COUNTS = {
    "qwen3-0.6b": (310, 0.596),
    "qwen3.6-27b": (851, 26.90),
    "qwen3.6-27b-mtp": (866, 27.32),
    "qwen3.6-27b-dflash": (58, 1.73),
    "qwen3.6-27b-dflash-draft": (58, 1.73),
    "qwen3.6-35b-a3b-dflash": (91, 0.474),
    "qwen3.6-35b-a3b": (733, 34.66),
    "qwen3.6-35b-a3b-mtp": (753, 35.51),
    "gemma-4-e2b": (601, 4.65),
    "gemma-4-e2b-atomic": (51, 0.07799),
    "gemma-4-e4b": (720, 7.52),
    "gemma-4-26b-a4b": (658, 25.23),
}
UNCOUNTED = {
    "gemma-4-26b-a4b-assistant",
    "gemma-4-26b-a4b-atomic",
    "gemma-4-e2b-assistant",
    "gemma-4-e4b-assistant",
    "qwen3.5-0.8b",
    "qwen3.6-27b-mmproj",
    "qwen3.6-35b-a3b-mmproj",
}
"""Shapes for which no log and no page of the Hub shows both numbers."""
# Sizes as published (shared model cards and logs), in bytes.
PUBLISHED = {
    "qwen3.6-35b-a3b-mtp": 17_200_000_000,
    "qwen3.6-27b": 14_500_000_000,
    "qwen3.6-27b-dflash-draft": 1_850_000_000,
    "gemma-4-e2b": 4_700_000_000,
    "gemma-4-26b-a4b": 17_000_000_000,
    "gemma-4-26b-a4b-assistant": 325_000_000,
}


def test_each_shape_is_counted_or_known_to_be_uncounted() -> None:
    known = {*COUNTS, *UNCOUNTED}
    for name in shapes.shape_names():
        assert name in known, f"tests/unit/presets/test_shapes.py: COUNTS has no numbers of {name}"
    for name in known:
        assert name in shapes.shape_names(), f"there is no shapes/{name}.toml"


@pytest.mark.parametrize("name", shapes.shape_names())
def test_a_shape_has_the_tensors_and_parameters_of_the_model(name: str) -> None:
    tensors = shapes.shape_of(name).tensors
    if name in COUNTS:
        count, billions = COUNTS[name]
        assert len(tensors) == count
        parameters = sum(map(math.prod, tensors.values()))
        assert parameters / 1e9 == pytest.approx(billions, rel=0.002)
    usual = made_models.usual(shapes.shape_of(name))
    for tensor, dimensions in tensors.items():
        block, _ = gguf._blocks()[int(usual[tensor])]
        assert dimensions[0] % block == 0, tensor


@pytest.mark.parametrize(
    ("name", "size"), [("qwen3.6-27b-mtp", 15_000_000_000), ("qwen3.6-27b-mmproj", 928_000_000)]
)
def test_a_file_has_a_readable_header_and_a_hole(name: str, size: int, tmp_path: Path) -> None:
    file = made_models.write_shape(name, tmp_path / "model.gguf", size)
    with file.open("rb") as stream:
        found = gguf.read(stream)
    shape = shapes.shape_of(name)
    assert found.architecture == shape.architecture
    assert {each.name: each.shape for each in found.tensors} == shape.tensors
    assert size - (1 << 20) < found.end == file.stat().st_size <= size
    assert file.stat().st_blocks * 512 < 16 << 20
    assert found.vocabulary == (shape.tokenizer.size if shape.tokenizer else 0)
    for key, value in shape.values.items():
        read = found.values[f"{shape.architecture}.{key}"]
        if isinstance(read, gguf.Array):
            read, value = list(read.first), list(value)  # type: ignore[arg-type]
        assert read == pytest.approx(value) if isinstance(value, float) else read == value


@pytest.mark.parametrize(("name", "size"), [*PUBLISHED.items(), ("qwen3.6-27b", 9_400_000_000)])
def test_types_are_chosen_for_the_size_of_a_published_file(name: str, size: int) -> None:
    shape = shapes.shape_of(name)
    kinds = made_models.reaching(shape, size)
    assert kinds.keys() == shape.tensors.keys()
    assert 0 <= size - made_models.total(shape, kinds) < size / 1000
    matrices = {kinds[each].name for each in kinds if "attn_q.weight" in each or "ffn_" in each}
    assert len(matrices - {"F32", "Q4_0", "Q5_0", "Q5_1", "Q8_0"}) <= 2


def test_the_output_has_six_bits_at_least() -> None:
    untied, tied = shapes.shape_of("qwen3.6-27b"), shapes.shape_of("gemma-4-26b-a4b")
    assert made_models.reaching(untied, 14_500_000_000)["output.weight"].name == "Q6_K"
    assert made_models.reaching(untied, 14_500_000_000)["token_embd.weight"].name == "Q3_K"
    assert made_models.reaching(tied, 17_000_000_000)["token_embd.weight"].name == "Q6_K"


@pytest.mark.parametrize("size", [1_000_000_000, 200_000_000_000])
def test_a_size_that_no_quantization_reaches_is_refused(size: int) -> None:
    with pytest.raises(made_models.SizeError, match=rf"^{size} bytes are not between \d+ and \d+$"):
        made_models.reaching(shapes.shape_of("qwen3.6-27b"), size)


def listed(name: str) -> list[ListedFile]:
    return read_model(REPOSITORY / "shapes" / f"{name}.toml", ShapeFile).file


@pytest.mark.parametrize("name", [name for name in shapes.shape_names() if listed(name)])
def test_the_bits_of_a_listed_file_are_near_to_its_name(name: str) -> None:
    parameters = sum(map(math.prod, shapes.shape_of(name).tensors.values()))
    for each in listed(name):
        named = int(re.sub(r"\D", "", each.quantization or "")[0])
        bits = (each.known_size or 0) * 8 / parameters
        # Embeddings and the output keep more bits than small types have.
        assert named < bits < named + (2.5 if named < 4 else 1.5), f"{each.file}: {bits:.2f} bits"


def test_the_files_of_a_model_are_listed_the_largest_first() -> None:
    found = shapes.listed_files("qwen3.6-27b")
    assert {each.repository for each in found} == {"unsloth/Qwen3.6-27B-GGUF"}
    sizes = [each.known_size or 0 for each in found]
    assert sizes == sorted(sizes, reverse=True)
    assert shapes.listed_files("no-such-model") == []


LISTED = """repositories = ["me/X-GGUF"]

[[file]]
repository = "me/X-GGUF"
quantization = "Q4_K_M"
file = "X-Q4_K_M.gguf"
size = 1000
source = "https://huggingface.co/me/X-GGUF"
"""


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("size = 1000\n", "", "give size in bytes, or published_size"),
        ('"X-Q4_K_M.gguf"', '"X-Q5_K_M.gguf"', "a file that is named by it"),
        ('repository = "me/X-GGUF"', 'repository = "me/Y-GGUF"', "not in repositories"),
        ("[[file]]", LISTED.partition("\n")[2] + "\n[[file]]", "a file is listed twice"),
    ],
)
def test_a_listed_file_without_its_facts_is_refused(
    tmp_path: Path, before: str, after: str, why: str
) -> None:
    text = LISTED.replace(before, after, 1)
    file = tmp_path / "x.toml"
    file.write_text(SHAPE.replace("parts", f"{text.partition(chr(10))[0]}\nparts", 1))
    read_model(file, ShapeFile)
    file.write_text(file.read_text() + text.partition("\n")[2])
    with pytest.raises(RecipeError) as raised:
        read_model(file, ShapeFile)
    assert why in str([each.message for each in raised.value.problems])


def test_a_repository_has_one_shape() -> None:
    files = [tomllib.loads(file.read_text()) for file in (REPOSITORY / "shapes").glob("*.toml")]
    named = [repository for file in files for repository in file.get("repositories", [])]
    assert sorted(named) == sorted(shapes.published_shape())


TENSORS = """
[fixed]
scale = "F32"

[group.model]
"embedding.weight" = ["width", "vocabulary"]

[group.layer]
"up.weight" = ["width", "2 * width + inner"]

[group.scale]
"scale" = [1]
"""
SHAPE = """
architecture = "x"
tensors      = "x"
parts        = ["model"]
tokenizer    = { model = "gpt2", size = 100 }

[kinds]
plain  = ["layer"]
scaled = ["layer", "scale"]

[[layers]]
times = 2
kinds = ["plain", "scaled"]

[values]
width = 4
inner = [1, 2, 3, 4]
"""


def shape_of(folder: Path, old: str = "", new: str = "") -> Shape:
    """The shape of the texts above, with another piece of text."""
    assert old in SHAPE + TENSORS
    (folder / "tensors").mkdir()
    (folder / "tensors" / "x.toml").write_text(TENSORS.replace(old, new))
    (folder / "x.toml").write_text(SHAPE.replace(old, new))
    return read_shape(folder / "x.toml")


def test_dimensions_follow_from_values(tmp_path: Path) -> None:
    assert shape_of(tmp_path).tensors == {
        "embedding.weight": (4, 100),
        "blk.0.up.weight": (4, 9),
        "blk.1.up.weight": (4, 10),
        "blk.1.scale": (1,),
        "blk.2.up.weight": (4, 11),
        "blk.3.up.weight": (4, 12),
        "blk.3.scale": (1,),
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"scale"]', '"scala"]', "there is no group scala; did you mean scale?"),
        ('"scaled"]', '"scald"]', "there is no kind of layer scald; did you mean scaled?"),
        ("2 * width", "2 * widht", "there is no value widht; did you mean width?"),
        ("3, 4]", "3]", "inner has 3 elements, and there are 4 layers"),
        ('["model"]', '["model", "model"]', "it has the tensor embedding.weight twice"),
        ("times", "time", "time: unknown key; did you mean times?"),
        ("[1]", "[0]", "greater than 0"),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        shape_of(tmp_path, old, new)


def test_a_name_with_a_typo() -> None:
    with pytest.raises(RecipeError, match=r"did you mean qwen3\.6-27b-mtp"):
        shapes.shape_of("qwen3.6-27b-mpt")
