from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from simulator import SimulatorError, receiver
from simulator.receiver import Receiver, receiving


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory whose path is too long for a socket's address."""
    long = tmp_path / (100 * "x")
    long.mkdir()
    return long


@pytest.fixture
def received(folder: Path) -> Iterator[Receiver]:
    with receiving(folder, "report") as found:
        yield found


def connected(folder: Path) -> socket.socket:
    directory = os.open(folder, os.O_PATH)
    try:
        stream = socket.socket(socket.AF_UNIX)
        stream.connect(f"/proc/self/fd/{directory}/report")
    finally:
        os.close(directory)
    return stream


def send(folder: Path, *parts: bytes) -> None:
    """What a process sends before it closes the connection."""
    with connected(folder) as stream:
        for part in parts:
            stream.sendall(part)


def test_the_last_message_of_each_process_is_kept(received: Receiver, folder: Path) -> None:
    assert received.messages() == {}
    large = 300_000 * b"x"  # more than a socket holds
    for message in (b"7 2\n{}", b"8 3\none", b"8 3\ntwo", b"9 300000\n" + large):
        send(folder, message)
    assert received.messages() == {7: b"{}", 8: b"two", 9: large}


def test_a_message_that_a_killed_process_did_not_finish_does_not_count(
    received: Receiver, folder: Path
) -> None:
    send(folder, b"8 3\none")
    for part in (b"", b"8", b"8 5\n", b"8 5\nfour"):
        send(folder, part)
    with connected(folder) as stream:
        stream.sendall(b"8 3\n")
        assert received.messages() == {8: b"one"}
        stream.sendall(b"two")
        assert received.messages() == {8: b"two"}


def test_connections_that_send_nothing_keep_others_waiting_only(
    received: Receiver, folder: Path
) -> None:
    idle = [connected(folder) for _ in range(receiver.CONNECTIONS)]
    late = connected(folder)
    late.sendall(b"1 2\n{}")
    assert received.messages() == {}
    idle.pop().close()
    assert received.messages() == {1: b"{}"}
    for each in (*idle, late):
        each.close()


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"x" * 20, "no message"),
        (b"-1 2\n" + b"x" * 20, "no message"),
        (b"1 99999999\n", "4 MiB"),
        (b"1" * 1000, "no message"),
    ],
    ids=["no number", "no process", "too long", "no end"],
)
def test_another_message_ends_it(received: Receiver, folder: Path, sent: bytes, why: str) -> None:
    send(folder, b"7 2\n{}")
    send(folder, sent)
    for _ in range(2):
        with pytest.raises(SimulatorError, match=why):
            received.messages()
    with pytest.raises(ConnectionRefusedError):
        connected(folder)


def test_processes_and_bytes_are_bounded(received: Receiver, folder: Path) -> None:
    with suppress(ConnectionError):
        for process in range(receiver.PROCESSES + 1):
            send(folder, b"%d 1\nx" % process)
    with pytest.raises(SimulatorError, match="more than 256 processes"):
        received.messages()


def test_messages_that_are_not_finished_are_bounded(received: Receiver, folder: Path) -> None:
    streams = []
    with suppress(ConnectionError):
        for _ in range(6):
            streams.append(connected(folder))
            streams[-1].sendall(b"1 %d\n" % receiver.MESSAGE + (receiver.MESSAGE - 1) * b"x")
    with pytest.raises(SimulatorError, match="16 MiB in all"):
        received.messages()
    for each in streams:
        each.close()


def test_endless_messages_do_not_keep_the_caller(
    received: Receiver, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "DRAIN", 0.2)
    ending = threading.Event()

    def flood() -> None:
        while not ending.is_set():
            send(folder, b"1 2\n{}")

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        for _ in range(3):
            assert set(received.messages()) <= {1}
    finally:
        ending.set()
        thread.join()


def test_nothing_is_left_running_or_open(folder: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 -- descriptors
    threads = threading.active_count()
    with receiving(folder, "report") as found:
        left = connected(folder)
        found.messages()
    left.close()
    assert threading.active_count() == threads
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    shutil.rmtree(folder)
