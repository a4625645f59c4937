"""What one build asks of the engine, counted on the real client."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from support.commands import Builder

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("variant")]

WRAPPER = """\
#!/bin/sh
printf '%s\\n' "$*" >> {calls}
exec {docker} "$@"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with every command line of docker, one a line; the real client runs each."""
    docker = shutil.which("docker")
    assert docker is not None
    folder, file = tmp_path / "wrapped", tmp_path / "calls"
    folder.mkdir()
    wrapper = folder / "docker"
    wrapper.write_text(WRAPPER.format(calls=file, docker=docker))
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return file


def properties_asked(calls: Path) -> list[str]:
    """The calls that ask the engine for its properties, or its version."""
    asked = {"info", "version"}
    lines = calls.read_text().splitlines()
    return [line for line in lines if asked & set(line.removeprefix("system ").split()[:1])]


def test_a_build_asks_the_engine_once_for_its_properties(
    builder: Builder, one_file: Path, calls: Path
) -> None:
    first = builder("build", "variant", "--catalog", one_file, "--json")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["built"]
    assert len(properties_asked(calls)) == 1, calls.read_text()
    assert sum("buildx build" in line for line in calls.read_text().splitlines()) == 1

    calls.unlink()
    again = builder("build", "variant", "--catalog", one_file, "--json")
    assert not json.loads(again.stdout)["built"]
    assert len(properties_asked(calls)) == 1, calls.read_text()
    assert "buildx build" not in calls.read_text()
