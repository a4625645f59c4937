"""The tables of `status`, as a terminal and a summary page show them."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from rich.text import Text

from builder.build import reports
from builder.cli import nightly
from builder.cli import terminal as tables
from builder.core.errors import FetchError
from builder.publish.nights import NightlyRun
from builder.publish.registry import RemoteImage
from builder.publish.verdicts import Reproduced
from builder.upstream.status import Status, require_fresh


def test_a_status_fits_a_terminal_and_tells_the_last_night(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = NightlyRun(
        recipe="vllm-nightly",
        channel="nightly",
        outcome="moved",
        started="2026-11-20T03:10:00+00:00",
        seconds=1.0,
    )
    reason = "vllm-nightly-3f2a91c0d1aa is built, and 1 of 40 checks failed\nclosure: " + "x" * 200
    failed = good.model_copy(
        update={"outcome": "failed", "started": "2026-11-21T03:10:00+00:00", "reason": reason}
    )
    image = RemoteImage(f"sha256:{'7' * 64}", "2026-11-20T03:52:00+00:00", {})
    status = Status(
        "vllm-tokenspeed-preview",
        "registry.example.org:5000/farm/vllm-sm120",
        "tokenspeed-preview",
        channel=True,
        image=image,
        upstream="vllm/vllm-openai:nightly",
        commit=f"sha256:{'a' * 64}",
        commits=12,
        days=11,
        limit=13,
        good=good,
        failed=failed,
        problem="what upstream has is not known: " + "y" * 200,
    )
    said = io.StringIO()
    terminal = Console(file=said, force_terminal=True, width=120, soft_wrap=True, no_color=True)
    monkeypatch.setattr(tables, "out", lambda: terminal)
    overview = nightly.overview_of_statuses([status])
    tables.table(overview.header, overview.rows)
    lines = [*Text.from_ansi(said.getvalue()).plain.splitlines(), *overview.notes]
    assert len(lines) == 5
    assert max(map(len, lines)) <= 120
    told = "last nightly run 2026-11-21 03:10 UTC: failed; last good one: 2026-11-20 03:10 UTC"
    assert overview.notes[0].endswith(told)
    assert overview.notes[1].endswith("is built, and 1 of 40 checks failed")
    lost = "option: --sampling: expected: has random; found: does not have it"
    named = failed.model_copy(update={"reason": f"x-1 is built, and 1 of 99 checks failed\n{lost}"})
    (_, note, _) = nightly.overview_of_statuses([replace(status, failed=named)]).notes
    assert note == f"vllm-tokenspeed-preview: 1 of 99 checks failed: {lost}"
    several = named.model_copy(
        update={"reason": f"{named.reason}\nclosure: a: expected: b; found: c"}
    )
    (row,) = nightly.overview_of_runs([several]).rows
    assert row[-1] == "1 of 99 checks failed: option: --sampling, closure: a"
    assert told in reports.of_table(overview)
    updated = replace(status, update=83_100_000, image=replace(image, download_size=512_000_000))
    (_, _, note, _) = nightly.overview_of_statuses([updated]).notes
    sizes = "83.1 MB for somebody who has the image before, 512.0 MB anew"
    assert note == f"vllm-tokenspeed-preview: download: {sizes}"
    again = Reproduced("2026-11-21T03:10:00+00:00", "x86_64", key="farm.pub")
    for found, end in (
        (again, "signed by farm.pub"),
        (replace(again, key=""), "unverified: no trusted key signed the statement"),
        (replace(again, key="", problem="there is no cosign"), "unverified: there is no cosign"),
    ):
        (_, _, note, _) = nightly.overview_of_statuses([replace(status, reproduced=found)]).notes
        assert note == f"vllm-tokenspeed-preview: reproduced 2026-11-21 on x86_64, {end}"
    (note,) = nightly.overview_of_statuses([replace(status, failed=None, problem="")]).notes
    assert note.endswith("last nightly run 2026-11-20 03:10 UTC: moved")


def test_a_channel_that_is_held_says_why() -> None:
    image = RemoteImage(f"sha256:{'7' * 64}", "2026-11-20T03:52:00+00:00", {})
    of = Status(
        "eng-master", "me/eng", "master", channel=True, image=image, commits=2, days=1, limit=3
    )
    held = replace(of, held="rolled back from sha256:1: it crashes")
    assert (of.state, held.state, replace(held, days=4).state) == ("behind", "held", "stale")
    overview = nightly.overview_of_statuses([held])
    assert overview.rows[0][2] == "held"
    assert overview.notes == ("eng-master: held: rolled back from sha256:1: it crashes",)


def test_a_server_that_does_not_answer_is_one_cause_for_all_its_repositories() -> None:
    def status(name: str) -> Status:
        problem = (
            f"cannot fetch the refs of https://github.com/me/{name}.git: no server has that name\n"
            f"fatal: unable to access 'https://github.com/me/{name}.git/': Could not resolve host: "
            "github.com\ncheck the network"
        )
        return Status(name, "me/x", "1", channel=False, problem=problem, unanswered=True)

    found = [status(name) for name in "abcdef"]
    (note,) = nightly.overview_of_statuses(found).notes
    cause = "cannot fetch the refs of https://github.com: no server has that name"
    assert note.startswith(f"a, b, c and 3 others: {cause}")
    with pytest.raises(FetchError) as caught:
        require_fresh(found)
    assert caught.value.why.count("\n") == 0
    assert caught.value.why.startswith(f"a, b, c and 3 others: {cause}")
