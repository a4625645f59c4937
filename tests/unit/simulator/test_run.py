from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from builder.servers import test_model
from builder.simulator import cards, config, run

CARD = cards.load(Path(__file__).parents[3], "5090")


def test_a_container_finds_the_libraries_first_and_may_write_its_report(tmp_path: Path) -> None:
    found = run.prepare(tmp_path / "lib", {"code": "x\n"}, tmp_path / "run", search_path="/a:/b")
    assert found.mounts.env == {
        "BUILDER_SIMULATOR": "/simulator/config",
        "LD_LIBRARY_PATH": "/simulator/lib:/a:/b",
    }
    assert found.mounts.volumes["/simulator/lib"] == tmp_path / "lib"
    assert (found.mounts.volumes["/simulator/config"] / "code").read_text() == "x\n"
    assert found.mounts.writable == {"/simulator/report": found.reports}
    assert stat.S_IMODE(found.reports.stat().st_mode) == 0o777
    assert found.report() is None


def test_files_with_rpath_get_the_libraries_by_preloading(tmp_path: Path) -> None:
    found = run.prepare(tmp_path / "lib", {}, tmp_path / "run", preload=True)
    names = found.mounts.env["LD_PRELOAD"].split(":")
    assert names[0] == "/simulator/lib/libcudart.so.13"
    assert found.mounts.env["LD_LIBRARY_PATH"] == "/simulator/lib"


def test_the_tokens_that_win_are_letters_of_the_models_vocabulary(tmp_path: Path) -> None:
    test_model.write(tmp_path / "tiny.gguf")
    size, tokens = config.vocabulary_of(tmp_path / "tiny.gguf")
    assert size == 3 + 256 + 95
    # After the control and byte tokens: a space, then the printable characters from "!" on.
    assert [chr(token - 260 + ord("!")) for token in tokens] == list("ABCDEFGHIJKLMNOP")
    files = config.files([CARD], tmp_path / "tiny.gguf", "")
    assert "vocabulary 354\n" in files["cards"]
    assert "name NVIDIA GeForce RTX 5090\n" in files["cards"]


def test_a_model_without_a_vocabulary_is_configured_all_the_same(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "clip")
    writer.add_tensor("v.weight", np.zeros((1, 8), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert config.vocabulary_of(tmp_path / "m.gguf") == (0, [])
