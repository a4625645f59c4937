"""Which names of others can be files here, and that an error shows them safely."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.core.errors import FetchError
from builder.core.names import require_writable_names, why_not_writable

BAD = {
    "": "empty",
    "/etc/passwd": "absolute",
    ".": "component",
    "a/../b": "component",
    "a//b": "component",
    "a/": "component",
    "./a": "component",
    "a\0b": "control",
    "a\nb": "control",
    "a\x1b[2J": "control",
    "a\u202egnp.exe": "control",
    "a\u200bb": "control",
    "a\u2028b": "control",
    "a\ud800": "control",
    "a" * 300: "250 bytes",
    "\u00e9" * 130: "250 bytes",
    "a/" * 2000 + "b": "16 components",
    "/".join(["a" * 200] * 12): "2048 bytes",
}


@pytest.mark.parametrize("name", BAD, ids=range(len(BAD)))
def test_a_name_that_cannot_be_written_is_named_safely(name: str) -> None:
    with pytest.raises(FetchError, match=r"^me/A has a file whose name") as caught:
        require_writable_names(["a.gguf", name], "me/A")
    assert BAD[name] in caught.value.why
    assert caught.value.what.isprintable()
    assert len(caught.value.what) < 700
    assert caught.value.hint


@pytest.mark.parametrize(
    "names", [["a", "a/b"], ["a/b/c", "a/b"], ["a.gguf", "a.gguf.part"]], ids=str
)
def test_names_that_exclude_each_other(names: list[str]) -> None:
    for each in (names, names[::-1]):
        with pytest.raises(FetchError, match="cannot be written"):
            require_writable_names(each, "me/A")


def test_ordinary_names_pass() -> None:
    names = ["README.md", ".gitattributes", "a/b.gguf", "a/c d.gguf", "模型/モデル.gguf", "b.part"]
    require_writable_names(names, "me/A")


@given(st.text(max_size=300))
def test_a_name_that_passes_can_be_written(name: str) -> None:
    if why_not_writable(name):
        return
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.part"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
        assert file.resolve().is_relative_to(Path(folder).resolve())
