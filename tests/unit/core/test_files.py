"""What a run keeps: records, work directories, locks; and that a killed one is in nobody's way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from builder.build import record
from builder.build.record import Record
from builder.checks.verdict import Check, Verdict
from builder.core.errors import BusyError, SpaceError, WorldError
from builder.core.files import (
    file_lock,
    named_lock,
    require_space,
    require_writable,
    workspace,
    write_json,
)

VERDICT = Verdict("sha256:1", (Check.of("runs", "x", "0", "0", True),), 10, 20)
RECORD = Record(
    recipe="x-1",
    key="k" * 64,
    contract="c",
    references=("x:1",),
    digest="sha256:1",
    verdict=VERDICT,
    created="2026",
    seconds={"plan": 1.0},
)


@contextmanager
def other(code: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs ``code``, which prints when it is ready and then waits."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        try:
            yield process
        finally:
            process.kill()


def holding(call: str) -> str:
    return (
        "from pathlib import Path\nfrom builder.core.files import named_lock, workspace\n"
        f"with {call} as value:\n    print('ready', flush=True)\n    input()\n"
    )


def test_a_record_comes_back_as_it_went(tmp_path: Path) -> None:
    record.write(tmp_path, RECORD)
    assert record.read(tmp_path, "x-1", "k" * 64) == RECORD
    assert [file.name for file in (tmp_path / "records" / "x-1").iterdir()] == [f"{'k' * 12}.json"]


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"recipe": "x-1"}'])
def test_a_damaged_record_is_no_record(tmp_path: Path, damage: str) -> None:
    record.write(tmp_path, RECORD).write_text(damage)
    assert record.read(tmp_path, "x-1", "k" * 64) is None


def test_a_record_of_another_key_is_no_record(tmp_path: Path) -> None:
    record.write(tmp_path, RECORD)
    assert record.read(tmp_path, "x-1", "k" * 12 + "j" * 52) is None


def test_a_verdict_without_checks_is_not_good() -> None:
    assert VERDICT.good
    assert not Verdict("sha256:1", (), 0, 0).good
    failed = Check.of("runs", "x", "0", "1", False)
    assert Verdict("sha256:1", (*VERDICT.checks, failed), 0, 0).failures == (failed,)


def test_a_killed_runs_directory_is_swept_and_a_living_ones_is_not(tmp_path: Path) -> None:
    code = holding(f"workspace(Path({str(tmp_path)!r}))")
    with other(code) as dead, other(code):
        assert len([path for path in (tmp_path / "work").iterdir() if path.is_dir()]) == 2
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        with workspace(tmp_path) as mine:
            there = [path for path in (tmp_path / "work").iterdir() if path.is_dir()]
            assert len(there) == 2
            assert mine in there
        assert not mine.exists()


def test_one_run_at_a_time_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    with other(holding(f"named_lock(Path({str(tmp_path)!r}), 'x-1')")) as process:
        with pytest.raises(BusyError, match=f"process {process.pid}"), named_lock(tmp_path, "x-1"):
            pass
        with named_lock(tmp_path, "y-1"):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        with named_lock(tmp_path, "x-1"):
            pass


@pytest.mark.parametrize("name", ["work/.lock", "locks/x-1.lock", "git/x/lock"])
@pytest.mark.parametrize("link", ["symbolic", "dangling"])
def test_a_lock_file_that_is_a_link_is_refused_and_its_target_stays(
    tmp_path: Path, name: str, link: str
) -> None:
    target, lock = tmp_path / "target", tmp_path / name
    if link != "dangling":
        target.write_text("of somebody else")
    lock.parent.mkdir(parents=True)
    lock.symlink_to(target)
    with pytest.raises(WorldError, match=f"{name} cannot be used\nit is a link"):
        take(tmp_path, name)
    assert not target.exists() if link == "dangling" else target.read_text() == "of somebody else"


def take(cache: Path, name: str) -> None:
    """Take the lock ``name`` below ``cache`` as builder does, and let it go."""
    if name.startswith("git/"):
        with file_lock(cache / name):
            return
    with workspace(cache) if name.startswith("work/") else named_lock(cache, "x-1"):
        return


def test_a_lock_that_is_a_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "locks" / "x-1.lock").mkdir(parents=True)
    needed = pytest.raises(WorldError, match=r"x-1\.lock cannot be used")
    with needed as caught, named_lock(tmp_path, "x-1"):
        pass
    assert "rm" in caught.value.hint


def test_a_run_that_waits_is_told_for_whom_and_goes_on(tmp_path: Path) -> None:
    heard: list[str] = []
    with other(holding(f"named_lock(Path({str(tmp_path)!r}), 'x-1')")) as process:

        def wait(message: str) -> None:
            heard.append(message)
            process.kill()

        with named_lock(tmp_path, "x-1", wait):
            assert heard == [f"waiting for process {process.pid}, which is at work on x-1"]
            assert (tmp_path / "locks" / "x-1.lock").read_text() == str(os.getpid())


@pytest.mark.parametrize(
    ("name", "does"),
    [("tags", "gives or deletes tags"), ("nightly", "builds the nightly images")],
)
def test_what_the_other_run_does_is_told(tmp_path: Path, name: str, does: str) -> None:
    with (
        other(holding(f"named_lock(Path({str(tmp_path)!r}), {name!r})")),
        pytest.raises(BusyError, match=f"another run on this machine {does}"),
        named_lock(tmp_path, name),
    ):
        pass


def test_space_is_asked_of_the_disk_that_a_new_directory_would_be_on(tmp_path: Path) -> None:
    require_space(tmp_path / "not" / "yet", 0.001, "a test")
    with pytest.raises(SpaceError, match=r"a test needs 1000000\.0 GiB"):
        require_space(tmp_path / "not" / "yet", 1e6, "a test")


FILLING = {
    "an atomic write": "write_json(disk / 'x.json', 'x' * 4_000_000)",
    "a work directory": "with workspace(disk) as work: (work / 'x').write_bytes(bytes(4_000_000))",
    "git": "git.GitRepository(disk / 'g').create(); "
    "git.run(disk / 'g', 'hash-object', '-w', '--stdin', stdin=os.urandom(4_000_000))",
    "any other file": "(disk / 'x').write_bytes(bytes(4_000_000))",
}


@pytest.mark.parametrize("code", FILLING.values(), ids=FILLING)
def test_the_disk_that_filled_up_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setenv("BUILDER_CACHE_DIR", str(disk / "cache"))
    program = (
        "import os\nfrom pathlib import Path\nfrom builder.build import log as crashes\n"
        "from builder.sources import git\n"
        "from builder.core.files import write_json, workspace\n"
        f"disk = Path({str(disk)!r})\ntry:\n    {code}\n"
        "except Exception as error:\n    print(repr(crashes.as_builder_error(error)))\n"
    )
    said = with_a_disk("size=2m", disk, program)
    assert f"SpaceError('the disk mounted at {disk} is full: 0.0 of its 0.0 GiB" in said
    assert "then run the same command again" in said


def with_a_disk(options: str, place: Path, program: str) -> str:
    """What a Python program prints that alone sees a small disk mounted at ``place``."""
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    mount = f'mount -t tmpfs -o {options} tmpfs "$0" && exec "$@"'
    command = ["unshare", *as_root, "--mount", "sh", "-euc", mount, place, sys.executable, "-c"]
    done = subprocess.run([*command, program], capture_output=True, text=True, check=False, cwd="/")
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", ["cache_dir", "state_dir"])
def test_a_read_only_directory_is_told_before_anything_is_done(tmp_path: Path, name: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    program = (
        "from pathlib import Path\nfrom builder.core.settings import Settings\n"
        f"Settings({name}=Path({str(disk)!r})).require_directories()\n"
    )
    said = with_a_disk("ro", disk, program)
    assert f"WorldError: cannot write to the directory {disk}" in said
    assert f"set BUILDER_{name.upper()} to a directory that you can write to" in said


def test_the_trial_of_a_directory_leaves_nothing(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    require_writable(place / "a" / "b")
    require_writable(place)
    assert list(place.iterdir()) == []
    link = place / "link"
    link.symlink_to("nowhere/at/all")
    for folder in (link, link / "below"):
        with pytest.raises(WorldError, match=f"cannot write to the directory {folder}"):
            require_writable(folder)
    assert list(place.iterdir()) == [link]


def test_a_write_that_fails_leaves_the_record_that_was_there(tmp_path: Path) -> None:
    record.write(tmp_path, RECORD)
    path = record.path_of(tmp_path, RECORD.recipe, RECORD.key)
    with pytest.raises(TypeError):
        write_json(path, RECORD.as_json() | {"base": {"x": object()}})
    assert record.read(tmp_path, "x-1", "k" * 64) == RECORD
    assert len(list((tmp_path / "records" / "x-1").iterdir())) == 1


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"\x00" * 100, b'{"verdict": null}'])
def test_foreign_bytes_are_no_record(tmp_path: Path, damage: bytes) -> None:
    record.write(tmp_path, RECORD).write_bytes(damage)
    assert record.read(tmp_path, "x-1", "k" * 64) is None


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.99])
def test_a_truncated_record_is_no_record(tmp_path: Path, fraction: float) -> None:
    path = record.write(tmp_path, RECORD)
    text = path.read_text()
    path.write_text(text[: int((len(text) - 2) * fraction)])
    assert record.read(tmp_path, "x-1", "k" * 64) is None


def test_a_run_does_not_sweep_itself(tmp_path: Path) -> None:
    with workspace(tmp_path) as outer:
        (outer / "file").touch()
        with workspace(tmp_path) as inner:
            assert inner != outer
        assert (outer / "file").exists()
    assert [path.name for path in (tmp_path / "work").iterdir()] == [".lock"]


def test_nobody_sweeps_between_a_directory_and_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from pathlib import Path\nfrom builder.core.files import workspace\n"
        f"with workspace(Path({str(tmp_path)!r})):\n    pass\n"
    )
    others: list[subprocess.Popen[bytes]] = []
    make = tempfile.mkdtemp

    def made_while_another_run_begins(**options: Path) -> str:
        folder = make(**options)
        others.append(subprocess.Popen([sys.executable, "-c", code]))
        with suppress(subprocess.TimeoutExpired):  # it waits, as it should
            others[0].wait(2)
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", made_while_another_run_begins)
    with workspace(tmp_path) as mine:
        assert others[0].wait(60) == 0
        assert mine.is_dir()


def test_a_cache_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for cache in (file, file / "below"):
        error = pytest.raises(WorldError, match="cannot be used")
        with error as caught, named_lock(cache, "x"):
            pass
        assert "BUILDER_CACHE_DIR" in caught.value.hint
