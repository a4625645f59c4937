"""The script `farm`: its environment, and how it names commands."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.environment import REPOSITORY

# A Python whose pip prints as pip 26 does.
PIP = """\
#!/bin/sh
case "$*" in
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp /bin/true "$3/bin/builder" ;;
*--require-hashes*)
    echo "WARNING: Location 'file:///nowhere' is ignored" >&2
    echo "Collecting a==1"
    echo "  Downloading a-1-py3-none-any.whl (57.4 MB)"
    echo "  Using cached b-1-py3-none-any.whl (1000 kB)"
    echo "Processing /wheels/c-1-py3-none-any.whl (from -r requirements.lock (line 3))"
    ;;
esac
"""


def test_commands_are_named_as_the_user_started_builder(tmp_path: Path) -> None:
    """By the farm script itself, with an environment that is set up already."""
    script = tmp_path / "farm"
    shutil.copy(REPOSITORY / "farm", script)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("builder", "python"):
        (programs / name).symlink_to(Path(sys.executable).parent / name)
    for name in ("requirements.lock", "requirements-build.lock"):
        (lock := tmp_path / name).touch()
        stamp = f"{hashlib.sha256(lock.read_bytes()).hexdigest()} {lock.name} {tmp_path}\n"
        with (tmp_path / ".venv" / ".farm-stamp").open("a") as file:
            file.write(stamp)

    def farm(*arguments: str) -> str:
        done = subprocess.run(
            ["./farm", *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        return done.stdout + done.stderr

    assert "-> `./farm list` shows" in farm("recipe", "explain", "nope", f"--catalog={REPOSITORY}")
    assert "Usage: ./farm recipe explain" in farm("recipe", "explain", "--help")
    assert farm("explian").startswith("./farm: no command is named explian")
    assert "builder choose" not in farm("export", "--help")
    assert "./farm choose" in farm("export", "--help")
    assert "./farm doctor" in farm("--help")
    # A shell knows ./farm as farm.
    assert "complete -o default -F _farm_completion farm" in farm("--show-completion", "bash")
    assert "_FARM_COMPLETE=complete_bash" in farm("--show-completion", "bash")


def test_a_shell_that_completes_waits_for_no_set_up(tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "farm", tmp_path)
    done = subprocess.run(
        [tmp_path / "farm"],
        capture_output=True,
        check=False,
        env=os.environ | {"_FARM_COMPLETE": "complete_bash"},
    )
    assert done.stdout == done.stderr == b""
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(
    ("command", "locks"),
    [
        ("", 1),
        ("--help", 1),
        ("choose --card 5090", 1),
        ("run a --dry-run", 1),
        ("help build", 1),
        ("version", 1),
        ("--catalog a list", 1),
        ("--catalog=a list", 1),
        ("--catalog list build a", 2),
        ("build --help", 1),
        ("run a", 2),
        ("paths a", 1),
        ("paths a --model m.gguf --card 5090", 2),
        ("build a", 2),
        ("ci matrix --json --tracked", 1),
        ("ci trials a", 2),
        ("test --version", 3),
    ],
)
def test_a_command_that_prints_installs_less(tmp_path: Path, command: str, locks: int) -> None:
    """The environment of a command that was installed, with programs that do nothing."""
    shutil.copy(REPOSITORY / "farm", tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "builder"):
        (programs / name).symlink_to("/bin/true")
    first, *others = ("requirements.lock", "requirements-build.lock", "requirements-dev.lock")
    for name in (first, *others):
        (tmp_path / name).write_text("a==1\n")
    digest = hashlib.sha256(b"a==1\n").hexdigest()
    (tmp_path / ".venv" / ".farm-stamp").write_text(f"{digest} {first} {tmp_path}\n")
    done = subprocess.run(
        [tmp_path / "farm", *command.split()], capture_output=True, text=True, check=True
    )
    installed = [name for name in others if f"installing {name}" in done.stderr]
    assert installed == others[: locks - 1]


def listed(folder: Path) -> subprocess.CompletedProcess[str]:
    """What ``farm list`` says in a folder with its script, where ``PIP`` is the Python."""
    (programs := folder / "programs").mkdir()
    (programs / "python3").write_text(PIP)
    (programs / "python3").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    return subprocess.run(
        [folder / "farm", "list"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PATH": path},
    )


@pytest.mark.parametrize("owner", [os.getuid(), 65534])
def test_an_environment_whose_python_cannot_run(tmp_path: Path, owner: int) -> None:
    """It is made anew, but for another user's."""
    if owner != os.getuid() and os.getuid() != 0:
        pytest.skip("only root can give a directory away")
    shutil.copy(REPOSITORY / "farm", tmp_path)
    (tmp_path / "requirements.lock").write_text("a==1\n")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to("/nowhere/python")
    (tmp_path / ".venv" / ".farm-stamp").touch()
    os.chown(tmp_path / ".venv", owner, -1)
    done = listed(tmp_path)
    own = owner == os.getuid()
    assert done.returncode == (0 if own else 4), done.stderr
    assert (f"creating {tmp_path}/.venv" if own else "was made by ") in done.stderr
    assert own != ("use a checkout of your own" in done.stderr)


def test_the_bytes_of_packages_are_added(tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "farm", tmp_path)
    (tmp_path / "requirements.lock").write_text("a==1\nb==1\nc==1\n")
    done = listed(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "farm:   3 of 3 packages, 58 MB" in done.stderr
    assert "WARNING" not in done.stderr


def test_an_environment_that_cannot_be_made_is_explained_by_pip(tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "farm", tmp_path)
    digest = "0" * 64
    (tmp_path / "requirements.lock").write_text(f"iniconfig==2.3.1 --hash=sha256:{digest}\n")
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    environment = os.environ | nowhere | {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    environment.pop("PIP_FIND_LINKS", None)
    done = subprocess.run(
        [tmp_path / "farm", "list"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 4
    assert "ERROR: No matching distribution found for iniconfig==2.3.1" in done.stderr
    assert "farm: installing requirements.lock: 1 packages" in done.stderr
    assert "farm: pip could not install the locked requirements" in done.stderr
    assert not (tmp_path / ".venv" / ".farm-stamp").exists()
