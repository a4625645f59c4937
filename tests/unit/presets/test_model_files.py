"""The models of a preset: which files of a repository they are, and where they are expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.presets.schema import ModelFile
from builder.presets.service import Mount, chosen, complete, in_directory, mounted, names_below

NAMES = [
    ".gitattributes",
    "A-Q4_K_M.gguf",
    "A-UD-Q4_K_M.gguf",
    "A-UD-Q4_K_XL.gguf",
    "BF16/A-BF16-00001-of-00002.gguf",
    "BF16/A-BF16-00002-of-00002.gguf",
    "mmproj-BF16.gguf",
]


def model(**keys: object) -> ModelFile:
    return ModelFile.model_validate({"repository": "me/A-GGUF"} | keys)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"quantization": "Q4_K_M"}, ["A-Q4_K_M.gguf"]),
        ({"quantization": "UD-Q4_K_M"}, ["A-UD-Q4_K_M.gguf"]),
        ({"quantization": "Q4_K_XL"}, ["A-UD-Q4_K_XL.gguf"]),
        ({"quantization": "Q4_K"}, []),
        ({"quantization": "BF16"}, [name for name in NAMES if name.startswith("BF16/")]),
        ({"file": "A-UD-Q4_K_M.gguf"}, ["A-UD-Q4_K_M.gguf"]),
        ({"file": "absent.gguf"}, []),
        ({}, NAMES),
    ],
)
def test_the_files_of_a_model(keys: dict[str, object], expected: list[str]) -> None:
    assert chosen(model(**keys), reversed(NAMES)) == expected


def test_a_model_is_found_in_the_models_directory(tmp_path: Path) -> None:
    assert names_below(tmp_path / "absent") == []
    assert in_directory(model(quantization="Q4_K_M"), tmp_path) is None
    for name in NAMES:
        file = tmp_path / "me" / "A-GGUF" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    folder = tmp_path / "me" / "A-GGUF"
    assert in_directory(model(quantization="Q4_K_M"), tmp_path) == folder / "A-Q4_K_M.gguf"
    assert in_directory(model(), tmp_path) is None
    (folder / "config.json").touch()
    assert in_directory(model(), tmp_path) == folder
    assert in_directory(ModelFile(name="A"), tmp_path) is None


def test_a_model_that_is_not_complete_is_not_there() -> None:
    split = ["BF16/A-BF16-00001-of-00002.gguf"]
    assert complete(model(quantization="BF16"), split) == []
    assert complete(model(quantization="BF16"), [*split, split[0].replace("00001", "00002")])
    whole = ["config.json", "model.safetensors"]
    assert complete(model(), whole) == whole
    assert complete(model(), whole[1:]) == []
    for name in ("model-2.safetensors.part", ".cache/huggingface/download/a.incomplete"):
        assert complete(model(), [*whole, name]) == []


def test_a_file_whose_name_is_not_known_is_marked() -> None:
    files = {
        "model": model(quantization="Q4_K_M"),
        "draft": model(file="d.gguf"),
        "mmproj": ModelFile(name="A projector"),
    }
    found = mounted(files, "/srv/models", {})
    assert found.places == {
        "model": "/models/me/A-GGUF/MODEL.gguf",
        "draft": "/models/me/A-GGUF/d.gguf",
        "mmproj": "/models/MMPROJ.gguf",
    }
    assert found.mounts == (Mount("/srv/models", "/models"),)
    there = "--local-dir /srv/models/me/A-GGUF"
    assert found.missing == (f"Needs me/A-GGUF:d.gguf:\n  hf download me/A-GGUF d.gguf {there}",)
    assert found.incomplete == (
        "The name of its file me/A-GGUF Q4_K_M is not known; download it first:\n"
        f"  hf download me/A-GGUF --include '*Q4_K_M*' {there}",
        "No repository of A projector is known: name a file with --mmproj FILE",
    )
    whole = mounted({"model": ModelFile(name="A AWQ")}, "/srv/models", {})
    assert whole.incomplete == ("No repository of A AWQ is known: name a file with --model FILE",)
    assert whole.places == {"model": "/models/MODEL"}
    named = mounted(files, "/srv/models", {"model": "A-Q4_K_M.gguf"})
    assert named.places["model"] == "/models/me/A-GGUF/A-Q4_K_M.gguf"
    assert len(named.missing) == 2
    assert mounted({}, "/srv/models", {}).mounts == ()
