"""How JSON from outside is read: as a model, and what is wrong is said without its value."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError


class JsonModel(BaseModel):
    """A part of an answer; an error about it does not hold what came: it may be a secret."""

    model_config = ConfigDict(hide_input_in_errors=True, strict=True)


def first_error(error: ValidationError) -> str:
    """The place and the kind of the first thing that is wrong, without its value."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in fault["loc"])[:100]
    return f"{place}: {fault['msg']}" if place else fault["msg"]
