"""The script `farm`: its environment, and how it names commands."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.environment import REPOSITORY


def test_commands_are_named_as_the_user_started_builder(tmp_path: Path) -> None:
    """By the farm script itself, with an environment that is set up already."""
    script = tmp_path / "farm"
    shutil.copy(REPOSITORY / "farm", script)
    lock = tmp_path / "requirements.lock"
    lock.touch()
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "builder").symlink_to(Path(sys.executable).parent / "builder")
    stamp = f"{hashlib.sha256(lock.read_bytes()).hexdigest()} {lock.name} {tmp_path}\n"
    (tmp_path / ".venv" / ".farm-stamp").write_text(stamp)

    def farm(*arguments: str) -> str:
        done = subprocess.run(
            ["./farm", *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        return done.stdout + done.stderr

    assert "-> `./farm list` shows" in farm("recipe", "explain", "nope", f"--catalog={REPOSITORY}")
    assert "Usage: ./farm recipe explain" in farm("recipe", "explain", "--help")
    assert "Try './farm -h'" in farm("explian")
    assert "builder push" not in farm("tag", "promote", "--help")
    assert "./farm push" in farm("tag", "promote", "--help")
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
