"""The names of the parts of a split model."""

from __future__ import annotations

from builder.core.names import parts_of, renamed

FIRST = "Q4/a-00001-of-00002.gguf"


def test_the_parts_of_a_model_are_those_with_its_name_and_count() -> None:
    others = ["Q4/a-00001-of-00003.gguf", "Q8/a-00002-of-00002.gguf", "Q4/b-00002-of-00002.gguf"]
    last = renamed(FIRST, 2, 2)
    assert last == "Q4/a-00002-of-00002.gguf"
    assert parts_of(last, [last, *others, FIRST, "Q4/a.gguf"]) == [FIRST, last]
    assert parts_of("a.gguf", [FIRST]) == ["a.gguf"]
    assert parts_of("a-٠٠٠٠١-of-٠٠٠٠١.gguf", [FIRST]) == ["a-٠٠٠٠١-of-٠٠٠٠١.gguf"]  # noqa: RUF001
