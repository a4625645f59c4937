"""What ``builder run`` and ``builder export`` share: a preset or a recipe, and its models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from builder.launch.described import Wanted

LONGEST = 262_144  # tokens: what 262K means

Target = Annotated[
    str,
    typer.Argument(
        metavar="PRESET|RECIPE", help="A preset (see `builder list --presets`), or a recipe."
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OPTION",
        help="More options for the engine, after --; they replace the same ones of the preset.",
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
        "--context", metavar="TOKENS", help="Size of the context; K is 1024, 262K is 262144."
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
) -> Wanted:
    """What the options ask for."""
    from builder.fit.contexts import ContextError, contexts_of
    from builder.launch.described import Wanted

    given = {"model": model, "draft": draft, "mmproj": mmproj}
    try:
        sizes = contexts_of(context, LONGEST) if context is not None else (None,)
    except ContextError as error:
        raise typer.BadParameter(str(error), param_hint="--context") from error
    if len(sizes) > 1:
        raise typer.BadParameter("give one size", param_hint="--context")
    named = {place: file for place, file in given.items() if file is not None}
    return Wanted(target, named, sizes[0], port, tuple(options or ()))
