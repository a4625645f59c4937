"""The memory of presets: this machine's record before the repository's file, and only of presets
that are still the ones that were tried."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.build import record, reports
from builder.build.record import Record
from builder.build.reports import KeptBuild, KeptTrials, Pinned
from builder.checks.verdict import Check, DeviceUse
from builder.cli.nightly import trials as command
from builder.core.errors import RecipeError, UntriedError
from builder.image.code_paths import CodePaths, CodeSums
from builder.presets import catalog as preset_files
from builder.presets.catalog import PresetEntry
from builder.presets.choose import tried
from builder.presets.schema import ContextUse, PresetUse
from builder.presets.shapes import own_contexts
from simulator.work import WorkPath
from support.bills import of_catalog, record_of
from support.environment import REPOSITORY
from support.kernel_summaries import summary_of
from support.preset_uses import use_of
from support.shipped import PRESETS, RECIPES

NAME = "qwen3.6-27b-dflash@5090-laptop"
RECIPE = "beellama-0.1.1"


def entry() -> PresetEntry:
    (found,) = (each for each in preset_files.load(RECIPES).valid() if each.name == NAME)
    return found


def use(peak: int, identity: str = "") -> PresetUse:
    found = use_of(
        peak,
        context=262144,
        own=1 << 20,
        identity=identity or entry().preset.identity,
        kinds={"weights": peak - (1 << 20)},
        smaller=ContextUse(8192, peak - 1, {"weights": peak - (1 << 20)}),
    )
    return replace(found, paths=(WorkPath("KV cache", "turbo3", 9),))


def known(root: Path, wanted: PresetEntry | None = None) -> PresetUse | None:
    """The trial that counts for the preset, with the records in ``root / "state"``."""
    wanted = wanted or entry()
    return tried(root, root / "state", [wanted])[0].get(wanted.name)


def of(found: PresetUse | None) -> Record:
    kept = record_of(of_catalog(RECIPE))
    presets = {NAME: found} if found else {}
    device = DeviceUse("a card", 9, 8, 1, {}, {"kernel": 3}, {}, {}, 0) if found else None
    checks = (Check.of("image", "its layers", "can be read", "yes", True),)
    return kept.model_copy(
        update={
            "commit": "e" * 40,
            "verdict": replace(kept.verdict, checks=checks, presets=presets, device=device),
        }
    )


def test_a_trial_of_the_repository_counts_on_every_machine(tmp_path: Path) -> None:
    assert known(tmp_path) is None
    written = reports.write_trials(tmp_path, of(use(7)))
    assert written == tmp_path / "trials" / f"{RECIPE}.json"
    assert known(tmp_path) == use(7)
    other = entry().preset.model_copy(update={"recipe": "another-1"})
    assert known(tmp_path, replace(entry(), parsed=other)) is None


def test_the_record_of_this_machine_counts_first_unless_the_preset_changed(tmp_path: Path) -> None:
    reports.write_trials(tmp_path, of(use(7)))
    record.write(tmp_path / "state", of(use(8)))
    assert known(tmp_path) == use(8)
    record.write(tmp_path / "state", of(use(8, "earlier")))
    assert known(tmp_path) == use(7)
    reports.write_trials(tmp_path, of(use(7, "earlier")))
    assert known(tmp_path) is None


def test_the_newest_verified_record_is_the_one_that_records_have(tmp_path: Path) -> None:
    """``choose`` reads records as plain data."""
    state = tmp_path / "state"
    for key, created, changes in (
        ("1", "2026-01-01T00:00:00+00:00", {}),
        ("2", "2026-03-01T00:00:00+00:00", {}),
        ("3", "2026-09-01T00:00:00+00:00", {"platform": "linux/arm64"}),
    ):
        each = {"key": key * 64, "created": created, **changes}
        record.write(state, of(use(int(key) << 30)).model_copy(update=each))
    good = of(use(4 << 30))
    wrong = Check.of("image", "its layers", "can be read", "no", False)
    failed = {"verdict": replace(good.verdict, checks=(wrong,)), "key": "4" * 64}
    record.write(state, good.model_copy(update=failed))
    newest = record.newest_good(state, RECIPE)
    assert newest is not None
    assert known(tmp_path) == newest.verdict.presets[NAME] == use(2 << 30)


def test_a_file_that_cannot_be_read_is_named_with_the_command_that_writes_it(
    tmp_path: Path,
) -> None:
    file = reports.write_trials(tmp_path, of(use(7)))
    for text in ("{", "[]", file.read_text().replace('"peak": 7', '"peak": "much"')):
        file.write_text(text)
        with pytest.raises(RecipeError) as caught:
            known(tmp_path)
        assert str(file) in caught.value.what
        assert f"builder ci trials {RECIPE}" in caught.value.hint


def test_the_command_writes_the_newest_verified_image_of_each_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BUILDER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("BUILDER_CATALOG", str(tmp_path))
    (tmp_path / "recipes").symlink_to(REPOSITORY / "recipes")
    with pytest.raises(UntriedError, match=f"no image of {RECIPE} was checked"):
        command([RECIPE])
    record.write(tmp_path / "state", of(None))
    command(None)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "trials").exists()
    command([RECIPE])  # a recipe that is named has a row, too, where no server ran
    assert capsys.readouterr().out.splitlines()[1].startswith(RECIPE)
    row = (tmp_path / "trials" / "README.md").read_text().split(f"| {RECIPE} | ")[1].splitlines()[0]
    assert row.endswith("|  |  |")
    record.write(tmp_path / "state", of(use(7)))
    command(None)
    assert capsys.readouterr().out.splitlines() == [
        "recipe\tfile",
        f"{RECIPE}\t{tmp_path / 'trials' / f'{RECIPE}.json'}",
    ]
    assert known(tmp_path) == use(7)
    page = (tmp_path / "trials" / "README.md").read_text()
    pinned = reports.pinned(RECIPES)[RECIPE].commit[:12]
    assert f"| {RECIPE} | {'e' * 12} (the recipe has {pinned}) | " in page
    # Another file is named, also where no image is found.
    (tmp_path / "trials" / "other-1.json").write_text("{}")
    with pytest.raises(RecipeError, match=r"other-1\.json cannot be read"):
        command(None)


@pytest.mark.parametrize(
    ("subject", "kept"),
    [
        ("coverage", "9 cases"),
        ("kernels on a simulated card that computes", "9 cases"),
        ("the server", ""),
    ],
)
def test_a_file_says_what_was_computed_or_why_not(tmp_path: Path, subject: str, kept: str) -> None:
    found = of(None)
    check = Check.of("numbers", subject, "anything", "9 cases", True)
    found = found.model_copy(update={"verdict": replace(found.verdict, checks=(check,))})
    reports.write_trials(tmp_path, found)
    written = reports.kept_of(tmp_path, RECIPE)
    assert written is not None
    assert written.coverage == kept


COLD = KeptBuild(seconds=90.0, objects=453, reused=41)
WARM = KeptBuild(seconds=30.0, objects=453, reused=450)


def kept_of(**changes: Any) -> KeptTrials:
    facts = {
        "recipe": RECIPE,
        "key": "k",
        "digest": "d",
        "commit": "c" * 40,
        "created": "2026-11-27T01:33:17+00:00",
    }
    counts = {"builds": (COLD,), "download_size": 5_000_000, "checks": 7, "kernels": 3}
    presets = {NAME: use(7 << 30)}
    return KeptTrials.model_validate(
        {**facts, **counts, "coverage": "9 cases", "presets": presets, **changes}
    )


def test_the_page_has_a_row_for_each_image_and_each_preset() -> None:
    presets = {NAME: entry().preset}
    filled = {NAME: replace(use(7 << 30), filled=262080)}
    image = kept_of(builds=(COLD, WARM), presets=filled)
    recipes = {RECIPE: Pinned("beellama", "c" * 40, 9)}
    page = reports.trials_page([image], recipes, presets, {}, own_contexts())
    builds = "1 min 30 s (41 of 453) | 30.0 s (450 of 453)"
    cells = f"2026-11-27 | {builds} | 5.0 MB | 7 |  | 3 |  | 9 cases |"
    assert f"| {RECIPE} | cccccccccccc | {cells}" in page
    row = next(line for line in page.splitlines() if line.startswith(f"| {NAME} "))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:3] == ["NVIDIA GeForce RTX 5090 Laptop GPU", "262144"]
    assert cells[3:6] == ["262144, the model's", "7168 MiB", "262080"]
    assert cells[7] == "7168 MiB with 8192"
    assert f"| {NAME} | KV cache | turbo3 |" in page
    # Another commit than the recipe's is named, and what nobody knows.
    odd = kept_of(builds=(), kernels=0, coverage="")
    page = reports.trials_page([odd], {RECIPE: Pinned("beellama", "d" * 40, 9)}, {}, {})
    assert (
        "| cccccccccccc (the recipe has dddddddddddd) | 2026-11-27 |  |  | 5.0 MB | 7 |  |  |  |  |"
        in page
    )
    assert "| unknown |" in page


def test_the_newest_cold_and_the_newest_warm_build_of_a_commit_are_kept(tmp_path: Path) -> None:
    def written(
        seconds: float, reused: int, commit: str = "e" * 40, objects: int = 10
    ) -> list[tuple[float, int]]:
        took = dict.fromkeys(of(None).seconds, seconds)
        changes = {"seconds": took, "objects": objects, "reused": reused, "commit": commit}
        reports.write_trials(tmp_path, of(None).model_copy(update=changes))
        kept = reports.kept_of(tmp_path, RECIPE)
        assert kept is not None
        return [(each.seconds, each.reused) for each in kept.builds]

    assert written(90, 1) == [(90, 1)]
    assert written(60, 5) == [(60, 5), (90, 1)]
    assert written(30, 10) == [(30, 10), (90, 1)]
    assert written(70, 4) == [(70, 4), (30, 10)]
    assert written(3, 0, objects=0) == [(70, 4), (30, 10)]  # BuildKit had the layers
    assert written(95, 0, "f" * 40) == [(95, 0)]  # another commit
    assert written(90, 0, "a" * 40, objects=0) == [(90, 0)]  # an engine without objects
    assert written(3, 0, "a" * 40, objects=0) == [(90, 0)]
    assert written(95, 0, "a" * 40, objects=0) == [(95, 0)]


def test_a_preset_without_a_trial_has_the_reason() -> None:
    presets = {NAME: entry().preset}
    row = f"| {NAME} | {RECIPE} | "
    assert row not in reports.trials_page([kept_of()], {}, presets, {NAME: "no card"})
    page = reports.trials_page([kept_of(presets={})], {}, presets, {NAME: "no card"})
    assert f"{row}no card |" in page
    found = reports.why_untried(
        RECIPES, {each.name: each.preset for each in preset_files.load(RECIPES).valid()}
    )
    assert NAME not in found
    assert "does not name a file of" in found["qwen3.6-27b-mtp@5090-laptop"]
    assert "extends another" in found["gemma-4-26b-a4b-awq@5090"]
    old = PRESETS.preset("qwen3.6-35b-a3b@3090")
    (why,) = reports.why_untried(RECIPES, {old.name: old.preset}).values()
    assert "no code for compute capability 8.6" in why


def test_spills_that_grew_are_named_with_the_commit_before() -> None:
    names = {"new": (9, (0, 40, 2000)), "old": (7, (8, 40, 0)), "older": (5, (900, 900, 900))}
    images = [kept_of(recipe=name, code=summary_of(*found)) for name, (_, found) in names.items()]
    recipes = {name: Pinned("an-engine", "c" * 40, build) for name, (build, _) in names.items()}
    page = reports.trials_page(images, recipes, {}, {})
    assert "| 2 kernels, 2,040 bytes |" in page
    grown = page.split("### Spills that grew")[1].split("###")[0]
    assert "| new | old | liba.so: 2 of 3 kernels spill 2,040 bytes, before 2 of 3" in grown
    assert "| old |" not in grown.replace("| new | old |", "")  # it spills less than the older one
    # Neither another engine nor an order that is not known counts.
    for other in (Pinned("another", "c" * 40, 7), Pinned("an-engine", "c" * 40, 0)):
        page = reports.trials_page(images[:2], {"new": recipes["new"], "old": other}, {}, {})
        assert "liba.so" not in page


@pytest.mark.parametrize(
    ("memory", "largest"),
    [
        (3 << 30, "about 99328"),  # 1 GiB more for each 32768 tokens above 65536
        (20 << 30, "262144, the model's (not tried)"),
    ],
)
def test_a_larger_context_is_on_the_line_through_both_peaks(memory: int, largest: str) -> None:
    tried = replace(
        use(2 << 30),
        context=66560,
        memory=memory,
        smaller=ContextUse(66560 - 32768, 1 << 30, {}),
    )
    image = kept_of(presets={NAME: tried})
    page = reports.trials_page([image], {}, {NAME: entry().preset}, {}, own_contexts())
    assert f"| {largest} |" in page


def test_a_published_context_that_was_too_large_is_not_said_to_fit() -> None:
    preset = entry().preset
    changes = {"published_context": 300_000}
    before = replace(use(2 << 30), context=300_000)  # a trial of the published one
    image = kept_of(presets={NAME: use(2 << 30)})
    page = reports.trials_page([image], {}, {NAME: preset.model_copy(update=changes)}, {})
    assert "| at least 262144; the published 300000 is too large |" in page
    page = reports.trials_page(
        [kept_of(presets={NAME: before})], {}, {NAME: preset.model_copy(update=changes)}, {}
    )
    assert "too large" not in page


def test_the_page_of_the_repository_is_the_one_that_its_files_make() -> None:
    root = REPOSITORY / "trials"
    kept = [
        KeptTrials.model_validate_json(each.read_bytes()) for each in sorted(root.glob("*.json"))
    ]
    pinned = reports.pinned(RECIPES)
    presets = {each.name: each.preset for each in preset_files.load(RECIPES).valid()}
    untried = reports.why_untried(RECIPES, presets)
    made = reports.trials_page(kept, pinned, presets, untried, own_contexts())
    same = (root / "README.md").read_text() == made  # pytest takes minutes to compare such lines
    assert same, "`./farm ci trials` writes it anew"


def test_the_tables_of_the_readme_are_the_ones_that_the_files_make() -> None:
    presets = {each.name: each.preset for each in preset_files.load(RECIPES).valid()}
    tables = reports.readme_tables(RECIPES, presets, reports.kept(REPOSITORY), {})
    text = (REPOSITORY / "README.md").read_text()
    assert all(f"<!-- /{name} -->" in text for name in tables)
    assert reports.with_tables(text, tables) == text, "`./farm ci trials` writes them anew"


def test_the_readme_says_what_was_done_and_what_needs_a_card() -> None:
    refused = kept_of(presets={})
    refused = refused.model_copy(
        update={"failed": {"numbers": 3}, "coverage": "9 cases of 2 operations; 8 of 8 launches"}
    )
    older = refused.model_copy(update={"recipe": "atomic-b8995", "failed": {}})
    newer = older.model_copy(update={"recipe": "atomic-b10018-1.2.0", "coverage": "no library"})

    def gates(receipts: dict[str, int]) -> str:
        return reports.readme_tables(RECIPES, {}, [newer, older, refused], receipts)["checks"]

    found = gates({"atomic-b10018-1.2.0": 2})
    assert "atomic-b8995" not in found, "10018 is newer than 8995"
    (atomic,) = (row for row in found.splitlines() if "atomic" in row)
    assert "not possible: no library" in atomic
    assert "done, receipts: 2" in atomic
    (bee,) = (row for row in found.splitlines() if RECIPE in row)
    assert "refused: 3 of numbers failed" in bee
    assert "| failed | needs a card |" in bee


def test_a_table_without_its_marks_stays_out() -> None:
    mark = "<!-- engines: ./farm ci trials writes this table -->\n"
    page = f"a\n{mark}old\n<!-- /engines -->\nb\n"
    assert reports.with_tables(page, {"engines": "new\n", "checks": "x"}) == page.replace(
        "old", "new"
    )
    for broken in ("no marks\n", f"{mark}old\n"):
        assert reports.with_tables(broken, {"engines": "new\n"}) == broken


def test_every_kept_trial_is_of_a_preset_as_it_is_now() -> None:
    presets = {each.name: each for each in preset_files.load(RECIPES).valid()}
    for file in (REPOSITORY / "trials").glob("*.json"):
        kept = KeptTrials.model_validate_json(file.read_bytes())
        assert kept.recipe == file.stem
        for name, found in kept.presets.items():
            assert presets[name].preset.recipe == kept.recipe
            assert presets[name].preset.identity == found.identity, name


def test_a_refused_image_has_a_row_and_no_memory(tmp_path: Path) -> None:
    refused = of(use(7))
    wrong = Check.of("numbers", "MUL_MAT", "as on the CPU", "inf", False)
    verdict = replace(refused.verdict, checks=(*refused.verdict.checks, wrong, wrong))
    refused = refused.model_copy(update={"verdict": verdict})
    assert record.newest_refused(tmp_path, RECIPE) is None
    record.write(tmp_path, refused)
    assert record.newest_good(tmp_path, RECIPE) is None
    assert record.newest_refused(tmp_path, RECIPE) == refused
    reports.write_trials(tmp_path, refused)
    assert known(tmp_path) is None
    page = reports.trials_page(reports.kept(tmp_path), {}, {}, {})
    assert "| 1; refused: 2 of numbers failed |" in page


STARTED = (WorkPath("attention", "vec", 4), WorkPath("attention", "mma", 2, compiled=True))
LIBRARIES = (
    CodePaths("/opt/_fa2.so", compiled=65_000_000, dead=5_000_000, card="12.0", removed=9_000_000),
    CodePaths("/opt/_C.so", native=21_000_000, card="12.0"),
)
SUMS = CodeSums("12.0", 21_000_000, 65_000_000, 5_000_000, 9_000_000, late=("_fa2.so",))


def test_the_code_the_paths_and_the_times_of_an_image_are_kept(tmp_path: Path) -> None:
    found = of(use(7))
    assert found.verdict.device is not None
    device = replace(found.verdict.device, paths=STARTED, stated="FLASH_ATTN")
    verdict = replace(found.verdict, device=device, code=LIBRARIES)
    found = found.model_copy(update={"verdict": verdict, "platform": "linux/arm64"})
    reports.write_trials(tmp_path, found)
    kept = reports.kept_of(tmp_path, RECIPE)
    assert kept is not None
    assert (kept.paths, kept.stated, kept.device_code) == (STARTED, "FLASH_ATTN", (SUMS,))
    assert (kept.platform, kept.check_seconds) == ("linux/arm64", 9.0)
    assert kept.builds == (KeptBuild(seconds=60.0),)
    # What a refused image computes does not count; its code does.
    wrong = Check.of("numbers", "MUL_MAT", "as on the CPU", "inf", False)
    refused = replace(verdict, checks=(*verdict.checks, wrong))
    reports.write_trials(tmp_path, found.model_copy(update={"verdict": refused}))
    kept = reports.kept_of(tmp_path, RECIPE)
    assert kept is not None
    assert (kept.paths, kept.stated, kept.device_code) == ((), "", (SUMS,))


def test_the_page_has_the_code_the_paths_and_the_time_of_the_checks() -> None:
    image = kept_of(device_code=(SUMS,), paths=STARTED, check_seconds=75.0)
    page = reports.trials_page([image], {}, {}, {})
    assert "| 7 | 1 min 15 s | 3 |" in page
    assert f"| {RECIPE} | 21.0 MB | 65.0 MB | 5.0 MB | 9.0 MB | \\_fa2.so |" in page
    assert f"| {RECIPE} | attention | vec, mma, compiled by the driver |" in page
    both = kept_of(device_code=(SUMS, replace(SUMS, card="9.0", compiled=0, late=())))
    page = reports.trials_page([both], {}, {}, {})
    assert f"| {RECIPE} (12.0) | 21.0 MB | 65.0 MB |" in page
    assert f"| {RECIPE} (9.0) | 21.0 MB |  | 5.0 MB | 9.0 MB |  |" in page
    # A file of before has none of it.
    page = reports.trials_page([kept_of(presets={})], {}, {}, {})
    assert f"| {RECIPE} |" not in page.split("### Device code")[1]
