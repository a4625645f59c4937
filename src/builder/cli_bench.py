"""The command that measures: ``builder bench``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from builder.command import EVERYDAY, CatalogueOption, JsonOption, app, new_run, print_json
from builder.errors import RecipeError, WorldError

if TYPE_CHECKING:
    from builder.benchmark.results import Benchmark
    from builder.benchmark.run import Target

RUN = "run"


class RunByDefault(TyperGroup):
    """``builder bench IMAGE`` is ``builder bench run IMAGE``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is named, else the one that runs."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = [RUN, *args]
        return super().resolve_command(ctx, args)


bench = typer.Typer(
    cls=RunByDefault,
    no_args_is_help=True,
    help="Measure how fast an image or a server generates: `builder bench IMAGE --model FILE`.",
)
app.add_typer(bench, name="bench", rich_help_panel=EVERYDAY)

PlotOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--plot", metavar="FILE", dir_okay=False, help="Draw it: a .png or .svg. May be repeated."
    ),
]


@bench.command(RUN)
def run_benchmark(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|IMAGE|URL",
            help="What is measured: the image of a recipe, any image that a recipe knows how to "
            "start, or a server that speaks OpenAI's API (http://host:8000)",
        ),
    ],
    flags: Annotated[
        list[str] | None,
        typer.Argument(metavar="FLAG", help="After --: more flags for the image's server."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="GGUF file that an image serves."),
    ] = None,
    draft: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Its draft model.")
    ] = None,
    context: Annotated[
        str,
        typer.Option(
            metavar="TOKENS[,...]",
            help="Size of the context; several make a sweep: 32K,64K,128K,256K.",
        ),
    ] = "32K",
    fill: Annotated[
        float,
        typer.Option(
            min=0.0, max=0.95, help="Share of the context that is filled before the prompt."
        ),
    ] = 0.0,
    prompt: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Text to ask with. Default: for a Space Invaders game in one HTML file.",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer, at most.")] = 2000,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="How freely the next token is drawn; 0: never.")
    ] = 0.6,
    top_k: Annotated[
        int, typer.Option("--top-k", min=0, help="Of how many likeliest tokens; 0: of all.")
    ] = 20,
    min_p: Annotated[
        float,
        typer.Option(
            "--min-p", min=0.0, max=1.0, help="Least share of the likeliest one's probability."
        ),
    ] = 0.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the first run; each later one has the next.")
    ] = 1,
    warm_ups: Annotated[int, typer.Option("--warm-ups", min=0, help="Runs that do not count.")] = 2,
    runs: Annotated[int, typer.Option(min=1, help="Runs that count.")] = 10,
    name: Annotated[str, typer.Option(help="Name of the model, where a URL offers several.")] = "",
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="Keep everything as JSON: for compare, and to do it again.",
        ),
    ] = None,
    plot: PlotOption = None,
    catalogue: CatalogueOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure an image, or a server by its URL: run by run, one stream.

    The settings are those that people publish with: 2 warm-ups and 10 runs of one prompt, 2000
    tokens, temperature 0.6, top-k 20, min-p 0. Speeds are the server's own, where it tells them.
    A key for a URL is taken from OPENAI_API_KEY.
    """
    import os

    from builder import console
    from builder.benchmark import run as benchmarks
    from builder.benchmark.measuring import Settings

    given = Settings() if prompt is None else Settings(prompt=_text(prompt))
    settings = Settings(given.prompt, tokens, temperature, top_k, min_p, seed, warm_ups, runs)
    if target.startswith(("http://", "https://")):
        _without_image(model, draft, flags)
        key = os.environ.get("OPENAI_API_KEY", "")
        found = benchmarks.of_url(target, name, key, settings, console.say)
    else:
        try:
            contexts = benchmarks.contexts_of(context)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--context") from error
        chosen = _image(catalogue, target, model, draft, flags or [])
        found = benchmarks.of_image(chosen, contexts, settings, fill, console.say)
    if save is not None:
        _save(save, found)
    if plot:
        _draw([(target, found)], plot)
    if as_json:
        print_json(found.as_json())
    else:
        console.benchmark(found)


def _without_image(model: Path | None, draft: Path | None, flags: list[str] | None) -> None:
    if model or draft or flags:
        raise typer.BadParameter("a server by its URL has its model and flags already")


def _image(
    catalogue: Path | None, name: str, model: Path | None, draft: Path | None, flags: list[str]
) -> Target:
    from builder import proving
    from builder.benchmark.run import Target

    if model is None:
        raise typer.BadParameter("an image needs a model to serve", param_hint="--model")
    run = new_run(catalogue)
    reference, image, recipe = proving.served(run, name)
    if recipe.serve is None or recipe.image.port is None:
        raise RecipeError(f"{recipe.name} does not say how its server is started", hint="[serve]")
    return Target(reference, image, recipe.serve, recipe.image.port, model, draft, flags)


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WorldError(f"cannot read {file}", str(error)) from error


def _save(file: Path, found: Benchmark) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found.as_json(), indent=2) + "\n", encoding="utf-8")


def _load(file: Path) -> Benchmark:
    from builder.benchmark.results import from_json

    try:
        return from_json(json.loads(_text(file)))
    except ValueError as error:
        raise WorldError(f"{file} is no benchmark", str(error)) from error


def _draw(found: list[tuple[str, Benchmark]], files: list[Path]) -> None:
    from builder.benchmark import plot

    try:
        plot.draw(found, files)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--plot") from error


SavedFile = Annotated[
    Path,
    typer.Argument(metavar="FILE.json", exists=True, dir_okay=False, help="As --save wrote it"),
]


@bench.command()
def compare(
    first: SavedFile, second: SavedFile, plot: PlotOption = None, as_json: JsonOption = False
) -> None:
    """Compare two benchmarks of the same hardware: how much faster the second is, how surely.

    For every context that both have: the means, their ratio with its 95 % confidence interval,
    and whether that shows a difference at all. What differs beside the engine is told; where the
    GPU, the model or the question differ, it is no comparison of engines, and the exit code is 4.
    """
    from dataclasses import asdict

    from builder import console
    from builder.benchmark.comparison import compare as compared

    before, after = _load(first), _load(second)
    try:
        found = compared(before, after)
    except ValueError as error:
        raise WorldError("there is nothing to compare", str(error)) from error
    if plot:
        _draw([(first.stem, before), (second.stem, after)], plot)
    if as_json:
        print_json(asdict(found))
    else:
        console.comparison(found)
    if not found.same:
        raise WorldError("this is no comparison of engines: see what differs above")


@bench.command()
def draw(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE.json", exists=True, dir_okay=False, help="Benchmarks"),
    ],
    plot: PlotOption = None,
) -> None:
    """Draw kept benchmarks into one picture: tokens per second run by run, and acceptance."""
    if not plot:
        raise typer.BadParameter("say where to: --plot FILE.png", param_hint="--plot")
    _draw([(file.stem, _load(file)) for file in files], plot)
