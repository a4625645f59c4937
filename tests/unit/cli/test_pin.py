"""`pin outdated` and `pin mirror` on real repositories and package indexes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.commands import Builder
from support.debian_archive import served
from support.farms import Farm, write_installed
from support.indexes import Index
from support.overlaid import write_catalog
from support.upstreams import numbered


def test_outdated_counts_commits_and_days(farm: Farm) -> None:
    farm.write()
    (same,) = farm.json("pin", "outdated")
    assert (same["ahead"], same["behind"]) == (0, False)
    assert farm.run("pin", "outdated") == ""
    assert "1 of 1 recipe up to date" in farm.said
    farm.upstream.commit("two", **{"b.c": "bb\n"})
    farm.upstream.commit("three", **{"b.c": "bbb\n"})
    farm.upstream.git("tag", "v0.2.0")
    (lag,) = farm.json("pin", "outdated")
    assert (lag["ahead"], lag["since"], lag["rewritten"]) == (2, "2023-11-14", False)
    assert lag["behind"]
    assert f"\t2 commits, {lag['days']} d\t2023-11-14" in farm.run("pin", "outdated")
    # The history is rewritten: the pin is nobody's ancestor any more.
    farm.upstream.git("checkout", "--quiet", "--orphan", "fresh")
    farm.upstream.commit("all anew", **{"b.c": "new\n"})
    farm.upstream.git("tag", "v0.3.0")
    (lag,) = farm.json("pin", "outdated")
    assert lag["rewritten"]


def test_outdated_has_the_newest_recipe_of_an_engine_and_its_patches_upstream(farm: Farm) -> None:
    patches = farm.pull(6, **{"a.c": numbered(40, line_20="twenty")}) + farm.pull(7, **{"b.c": "7"})
    farm.write()
    newer = farm.upstream.commit("two", **{"c.c": "c\n"})
    farm.upstream.git("tag", "v0.2.0")
    farm.write(patches, version="0.2.0", ref="v0.2.0", commit=newer)
    channel = farm.write(version="nightly", commit=newer)
    text = channel.read_text().replace('tag = "v*"', 'tag = "v*"\nchannel = "stays"')
    channel.write_text(text)
    farm.upstream.commit("6", **{"a.c": numbered(40, line_20="twenty"), "b.c": "other\n"})
    farm.upstream.git("tag", "v0.3.0")
    (row,) = farm.json("pin", "outdated")
    assert (row["recipe"], row["engine"], row["channel"]) == ("eng-0.2.0", "eng", "")
    assert row["pinned"] == f"v0.2.0 {newer[:7]}"
    assert row["older"] == ["eng-0.1.0", "eng-nightly"]
    states = {each["patch"]: (each["target"], each["state"]) for each in row["patches"]}
    assert states == {"pull 6": ("v0.3.0", "upstream"), "pull 7": ("v0.3.0", "conflicts")}
    assert "\tpull 6: upstream, pull 7: conflicts" in farm.run("pin", "outdated")
    assert "not in the table, because the engine has a newer recipe: eng-0.1.0" in farm.said
    (row,) = farm.json("pin", "outdated", "eng-0.1.0")
    assert (row["recipe"], row["patches"], row["older"]) == ("eng-0.1.0", [], [])
    assert row["ahead"] == 2


def test_a_pin_after_the_newest_tag_is_not_behind(farm: Farm) -> None:
    farm.write(commit=farm.upstream.commit("two", **{"b.c": "bb\n"}))
    assert farm.run("pin", "outdated") == ""
    assert "1 of 1 recipe up to date" in farm.said
    text = farm.write(version="branch").read_text().replace('tag = "v*"', 'branch = "main"')
    (farm.recipes / "eng-branch.toml").write_text(text.replace(farm.pin, farm.upstream.head()))
    farm.upstream.git("reset", "--quiet", "--hard", farm.pin)
    out = farm.run("pin", "outdated", "eng-branch")
    assert "0 commits, 0 d, the pin is not in its history" in out


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
    out = farm.run("pin", "outdated")
    assert f"eng-1.0\t1.0\t1.10\t2 releases, {lag['days']} d\t2026-01-02" in out
    assert farm.json("pin", "outdated", "--offline") == []
    farm.run("pin", "outdated", "--offline")
    assert "1 recipe without an upstream to compare with" in farm.said


def test_outdated_compares_the_package_that_a_base_installs_by_its_lock(
    farm: Farm, index: Index
) -> None:
    write_installed(farm, index, "1.1")
    (row,) = farm.json("pin", "outdated", "eng-1.1-wheel")
    assert (row["pinned"], row["target"]["name"]) == ("1.1", "1.10")
    assert (row["ahead"], row["since"], row["behind"]) == (1, "2026-01-03", True)
    # It counts beside the engine's other recipe, which pins an older release of PyPI.
    (row,) = farm.json("pin", "outdated")
    assert (row["recipe"], row["older"]) == ("eng-1.1-wheel", ["eng-1.0"])
    assert f"eng-1.1-wheel\t1.1\t1.10\t1 release, {row['days']} d\t2026-01-03" in farm.run(
        "pin", "outdated"
    )
    write_installed(farm, index, "1.10")
    assert farm.run("pin", "outdated") == ""
    assert "engine has a newer recipe: eng-1.0, eng-1.1-wheel" in farm.said
    assert farm.json("pin", "outdated", "--offline") == []


def test_outdated_needs_a_lock_with_the_package(farm: Farm, index: Index) -> None:
    base = write_installed(farm, index, "1.1")
    lock = base.parent / "locks" / "eng-1.1.toml"
    lock.write_text(lock.read_text().replace('"vLLM"', '"vllm-other"'))
    assert farm.run("pin", "outdated", "eng-1.1-wheel") == ""
    assert "1 recipe without an upstream to compare with" in farm.said
    lock.unlink()
    farm.run("pin", "outdated", "eng-1.1-wheel", status=3)
    assert f"cannot read {lock}" in farm.said


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
