"""Options after ``--`` that name builder's own: the context, and the files that it mounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import RecipeError
from builder.core.settings import Settings
from builder.presets.images import LaunchRequest, prepared
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
