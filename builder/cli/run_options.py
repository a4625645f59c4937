"""The shared options of ``builder run`` and ``builder export``: a preset or recipe, its models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli import completion
from builder.cli.options import one_context

if TYPE_CHECKING:
    from builder.presets.described import LaunchRequest

Target = Annotated[
    str,
    typer.Argument(
        metavar="PRESET|RECIPE",
        help="A preset (see `builder list --presets`), its short name, or a recipe.",
        autocompletion=completion.presets_and_recipes,
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OPTION",
        help="More options for the engine, after --. They win over the preset's own.",
    ),
]
ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="FILE",
        help="The model: a GGUF, or the directory of a model. Default: the preset's, from the "
        "models directory (BUILDER_MODELS_DIR, else ./models).",
    ),
]
DraftOption = Annotated[
    Path | None,
    typer.Option("--draft", metavar="FILE", help="The draft model, instead of the preset's."),
]
ProjectorOption = Annotated[
    Path | None,
    typer.Option("--mmproj", metavar="FILE", help="The multimodal projector."),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context", metavar="TOKENS", help="Size of the context: 65536 or 64K; K is 1024."
    ),
]
PortOption = Annotated[
    int | None,
    typer.Option(
        "--port", metavar="N", min=1, max=65535, help="Port on 127.0.0.1. Default: the image's."
    ),
]


def wanted(
    target: str,
    model: Path | None,
    draft: Path | None,
    mmproj: Path | None,
    context: str | None,
    port: int | None,
    options: list[str] | None,
) -> LaunchRequest:
    """The request of these options."""
    from builder.presets.described import LaunchRequest

    given = {"model": model, "draft": draft, "mmproj": mmproj}
    size = one_context(context) if context is not None else None
    named = {place: file for place, file in given.items() if file is not None}
    return LaunchRequest(target, named, size, port, tuple(options or ()))
