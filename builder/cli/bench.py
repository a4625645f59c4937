"""The command that measures: ``builder bench``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from builder.cli.options import EVERYDAY, CatalogOption, JsonOption, app, build_session, print_json
from builder.errors import RecipeError, WorldError

if TYPE_CHECKING:
    from builder.bench.results import Benchmark
    from builder.bench.run import Target

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
        "--plot",
        metavar="FILE",
        dir_okay=False,
        help="Draw a chart: a .png or .svg file. May be repeated.",
    ),
]


@bench.command(RUN)
def run_benchmark(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|IMAGE|URL",
            help="A recipe, whose image is measured; an image that a recipe knows how to start; "
            "or the URL of a server with OpenAI's API (http://host:8000)",
        ),
    ],
    flags: Annotated[
        list[str] | None,
        typer.Argument(metavar="FLAG", help="More flags for the image's server, after --."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="GGUF file that the image serves."),
    ] = None,
    draft: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Its draft model.")
    ] = None,
    context: Annotated[
        str,
        typer.Option(
            metavar="TOKENS[,...]",
            help="Context size; a list measures each one: 32K,64K,128K,256K.",
        ),
    ] = "32K",
    fill: Annotated[
        float,
        typer.Option(
            min=0.0, max=0.95, help="Fraction of the context that is filled before the prompt."
        ),
    ] = 0.0,
    prompt: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="File with the prompt. Default: asks for a Space Invaders game in one HTML file.",
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=1, help="Maximum number of tokens to generate.")
    ] = 2000,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Sampling temperature (0 = greedy).")
    ] = 0.6,
    top_k: Annotated[
        int,
        typer.Option("--top-k", min=0, help="Sample from this many most likely tokens (0 = all)."),
    ] = 20,
    min_p: Annotated[
        float,
        typer.Option(
            "--min-p",
            min=0.0,
            max=1.0,
            help="Minimum probability, relative to the most likely token.",
        ),
    ] = 0.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the first run; each later run adds 1.")
    ] = 1,
    warm_ups: Annotated[
        int, typer.Option("--warm-ups", min=0, help="Runs before those that count.")
    ] = 2,
    runs: Annotated[int, typer.Option(min=1, help="Runs that count.")] = 10,
    name: Annotated[
        str, typer.Option(help="The model to ask for, if the server offers several.")
    ] = "",
    output_file: Annotated[
        Path | None,
        typer.Option(
            "--output-file",
            metavar="FILE",
            dir_okay=False,
            help="Also write the results and all settings to this JSON file, for `bench compare`.",
        ),
    ] = None,
    plot: PlotOption = None,
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure an image, or a server by its URL: run by run, one request at a time.

    The defaults are the settings of published benchmarks: 2 warm-ups and 10 runs of one prompt,
    2000 tokens, temperature 0.6, top-k 20, min-p 0. If the server reports its own speeds, those
    are used. The API key of a server is read from OPENAI_API_KEY.
    """
    import os

    from builder.bench import extra
    from builder.bench import run as benchmarks
    from builder.bench.measuring import Settings
    from builder.cli import console

    given = Settings() if prompt is None else Settings(prompt=_text(prompt))
    if plot:
        extra.require("matplotlib", "bench --plot")
    settings = Settings(given.prompt, tokens, temperature, top_k, min_p, seed, warm_ups, runs)
    if target.startswith(("http://", "https://")):
        _without_image(model, draft, flags)
        key = os.environ.get("OPENAI_API_KEY", "")
        found = benchmarks.of_url(target, name, key, settings, console.log)
    else:
        try:
            contexts = benchmarks.contexts_of(context)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--context") from error
        chosen = _image(catalog, target, model, draft, flags or [])
        found = benchmarks.of_image(chosen, contexts, settings, fill, console.log)
    if output_file is not None:
        _save(output_file, found)
    if plot:
        _draw([(target, found)], plot)
    if as_json:
        print_json(found.as_json())
    else:
        console.benchmark(found)


def _without_image(model: Path | None, draft: Path | None, flags: list[str] | None) -> None:
    if model or draft or flags:
        raise typer.BadParameter(
            "--model, --draft and flags are for images: the server at a URL has its own"
        )


def _image(
    catalog: Path | None, name: str, model: Path | None, draft: Path | None, flags: list[str]
) -> Target:
    from builder.bench.run import Target
    from builder.images import lookup

    if model is None:
        raise typer.BadParameter("an image needs a model to serve", param_hint="--model")
    session = build_session(catalog)
    reference, image, recipe = lookup.served(session, name)
    if recipe.serve is None or recipe.image.port is None:
        raise RecipeError(
            f"{recipe.name} does not say how its server is started",
            hint="add a [serve] table, and a port to [image]",
        )
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
    from builder.bench.results import from_json

    try:
        return from_json(json.loads(_text(file)))
    except ValueError as error:
        raise WorldError(f"{file} is not a saved benchmark", str(error)) from error


def _draw(found: list[tuple[str, Benchmark]], files: list[Path]) -> None:
    from builder.bench import plot

    try:
        plot.draw(found, files)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--plot") from error


SavedFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE.json", exists=True, dir_okay=False, help="A file that --output-file wrote"
    ),
]


@bench.command()
def compare(
    first: SavedFile, second: SavedFile, plot: PlotOption = None, as_json: JsonOption = False
) -> None:
    """Compare two benchmarks of the same hardware: how much faster is the second one?

    For every context size that both have, it shows the means, their ratio with its 95 % confidence
    interval, and whether the difference is significant. It lists what else differs. If the GPU,
    the model or the prompt differ, the engines cannot be compared, and the exit code is 4.
    """
    from dataclasses import asdict

    from builder.bench import extra
    from builder.bench.comparison import compare as compared
    from builder.cli import console

    extra.require("scipy", "bench compare")
    if plot:
        extra.require("matplotlib", "bench --plot")
    before, after = _load(first), _load(second)
    try:
        found = compared(before, after)
    except ValueError as error:
        raise WorldError("these benchmarks cannot be compared", str(error)) from error
    if plot:
        _draw([(first.stem, before), (second.stem, after)], plot)
    if as_json:
        print_json(asdict(found))
    else:
        console.comparison(found)
    if not found.same:
        raise WorldError(
            "these benchmarks cannot be compared", "they differ in what is listed above"
        )


@bench.command()
def draw(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE.json", exists=True, dir_okay=False, help="Files that --output-file wrote"
        ),
    ],
    plot: PlotOption = None,
) -> None:
    """Draw saved benchmarks into one chart: tokens per second run by run, and acceptance."""
    from builder.bench import extra

    if not plot:
        raise typer.BadParameter("give a file to draw to: --plot FILE.png", param_hint="--plot")
    extra.require("matplotlib", "bench draw")
    _draw([(file.stem, _load(file)) for file in files], plot)
