"""Models of JSON from other programs and servers; errors never show its values."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

VALUE_ERROR = "Value error, "
"""Pydantic writes it before the text of a validator's own error."""


class JsonModel(BaseModel):
    """A strict model; validation errors hide the input, which may be a secret."""

    model_config = ConfigDict(hide_input_in_errors=True, strict=True)


def first_error(error: ValidationError) -> str:
    """The path and the message of the first error, without the value."""
    found = error.errors(include_url=False, include_context=False, include_input=False)[0]
    text = found["msg"].removeprefix(VALUE_ERROR)
    if found["type"] == "string_pattern_mismatch":  # the message would show the pattern
        text = "not valid"
    place = ".".join(str(part) for part in found["loc"])[:100]
    return f"{place}: {text}" if place else text
