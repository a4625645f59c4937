"""Tables of nights and of channels: the same for a terminal and for a job's summary page."""

from __future__ import annotations

from collections.abc import Sequence

from builder.nightly.history import Night
from builder.nightly.status import Status
from builder.records.table import Overview

DIGITS = 19  # of a digest: "sha256:" and twelve
WIDE = 120  # columns


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
    """Where every tag stands; below it, how the last night of each channel ended, and problems."""
    header = ("recipe", "tag", "", "serves", "made", "upstream", "behind")
    rows = tuple(_row(status) for status in found)
    notes = tuple(note for status in found for note in _notes(status))
    return Overview("Recipes and channels", header, rows, notes)


def _row(status: Status) -> tuple[str, ...]:
    served = status.served
    return (
        status.recipe,
        status.tag,
        status.state,
        served.digest.removeprefix("sha256:")[:12] if served else "",
        served.created[:10] if served else "",
        _upstream(status),
        _behind(status),
    )


def _upstream(status: Status) -> str:
    """A tag, a branch or the tag of an image, and the commit or the image's digest."""
    commit = status.commit.removeprefix("sha256:")[:9]
    return f"{status.upstream.rpartition(':')[2]} {commit}" if status.upstream else ""


def _behind(status: Status) -> str:
    if status.served is None or status.days is None:
        return ""
    many = "s" if status.commits != 1 else ""
    commits = f"{status.commits} commit{many}, " if status.commits else ""
    limit = f"/{status.limit}" if status.limit is not None else ""
    newer = status.commits is None or status.commits > 0
    return f"{commits}{status.days}{limit} d" if newer and status.upstream else ""


def _first(reason: str) -> str:
    """What went wrong, without why: that stands below the table, and in the JSON."""
    return reason.partition("\n")[0]


def _notes(status: Status) -> list[str]:
    told = []
    last = status.last
    if last is not None:
        good = status.good.started[:16].replace("T", " ") if status.good else "none is known"
        ended = f"last night {last.started[:16].replace('T', ' ')}: {last.outcome}"
        told.append(f"{status.recipe}: {ended}{'' if last.good else f'; last good: {good}'}")
        told += [] if last.good else [f"{status.recipe}: {_first(last.reason)}"]
    told += [f"{status.recipe}: {line}" for line in status.problem.splitlines()]
    return [line if len(line) <= WIDE else f"{line[: WIDE - 4]} ..." for line in told]
