"""What a user asks for: options after ``--`` that name builder's own, an address, a key."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import RecipeError, UsageError, WorldError
from builder.core.settings import Settings
from builder.presets import exports
from builder.presets.images import (
    OPEN,
    Launch,
    LaunchRequest,
    prepared,
    requested,
    write_key,
)
from builder.presets.servers import Found
from builder.presets.service import Files
from support.shipped import RECIPES

BEELLAMA = "qwen3.6-27b-dflash@5090-laptop"
VLLM = "gemma-4-e4b-mtp@5090-laptop"


def of(models: Path, target: str, **more: Any) -> LaunchRequest:
    wanted = LaunchRequest(target, **more)
    return prepared(RECIPES, wanted, Settings(models_dir=models), print).wanted


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A models directory with one file of another model."""
    (tmp_path / "me").mkdir()
    (tmp_path / "me/a.gguf").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("target", "options", "given", "context", "left"),
    [
        (BEELLAMA, "-c 4096 -ngl 3", set(), 4096, "-ngl 3"),
        (BEELLAMA, "--ctx-size=4 --ctx_size 8", set(), 8, ""),
        (BEELLAMA, "-ngl=3 --override-kv=a=int:1", set(), 512, "-ngl 3 --override-kv a=int:1"),
        (VLLM, "--dtype=half", set(), 512, "--dtype=half"),
        (BEELLAMA, "-m {}/me/a.gguf", {"model"}, 512, ""),
        (BEELLAMA, "--model=/models/me/a.gguf --mlock", {"model"}, 512, "--mlock"),
        (BEELLAMA, "-md {}/me/a.gguf", {"draft"}, 512, ""),
        (BEELLAMA, "--spec-draft-model {}/me/a.gguf", {"draft"}, 512, ""),
        (BEELLAMA, "-mm {}/me/a.gguf --no-mmproj", {"mmproj"}, 512, "--no-mmproj"),
        (BEELLAMA, "--mtp-head {{draft}}", set(), 512, "--mtp-head {draft}"),
        (VLLM, "--max-model-len 4096", set(), 4096, ""),
        (VLLM, "--max_model_len=4K", set(), 4096, ""),  # vLLM's size, which builder can check
        (VLLM, "{}/me", {"model"}, 512, ""),
        (VLLM, "--model {}/me", {"model"}, 512, ""),
        ("llama-cpp-b9261", "-hf me/A", set(), 512, "-hf me/A"),
        ("vllm-0.21.0", "OWNER/NAME", set(), 512, "OWNER/NAME"),
        ("hello-sm120", "--device auto", set(), 512, "--device auto"),
    ],
)
def test_they_count_as_builders_options(
    target: str, options: str, given: set[str], context: int, left: str, models: Path
) -> None:
    words = (*options.format(models).split(),)
    found = of(models, target, context=512, options=words)
    assert {*found.given} == given
    assert {path.resolve() for path in found.given.values()} <= {
        models / "me/a.gguf",
        models / "me",
    }
    assert (found.context, " ".join(found.options)) == (context, left)


@pytest.mark.parametrize(
    ("target", "options", "option"),
    [
        (BEELLAMA, "-c 0", "--context TOKENS"),
        (BEELLAMA, "--ctx-size auto", "--context TOKENS"),
        (BEELLAMA, "--ctx-size 64K", "--context TOKENS"),  # 64 for llama.cpp
        (BEELLAMA, "-m /gone.gguf", "--model FILE"),
        (BEELLAMA, "--model=/models/gone.gguf", "--model FILE"),
        (BEELLAMA, "-hf me/A", "--model FILE"),
        (BEELLAMA, "--model-draft /gone.gguf", "--draft FILE"),
        (VLLM, "--max-model-len -1", "--context TOKENS"),
        (VLLM, "OTHER/MODEL", "--model FILE"),
        (VLLM, "--model OTHER/MODEL", "--model FILE"),
    ],
)
def test_a_value_that_builder_cannot_follow_is_refused(
    target: str, options: str, option: str, models: Path
) -> None:
    with pytest.raises(RecipeError) as caught:
        of(models, target, options=(*options.split(),))
    assert caught.value.hint.endswith(option)


# The address, and the key that the server asks for.

LAN = "0.0.0.0"  # noqa: S104  (nothing listens)
KEYED = {"beellama": BEELLAMA, "sglang": "sglang-0.5.23-wheel"}


def job_of(folder: Path, target: str, **more: Any) -> Launch:
    wanted = LaunchRequest(target, {"model": folder / "me/a.gguf"}, **more)
    return prepared(RECIPES, wanted, Settings(state_dir=folder / "state"), lambda _: None)


@pytest.mark.parametrize(
    ("target", "more", "what", "hint"),
    [
        (BEELLAMA, {"listen": LAN}, "--listen 0.0.0.0 needs --api-key-file", "made if"),
        (BEELLAMA, {"listen": "::"}, "--listen :: needs --api-key-file", "--api-key-file none"),
        (BEELLAMA, {"listen": "lan"}, "--listen lan is no IP address", "0.0.0.0 is every"),
        ("hello-sm120", {"listen": "192.0.2.1"}, "--listen 192.0.2.1 needs", "put a proxy"),
        ("hello-sm120", {"key_file": "/k"}, "reads no API key from a file", "put a proxy"),
        ("lmdeploy-0.18.0-wheel", {"key_file": "/k"}, "reads no API key", "put a proxy"),
        (VLLM, {"listen": LAN, "key_file": "/k"}, "everyone at /invocations", "put a proxy"),
    ],
)
def test_a_server_that_other_machines_reach_has_a_key(
    target: str, more: dict[str, str], what: str, hint: str, models: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        job_of(models, target, **more)
    assert what in caught.value.what
    assert hint in caught.value.hint


def test_an_address_of_this_machine_alone_needs_none(models: Path) -> None:
    for address in ("127.0.0.1", "127.0.0.2", "::1"):
        assert write_key(job_of(models, BEELLAMA, listen=address)) == ""
    assert write_key(job_of(models, "hello-sm120", listen=LAN, key_file=OPEN)) == ""
    assert not (models / "state").exists()


@pytest.mark.parametrize(
    ("engine", "option", "text"),
    [
        ("beellama", "--api-key-file /run/api-key", "{key}\n"),
        ("sglang", "--config /run/api-key.yaml", 'api-key: "{key}"\n'),
    ],
)
def test_the_key_is_made_and_mounted_and_stands_in_no_command(
    engine: str, option: str, text: str, models: Path
) -> None:
    file = models / "sub/the key"
    job = job_of(models, KEYED[engine], listen=LAN, key_file=str(file))
    made = requested(job, "me/a:1", Files({"model": "/model/a"}))
    assert made.missing[-1].startswith(f"Needs {job.key_copy}, ")
    assert not file.exists()
    key = write_key(job)
    assert re.fullmatch("[0-9a-f]{64}", key)
    assert file.read_text() == f"{key}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    # The container's user is another one; on the host, nobody else passes the directory.
    assert job.key_copy.read_text() == text.format(key=key)
    assert stat.S_IMODE(job.key_copy.stat().st_mode) == 0o444
    assert stat.S_IMODE(job.key_copy.parent.stat().st_mode) == 0o700
    service = requested(job, "me/a:1", Files({"model": "/model/a"}))
    assert service.missing[-1].startswith(f"Needs {job.key_copy}, ")
    assert service.key_file == str(file)
    words = " ".join(exports.words(service))
    assert words.endswith(option)
    where = f"source={job.key_copy},target={option.split()[1]},readonly"
    assert f"--mount=type=bind,{where}" in words
    assert f"--publish={LAN}:{service.port}:{service.port} " in words
    assert key not in words
    assert f"the server asks for the API key in {file}" in " ".join(exports.reasons(service))
    # It stays, and its engine gets what the user writes.
    assert write_key(job) == key
    before = job.key_copy
    file.write_text("another-one\n")
    assert write_key(job) == "another-one"
    assert "another-one" in job.key_copy.read_text()
    # A server that runs has the old one: its log is still read without it.
    assert before.read_text() == text.format(key=key)
    assert Found("1", "a", "running", key_copy=str(before)).secret == key


@pytest.mark.parametrize("text", ["", "two\nlines", "two words", 'a"b', "a\\b", "-a", "ä", "\0"])
def test_a_file_that_has_no_key_is_refused(text: str, models: Path) -> None:
    (file := models / "key").write_text(text)
    with pytest.raises(WorldError, match=r"no API key|cannot read the API key"):
        job_of(models, BEELLAMA, key_file=str(file))
    with pytest.raises(WorldError, match=f"cannot read the API key in {models}"):
        job_of(models, BEELLAMA, key_file=str(models))
