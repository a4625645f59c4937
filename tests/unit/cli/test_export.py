"""``builder export``: files on standard output or in a directory, and faults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.catalogs import never_built
from support.commands import Builder

PRESET = "qwen3.6-27b-dflash@5090-laptop"
LAN = "0.0.0.0"  # noqa: S104
ANYWAY = "--allow-incomplete"  # no test builds its image
NAME = "builder-qwen3-6-27b-dflash-5090-laptop"


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


def test_a_file_is_named_by_the_models_directory(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDER_MODELS_DIR", str(tmp_path / "models"))
    done = builder("export", PRESET, ANYWAY)
    assert done.returncode == 0, done.stderr
    assert "--model /models/unsloth/Qwen3.6-27B-GGUF/MODEL.gguf" in done.stdout
    assert "MODEL.gguf stands for its file" in done.stderr
    file = tmp_path / "models" / "unsloth" / "Qwen3.6-27B-GGUF" / "Qwen3.6-27B-UD-Q3_K_XL.gguf"
    file.parent.mkdir(parents=True)
    file.touch()
    done = builder("export", PRESET, ANYWAY, "--context", "96K", "--port", "9000")
    assert f"--model /models/unsloth/Qwen3.6-27B-GGUF/{file.name} \\\n" in done.stdout
    assert f"--mount=type=bind,source={tmp_path}/models,target=/models,readonly" in done.stdout
    assert "--ctx-size 98304 \\\n" in done.stdout
    assert "--publish=127.0.0.1:9000:8080" in done.stdout
    assert "stands for its file" not in done.stderr


def test_files_are_written_to_a_directory(builder: Builder, tmp_path: Path) -> None:
    (drafter := tmp_path / "draft.gguf").touch()
    (model := tmp_path / "a-00001-of-00002.gguf").touch()
    (tmp_path / "a-00002-of-00002.gguf").touch()
    files = ("--model", model, "--draft", drafter)
    done = builder("export", PRESET, ANYWAY, *files, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert f"next, in that directory: sh {NAME}.sh" in done.stderr
    text = (tmp_path / "out" / f"{NAME}.sh").read_text()
    assert "--model /model/a-00001-of-00002.gguf" in text
    assert f"source={tmp_path}/a-00002-of-00002.gguf,target=/model/a-00002-of-00002.gguf," in text
    assert "--model-draft /draft/draft.gguf" in text
    assert "target=/models" not in text


def test_a_file_that_somebody_edited_is_kept(builder: Builder, tmp_path: Path) -> None:
    export = ("export", PRESET, ANYWAY, "--format", "compose", "--output", tmp_path)
    assert builder(*export).returncode == 0
    assert builder(*export).returncode == 0  # the same
    file = tmp_path / "compose.yaml"
    text = file.read_text()
    file.write_text(text.replace("retries: 3", "retries: 9"))
    refused = builder(*export)
    assert refused.returncode == 4
    assert f"cannot replace {file}" in refused.stderr
    assert "--force" in refused.stderr
    assert "retries: 9" in file.read_text()
    assert builder(*export, "--force").returncode == 0
    assert file.read_text() == text


def test_a_directory_that_cannot_be_written(builder: Builder, tmp_path: Path) -> None:
    (taken := tmp_path / "out" / "compose.yaml").mkdir(parents=True)
    for folder in ("/proc/no", taken.parent):
        for force in ((), ("--force",)):
            export = ("export", PRESET, ANYWAY, "--format", "compose", "--output", folder)
            done = builder(*export, *force)
            assert done.returncode == 4, done.stderr
            assert "--output DIR" in done.stderr
    assert [each.name for each in taken.parent.iterdir()] == ["compose.yaml"]


def test_what_cannot_start_is_refused_or_named_first(builder: Builder, tmp_path: Path) -> None:
    farm = never_built(tmp_path / "farm")
    export = ("export", PRESET, "--format", "compose")
    refused = builder(*export, "--output", tmp_path / "out", cwd=farm)
    assert refused.returncode == 4
    assert not (tmp_path / "out").exists()
    assert refused.stdout == ""
    message = " ".join(refused.stderr.split())
    assert f"files for {PRESET} would not start" in message
    assert "build it: `builder build beellama-0.1.1`" in message
    assert "hf download unsloth/Qwen3.6-27B-GGUF --include '*UD-Q3_K_XL*'" in message
    assert "--allow-incomplete" in message
    done = builder(*export, ANYWAY, cwd=farm)
    assert done.returncode == 0, done.stderr
    head = done.stdout.partition("\n# Qwen3.6 27B with DFlash drafting")[0].splitlines()
    image, *_, model = [line for line in head if "Incomplete" in line]
    assert image.startswith(
        "# Incomplete: there is no image never-built-beellama-cpp:0.1.1 in Docker"
    )
    assert model.startswith(
        "# Incomplete: The name of its file unsloth/Qwen3.6-27B-GGUF UD-Q3_K_XL (14.5 GB"
    )
    assert head[-1].startswith("#   hf download unsloth/Qwen3.6-27B-GGUF --include '*UD-Q3_K_XL*' ")


def test_on_the_cpu_no_gpu_is_asked_for(builder: Builder) -> None:
    for form, gpu in (("compose", "driver: nvidia"), ("docker-run", "--gpus"), ("quadlet", "CDI")):
        words = ("export", PRESET, ANYWAY, "--format", form)
        assert gpu in builder(*words).stdout
        done = builder(*words, "--cpu")
        assert done.returncode == 0, done.stderr
        assert gpu not in done.stdout
        assert "NVIDIA" not in done.stdout
        assert re.search(r'BUILDER_CPU(=|: ")1', done.stdout)


def test_a_server_for_the_lan_has_a_key(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDER_STATE_DIR", str(tmp_path / "state"))
    file, out = tmp_path / "key", tmp_path / "out"
    words = ("export", PRESET, "--format", "compose", "--listen", LAN, "--output", out)
    refused = builder(*words, ANYWAY)
    assert (refused.returncode, "needs --api-key-file" in refused.stderr) == (2, True)
    given = (*words, "--api-key-file", file)
    assert builder(*given).returncode == 4  # it could not start
    assert builder(*given, "--dry-run").returncode == 0
    assert not file.exists()
    assert not out.exists()
    done = builder(*given, ANYWAY, "--restart", "no")
    assert done.returncode == 0, done.stderr
    assert f"made an API key: {file}" in done.stderr
    text = (out / "compose.yaml").read_text()
    assert '- "0.0.0.0:8080:8080"' in text
    assert 'restart: "no"' in text
    key = file.read_text().strip()
    assert key not in text
    source = re.findall(r'source: "(.*/state/keys/.*)"', text)
    assert Path(source[0]).read_text().strip() == key
    assert builder(*given, ANYWAY, "--restart", "no").returncode == 0  # the same files
    assert 'restart: "unless-stopped"' in builder("export", PRESET, ANYWAY, *words[2:4]).stdout


def test_a_preset_that_does_not_fit_the_card_is_refused(builder: Builder) -> None:
    words = ("export", PRESET, "--card", "5060", ANYWAY)
    refused = builder(*words)
    assert (refused.returncode, refused.stdout) == (15, ""), refused.stderr
    assert f"{PRESET} does not run on 5060" in refused.stderr
    done = builder(*words, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"warning: {PRESET} does not run on 5060: " in done.stderr
    assert "docker run" in done.stdout


def test_a_chart_is_written_and_its_edited_values_stay(builder: Builder, tmp_path: Path) -> None:
    words = ("export", PRESET, ANYWAY, "--format", "helm")
    several = builder(*words)
    assert several.returncode == 2
    shown = builder(*words, "--dry-run").stdout
    assert f"# {NAME}/values.yaml\n" in shown
    assert "kind: Deployment" in shown
    assert "has several files: give --output DIR" in " ".join(several.stderr.split())
    done = builder(*words, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert f"next, in that directory: helm install {NAME} ./{NAME}" in done.stderr
    chart = tmp_path / "out" / NAME
    assert (chart / "templates" / "deployment.yaml").is_file()
    assert builder(*words, "--output", tmp_path / "out").returncode == 0
    values = chart / "values.yaml"
    values.write_text(values.read_text() + "# mine\n")
    again = builder(*words, "--output", tmp_path / "out")
    assert again.returncode == 4
    assert f"cannot replace {values}" in again.stderr
    assert values.read_text().endswith("# mine\n")


def test_faults_of_the_command_line(builder: Builder, tmp_path: Path) -> None:
    absent = builder("export", PRESET, "--model", tmp_path / "absent.gguf")
    assert absent.returncode == 5
    assert "there is no file" in absent.stderr
    unknown = builder("export", PRESET, "--format", "compost")
    assert unknown.returncode == 2
    assert "compost is none of compose, docker-run" in unknown.stderr
    size = builder("export", PRESET, "--context", "32G")
    assert size.returncode == 2
    preset = builder("export", "qwen3.6-27b-dflash@5090")
    assert preset.returncode == 3
    assert "did you mean qwen3.6-27b-dflash@5090-laptop?" in preset.stderr


def test_a_short_name_is_the_best_preset_of_the_card(builder: Builder) -> None:
    done = builder("export", "qwen3.6-35b-a3b", "--card", "5090-laptop", ANYWAY)
    assert done.returncode == 0, done.stderr
    assert "qwen3.6-35b-a3b is qwen3.6-35b-a3b-mtp@5090-laptop here" in done.stderr
    assert "builder-qwen3-6-35b-a3b-mtp-5090-laptop" in done.stdout
    small = builder("export", "qwen3.6-27b", "--card", "5060", ANYWAY)
    assert small.returncode == 15
    assert small.stdout == ""
