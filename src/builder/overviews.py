"""Tables of nights and of channels: the same for a terminal and for a job's summary page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from builder.journal import Night
from builder.status import Status

DIGITS = 19  # of a digest: "sha256:" and twelve


@dataclass(frozen=True, slots=True)
class Overview:
    """A table with a title."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def of_nights(nights: Sequence[Night]) -> Overview:
    """What became of the channels tonight."""
    rows = tuple(
        (
            night.recipe,
            night.channel,
            night.outcome,
            night.upstream,
            night.digest[:DIGITS],
            f"{night.seconds:.0f} s",
            _first(night.reason),
        )
        for night in nights
    )
    good = sum(night.good for night in nights)
    header = ("recipe", "channel", "", "upstream", "serves", "took", "why")
    return Overview(f"Night: {good} of {len(nights)} channels are good", header, rows)


def of_statuses(found: Sequence[Status]) -> Overview:
    """Where every tag stands."""
    header = ("recipe", "tag", "", "serves", "made", "of", "upstream", "behind", "nights")
    return Overview("Recipes and channels", header, tuple(_row(status) for status in found))


def _row(status: Status) -> tuple[str, ...]:
    served = status.served
    return (
        status.recipe,
        f"{status.repository}:{status.tag}",
        status.state,
        served.digest[:DIGITS] if served else "",
        served.created[:16].replace("T", " ") if served else "",
        (served.revision[:9] if served else ""),
        _upstream(status),
        _behind(status),
        "; ".join(part for part in (_nights(status), *status.problem.splitlines()) if part),
    )


def _upstream(status: Status) -> str:
    commit = status.commit.removeprefix("sha256:")[:9]
    return f"{status.upstream} {commit}" if status.upstream else ""


def _behind(status: Status) -> str:
    if status.served is None or status.days is None:
        return ""
    many = "s" if status.commits != 1 else ""
    commits = f"{status.commits} commit{many}, " if status.commits else ""
    limit = f" of {status.limit}" if status.limit is not None else ""
    newer = status.commits is None or status.commits > 0
    return f"{commits}{status.days}{limit} days" if newer and status.upstream else ""


def _first(reason: str) -> str:
    """What went wrong, without why: that stands below the table, and in the JSON."""
    return reason.partition("\n")[0]


def _nights(status: Status) -> str:
    told = []
    if status.good is not None:
        told.append(f"good {status.good.started[:10]}")
    if status.failed is not None:
        told.append(f"failed {status.failed.started[:10]}: {_first(status.failed.reason)}")
    return ", ".join(told)
