"""Wheels lose the device code that no card runs: nothing else changes, and RECORD knows it."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from builder.image.code_paths import code_paths
from simulator import elf, fatbin
from simulator.selection import Capability, preferred
from support.environment import REPOSITORY
from support.fatbins import AT, ELF, FLAG_A, FLAG_F, LTO, LZ4, PTX, ZSTD, entry, library, region

DIET = REPOSITORY / "dockerfiles" / "scripts" / "diet.py"
Coded = tuple[int, int, int, int]
"""Kind, architecture, flags and size of an entry."""


def line(path: str, content: bytes) -> str:
    digest = urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"{path},sha256={digest},{len(content)}\r\n"


def installed(site: Path, name: str, files: dict[str, bytes]) -> Path:
    """A package as pip installs it; its RECORD."""
    for path, content in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
    record = site / f"{name}-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    rows = [line(path, content) for path, content in files.items()]
    record.write_bytes("".join([*rows, f"{name}-1.0.dist-info/RECORD,,\r\n"]).encode())
    return record


def diet(site: Path, *capabilities: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, DIET, site, *(capabilities or ("12.0",))]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def found(content: bytes) -> list[fatbin.Region]:
    return [*fatbin.regions(io.BytesIO(content), AT, content.index(b"\0.nv_fatbin\0"))]


codes = st.tuples(
    st.sampled_from([PTX, ELF]),
    st.sampled_from([75, 80, 86, 89, 90, 100, 103, 120, 121]),
    st.sampled_from([0, FLAG_A, FLAG_F]),
    st.sampled_from([0, LZ4, ZSTD]),
)
modules = st.lists(st.lists(codes, max_size=5, unique_by=lambda each: each[:3]), max_size=4)
capabilities = st.lists(
    st.sampled_from(["8.0", "8.6", "9.0", "10.3", "12.0", "12.1"]), min_size=1, max_size=2
)


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(modules=modules, wanted=capabilities)
@example(modules=[[(PTX, 121, 0, 0), (ELF, 120, 0, 0)]], wanted=["12.1"])
def test_each_card_takes_the_same_bytes_and_nothing_else_is_left(
    modules: list[list[Coded]], wanted: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = [
        region(
            *(
                entry(kind, arch, suffix | packed, bytes([65 + number]) * (64 + 8 * number))
                for number, (kind, arch, suffix, packed) in enumerate(module)
            )
        )
        for module in modules
    ]
    before = library(*data).getvalue()
    site = tmp_path_factory.mktemp("site")
    installed(site, "x", {"x/_C.abi3.so": before})
    assert diet(site, *wanted).returncode == 0
    after = (site / "x/_C.abi3.so").read_bytes()
    assert len(after) == len(before)
    for old, new in zip(found(before), found(after), strict=True):
        cards = [Capability.parse(each) for each in wanted]
        taken = {preferred((each.code for each in old.entries), card) for card in cards} - {None}
        left = [each for each in old.entries if not taken or each.code in taken]
        assert new.offset == old.offset
        assert [(each.code, each.payload(io.BytesIO(after))) for each in new.entries] == [
            (each.code, each.payload(io.BytesIO(before))) for each in left
        ]
    assert after[:AT] == before[:AT]
    names = before.index(b"\0.nv_fatbin\0")
    assert after[names:] == before[names:]


OLD = region(entry(ELF, 80, 0, b"8" * 800), entry(PTX, 80, 0, b"p" * 80))
OTHER = region(entry(ELF, 90, FLAG_A, b"9" * 900))
CODE = library(OLD, OTHER, region()).getvalue()


def test_a_module_of_which_nothing_runs_stays(tmp_path: Path) -> None:
    installed(tmp_path, "x", {"x/_C.so": CODE})
    done = diet(tmp_path)
    assert done.stdout.splitlines()[0].endswith("MB of device code removed: x/_C.so")
    parsed = elf.read(io.BytesIO((tmp_path / "x/_C.so").read_bytes()))
    assert parsed is not None
    assert [code.name for code in parsed.code] == ["compute_80", "sm_90a"]
    left = code_paths("/x/_C.so", parsed.modules, Capability(12, 0))
    assert (left.native, left.compiled, left.dead) == (0, 80, 900)
    before = elf.read(io.BytesIO(CODE))
    assert before is not None
    assert (before.zeros, parsed.zeros) == (0, 800 + 64)


DEAD = library(
    region(entry(ELF, 90, FLAG_A, b"9" * 900), entry(ELF, 80, 0, b"8" * 800)),
    region(),
    OTHER,
).getvalue()


def test_each_module_of_a_dead_library_gets_its_smallest_entry(tmp_path: Path) -> None:
    installed(tmp_path, "x", {"x/_C.so": DEAD, "x/other.so": DEAD})
    assert diet(tmp_path, "12.0", "--", "x/_C.so").returncode == 0
    assert (tmp_path / "x/other.so").read_bytes() == DEAD
    after = (tmp_path / "x/_C.so").read_bytes()
    names = DEAD.index(b"\0.nv_fatbin\0")
    assert (after[:AT], after[names:]) == (DEAD[:AT], DEAD[names:])
    assert [each.offset for each in found(after)] == [each.offset for each in found(DEAD)]
    left = [
        [(each.code.name, each.payload(io.BytesIO(after))) for each in module.entries]
        for module in found(after)
    ]
    assert left == [[("sm_80", b"8" * 800)], [], [("sm_80", b"8" * 800)]]
    assert after.count(b"9") == 0, "nothing is left of the rest"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x/_C.so", "_C.so has code that runs: it cannot be emptied"),
        ("y.so", "no package has y.so"),
    ],
)
def test_a_library_that_is_not_dead_ends_the_build(name: str, message: str, tmp_path: Path) -> None:
    installed(tmp_path, "x", {"x/_C.so": CODE})
    done = diet(tmp_path, "12.0", "--", name)
    assert (done.returncode, done.stderr) == (1, f"{message}\n")


def test_record_has_the_hashes_of_what_was_changed(tmp_path: Path) -> None:
    fine = library(region(entry(ELF, 120))).getvalue()
    files = {"x/_C.so": CODE, "x/fine.so": fine, "x/a.py": b"a", "x.libs/libx-1.so.2": CODE}
    record = installed(tmp_path, "x", files)
    assert diet(tmp_path).returncode == 0
    after = {path: (tmp_path / path).read_bytes() for path in files}
    assert {path for path in files if after[path] != files[path]} == {
        "x/_C.so",
        "x.libs/libx-1.so.2",
    }
    rows = [line(path, content) for path, content in after.items()]
    assert record.read_bytes().decode() == "".join([*rows, "x-1.0.dist-info/RECORD,,\r\n"])


def test_nvidias_packages_and_libraries_stay(tmp_path: Path) -> None:
    installed(tmp_path, "nvidia_nccl_cu13", {"nvidia/nccl/lib/libnccl.so.2": CODE})
    installed(tmp_path, "nvidia_x", {"nvidia/x/_x.so": CODE})
    installed(tmp_path, "torchvision", {"torchvision.libs/libnvjpeg.36e11081.so.13": CODE})
    assert "0.0 of 0.0 MB" in diet(tmp_path).stdout
    assert {file.read_bytes() for file in tmp_path.rglob("*.so*")} == {CODE}


def test_input_of_a_later_link_stays(tmp_path: Path) -> None:
    content = library(region(entry(LTO, 75, 0, b"l" * 64), entry(ELF, 120))).getvalue()
    installed(tmp_path, "x", {"x/_C.so": content})
    assert diet(tmp_path).returncode == 0
    assert (tmp_path / "x/_C.so").read_bytes() == content


@pytest.mark.parametrize("damaged", [region(entry(ELF, 80))[:-8], b"\1" * 64])
def test_an_unknown_fat_binary_ends_the_build(damaged: bytes, tmp_path: Path) -> None:
    installed(tmp_path, "x", {"x/_C.so": library(damaged).getvalue()})
    done = diet(tmp_path)
    assert done.returncode == 1
    assert "x/_C.so: unknown fat binary at byte 0x400" in done.stderr
