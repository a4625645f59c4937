"""What is in the way of an engine's start after it was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.measure.setup import may_install, remove_stale_pid


@pytest.fixture
def pid_file(tmp_path: Path) -> Path:
    return tmp_path / "docker.pid"


def own_name() -> str:
    return Path("/proc/self/comm").read_text().strip()


def test_the_pid_file_of_a_living_process_stays(pid_file: Path) -> None:
    pid_file.write_text(f"{os.getpid()}\n")
    remove_stale_pid(own_name(), pid_file)
    assert pid_file.exists()


def test_a_link_is_forgotten_and_its_target_stays(pid_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text(f"{os.getpid()}")
    pid_file.symlink_to(target)
    remove_stale_pid(own_name(), pid_file)
    assert not pid_file.is_symlink()
    assert target.exists()


def test_the_number_of_another_program_is_forgotten(pid_file: Path) -> None:
    pid_file.write_text(str(os.getpid()))
    remove_stale_pid("dockerd", pid_file)
    assert not pid_file.exists()


def test_a_zombie_is_dead(pid_file: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    pid_file.write_text(str(process.pid))
    name = Path(f"/proc/{process.pid}/comm").read_text().strip()
    remove_stale_pid(name, pid_file)
    assert not pid_file.exists()
    process.wait()


@pytest.mark.parametrize("content", ["", "no number", "4194305"])
def test_a_pid_file_of_nobody_is_forgotten(pid_file: Path, content: str) -> None:
    pid_file.write_text(content)
    remove_stale_pid("dockerd", pid_file)
    assert not pid_file.exists()
    remove_stale_pid("dockerd", pid_file)


@pytest.mark.skipif(may_install() is None, reason="nothing is installed on this machine anyway")
def test_the_packages_of_docker_itself_are_not_replaced(tmp_path: Path) -> None:
    for name, text in (
        ("docker", "exit 1"),  # it knows no buildx
        ("dpkg-query", 'echo "docker-ce-cli: $2"'),
        ("apt-get", f'echo "$@" >>{tmp_path}/installed'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "builder.measure.setup"],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert "`apt-get install docker-buildx-plugin`" in done.stderr
    assert not (tmp_path / "installed").exists()
