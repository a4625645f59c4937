from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import pytest

from builder.core.errors import Interrupted
from builder.core.parallel import Beside, beside, ends_with_its_work, require_wanted


def test_work_is_done_beside_other_work() -> None:
    begun, done = threading.Event(), []
    with beside() as other:

        def work() -> None:
            assert begun.wait(30)
            done.append("work")

        other.begin(work)
        begun.set()
        other.wait()
    assert done == ["work"]


def test_an_error_is_left_to_whoever_needs_the_result(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with beside() as other:
        other.begin(lambda: 1 / 0)
        other.wait()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", [Interrupted, ValueError])
def test_after_an_error_work_is_interrupted_with_its_programs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: type[BaseException]
) -> None:
    file, started = tmp_path / "half", threading.Event()
    programs = []

    def work() -> None:
        file.write_text("")
        try:
            with subprocess.Popen(["sleep", "600"]) as process, ends_with_its_work(process):
                programs.append(process)
                started.set()
                process.wait()
        finally:
            file.unlink()

    def body() -> None:
        with beside() as other:
            other.begin(work)
            assert started.wait(30)
            raise kind

    with pytest.raises(kind):
        body()
    assert not Path(f"/proc/{programs[0].pid}").exists()
    assert not file.exists()
    assert capfd.readouterr() == ("", "")


def test_work_in_python_is_interrupted(tmp_path: Path) -> None:
    file, begun = tmp_path / "half", threading.Event()

    def work() -> None:
        file.write_text("")
        begun.set()
        try:
            while True:
                require_wanted()
                time.sleep(0.01)
        finally:
            file.unlink()

    with beside() as other:
        other.begin(work)
        assert begun.wait(30)
    assert not file.exists()


def test_a_program_that_starts_after_the_end_is_ended() -> None:
    begun, ended, statuses = threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        assert ended.wait(30)
        with subprocess.Popen(["sleep", "600"]) as process, ends_with_its_work(process):
            statuses.append(process.wait(30))

    def end(other: Beside) -> None:
        threading.Timer(0.2, ended.set).start()  # give_up marks the work first, then waits for it
        other.give_up()

    with beside() as other:
        other.begin(work)
        assert begun.wait(30)
        end(other)
    assert statuses == [-15]


def test_nothing_is_given_up_where_nothing_is_beside() -> None:
    require_wanted()
