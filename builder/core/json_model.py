"""Models of JSON from other programs and servers; errors never show its values."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from builder.core.errors import in_words


class JsonModel(BaseModel):
    """A strict model; validation errors hide the input, which may be a secret."""

    model_config = ConfigDict(hide_input_in_errors=True, strict=True)


def first_error(error: ValidationError) -> str:
    """The path and the message of the first error, without the value."""
    found = error.errors(include_url=False, include_context=False, include_input=False)[0]
    text = in_words(found["msg"])
    place = ".".join(str(part) for part in found["loc"])[:100]
    return f"{place}: {text}" if place else text
