"""`pin outdated` and `pin mirror` on real repositories and package indexes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.commands import Builder
from support.debian_archive import served
from support.farms import Farm
from support.overlaid import write_catalog


def test_outdated_counts_commits_and_days(farm: Farm) -> None:
    farm.write()
    assert farm.json("pin", "outdated")[0]["ahead"] == 0
    assert farm.run("pin", "outdated") == ""
    assert "1 of 1 recipe up to date" in farm.said
    farm.upstream.commit("two", **{"b.c": "bb\n"})
    farm.upstream.commit("three", **{"b.c": "bbb\n"})
    farm.upstream.git("tag", "v0.2.0")
    (lag,) = farm.json("pin", "outdated")
    assert (lag["ahead"], lag["since"], lag["rewritten"]) == (2, "2023-11-14", False)
    assert "2 commits ahead" in farm.run("pin", "outdated")
    # The history is rewritten: the pin is nobody's ancestor any more.
    farm.upstream.git("checkout", "--quiet", "--orphan", "fresh")
    farm.upstream.commit("all anew", **{"b.c": "new\n"})
    farm.upstream.git("tag", "v0.3.0")
    (lag,) = farm.json("pin", "outdated")
    assert lag["rewritten"]


def test_a_tag_of_thousands_of_digits_is_a_number_as_any_other(farm: Farm) -> None:
    farm.write()
    new = farm.upstream.commit("two", **{"b.c": "bb\n"})
    refs = "".join(f"{new} refs/tags/v{'1' * digits}\n" for digits in (4500, 4499))
    (farm.upstream.folder / ".git" / "packed-refs").write_text(refs)
    (lag,) = farm.json("pin", "outdated")
    assert lag["ahead"] == 1
    assert lag["target"]["name"] == "v" + "1" * 4500


@pytest.mark.usefixtures("index")
def test_outdated_counts_releases_of_the_package_index(farm: Farm) -> None:
    (lag,) = farm.json("pin", "outdated")
    assert (lag["target"]["name"], lag["ahead"], lag["since"]) == ("1.10", 2, "2026-01-02")
    assert "eng-1.0\t1.10\t2 releases ahead\t2026-01-02" in farm.run("pin", "outdated")
    assert farm.json("pin", "outdated", "--offline") == []
    farm.run("pin", "outdated", "--offline")
    assert "1 recipe without an upstream to compare with" in farm.said


def test_the_base_that_compiles_the_entrypoint_is_mirrored_too(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_catalog(tmp_path, "", "127.0.0.1:9/nowhere:1")
    monkeypatch.setenv("BUILDER_CACHE_DIR", str(tmp_path / "cache"))
    with served(tmp_path / "debian") as archive:  # it has no package
        for name in ("MIRROR", "SNAPSHOT"):
            monkeypatch.setenv(f"BUILDER_DEBIAN_{name}", archive.mirror)
        done = builder("pin", "mirror", "--catalog", tmp_path)
    assert done.returncode == 5
    assert "debian-trixie-gcc: no server has the Debian package" in done.stderr
