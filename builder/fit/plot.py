"""Draws the memory over the context, by kind, for each card with its limit as a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.bench.plot import SIZE, STYLE, SUFFIXES
from builder.fit.results import CardPeak, Fit, Trial

GIB = 1 << 30
CONTEXT = "CUDA context"


def require_suffix(target: Path) -> None:
    """Raise ``ValueError`` unless a chart can be drawn to a file of this name."""
    if target.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{target.name}: a chart is a .png or a .svg file")


def draw(found: Fit, target: Path) -> None:
    """Draw all trials into a file, whose suffix decides the format: .png or .svg.

    The same figures give the same bytes.  Raises ``ValueError`` for another suffix.
    """
    require_suffix(target)
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE, layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, len(found.cards), sharey=True, squeeze=False)[0]
        for number, axes in enumerate(panels):
            _bars(axes, found, number)
        panels[0].set_ylabel("GiB at the peak")
        figure.suptitle(f"{found.model.name} with {found.recipe}", fontsize="large")
        kind = SUFFIXES[target.suffix.lower()]
        nothing = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(target, format=kind, dpi=120, metadata=nothing)


def _bars(axes: Any, found: Fit, number: int) -> None:
    """A stacked bar of one card for each context; what was refused stands on it, hatched."""
    names = [_name(trial) for trial in found.trials]
    below = [0.0] * len(found.trials)
    for kind in _kinds(found):
        heights = [_part(trial.cards[number], kind) / GIB for trial in found.trials]
        axes.bar(names, heights, bottom=below, label=kind, width=0.6)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    card = found.cards[number]
    refused = [_refused(trial, card.name) / GIB for trial in found.trials]
    if any(refused):
        style = {"color": "none", "edgecolor": "tab:red", "hatch": "//", "width": 0.6}
        axes.bar(names, refused, bottom=below, label="refused", **style)
    limit = card.memory / GIB
    label = f"{card.name}: {limit:.2f} GiB"
    axes.axhline(limit, color="black", linestyle="--", label=label)
    axes.set_xlabel("context, in 1024 tokens")
    axes.grid(visible=True, axis="y", alpha=0.3)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize="x-small")


def _name(trial: Trial) -> str:
    return f"{trial.context / 1024:g}"


def _kinds(found: Fit) -> list[str]:
    kinds = {kind: None for trial in found.trials for kind in trial.by_kind}
    return [CONTEXT, *kinds]


def _part(card: CardPeak, kind: str) -> int:
    return card.context if kind == CONTEXT else card.by_kind.get(kind, 0)


def _refused(trial: Trial, card: str) -> int:
    """The bytes that a card of this name refused."""
    return trial.refused.requested if trial.refused and trial.refused.card == card else 0
