"""Draws the memory over the context, by kind, with the cards' limit as a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.bench.plot import SIZE, STYLE, SUFFIXES
from builder.fit.results import Fit, Trial

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
        _bars(figure.subplots(), found)
        kind = SUFFIXES[target.suffix.lower()]
        target.parent.mkdir(parents=True, exist_ok=True)
        nothing = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(target, format=kind, dpi=120, metadata=nothing)


def _bars(axes: Any, found: Fit) -> None:
    """A stacked bar for each context; what was refused stands above the limit, hatched."""
    names = [_name(trial) for trial in found.trials]
    below = [0.0] * len(found.trials)
    for kind in _kinds(found):
        heights = [_part(trial, kind) / GIB for trial in found.trials]
        axes.bar(names, heights, bottom=below, label=kind, width=0.6)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    refused = [trial.refused.requested / GIB if trial.refused else 0.0 for trial in found.trials]
    if any(refused):
        style = {"color": "none", "edgecolor": "tab:red", "hatch": "//", "width": 0.6}
        axes.bar(names, refused, bottom=below, label="refused", **style)
    limit = found.memory / GIB
    label = f"{' + '.join(card.name for card in found.cards)}: {limit:.2f} GiB"
    axes.axhline(limit, color="black", linestyle="--", label=label)
    axes.set_xlabel("context, in 1024 tokens")
    axes.set_ylabel("GiB at the peak")
    axes.set_title(f"{found.model.name} with {found.recipe}")
    axes.grid(visible=True, axis="y", alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")


def _name(trial: Trial) -> str:
    return f"{trial.context / 1024:g}"


def _kinds(found: Fit) -> list[str]:
    kinds = {kind: None for trial in found.trials for kind in trial.by_kind}
    return [CONTEXT, *kinds]


def _part(trial: Trial, kind: str) -> int:
    """The bytes of one kind; the kinds are of all cards together."""
    if kind == CONTEXT:
        return sum(card.context for card in trial.cards)
    return trial.by_kind.get(kind, 0)
