"""Sections, build ids and dynamic symbols of real ELF files, beside what binutils print."""

from __future__ import annotations

import io
import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator import MalformedElf, elf
from simulator.elf import Elf, versioned_symbols
from support.cubins import Function, cubin

pytestmark = pytest.mark.xdist_group("elf")  # they share what a fixture makes

SOURCE = """
#include <stdlib.h>
extern int other(int) __attribute__((weak));
int old_one(void) { return 1; }
int new_one(void) { return other ? other(2) : 2; }
__asm__(".symver old_one, one@FIRST_1.0");
__asm__(".symver new_one, one@@SECOND_2.0");
int plain(void) { return atoi("1"); }
int zeros[1000];
"""
VERSIONS = "FIRST_1.0 { global: one; plain; zeros; local: *; };\nSECOND_2.0 { global: one; };\n"


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library with symbol versions of its own."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "source.c").write_text(SOURCE)
    (folder / "versions").write_text(VERSIONS)
    command = ["gcc", "-shared", "-fPIC", "-Wl,--version-script=versions", "-Wl,--build-id=sha1"]
    subprocess.run([*command, "source.c", "-o", "library.so"], cwd=folder, check=True)
    return folder / "library.so"


def printed(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_symbols_are_those_of_nm(binary: Path) -> None:
    with binary.open("rb") as stream:
        found = versioned_symbols(Elf(stream))
    assert {"one@FIRST_1.0", "one@SECOND_2.0", "plain@FIRST_1.0", "w other"} <= found
    assert any(each.startswith("U atoi@GLIBC_") for each in found)
    listed = re.findall(r"^[0-9a-f ]{16} (\w) (\S+)$", printed("nm", "-D", binary), re.MULTILINE)
    marks = {"U": "U ", "w": "w "}
    # nm writes a default version with two @.
    assert {f"{marks.get(kind, '')}{name.replace('@@', '@')}" for kind, name in listed} == found


def test_sections_are_those_of_readelf(binary: Path) -> None:
    with binary.open("rb") as stream:
        found = Elf(stream)
        sizes = {each.name: each.size for each in found.sections[1:]}
        rows = re.findall(
            r"^ +\[ *\d+\] (\S+) +\S+ +[0-9a-f]+ [0-9a-f]+ ([0-9a-f]+)",
            printed("readelf", "-SW", binary),
            re.MULTILINE,
        )
        assert {name: int(size, 16) for name, size in rows} == sizes
        bss, comment = found.named(".bss"), found.named(".comment")
        assert bss is not None
        assert bss.size >= 4000
        assert found.content(bss) == b""
        assert comment is not None
        assert found.content(comment).startswith(b"GCC:")
        assert found.build_id() in printed("readelf", "-n", binary)
        assert len(found.build_id()) == 40


def test_an_object_file_has_neither(binary: Path) -> None:
    source, target = binary.with_name("source.c"), binary.with_name("source.o")
    subprocess.run(["gcc", "-c", "-fPIC", source, "-o", target], check=True)
    with target.open("rb") as stream:
        found = Elf(stream)
        assert (found.build_id(), versioned_symbols(found)) == ("", frozenset())
        assert found.named(".text") is not None


def test_a_cubin_is_an_elf_file() -> None:
    found = Elf(io.BytesIO(cubin(Function("_Z1av", b"code" * 32, shared=2048))))
    text, shared = found.named(".text._Z1av"), found.named(".nv.shared._Z1av")
    assert text is not None
    assert shared is not None
    assert (found.content(text), shared.size) == (b"code" * 32, 2048)


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF\x09\x09" + bytes(58)])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedElf):
        _ = Elf(io.BytesIO(data)).all


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(change=st.tuples(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=8)))
def test_damage_raises_one_kind_of_error(binary: Path, change: tuple[int, bytes]) -> None:
    data = bytearray(binary.read_bytes())
    at = change[0] % len(data)
    data[at : at + len(change[1])] = change[1]
    _read_all(bytes(data))
    _read_all(bytes(data)[:at])


def _read_all(data: bytes) -> None:
    with suppress(MalformedElf):
        found = Elf(io.BytesIO(data))
        found.build_id()
        versioned_symbols(found)
        for section in found.sections:
            found.content(section)


def test_what_a_hostile_file_counts_is_bounded(
    binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with binary.open("rb") as stream:
        monkeypatch.setattr(elf, "_MOST_VERSIONS", 2)
        with pytest.raises(MalformedElf, match=r"symbol versions at byte 0x.*: more than 2"):
            versioned_symbols(Elf(stream))
    header = bytearray(binary.read_bytes()[:64])
    header[0x28:0x30] = (64).to_bytes(8, "little")  # the section headers, which have 2^27 bytes
    header[0x3C:0x3E] = bytes(2)
    first = (1 << 21).to_bytes(8, "little")
    with pytest.raises(MalformedElf, match="section headers at byte 0x40: 134217728 bytes are too"):
        _ = Elf(io.BytesIO(bytes(header) + bytes(32) + first + bytes(1 << 27))).sections
