"""The command line of a server, its requests, and what its log states of the models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.checks.server import (
    Mounts,
    Server,
    ServerClient,
    ServeSpec,
    UnansweredError,
    arguments,
    mounts_of,
    offloaded,
)
from builder.engines import llama_cpp
from builder.engines.servers import API_FLAVORS
from builder.recipes.probes import Serve
from support.loopback import Quiet, serving_with

MODEL, DRAFT, PROJECTOR = Path("/a/m.gguf"), Path("/b/d.gguf"), Path("/c/p.gguf")


def test_options_of_one_start_stand_after_those_of_the_recipe() -> None:
    spec = ServeSpec(MODEL, 4096, DRAFT, ["--parallel", "1"], projector=PROJECTOR)
    found = arguments(llama_cpp.SERVE, spec)
    draft, projector = found.index("/draft/d.gguf"), found.index("/projector/p.gguf")
    assert found[draft - 1] == "--model-draft"
    assert found[projector - 1] == "--mmproj"
    assert draft < projector < found.index("--parallel")
    assert found[found.index("/model/m.gguf") - 1] == "--model"
    assert "4096" in found


def test_an_option_that_names_the_drafter_replaces_the_one_of_the_recipe() -> None:
    spec = ServeSpec(MODEL, 4096, DRAFT, ["--mtp-head", "{draft}", "--text", "{model}"])
    found = arguments(llama_cpp.SERVE, spec)
    assert "--model-draft" not in found
    assert found[-4:] == ["--mtp-head", "/draft/d.gguf", "--text", "{model}"]


def test_a_simulated_card_gets_the_arguments_for_a_gpu() -> None:
    spec = ServeSpec(MODEL, 4096)
    simulated = ServeSpec(MODEL, 4096, simulator=Mounts())
    added = arguments(llama_cpp.SERVE, simulated)
    for word in arguments(llama_cpp.SERVE, spec):
        added.remove(word)
    assert added == llama_cpp.SERVE.gpu


@pytest.mark.parametrize("name", sorted({*API_FLAVORS} - {"none"}))
def test_a_server_without_an_option_for_projectors_gets_none(name: str) -> None:
    serve = Serve(api_flavor=name, arguments=["{model}"])  # type: ignore[arg-type]
    found = arguments(serve, ServeSpec(MODEL, 1, projector=PROJECTOR))
    assert ("/projector/p.gguf" in found) == (API_FLAVORS[name].projector is not None)


def test_a_file_that_is_named_like_a_placeholder_keeps_its_name() -> None:
    serve = Serve(api_flavor="openai", arguments=["{model}", "{context}", "{other}"])
    found = arguments(serve, ServeSpec(Path("/a/{context}.gguf"), 4096))
    assert found == ["/model/{context}.gguf", "4096", "{other}"]


def test_all_parts_of_a_split_model_are_mounted(tmp_path: Path) -> None:
    names = [f"a-0000{number}-of-00002.gguf" for number in (1, 2)]
    for name in [*names, "a-00001-of-00003.gguf", "b.gguf"]:
        (tmp_path / name).touch()
    mounts = mounts_of("/model", tmp_path / names[1])
    assert [*mounts] == [f"/model/{name}" for name in names]
    assert [*mounts_of("/model", tmp_path / "b.gguf")] == ["/model/b.gguf"]


LOADER = "llama_model_loader: loaded meta data with 43 key-value pairs and 866 tensors from "
VERSION = " (version GGUF V3 (latest))\n"


def test_the_layers_of_the_target_and_of_the_drafter_are_named() -> None:
    log = (
        f"{LOADER}/models/draft.gguf{VERSION}load_tensors: offloaded 6/6 layers to GPU\n"
        f"{LOADER}/models/model.gguf{VERSION}load_tensors: offloading output layer to GPU\n"
        "load_tensors: offloaded 64/65 layers to GPU\n"
    )
    draft, target = offloaded(log)
    assert (draft.model, draft.layers, draft.of) == ("draft.gguf", 6, 6)
    assert (target.layers, target.of) == (64, 65)
    assert str(target) == "model.gguf: offloaded 64/65 layers to GPU"


def test_a_model_that_is_loaded_again_counts_once() -> None:
    line = f"{LOADER}/m.gguf{VERSION}load_tensors: offloaded "
    log = f"{line}0/3 layers to GPU\n{line}3/3 layers to GPU\n"
    assert [str(each) for each in offloaded(log)] == ["m.gguf: offloaded 3/3 layers to GPU"]


def test_a_log_without_files_has_its_lines() -> None:
    line = "offloaded 1/1 layers to GPU\n"
    assert [str(each) for each in offloaded(line * 2)] == [line.strip()] * 2
    assert offloaded("") == []


class Strict(Quiet):
    """A server that refuses requests without its model's name, as LMDeploy's does."""

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": "tiny"}]} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        named = asked.get("model") == "tiny"
        self._send(200 if named else 400, {"choices": [{"text": asked["prompt"]}]})

    def _send(self, status: int, content: object) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())


def test_requests_of_openais_api_name_the_model() -> None:
    nothing: Any = None
    with serving_with(Strict) as address:
        client = ServerClient(f"http://{address}")
        server = Server(nothing, client, API_FLAVORS["openai"])
        assert server.complete({"prompt": "a"}, 5).text == "a"
        other = Server(nothing, client, API_FLAVORS["llama-server"])
        with pytest.raises(UnansweredError, match="status 400"):
            other.complete({"prompt": "a"}, 5)
