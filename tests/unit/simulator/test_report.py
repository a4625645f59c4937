from __future__ import annotations

import json
from time import process_time
from typing import Any

import pytest

from simulator import SimulatorError, report

STACK = ["/opt/engine/lib/libllama.so+0x10 _ZN11llama_model12load_tensorsEv"]
ONE: dict[str, Any] = {
    "version": 1,
    "pid": 1,
    "command": ["server"],
    "libraries": ["/simulator/lib/libcudart.so.13"],
    "cards": [{"name": "Card", "memory": 1000, "context": 100, "used": 300, "peak": 400}],
    "stacks": [STACK],
    "allocations": [
        {
            "stack": 0,
            "card": 0,
            "function": "cudaMalloc",
            "count": 2,
            "live": 200,
            "at_peak": 300,
            "largest": 200,
        }
    ],
    "failed": [{"stack": 0, "card": 0, "function": "cudaMalloc", "requested": 900, "free": 600}],
    "launches": [
        {
            "kernel": "_Z5scalePf",
            "file": "/opt/engine/lib/libggml-cuda.so",
            "code": "sm_120a",
            "card": 0,
            "count": 3,
            "grid": [1, 1, 1],
            "block": [128, 1, 1],
            "shared": 0,
        }
    ],
    "outputs": [{"launch": 0, "checksum": (1 << 64) - 1}],
    "violations": [],
    "unsupported": [{"function": "cudaFoo", "count": 1, "stack": 0}],
    "unknown_code": [],
    "called": {"cudaMalloc": 3},
    "implemented": ["cudaMalloc"],
    "copies": {"to_device": {"count": 1, "bytes": 8, "kept": 8}},
}


def sent(*reports: dict[str, Any]) -> dict[int, bytes]:
    """Messages of processes, by their ids."""
    return {number: json.dumps(found).encode() for number, found in enumerate(reports)}


def test_the_processes_of_a_container_are_one_report() -> None:
    other = {**ONE, "pid": 7, "stacks": [["/opt/engine/lib/libggml-cuda.so+0x20"]]}
    found = report.read(sent(ONE, other))
    assert found is not None
    assert [(card.name, card.used, card.peak) for card in found.cards] == [("Card", 600, 800)]
    places = [found.stacks[each.stack][0] for each in found.allocations]
    assert places == [STACK[0], "/opt/engine/lib/libggml-cuda.so+0x20"]
    assert [each.stack for each in (*found.failed, *found.unsupported)] == [0, 1, 0, 1]
    assert (found.live, found.peak, found.launched) == (400, 800, 6)
    assert found.kernels == {"_Z5scalePf"}
    assert [each.launch for each in found.outputs] == [0, 1]
    assert found.called == {"cudaMalloc": 6}
    assert found.copies.to_device == report.Copies(count=2, bytes=16, kept=16)
    assert found.implemented == ("cudaMalloc",)


def process(began: int, ended: int, peak: int) -> dict[str, Any]:
    [card], [allocation] = ONE["cards"], ONE["allocations"]
    return {
        **ONE,
        "began": began,
        "ended": ended,
        "cards": [{**card, "used": peak, "peak": peak}],
        "allocations": [{**allocation, "at_peak": peak - 100}],
    }


def test_peaks_are_added_of_processes_that_ran_at_one_time() -> None:
    found = report.read(
        sent(
            process(began=10, ended=20, peak=700),
            process(began=30, ended=60, peak=400),
            process(began=40, ended=0, peak=500),  # killed, or still running
            process(began=60, ended=70, peak=300),  # the second has ended
        )
    )
    assert found is not None
    assert (found.peak, found.processes) == (900, 2)
    assert (found.cards[0].context, found.cards[0].used) == (200, 1900)
    assert sum(each.at_peak for each in found.allocations) == 300 + 400


def test_a_process_that_only_asks_for_the_card_takes_no_memory() -> None:
    asking = process(began=10, ended=0, peak=100)
    asking["cards"] = [{**ONE["cards"][0], "used": 0, "peak": 0}]
    found = report.read(sent(asking, process(20, 30, 400)))
    assert found is not None
    assert (found.peak, found.cards[0].context, found.processes) == (400, 100, 1)


def test_a_process_that_calls_nothing_has_no_report() -> None:
    assert report.read({}) is None
    assert report.read(sent({**ONE, "called": {}})) is None


def changed(part: str, **values: Any) -> dict[str, Any]:
    """The report with other values in the first of its ``part``."""
    return {**ONE, part: [{**ONE[part][0], **values}]}


SECRET = "root:x:0:0"
FALSE: dict[str, Any] = {
    "a card that is not there": changed("allocations", card=9),
    "a card of a launch that is not there": changed("launches", card=1),
    "an output of a launch that is not there": changed("outputs", launch=1),
    "a stack that is not there": changed("failed", stack=1),
    "a negative card": changed("allocations", card=-1),
    "a negative size": changed("cards", peak=-1),
    "a size of more than 64 bits": changed("cards", memory=1 << 64),
    "a fraction": changed("cards", memory=0.5),
    "not a number": changed("cards", memory=float("nan")),
    "a text for a number": changed("failed", free=SECRET),
    "a number for a text": changed("failed", function=[SECRET]),
    "too many cards": {**ONE, "cards": 65 * ONE["cards"]},
    "too many stacks": {**ONE, "stacks": (report.MOST + 1) * [[]]},
    "too deep a stack": {**ONE, "stacks": [65 * [SECRET]]},
    "a function that is called so often": {**ONE, "called": {SECRET: SECRET}},
    "too many functions": {**ONE, "called": {str(each): 1 for each in range(report.MOST + 1)}},
    "another version": {**ONE, "version": SECRET},
}


@pytest.mark.parametrize("name", FALSE)
def test_a_false_report_is_refused_and_not_shown(name: str) -> None:
    with pytest.raises(SimulatorError) as raised:
        report.read(sent(ONE, FALSE[name]))
    assert "process 1 of the container sent no report" in str(raised.value)
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None  # which would show what was sent
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"\0", b"[]", b"9", SECRET.encode(), b"\xff\xfe", b'{"version": 1e400}'),
        b'{"version": 1, "cards": [{"name": "", "memory": 1e400}]}',
        b'{"version": 1, "command": ["\\ud800"]}',
        b'{"version": ' + 100_000 * b"[" + 100_000 * b"]" + b"}",
        b'{"version": 1, "stacks": [' + 1_000_000 * b"[1]," + b"[]]}",
        b'{"version": 1, "pid": ' + 100_000 * b"9" + b', "cards": 1}',
    ],
)
def test_what_is_no_report_is_refused_and_not_shown(text: bytes) -> None:
    with pytest.raises(SimulatorError) as raised:
        report.read({9: text})
    assert "process 9 of the container sent no report" in str(raised.value)
    assert SECRET not in str(raised.value)
    assert len(str(raised.value)) < 300


def test_texts_are_printable_and_short() -> None:
    text = "a\x1b[31m\x9b\u202eb\nFAILED: c\0" + 10_000 * "x"
    found = report.read(
        sent({**changed("launches", kernel=text), "called": {text: 1}, "stacks": [[text]]})
    )
    assert found is not None
    for each in (found.launches[0].kernel, *found.called, *found.stacks[0]):
        assert each.isprintable()
        assert each.startswith("a[31m\\u202eb FAILED: c")
        assert len(each) == report.LONGEST


def test_figures_of_many_processes_may_be_larger_than_any_of_one() -> None:
    most = (1 << 64) - 1
    copies = {"to_device": {"count": most, "bytes": most, "kept": most}}
    large = {**changed("cards", used=most, peak=most), "copies": copies, "called": {"f": most}}
    found = report.read(sent(large, large))
    assert found is not None
    assert found.copies.to_device.bytes == found.called["f"] == found.cards[0].used == 2 * most


def test_the_work_grows_with_what_was_sent_and_not_with_its_square() -> None:
    """The reports of a hostile image kept a machine at work for minutes, with 4 MB of them."""
    messages = sent(
        *(
            {"version": 1, "called": {f"{process}-{number}": 1 for number in range(1500)}}
            for process in range(250)
        )
    )
    started = process_time()
    found = report.read(messages)
    assert process_time() - started < 8  # seconds; it takes less than one
    assert found is not None
    assert len(found.called) == 250 * 1500
