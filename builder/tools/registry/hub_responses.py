"""The responses of Docker Hub's own API, checked: no other module parses them.

https://docs.docker.com/reference/api/hub/latest/ (2-beta).  A response that does not fit its model
raises ``FetchError``, which never holds a value of the response: it may be a secret.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, StringConstraints, ValidationError
from pydantic_core import from_json

from builder.errors import FetchError
from builder.tools.registry.responses import TAG, Token
from builder.tools.web.json_model import JsonModel, first_error

Model = TypeVar("Model", bound=BaseModel)


class Grant(JsonModel):
    """The token of a login ("Create access token")."""

    access_token: Token


class _Tag(JsonModel):
    name: Annotated[str, StringConstraints(pattern=TAG)]


class TagPage(JsonModel):
    """A page of tags ("List repository tags"); ``next`` is the address of the following one."""

    results: list[_Tag] | None = None
    next: str | None = None

    @property
    def names(self) -> list[str]:
        """The names of its tags."""
        return [tag.name for tag in self.results or []]


class Shown(JsonModel):
    """The descriptions of a repository ("Get repository")."""

    description: str | None = None
    full_description: str | None = None


def checked(model: type[Model], content: bytes) -> Model:
    """Parse the JSON of a good response as that model.  Raises ``FetchError``."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise FetchError(
            "a response of Docker Hub is damaged, or is not from Docker Hub",
            first_error(error),
            "check BUILDER_HUB_API, and the proxy; try again",
        ) from None


def error_text(content: bytes) -> str:
    """The error in a response; empty where it cannot be read.

    Docker Hub has ``message`` or ``detail``, and an error for each field.
    """
    try:
        found = from_json(content)
        text = found.get("message") or found.get("detail") or ""
        fields = (found.get("errinfo") or {}).get("fielderrors") or {}
        parts = [str(text), *(f"{name}: {wrong}" for name, wrong in fields.items())]
    except (ValueError, AttributeError, TypeError):
        return ""
    return ": ".join(filter(None, parts))[:1000]
