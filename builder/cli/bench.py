"""``builder bench``, the comparison of two of its results, and ``builder receipts``."""

from __future__ import annotations

import os
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from builder.cli import options
from builder.cli.options import argument, catalog_at, file_option, flag, option, user_settings
from builder.cli.terminal import line, log, minute, pairs, print_json, table
from builder.core.errors import RecipeError, RegistryError, WorldError
from builder.core.files import require_writable, write_json

if TYPE_CHECKING:
    from builder.docker.engine import Image
    from builder.measure.bench import Benchmark
    from builder.presets.receipts import Receipt
    from builder.presets.schema import Generation
    from builder.publish.registry import RemoteImage
    from builder.recipes.probes import Serve


def run_benchmark(
    target: str = argument(
        "RECIPE|IMAGE|URL",
        "A recipe, whose image is measured; an image that was built from a recipe; or the URL of "
        "a server with OpenAI's API (http://host:8000).",
        autocompletion=options.recipes,
    ),
    flags: list[str] | None = argument(
        "FLAG", "Additional flags for the image's server, after --.", None
    ),
    model: Path | None = file_option("--model", "GGUF file that the image serves."),
    draft: Path | None = file_option("--draft", "Draft model for speculative decoding."),
    cpu: bool = flag("--cpu", "Measure on the CPU, although Docker offers a GPU."),
    context: str = option(
        "--context TOKENS[,...]",
        "Context size, or a list of sizes to measure: 32K,64K,128K; K is 1024.",
        "32K",
    ),
    fill: float = option(
        "--fill FRACTION",
        "Fraction of the context to fill before the prompt.",
        0.0,
        min=0.0,
        max=0.95,
    ),
    prompt: Path | None = file_option(
        "--prompt",
        "File with the prompt. Default: a prompt for a Space Invaders game in one HTML file.",
    ),
    tokens: int = option("--tokens N", "Maximum number of tokens to generate.", 2000, min=1),
    temperature: float = option(
        "--temperature T", "Sampling temperature (0 = greedy).", 0.6, min=0.0
    ),
    top_k: int = option("--top-k N", "Sample from the N most likely tokens (0 = all).", 20, min=0),
    min_p: float = option(
        "--min-p P",
        "Minimum probability, relative to the most likely token.",
        0.0,
        min=0.0,
        max=1.0,
    ),
    seed: int = option("--seed N", "Seed of the first run; each later run adds 1.", 1, min=0),
    warm_ups: int = option("--warm-ups N", "Number of runs before the measured ones.", 2, min=0),
    runs: int = option("--runs N", "Number of measured runs.", 10, min=1),
    name: str = option(
        "--name MODEL", "Model to request, if the server at a URL offers several.", ""
    ),
    receipt: Path | None = option(
        "--receipt FILE",
        "Also write a receipt to this JSON file, without personal data, for `receipts add`. The "
        "server's log is verbose.",
        dir_okay=False,
    ),
    by: str | None = option("--by NAME", "Your name in the receipt. Default: none."),
    as_json: options.JsonOption = False,
) -> None:
    """Measure the generation speed of an image or a server.

    The defaults are the settings of published benchmarks: 2 warm-ups and 10 runs of one prompt,
    2000 tokens, temperature 0.6, top-k 20, min-p 0. If the server reports its own speeds, these
    are used. The API key for a server is read from OPENAI_API_KEY.
    `builder compare FIRST.json SECOND.json` compares two results of --json.
    """
    from builder.checks.server import ServeSpec
    from builder.checks.speed import RunSettings
    from builder.measure import bench

    url = target.startswith(("http://", "https://"))
    if url and (model or draft or flags or cpu or receipt):
        what = "--model, --draft, --cpu, --receipt and flags are for a recipe or an image"
        raise typer.BadParameter(f"{what}, not for {target}")
    if receipt is not None:
        require_writable(receipt.parent, "name another file: --receipt FILE")
    elif by is not None:
        raise typer.BadParameter("--by is for a receipt: add --receipt FILE")
    given = RunSettings() if prompt is None else RunSettings(prompt=_text(prompt))
    settings = RunSettings(given.prompt, tokens, temperature, top_k, min_p, seed, warm_ups, runs)
    if url:
        found = bench.of_url(target, name, os.environ.get("OPENAI_API_KEY", ""), settings, log)
    else:
        sizes = options.contexts(context)
        served = _image(target, model)
        spec = ServeSpec(model, 0, draft, flags or [], verbose=receipt is not None)
        if receipt is not None:
            bench.require_receipt(served[0], spec, by)  # before the first run
        found = bench.of_image(*served, spec, sizes, settings, fill, log, cpu=cpu)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        _print_benchmark(found)
    if receipt is not None:
        _write_receipt(bench.of_benchmark(found, by), receipt)


def _write_receipt(made: Receipt, file: Path) -> None:
    write_json(file, made.model_dump(mode="json"))
    after = "it was measured without a GPU: `builder receipts add` refuses it"
    if made.device == "GPU":
        after = f"next: `builder receipts add {shlex.quote(str(file))}`"
    log(f"wrote {file}; {after}")


def _image(name: str, model: Path | None) -> tuple[Image, Serve, int]:
    from builder.build.lookup import Images
    from builder.cli.session import build_session

    if model is None:
        raise typer.BadParameter("an image needs a model to serve", param_hint="--model FILE")
    session = build_session()
    image, recipe = Images(session).served(name)
    if recipe.serve is None or recipe.image.port is None:
        raise RecipeError(
            f"{recipe.name} cannot be measured",
            "the recipe does not define how its server is started",
            "add [serve] and image.port to the recipe",
        )
    return image, recipe.serve, recipe.image.port


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise WorldError(f"cannot read {file}", why, "name another file") from error


def _load(file: Path) -> Benchmark:
    from builder.measure.bench import parse_results

    try:
        return parse_results(_text(file))
    except ValueError as error:
        hint = "give the output of `builder bench --json`"
        raise WorldError(f"{file} is not a saved benchmark", str(error), hint) from error


def compare(first: Path, second: Path, *, as_json: bool) -> None:
    """Print how much faster the second of two saved benchmarks is, for each size of the context."""
    from builder.measure.bench import compare as compared

    before, after = _load(first), _load(second)
    try:
        found = compared(before, after)
    except ValueError as error:
        raise WorldError("the benchmarks cannot be compared", str(error)) from error
    if as_json:
        print_json(found)
    else:
        header = ("context", "first t/s", "second t/s", "ratio", "95 %", "")
        table(header, [_row_of(row) for row in found["rows"]])
        for each in found["differences"]:
            weight = "DIFFERS" if each["decisive"] else "differs"
            line(f"{weight}: {each['what']}: {each['first']} | {each['second']}")
    if any(each["decisive"] for each in found["differences"]):
        raise WorldError(
            "the benchmarks do not compare engines",
            "something else differs that decides the speed: see the lines with DIFFERS",
            "measure both with the same hardware, model and prompt",
        )


def _row_of(row: dict[str, Any]) -> tuple[str, ...]:
    low_high = "{:.3f} to {:.3f}".format(*row["interval"]) if row["interval"] else ""
    speeds = (f"{row['first']:.2f}", f"{row['second']:.2f}", f"{row['ratio']:.3f}")
    return str(row["context"] or ""), *speeds, low_high, row["verdict"]


def _print_benchmark(found: Benchmark) -> None:
    from builder.checks import series

    header = ("", "t/s", "tokens", "drafted", "accepted", "acceptance", "prompt t/s")
    for point in found.points:
        title = "" if point.context is None else f"context of {point.context} tokens"
        line(f"\n{title}".rstrip())
        rows = [_row(f"run {number}", run) for number, run in enumerate(point.runs, 1)]
        table(header, [_row("warm-up", run) for run in point.warm_ups] + rows)
        speeds = series.evaluate([run.tokens_per_second for run in point.runs])
        timed_by = sorted({run.timed_by for run in point.runs})
        statistics = [
            ("average", f"{speeds.mean:.2f} t/s, by the clock of the {' and '.join(timed_by)}"),
            ("range", f"{speeds.lowest:.2f} to {speeds.highest:.2f} t/s"),
            ("deviation", f"{speeds.deviation:.2f} t/s; {speeds.shown_trend}"),
            ("verdict", f"{speeds.shape}: {speeds.why}"),
        ]
        shares = [run.acceptance for run in point.runs if run.acceptance is not None]
        if shares:
            acceptance = series.evaluate_acceptance(shares)
            statistics.append(("acceptance", f"{acceptance.shape}: {acceptance.why}"))
        pairs(statistics)


def _row(name: str, run: Generation) -> tuple[str, ...]:
    share, prompt = run.acceptance, run.prompt_tokens_per_second
    drafts = ["" if each is None else str(each) for each in (run.drafted, run.accepted)]
    share_text = "" if share is None else f"{share:.1%}"
    prompt_text = "" if prompt is None else f"{prompt:.1f}"
    speed = f"{run.tokens_per_second:.2f}"
    return name, speed, str(run.tokens), *drafts, share_text, prompt_text


# ``builder receipts``: it lists them; ``receipts add``.

HEADER = ("recipe", "card", "tokens/s", "context", "runs", "model", "measured", "by", "receipt")

group_receipts = typer.Typer()


@group_receipts.callback(invoke_without_command=True)
def receipts(
    context: typer.Context,
    as_json: options.JsonOption = False,
) -> None:
    """List the receipts: benchmarks of published images on cards, the fastest first.

    `builder bench IMAGE --model FILE --receipt FILE` makes one, `builder receipts add FILE` adds
    it. The exit code is 16 if a file of receipts/ is no valid receipt; it is left out.
    """
    if context.invoked_subcommand:
        return
    from builder.presets.receipts import checked

    found = checked(catalog_at(), datetime.now(UTC))
    if as_json:
        entries = found.entries.items()
        print_json([{"name": name, **of.model_dump(mode="json")} for name, of in entries])
    elif not found.entries:
        maker = "`builder bench IMAGE --model FILE --receipt FILE`"
        line(f"there are no receipts yet: {maker} makes one")
    else:
        rows = [row for each in found.entries.items() for row in _rows(*each)]
        table(HEADER, [row for _, row in sorted(rows, key=lambda each: -each[0])])
    found.require_valid()


@group_receipts.command()
def add(
    file: Path = argument(
        "FILE.json",
        "A receipt: `builder bench IMAGE --receipt FILE.json` writes it.",
        exists=True,
        dir_okay=False,
    ),
    dry_run: options.DryRunOption = False,
) -> None:
    """Check a receipt and copy it to receipts/.

    A receipt is refused if the registry lacks its image, its figures are not possible, or it has
    private data. docs/presets.md has all rules.
    """
    from builder.presets import receipts
    from builder.presets.receipts import require_valid
    from builder.publish.registry import remote_image
    from builder.publish.tags import repository_of

    recipes = catalog_at()
    receipt = receipts.read_receipt(file)

    def published(recipe: str, digest: str) -> RemoteImage | None:
        if not user_settings().namespace:
            raise RegistryError(
                "cannot ask a registry for the image of the receipt",
                "BUILDER_NAMESPACE is not set",
                "set it to the account that published the image, or to REGISTRY/ACCOUNT",
            )
        return remote_image(repository_of(recipes, recipe, log), digest)

    now = datetime.now(UTC)
    require_valid(receipt, recipes, receipts.checked(recipes, now).entries, published, now)
    if dry_run:
        line(f"valid  {receipts.path_of(recipes, receipt).name}")
    else:
        line(f"taken  {receipts.write_receipt(recipes, receipt)}")


def _rows(name: str, receipt: Receipt) -> list[tuple[float, tuple[str, ...]]]:
    when, by = minute(receipt.created.isoformat()), receipt.by or ""
    found: list[tuple[float, tuple[str, ...]]] = []
    for each in receipt.measured:
        figures = (f"{each.mean:.2f}", str(each.context), str(len(each.runs)))
        names = (receipt.image.recipe, receipt.hardware)
        found.append((each.mean, (*names, *figures, receipt.model.name, when, by, name)))
    return found
