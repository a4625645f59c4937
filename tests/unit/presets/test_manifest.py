"""A stranger's manifest: bounds, the choice, its signature."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import FetchError
from builder.presets import manifest
from builder.presets.cards import machine_with
from builder.publish.signing import sign_text
from support.commands import Builder
from support.environment import REPOSITORY

DIGEST = "sha256:" + "a" * 64


def run(**more: Any) -> dict[str, Any]:
    return {
        "preset": "small@5090",
        "model": "Small-4B",
        "quantization": "Q4_K_M",
        "recipe": "engine-1",
        "digest": DIGEST,
        "context": 32768,
        "download": 3_000_000_000,
        "memory": 5 << 30,
        "cards": 1,
        "driver": "580",
        "tokens_per_second": 120.5,
        "on": "5090",
        "port": 8080,
        "arguments": ["--model", "/models/org/small/small.gguf", "--alias", "it's $HOME"],
        "environment": {"GGML_CUDA_FORCE": "1"},
        "models": [{"repository": "org/small", "file": "small.gguf"}],
        **more,
    }


def farm(*runs: dict[str, Any], **image: Any) -> dict[str, Any]:
    tag = {
        "tag": "1",
        "digest": DIGEST,
        "created": "2026-11-29T00:00:00+00:00",
        "version": "1",
        "platforms": {"linux/amd64": DIGEST},
        "size": 500_000_000,
        "checks": {"runs": 1},
        "signed": True,
        "reproduced": "",
    }
    listed = {
        "recipe": "engine-1",
        "engine": "engine",
        "version": "1",
        "repository": "somebody/engine",
        "architectures": ["sm_120a"],
        "driver": "580",
        "channel": "",
        "tags": [tag],
        "presets": ["small@5090"],
        **image,
    }
    head = {"format": 1, "created": "2026-11-29T00:00:00+00:00", "builder": "0.2", "farm": ""}
    return {**head, "signers": [], "images": [listed], "runs": list(runs)}


def written(tmp_path: Path, content: object) -> Path:
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps(content))
    return file


def chosen(file: Path, **more: Any) -> tuple[list[str], dict[str, Any]]:
    machine = machine_with(REPOSITORY, more.pop("cards", ["5090"]), more.pop("driver", ""))
    found = manifest.fetch(str(file)).manifest
    fits, refused = manifest.choose(found, machine, more.pop("context", 0), more.pop("model", ""))
    return [each.preset for each, _ in fits], dict(refused)


def test_runs_that_fit_come_first_and_the_others_have_reasons(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        farm(
            run(),
            run(preset="large@5090", download=18_000_000_000, memory=25 << 30),
            run(preset="huge@5090", memory=90 << 30),
            run(preset="two@5090", cards=2),
            run(preset="gone@5090", digest="sha256:" + "b" * 64),
            run(preset="new@5090", driver="590"),
            run(preset="unknown@5090", memory=None),
        ),
    )
    fits, refused = chosen(file, driver="580.65")
    assert fits == ["large@5090", "small@5090"]
    assert "the cards have" in refused["huge@5090"][0]
    assert refused["two@5090"] == ["it needs 2 cards"]
    assert refused["gone@5090"] == ["no tag has its image"]
    assert refused["new@5090"] == ["it needs driver 590"]
    assert refused["unknown@5090"] == ["its memory is not known"]
    assert chosen(file, context=65536)[0] == []
    assert chosen(file, model="SMALL 4b")[0] == ["large@5090", "new@5090", "small@5090"]
    other = written(tmp_path, farm(run(), architectures=["sm_90a"]))
    assert chosen(other)[1] == {"small@5090": ["its image has only sm_90a"]}


def test_the_commands_are_made_of_checked_fields(tmp_path: Path) -> None:
    found = manifest.fetch(str(written(tmp_path, farm(run())))).manifest
    download, start = manifest.commands(found.runs[0], found.images[0])
    assert download == "hf download org/small small.gguf --local-dir ~/models/org/small"
    words = shlex.split(start)
    assert words[:5] == ["docker", "run", "--rm", "--gpus", "all"]
    image = words.index(f"somebody/engine@{DIGEST}")
    assert words[image - 4 : image] == ["-v", "~/models:/models:ro", "-e", "GGML_CUDA_FORCE=1"]
    assert words[image + 1 :] == found.runs[0].arguments


@pytest.mark.parametrize(
    "change",
    [
        {"repository": "-v/engine"},
        {"repository": "somebody/engine;reboot"},
        {"repository": "somebody/engine --privileged"},
        {"architectures": ["sm_120a; reboot"]},
        {"driver": "new"},
        {"version": "\x1b[2J"},
        {"tags": [{}]},
        {"recipe": "x" * 501},
    ],
)
def test_an_image_out_of_bounds_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="is no manifest of format 1"):
        manifest.fetch(str(written(tmp_path, farm(run(), **change))))


@pytest.mark.parametrize(
    "change",
    [
        {"models": [{"repository": "-x/y", "file": None}]},
        {"models": [{"repository": "org/small", "file": "../../.bashrc"}]},
        {"models": [{"repository": "org/small", "file": "/etc/passwd"}]},
        {"environment": {"A B": "1"}},
        {"digest": "latest"},
        {"port": 0},
        {"memory": -1},
        {"tokens_per_second": "fast"},
        {"arguments": ["a\nb"]},
        {"preset": "\x1b]0;x\x07"},
    ],
)
def test_a_run_out_of_bounds_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="is no manifest of format 1"):
        manifest.fetch(str(written(tmp_path, farm(run(**change)))))


def test_a_file_that_is_too_large_or_no_manifest_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FetchError, match="is no manifest"):
        manifest.fetch(str(written(tmp_path, {**farm(), "format": 2})))
    with pytest.raises(FetchError, match="cannot read the manifest"):
        manifest.fetch(str(tmp_path / "nowhere"))
    monkeypatch.setattr(manifest, "LARGEST", 100)
    with pytest.raises(FetchError, match="more than 100 bytes"):
        manifest.fetch(str(written(tmp_path, farm())).removesuffix("/manifest.json"))


def test_a_manifest_counts_if_a_trusted_key_signed_it(
    builder: Builder, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    file = written(folder, farm(run()))
    monkeypatch.delenv("BUILDER_COSIGN_KEY")
    done = builder("choose", "--from", folder, "--card", "5090")
    assert "nobody vouches for this manifest" in done.stderr
    assert done.stdout.splitlines()[1].split("\t")[1] == "small@5090"
    assert f"somebody/engine@{DIGEST}" in done.stderr
    monkeypatch.setenv("BUILDER_TRUSTED_KEYS", str(key.with_name("cosign.pub")))
    done = builder("choose", "--from", folder, "--card", "5090")
    assert done.returncode == 12
    assert "it has no signature" in done.stderr
    signature = sign_text(file.read_text(), str(key), tmp_path / "work")
    (folder / "manifest.json.sig").write_text(f"{signature}\n")
    told = json.loads(builder("choose", "--from", folder, "--card", "5090", "--json").stdout)
    assert told["signer"] == str(key.with_name("cosign.pub"))
    assert told["fits"][0]["commands"][0].startswith("hf download")
    file.write_text(json.dumps(farm(run(model="Another"))))
    assert (
        "it has another signature" in builder("choose", "--from", folder, "--card", "5090").stderr
    )
