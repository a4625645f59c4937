"""``builder run`` on a machine without a GPU: all that is missing, the command, downloads."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path

import pytest

from support import model_hub
from support.catalogs import never_built
from support.commands import Builder

PRESET = "qwen3.6-27b-dflash@5090-laptop"
MODEL = "unsloth/Qwen3.6-27B-GGUF/Qwen3.6-27B-UD-Q3_K_XL.gguf"
DRAFT = "spiritbuun/Qwen3.6-27B-DFlash-GGUF/dflash-draft-3.6-q8_0.gguf"

without_gpu = pytest.mark.skipif(
    Path("/proc/driver/nvidia/version").exists(), reason="this machine has a GPU"
)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BUILDER_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return tmp_path / "models"


@without_gpu
def test_all_that_is_missing_is_told_at_once_the_gpu_first(
    builder: Builder, models: Path, tmp_path: Path
) -> None:
    farm = never_built(tmp_path / "farm")
    with socket.create_server(("127.0.0.1", 0)) as used:
        done = builder("run", PRESET, "--port", str(used.getsockname()[1]), cwd=farm)
    assert done.returncode == 4
    assert done.stdout == ""
    first, second, *rest = done.stderr.splitlines()
    assert first == f"builder: {PRESET} cannot run here"
    assert second == "  this machine has no NVIDIA GPU: there is no nvidia-smi"
    text = "\n".join(rest)
    assert "no image never-built-beellama-cpp:0.1.1" in text
    assert "`builder build beellama-0.1.1`" in text
    assert "the model unsloth/Qwen3.6-27B-GGUF UD-Q3_K_XL (14.5 GB) is not here" in text
    assert f"--local-dir {models}/unsloth/Qwen3.6-27B-GGUF" in text
    assert "the draft model spiritbuun" in text
    assert "cannot be used: Address already in use" in text
    assert not models.exists()


@without_gpu
def test_nothing_is_downloaded_for_a_machine_that_cannot_run_it(
    builder: Builder, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_the_hub(tmp_path)
    with model_hub.served(tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        done = builder("run", PRESET, "--yes")
    assert done.returncode == 4
    assert "0.0 MB to download" in done.stderr
    assert not models.exists()


def put_on_the_hub(folder: Path) -> None:
    for name in (MODEL, DRAFT):
        file = folder / "hub" / name
        file.parent.mkdir(parents=True)
        file.write_bytes(b"GGUF" * 1000)


def test_the_command_is_printed(builder: Builder, models: Path) -> None:
    done = builder("run", PRESET, "--dry-run", "--", "--parallel", "2", "--no-warmup")
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout.replace("\\\n", ""))
    assert words[:3] == ["docker", "run", "--detach"]
    assert "--gpus=1" in words
    assert f"--mount=type=bind,source={models},target=/models,readonly" in words
    assert words.count("--parallel") == 1
    assert words[-3:] == ["--parallel", "2", "--no-warmup"]
    assert (
        "The name of its file unsloth/Qwen3.6-27B-GGUF UD-Q3_K_XL (14.5 GB) is not known"
        in done.stderr
    )
    assert f"--include '*UD-Q3_K_XL*' --local-dir {models}/unsloth/" in done.stderr
    assert "--restart=unless-stopped" in words
    assert "\nCaveat: It uses a single GPU at 0.1.x. (Anbeeld/beellama.cpp#7)" in done.stderr


def test_known_problems_come_before_the_start(builder: Builder, models: Path) -> None:
    """Also where the run is published as a warning."""
    slow = "qwen3.6-27b-mtp-turboquant@5090-laptop"
    models.mkdir()
    file = models / "a.gguf"
    file.touch()
    told = builder("run", slow, "--dry-run", "--context", "64K", "--", "-m", file, "-c", "4")
    assert told.returncode == 0, told.stderr
    words = shlex.split(told.stdout.replace("\\\n", ""))
    assert words[-6:] == ["--model", "/model/a.gguf", "--ctx-size", "4", "--spec-type", "mtp"]
    assert f"--mount=type=bind,source={file},target=/model/a.gguf,readonly" in words
    assert "Caveat: qwen3.6-27b-mtp-128k@5090-laptop is faster on the same card" in told.stderr
    assert "Caveat: In the third run no draft was accepted." in told.stderr


def test_a_short_name_is_the_best_preset_that_runs_on_the_card(
    builder: Builder, models: Path
) -> None:
    done = builder("run", "qwen3.6-27b:dflash", "--card", "5090-laptop", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"qwen3.6-27b:dflash is {PRESET} here")
    assert f"{models}," in done.stdout
    assert "--ctx-size 262144" in done.stdout
    # Its context is the largest that fits.
    small = builder("run", "qwen3.6-35b-a3b", "--card", "5090-laptop", "--dry-run")
    wanted = ("run", "qwen3.6-35b-a3b", "--card", "5090-laptop", "--dry-run", "--context", "64K")
    assert "--ctx-size 262144" in small.stdout
    assert "--ctx-size 65536" in builder(*wanted).stdout
    none = builder("run", "qwen3.6-27b:mtp", "--card", "5060", "--dry-run")
    assert none.returncode == 15
    assert "qwen3.6-27b-mtp@5090-laptop: its memory is not known" in none.stderr
    assert "`builder choose --card 5060` shows the presets that run there" in none.stderr


@pytest.mark.usefixtures("models")
def test_a_card_that_cannot_run_it_is_refused_and_with_print_a_warning(builder: Builder) -> None:
    reason = "its weights take 13.9 GiB at least; this card has 7.5 GiB: 6.4 GiB too little"
    for command in (("run", PRESET), ("export", PRESET, "--allow-incomplete")):
        done = builder(*command, "--card", "5060")
        assert (done.returncode, reason in done.stderr) == (15, True), done.stderr
        unknown = builder(*command, "--card", "nonsense")
        assert "no card is named nonsense" in unknown.stderr
    printed = builder("run", PRESET, "--card", "5060", "--dry-run")
    assert printed.returncode == 0
    assert printed.stdout.startswith("docker run")
    assert f"warning: {PRESET} does not run on 5060: {reason}" in printed.stderr


def test_a_dry_run_downloads_nothing(
    builder: Builder, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_the_hub(tmp_path)
    with model_hub.served(tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        done = builder("run", PRESET, "--dry-run", "--yes")
    assert done.returncode == 0, done.stderr
    assert not models.exists()
    # The name of the file comes from the Hub.
    words = shlex.split(done.stdout.replace("\\\n", ""))
    assert words[words.index("--model") + 1] == f"/models/{MODEL}"


def test_a_short_name_on_the_cpu_needs_no_gpu(builder: Builder, models: Path) -> None:
    done = builder("run", "qwen3.6-27b", "--cpu", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert (
        f"qwen3.6-27b is {PRESET}, its fastest run with known files, since it runs on"
        in done.stderr
    )
    assert "--env=BUILDER_CPU=1" in done.stdout
    assert "--gpus" not in done.stdout
    # vLLM's published images do not serve without a GPU.
    none = builder("run", "nemotron-elastic-30b-a3b-nvfp4", "--cpu")
    assert none.returncode == 15
    assert "no preset of nemotron-elastic-30b-a3b-nvfp4 runs on the CPU" in none.stderr
    assert "vllm-0.22.0" in none.stderr
    assert not models.exists()


@without_gpu
def test_a_short_name_without_a_gpu_has_all_faults(
    builder: Builder, models: Path, tmp_path: Path
) -> None:
    farm = never_built(tmp_path / "farm")
    done = builder("run", "qwen3.6-27b", "--model", tmp_path / "absent.gguf", cwd=farm)
    assert done.returncode == 4
    assert (
        f"qwen3.6-27b is {PRESET}, its fastest run with known files, since this machine"
        in done.stderr
    )
    for fault in (
        "this machine has no NVIDIA GPU",
        "no image never-built-beellama-cpp:0.1.1",
        f"the model: there is no file {tmp_path}/absent.gguf",
        "-> name an existing one: --model FILE",
        "the draft model spiritbuun",
    ):
        assert fault in done.stderr
    assert "the model unsloth" not in done.stderr
    assert not models.exists()


def test_faults_of_the_command_line(builder: Builder, models: Path, tmp_path: Path) -> None:  # noqa: ARG001
    model = builder("run", "hello-sm120", "--model", tmp_path)
    assert model.returncode == 3
    assert "takes no --model" in model.stderr
    unknown = builder("run", "beellama-0.1.3")
    assert unknown.returncode == 3
    assert "is named beellama-0.1.3; did you mean beellama-0.1.2?" in unknown.stderr
    assert "models with presets: gemma-4-26b-a4b, " in unknown.stderr
