from __future__ import annotations

import stat
from pathlib import Path

from builder.checks import serves, simulated
from builder.presets import cards
from simulator import gguf

CARD = cards.load(Path(__file__).parents[3], "5090")


def test_a_container_finds_the_libraries_first_and_a_socket_for_its_report(tmp_path: Path) -> None:
    work, files = tmp_path / "run", {"code": "x\n"}
    with simulated.simulation(tmp_path / "lib", files, work, search_path="/a:/b") as found:
        assert found.mounts.env == {
            "BUILDER_SIMULATOR": "/simulator/config",
            "LD_LIBRARY_PATH": "/simulator/lib:/a:/b",
            "LD_PRELOAD": "/simulator/lib/libpages.so",
        }
        volumes = found.mounts.volumes
        assert volumes["/simulator/lib"] == tmp_path / "lib"
        assert (volumes["/simulator/config"] / "code").read_text() == "x\n"
        mode = volumes["/simulator/report"].stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o666
        assert found.report() is None


def test_files_with_rpath_get_the_libraries_by_preloading(tmp_path: Path) -> None:
    with simulated.simulation(tmp_path / "lib", {}, tmp_path / "run", preload=True) as found:
        names = found.mounts.env["LD_PRELOAD"].split(":")
        assert names[:2] == ["/simulator/lib/libpages.so", "/simulator/lib/libcudart.so.13"]
        assert found.mounts.env["LD_LIBRARY_PATH"] == "/simulator/lib"


def test_the_configuration_has_the_cards_and_the_vocabulary_of_the_model(tmp_path: Path) -> None:
    serves.write_model(tmp_path / "tiny.gguf")
    with (tmp_path / "tiny.gguf").open("rb") as stream:
        files = simulated.config_files([CARD], gguf.read(stream), "kernel x\n")
    lines = files["cards"].splitlines()
    assert "vocabulary 288" in lines
    [tokens] = [line.split()[1:] for line in lines if line.startswith("tokens ")]
    # The characters stand for the bytes, and come before the words.
    assert [chr(int(token)) for token in tokens] == list("ABCDEFGH")
    assert "launches_write 1" in lines  # drafts may be chosen on the card
    assert "name NVIDIA GeForce RTX 5090" in lines
    assert files["code"] == "kernel x\n"
