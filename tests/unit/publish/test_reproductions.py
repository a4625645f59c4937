"""A statement counts if a trusted key signed it; real keys, made by cosign."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from builder.core.settings import Settings
from builder.publish.verdicts import REPRODUCTION, REPRODUCTION_TEXT, Reproduced, reproduced
from support.reproductions import statement

DIGEST = "sha256:" + "a" * 64


def entry(day: int, key: Path | None, digest: str = DIGEST) -> dict[str, Any]:
    """The descriptor of an attached statement."""
    return {"artifactType": REPRODUCTION, "annotations": statement(digest, day, key)}


def test_the_newest_statement_of_a_trusted_key_counts(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    subprocess.run(["cosign", "generate-key-pair"], cwd=folder, check=True, capture_output=True)
    public = str(key.with_name("cosign.pub"))
    settings = Settings(cache_dir=tmp_path / "cache", trusted_keys=(public,), cosign_key="")
    forged = entry(8, key)
    forged["annotations"][REPRODUCTION_TEXT] = forged["annotations"][REPRODUCTION_TEXT].replace(
        "-08T", "-09T"
    )
    entries = [
        entry(1, key),
        entry(2, key),
        entry(3, folder / "cosign.key"),
        entry(4, None),
        entry(5, key, digest="sha256:" + "b" * 64),
        forged,
        {"artifactType": REPRODUCTION, "annotations": {REPRODUCTION_TEXT: "{}"}},
        {"artifactType": "other", "annotations": entry(7, key)["annotations"]},
    ]
    second = Reproduced("2026-11-02T03:00:00+00:00", "x86_64", key=public)
    assert reproduced(entries, DIGEST, settings) == second
    newest = Reproduced("2026-11-09T03:00:00+00:00", "x86_64")
    assert reproduced(entries, DIGEST, settings.model_copy(update={"trusted_keys": ()})) == newest
    own = settings.model_copy(update={"trusted_keys": (), "cosign_key": str(folder / "cosign.key")})
    third = Reproduced("2026-11-03T03:00:00+00:00", "x86_64", key=str(folder / "cosign.key"))
    assert reproduced(entries, DIGEST, own) == third
    assert reproduced(entries, "sha256:" + "c" * 64, settings) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    without = reproduced(entries, DIGEST, settings)
    assert without is not None
    assert (without.key, without.problem) == ("", "there is no cosign on this machine")
