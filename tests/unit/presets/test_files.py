"""The models of a run: found on this machine, or missing with what to do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import FetchError
from builder.core.settings import Settings
from builder.presets.images import Launch, LaunchRequest, prepared
from builder.presets.models import cached, download, located
from builder.presets.run import fetched
from builder.presets.schema import ModelFile, Preset
from builder.presets.service import Files, Mount, Run
from support import model_hub
from support.model_hub import Hub
from support.shipped import RECIPES

RECIPE = RECIPES.engine("llama-cpp-b9261").recipe


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with model_hub.served(tmp_path / "hub") as found:
        model_hub.use(monkeypatch, HF_ENDPOINT=found.endpoint)
        yield found


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def run_of(**model: object) -> Run:
    given = {"name": "A", "repository": "me/A-GGUF"} | model
    keys = {"recipe": RECIPE.name, "summary": "a", "card": "5090", "model": given}
    return Run("a@5090", RECIPE, Preset.model_validate(keys))


def put(*names: Path) -> None:
    for name in names:
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_bytes(b"GGUF")


def test_the_models_directory_is_mounted_as_a_whole(models: Path) -> None:
    put(models / "me" / "A-GGUF" / "a-Q8_0.gguf")
    there = located(run_of(quantization="Q8_0"), models, {})
    found, missing = there.files, there.missing
    assert found == Files(
        {"model": "/models/me/A-GGUF/a-Q8_0.gguf"}, (Mount(str(models), "/models"),)
    )
    assert missing == []


def test_a_link_out_of_the_directory_is_mounted_by_itself(models: Path, tmp_path: Path) -> None:
    put(tmp_path / "disk" / "a.gguf", models / "me" / "A-GGUF" / "other")
    (models / "me" / "A-GGUF" / "a.gguf").symlink_to(tmp_path / "disk" / "a.gguf")
    found = located(run_of(file="a.gguf"), models, {}).files
    assert found.places == {"model": "/model/a.gguf"}
    assert found.mounts == (Mount(str(tmp_path / "disk" / "a.gguf"), "/model/a.gguf", file=True),)


def test_a_given_file_comes_first(models: Path, tmp_path: Path) -> None:
    put(models / "me" / "A-GGUF" / "a.gguf", tmp_path / "b-00001-of-00002.gguf")
    put(tmp_path / "b-00002-of-00002.gguf")
    given = {"model": tmp_path / "b-00001-of-00002.gguf"}
    there = located(run_of(file="a.gguf"), models, given)
    found, missing = there.files, there.missing
    assert found.places == {"model": "/model/b-00001-of-00002.gguf"}
    assert [mount.target for mount in found.mounts] == [
        "/model/b-00001-of-00002.gguf",
        "/model/b-00002-of-00002.gguf",
    ]
    assert missing == []


def test_a_given_file_that_cannot_be_used_is_named_beside_what_is_missing(
    models: Path, tmp_path: Path
) -> None:
    names = ("absent", "a\n.gguf", os.fsdecode(b"\xff.gguf"))
    put(*(tmp_path / name for name in names[1:]))
    for name, why in zip(names, ("there is no file", *["cannot mount"] * 2), strict=True):
        there = located(run_of(repository=None), models, {"draft": tmp_path / name})
        assert why in there.unusable["draft"].what
        assert there.files.places == {}
        assert there.lacking == ["model", "draft"]
    # The preset's own model is not offered in its place.
    there = located(run_of(file="a.gguf"), models, {"model": tmp_path / "absent"})
    assert there.missing == []


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_the_cache_of_the_hubs_client_is_used(
    variable: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_hub.use(monkeypatch, **{variable: str(tmp_path / "c")})
    below = {"HF_HUB_CACHE": "", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}[variable]
    repository = tmp_path / "c" / below / "models--me--A-GGUF"
    put(repository / "blobs" / "0123")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in ("a.gguf", "config.json"):
        (snapshot / name).symlink_to("../../blobs/0123")

    there = located(run_of(file="a.gguf"), models, {})
    found, missing = there.files, there.missing
    assert found.mounts == (Mount(str(repository / "blobs" / "0123"), "/model/a.gguf", file=True),)
    assert missing == []

    whole = located(run_of(), models, {}).files  # its links lead to the blobs beside the snapshot
    assert whole.places == {"model": "/hub/models--me--A-GGUF/snapshots/abc"}
    assert whole.mounts == (Mount(str(repository), "/hub/models--me--A-GGUF"),)

    (repository / "trees").mkdir()  # as the client lists a snapshot that it has not completed
    entry = {"size": 4, "blob_id": "0" * 40}
    listed = dict.fromkeys(("a.gguf", "config.json", "b.safetensors"), entry)
    tree = json.dumps({"format_version": 1, "files": listed})
    (repository / "trees" / "abc.json").write_text(tree)
    assert located(run_of(file="a.gguf"), models, {}).missing == []
    assert cached("me/A-GGUF") == snapshot
    assert cached("me/A-GGUF", whole=True) is None


def test_a_missing_file_is_looked_up_on_the_hub(hub: Hub, models: Path) -> None:
    put(hub.folder / "me" / "A-GGUF" / "a-Q8_0.gguf", hub.folder / "me" / "A-GGUF" / "README.md")
    there = located(run_of(quantization="Q8_0"), models, {})
    found, (missing,) = there.files, there.missing
    assert found.places == {}
    assert missing.size == 4
    assert [each.target for each in missing.fetches] == [models / "me" / "A-GGUF" / "a-Q8_0.gguf"]
    assert missing.commands("a@5090") == (
        "`builder run a@5090 --yes`, or "
        f"hf download me/A-GGUF a-Q8_0.gguf --local-dir {models}/me/A-GGUF, or --model FILE"
    )


def test_a_whole_repository_is_all_of_its_files(hub: Hub, models: Path) -> None:
    put(hub.folder / "me" / "A-GGUF" / "a.safetensors", hub.folder / "me" / "A-GGUF" / "b" / "c")
    (missing,) = located(run_of(), models, {}).missing
    assert [each.name for each in missing.fetches] == ["a.safetensors", "b/c"]
    assert f"hf download me/A-GGUF --local-dir {models}/me/A-GGUF" in missing.commands("a@5090")


def test_a_model_whose_download_was_cut_is_missing(hub: Hub, models: Path) -> None:
    there, here = hub.folder / "me" / "A-GGUF", models / "me" / "A-GGUF"
    names = ("config.json", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf")
    put(*(there / name for name in names))
    split = run_of(file="a-00001-of-00002.gguf")
    for run, left in ((run_of(), 8), (split, 4)):
        hub.digests["a-00002-of-00002.gguf"] = "0" * 64
        (missing,) = located(run, models, {}).missing
        with pytest.raises(FetchError):
            download(missing.fetches, models, lambda *_: None)
        assert (here / "a-00001-of-00002.gguf").exists()
        del hub.digests["a-00002-of-00002.gguf"]
        (missing,) = located(run, models, {}).missing
        assert sum(each.left for each in missing.fetches) == left
        download(missing.fetches, models, lambda *_: None)
        assert located(run, models, {}).missing == []
        assert not [each for each in here.iterdir() if each.suffix == ".part"]
        shutil.rmtree(models)


def test_nothing_is_left_of_a_download_that_did_not_begin(hub: Hub, models: Path) -> None:
    put(hub.folder / "me" / "A-GGUF" / "a.gguf", hub.folder / "me" / "A-GGUF" / "b.gguf")
    (missing,) = located(run_of(), models, {}).missing
    shutil.rmtree(hub.folder / "me")
    with pytest.raises(FetchError):
        download(missing.fetches, models, lambda *_: None)
    assert [each for each in models.rglob("*") if each.is_file()] == []


def test_what_the_hub_does_not_have(hub: Hub, models: Path) -> None:
    put(hub.folder / "me" / "A-GGUF" / "a-Q8_0.gguf")
    (missing,) = located(run_of(quantization="Q4_K_M"), models, {}).missing
    assert missing.fetches == ()
    assert missing.why == "me/A-GGUF does not have it"
    assert "--include '*Q4_K_M*'" in missing.commands("a@5090")


def test_another_file_than_that_of_the_preset(hub: Hub, models: Path) -> None:
    put(hub.folder / "me" / "A-GGUF" / "a.gguf")
    (missing,) = located(run_of(file="a.gguf", sha256="0" * 64), models, {}).missing
    assert missing.fetches == ()
    assert "is not the file of the preset: the preset has sha256 0000" in missing.why


def test_a_model_without_a_repository_has_to_be_given(models: Path) -> None:
    (missing,) = located(run_of(repository=None), models, {}).missing
    assert missing.commands("a@5090") == (
        "the preset names no repository: give the file with --model FILE"
    )


def test_the_models_directory_of_the_settings_may_begin_with_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    wanted = Settings(models_dir=Path("~/models"))
    job = prepared(RECIPES, LaunchRequest("hello-sm120"), wanted, print)
    assert job.models_dir == tmp_path / "models"


def test_what_is_missing_is_downloaded_and_then_there(hub: Hub, models: Path) -> None:
    names = ("unsloth/Q-GGUF/a-Q8_0.gguf", "me/D-GGUF/d.gguf")
    put(*(hub.folder / name for name in names))
    run = run_of(repository="unsloth/Q-GGUF", quantization="Q8_0")
    assert run.preset is not None
    drafter = ModelFile(repository="me/D-GGUF", file="d.gguf")
    run = replace(run, preset=run.preset.model_copy(update={"drafter": drafter}))
    lines: list[str] = []
    job = Launch(
        RECIPES, Settings(models_dir=models), lines.append, LaunchRequest(run.name), run, None
    )
    hub.digests["d.gguf"] = "0" * 64
    missing = located(run, models, {}).missing
    with pytest.raises(FetchError, match="is not the file that the Hub lists"):
        fetched(job, missing, lambda *_: None)
    assert (models / names[0]).read_bytes() == b"GGUF"
    assert list((models / names[1]).parent.iterdir()) == []
    del hub.digests["d.gguf"]
    lines.clear()
    found = fetched(job, located(run, models, {}).missing, lambda *_: None)
    assert lines == [f"downloading me/D-GGUF:d.gguf: 0.0 MB to {models}"]
    assert found.lacking == []
    assert found.files.places == {
        "model": f"/models/{names[0]}",
        "draft": f"/models/{names[1]}",
    }
