"""Errors of JSON documents: the place and the rule, never the value."""

from __future__ import annotations

import pytest
from pydantic import ValidationError, field_validator

from builder.core.json_model import JsonModel, first_error


class Document(JsonModel):
    name: str

    @field_validator("name")
    @classmethod
    def _short(cls, name: str) -> str:
        if len(name) > 3:
            raise ValueError("at most 3 characters")
        return name


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"name": "secret"}', "name: at most 3 characters"),
        ('{"name": 1}', "name: must be a text"),
        ("{}", "name: is missing"),
    ],
)
def test_an_error_has_its_place_and_no_prefix_of_pydantic(text: str, shown: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Document.model_validate_json(text)
    assert first_error(caught.value) == shown
