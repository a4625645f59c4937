"""The errors of computed speeds, as studies/speeds.md, and the figures of presets/shapes.py.

    .venv/bin/python studies/speeds.py [--write]

The runs are of presets, archived ones too, whose size and acceptance are known.  Each of
``FITTED`` is computed by a fit to the others.  Then the shipped figures are compared with the rest.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from builder.engines.families import load_catalog
from builder.presets import cards, shapes
from builder.presets import catalog as preset_files
from builder.presets.schema import MainModel, Preset, ServeOptions
from builder.presets.shapes import DecodeStep, NotComputedError
from builder.recipes.catalog import Catalog

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "studies" / "speeds.md"
NINE_OF_TEN = (5, 95)  # percentiles
FITTED = (
    "gemma-4-26b-a4b-awq-mtp@5090-laptop",
    "gemma-4-26b-a4b-awq@5090-laptop",
    "gemma-4-26b-a4b-mtp@5090-laptop",
    "gemma-4-e2b-mtp@5090-laptop",
    "nemotron-elastic-30b-a3b-nvfp4@5090-laptop",
    "qwen3.6-27b-autoround-mtp@5090-laptop",
    "qwen3.6-27b-mtp-128k@5090-laptop",
    "qwen3.6-35b-a3b-mtp@5090-laptop",
    "qwen3.6-35b-a3b@3090",
)
"""The presets whose runs gave the figures of presets/shapes.py; it has seen no other run."""


@dataclass(frozen=True)
class Fit:
    """The fitted figures of ``speeds``."""

    steady: float
    uneven: float
    fixed: float

    def speed(self, run: Run) -> float:
        """Tokens a second."""
        share = self.uneven if run.step.uneven else self.steady
        return run.tokens / (run.step.size / run.bandwidth / share + self.fixed)


SHIPPED = Fit(shapes.STEADY, shapes.UNEVEN, shapes.FIXED)


@dataclass(frozen=True)
class Run:
    """A run with all that its speed is computed from."""

    name: str
    card: str
    bandwidth: int
    step: DecodeStep
    tokens: float
    """Tokens of a step."""
    measured: float
    """Tokens a second."""
    url: str
    """Its source; empty: not known."""


def fit(runs: Sequence[Run]) -> Fit:
    """The figures with the least squares of the relative errors of the times."""
    times = [run.tokens / run.measured for run in runs]
    rows = [
        [
            0 if run.step.uneven else run.step.size / run.bandwidth / time,
            run.step.size / run.bandwidth / time if run.step.uneven else 0,
            1 / time,
        ]
        for run, time in zip(runs, times, strict=True)
    ]
    found, *_ = np.linalg.lstsq(np.array(rows), np.ones(len(rows)), rcond=None)
    return Fit(1 / found[0], 1 / found[1], float(found[2]))


def left_out(runs: Sequence[Run]) -> list[float]:
    """The speed of each run by a fit to all others."""
    return [
        fit([*runs[:number], *runs[number + 1 :]]).speed(run) for number, run in enumerate(runs)
    ]


def published(recipes: Catalog) -> tuple[list[Run], dict[str, str]]:
    """The runs of presets, and by the name of each other published preset why it is none."""
    runs, reasons = [], {}
    presets = preset_files.load(recipes)
    for name in sorted({*presets.entries, *presets.archived}):
        preset = presets.preset(name).preset
        try:
            runs += [_run(name, preset, recipes)] if preset.result else []
        except NotComputedError as error:
            reasons[name] = str(error)
    return runs, reasons


def _run(name: str, preset: Preset, recipes: Catalog) -> Run:
    """Raises ``NotComputedError`` for a run that the fit cannot use."""
    if preset.cards > 1:
        raise NotComputedError("it ran on several cards")
    step = shapes.step(preset, recipes.engine(preset.recipe).recipe.engine)
    if step.tokens is None:
        raise NotComputedError("it drafts, and its acceptance is not published")
    if preset.card not in cards.names(REPOSITORY):
        raise NotComputedError(f"there is no file of the {preset.card} in cards/")
    known = [each for each in preset.result if each.of_preset]
    accepted = [each for each in known if each.acceptance or each.drafted]
    if not known:
        raise NotComputedError("it has no figure")
    return Run(
        name,
        preset.card,
        cards.load(REPOSITORY, preset.card).bandwidth,
        step,
        step.tokens,
        (accepted or known)[0].tokens_per_second.middle,
        (preset.source.url or "") if preset.source else "",
    )


def table(runs: Sequence[Run], computed: Sequence[float]) -> Iterator[str]:
    """The runs as a table, with the error of each computed speed."""
    yield "| run | card | GB a step | tokens a step | kind | published | computed | error |"
    yield "|---|---|---|---|---|---|---|---|"
    for run, speed in zip(runs, computed, strict=True):
        cells = [
            f"[{run.name}]({run.url})" if run.url else run.name,
            run.card,
            f"{run.step.size / 1e9:.2f}",
            f"{run.tokens:.2f}",
            "uneven" if run.step.uneven else "steady",
            f"{run.measured:.4g}",
            f"{speed:.4g}",
            f"{speed / run.measured - 1:+.0%}",
        ]
        yield f"| {' | '.join(cells)} |"


def errors(runs: Sequence[Run], computed: Sequence[float]) -> list[float]:
    """The relative error of each computed speed, without its sign."""
    return [abs(speed / run.measured - 1) for run, speed in zip(runs, computed, strict=True)]


def interval(runs: Sequence[Run], computed: Sequence[float]) -> tuple[float, float]:
    """The multiples of the computed speed that nine of ten runs are between."""
    shares = [run.measured / speed for run, speed in zip(runs, computed, strict=True)]
    low, high = np.percentile(shares, NINE_OF_TEN)
    return float(low), float(high)


OFFLOADED = {20: 79.0, 40: 51.0}
"""Tokens a second of Qwen3.6 35B-A3B on an RTX 5070 Ti, by the layers with experts on the CPU."""


def offloaded() -> Iterator[str]:
    """The rows of ``OFFLOADED``, each with its computed speed."""
    files = shapes.listed_files("qwen3.6-35b-a3b")
    file = next(each for each in files if each.quantization == "UD-Q4_K_S")
    model = MainModel(**(file.model_dump(exclude={"source"}) | {"name": "Qwen3.6 35B-A3B"}))
    bandwidth = cards.load(REPOSITORY, "5070-ti").bandwidth
    for layers, measured in OFFLOADED.items():
        serve = ServeOptions(arguments=["--n-cpu-moe", str(layers)])
        run = Preset(recipe="any", summary="any", card="5070-ti", model=model, serve=serve)
        speed = shapes.computed_speed(run, "llama-cpp", bandwidth, 0).tokens_per_second
        yield f"| {layers} of 40 | {measured:g} | {speed:.4g} | {speed / measured - 1:+.0%} |"


def page() -> str:
    """The text of studies/speeds.md."""
    recipes = load_catalog(REPOSITORY)
    found_runs, reasons = published(recipes)
    runs = [run for run in found_runs if run.name in FITTED]
    checked = [run for run in found_runs if run.name not in FITTED]
    found, unseen = left_out(runs), [SHIPPED.speed(run) for run in checked]
    fitted, (low, high) = fit(runs), interval([*runs, *checked], [*found, *unseen])
    own, foreign = errors(runs, found), errors(checked, unseen)
    return TEXT.format(
        steady=f"{fitted.steady:.3f}",
        uneven=f"{fitted.uneven:.3f}",
        fixed=f"{fitted.fixed * 1e3:.2f}",
        low=f"{low:.2f}",
        high=f"{high:.2f}",
        filled=shapes.FILLED,
        used=SHIPPED,
        used_fixed=f"{SHIPPED.fixed * 1e3:.1f}",
        used_low=f"{shapes.INTERVAL[0]:.2f}",
        used_high=f"{shapes.INTERVAL[1]:.2f}",
        runs=len(runs),
        median=f"{median(own):.0%}",
        largest=f"{max(own):.0%}",
        table="\n".join(table(runs, found)),
        others=len(checked),
        other_median=f"{median(foreign):.0%}",
        other_largest=f"{max(foreign):.0%}",
        other_table="\n".join(table(checked, unseen)),
        host=shapes.HOST // 10**9,
        offloaded="\n".join(offloaded()),
        reasons="\n".join(f"| `{name}` | {why} |" for name, why in sorted(reasons.items())),
    )


TEXT = """# Computed speeds

`choose` and the site show a computed speed beside a figure of another card. This page says how it
is computed, and how wrong it is. `studies/speeds.py --write` writes it.

```console
$ .venv/bin/python studies/speeds.py           # prints this page
```

## Model

A step reads the active weights, the cache and the drafter, and gives `tokens a step`:

    speed = tokens / (bytes / (bandwidth x efficiency) + fixed time)

- **Bytes.** The tensors come from the model's [shape](../docs/development.md#add-a-models-shape),
  their bits from the size of the file. A step reads one row of an embedding, and the experts that
  its tokens choose, if each token chooses by itself.
  A repository for vLLM keeps 16 bits for the embedding, the output and the MTP block. MTP reads its
  block and the output for each drafted token, a draft model all of itself, DFlash its drafter once.
  Without a shape, the name gives the active part: 30B-A3B.
- **Tokens.** 1, or 1 + drafted tokens x published acceptance. If the acceptance is not published,
  the preset's own run gives them: its speed x the computed time of a step on its card.
- **Bandwidth.** Bus width x memory clock x 2, from [cards/](../cards). Experts on the CPU
  (`--n-cpu-moe`) are read from the machine's memory, at {host} GB/s: two channels of DDR5-6000.
  llama.cpp gets the same *uneven* part of them.
- **Cache.** {filled} tokens, the middle of an answer of 2000. A longer prompt makes it slower.

| fitted | here | used |
|---|---|---|
| efficiency, *steady*: vLLM; llama.cpp without experts and drafts | {steady} | {used.steady} |
| efficiency, *uneven*: llama.cpp with experts or drafts | {uneven} | {used.uneven} |
| fixed time of a step | {fixed} ms | {used_fixed} ms |
| interval: nine of ten runs of both tables below | {low} to {high} | {used_low} to {used_high} |

The two kinds were chosen with the same runs in view: the second table is the better judge.

## Leave one out

The runs that gave the figures, each computed by a fit to the others. Median error of {runs} runs:
**{median}**; the largest: {largest}.

{table}

What fits worst: the tensors of Nemotron are not known, and its name says 3 of 30 billion active
parameters, all with as many bits. The only run of an RTX 3090 is faster than the runs of the RTX
5090 Laptop say; one run is too few for an efficiency of that card.

## Runs of others

Runs that came later, on other cards, computed with the figures that are used. Median error of
{others} runs: **{other_median}**; the largest: {other_largest}.

{other_table}

llama.cpp with experts or drafts is faster on most other cards than the laptop's runs say. The run
of Qwen3.8 was made with b10448, three months newer than the others, which drafts much faster.

## Experts on the CPU

[Two runs](https://setupai.cc/update/79-ts-6d332fbe) of Qwen3.6 35B-A3B on an RTX 5070 Ti with a
Ryzen 7 9800X3D, whose quantization is not stated; the memory of both fits UD-Q4_K_S. The speed
follows the machine's memory: two channels of DDR4-3200 have 51 GB/s. With a part of the experts on
the CPU, [MTP made a run slower](https://prismix.dev/news/bbae108ff75d): 74 tokens/s, 86 without.

| layers on the CPU | published | computed | error |
|---|---|---|---|
{offloaded}

## Runs that the fit cannot use

| preset | why |
|---|---|
{reasons}

A preset whose acceptance alone is missing gets a computed speed on other cards by its own run.
"""


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write studies/speeds.md")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
