"""Errors in lock files are reported by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import RecipeError
from builder.recipes import locks


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[runtime]]\nname = "a"\nversion = "1"\n', "3: runtime.0.sha256: is missing"),
        ('[[runtime]]\nname = "a"\nversion = "1"\nsha256 = "x"\n', "6: runtime.0.sha256: 'x'"),
        ('[[build]]\nnome = "a"\n', "4: build.0.nome: unknown key; did you mean name?"),
        ("\n[[runtime]\n", "4: not TOML: "),
    ],
)
def test_what_is_wrong_in_a_lock_is_named_by_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text(f'# a lock\npython = "3.13"\n{text}')
    with pytest.raises(RecipeError, match=r"a\.toml is invalid") as caught:
        locks.read_lock(file)
    assert f"{file}:{said}" in caught.value.why
