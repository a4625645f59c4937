"""The device code of an image: libraries of this machine's record, or sums of the repository."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from builder.build import record, reports
from builder.build.record import Record
from builder.build.reports import ImageCode, code_of
from builder.checks.verdict import Check
from builder.image.code_paths import CodePaths, sums
from support.bills import CREATED, of_catalog, record_of

RECIPE = "beellama-0.1.1"
OWN = (CodePaths("/opt/a.so", native=21_000_000, card="12.0"), CodePaths("/opt/b.so", dead=7))
OTHERS = (CodePaths("/opt/c.so", native=3_000_000, card="12.0"),)


def checked(code: tuple[CodePaths, ...]) -> Record:
    made = record_of(of_catalog(RECIPE))
    checks = (Check.of("image", "its layers", "can be read", "yes", True),)
    return made.model_copy(update={"verdict": replace(made.verdict, checks=checks, code=code)})


def test_the_record_of_this_machine_comes_before_the_sums_of_the_repository(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    assert code_of(tmp_path, RECIPE, "linux/amd64", state) is None
    kept = checked(OTHERS)
    reports.write_trials(tmp_path, kept)
    file = f"trials/{RECIPE}.json"
    theirs = ImageCode(kept.key, CREATED, file, sums(OTHERS))
    assert code_of(tmp_path, RECIPE, "linux/amd64", state) == theirs
    record.write(state, checked(()))  # as records of before have none
    assert code_of(tmp_path, RECIPE, "linux/amd64", state) == theirs
    record.write(state, checked(OWN))
    ours = ImageCode(kept.key, CREATED, "the record of this machine", sums(OWN), OWN)
    assert code_of(tmp_path, RECIPE, "linux/amd64", state) == ours


def test_an_image_for_another_platform_has_other_code(tmp_path: Path) -> None:
    state = tmp_path / "state"
    record.write(state, checked(OWN))
    reports.write_trials(tmp_path, checked(OTHERS))
    assert code_of(tmp_path, RECIPE, "linux/arm64", state) is None
    arm64 = {"platform": "linux/arm64", "key": "a" * 64}
    reports.write_trials(tmp_path, checked(OTHERS).model_copy(update=arm64))
    found = code_of(tmp_path, RECIPE, "linux/arm64", state)
    assert found is not None
    assert found.sums == sums(OTHERS)


def test_a_file_without_code_is_as_good_as_none(tmp_path: Path) -> None:
    reports.write_trials(tmp_path, checked(()))
    assert code_of(tmp_path, RECIPE, "linux/amd64", tmp_path / "state") is None
