"""What bash completes, with the function that `--show-completion` prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.environment import REPOSITORY

ASK = """
source <(builder --show-completion)
COMP_WORDS=(builder "$@")
COMP_CWORD=$#
_builder_completion builder
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(*words: str, catalog: Path = REPOSITORY) -> list[str]:
    """What bash offers for the last word of a command line."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "BUILDER_CATALOG": str(catalog), "HOME": "/nonexistent"}
    done = subprocess.run(
        ["/bin/bash", "-c", ASK, "bash", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("build", "beellama-0.1."), ["beellama-0.1.1", "beellama-0.1.2"]),
        (
            ("run", "gemma-4-e2b"),
            ["gemma-4-e2b", "gemma-4-e2b:mtp", "gemma-4-e2b-mtp@5090-laptop"],
        ),
        (("show", "hello-sm120"), ["hello-sm120-0.1.0"]),
        (("choose", "--card", "5090"), ["5090", "5090-laptop"]),
        (("tag", "promote", "hello-sm120-0.1.0", "0"), ["0.1.0"]),
        (("tag", "promote", "nosuch", ""), []),
        (("rec",), ["recipe", "receipts"]),
    ],
)
def test_names_are_completed(words: tuple[str, ...], offered: list[str]) -> None:
    assert completed(*words) == offered


def test_a_catalog_that_is_none_completes_nothing(tmp_path: Path) -> None:
    assert completed("build", "h", catalog=tmp_path) == []
