import io
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator import MalformedElf
from simulator.elf import is_elf, read, read_symbols
from simulator.selection import Code
from support.fatbins import ELF, FLAG_A, PTX, entry, region

pytestmark = pytest.mark.xdist_group("elf")  # they share what a fixture makes

# Damaged sizes must cost no more than sound ones: far above what any example needs, far below
# what a loop through a bogus count would.
in_time = settings(
    deadline=5000, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def compiled(folder: Path, *flags: str, source: str = "int main(void) { return 0; }") -> Path:
    (folder / "source.c").write_text(source)
    binary = folder / "binary"
    subprocess.run(["gcc", "source.c", "-o", binary, *flags], cwd=folder, check=True)
    return binary


def with_sections(binary: Path, sections: Iterable[tuple[str, bytes]]) -> Path:
    command = ["objcopy"]
    for number, (name, data) in enumerate(sections):
        content = binary.parent / f"section{number}"
        content.write_bytes(data)
        command += ["--add-section", f"{name}={content}"]
    subprocess.run([*command, binary], check=True)
    return binary


@pytest.fixture(scope="module")
def object_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("object"), "-c")


@pytest.fixture
def fat(object_file: Path, tmp_path: Path):
    def build(*data: bytes, name: str = ".nv_fatbin") -> io.BytesIO:
        binary = shutil.copy(object_file, tmp_path / "fat.o")
        return io.BytesIO(with_sections(binary, [(name, b"".join(data))]).read_bytes())

    return build


def names(stream: io.BytesIO) -> list[str]:
    file = read(stream)
    assert file is not None
    return [code.name for code in file.code]


# How a file links


def test_executable(tmp_path: Path):
    with compiled(tmp_path, "-pie", "-fPIE", "-Wl,-rpath,$ORIGIN/../lib:/opt/a").open("rb") as f:
        file = read(f)
    assert file is not None
    assert file.type == "dyn"
    assert file.machine in {"x86-64", "aarch64"}
    assert file.soname is None
    assert file.needed == ("libc.so.6",)
    assert file.runpath == ("$ORIGIN/../lib", "/opt/a")
    assert file.rpath == ()
    assert file.interpreter is not None
    assert Path(file.interpreter).name.startswith("ld-linux")
    assert file.code == ()


def test_position_dependent(tmp_path: Path):
    with compiled(tmp_path, "-no-pie").open("rb") as f:
        file = read(f)
    assert file is not None
    assert file.type == "exec"


def test_static(tmp_path: Path):
    source = "void _start(void) { for (;;); }"
    with compiled(tmp_path, "-static", "-nostdlib", source=source).open("rb") as f:
        file = read(f)
    assert file is not None
    assert (file.type, file.needed, file.interpreter) == ("exec", (), None)


def test_shared_library(tmp_path: Path):
    flags = ["-shared", "-fPIC", "-Wl,-soname,libtiny.so.1", "-Wl,--no-as-needed", "-lm"]
    with compiled(tmp_path, *flags).open("rb") as f:
        file = read(f)
    assert file is not None
    assert file.type == "dyn"
    assert file.soname == "libtiny.so.1"
    assert file.needed == ("libm.so.6", "libc.so.6")
    assert (file.runpath, file.rpath, file.interpreter) == ((), (), None)


def test_old_rpath_is_kept_apart(tmp_path: Path):
    flags = ["-shared", "-fPIC", "-Wl,--disable-new-dtags", "-Wl,-rpath,/opt/a:/opt/b"]
    with compiled(tmp_path, *flags).open("rb") as f:
        file = read(f)
    assert file is not None
    assert (file.rpath, file.runpath) == (("/opt/a", "/opt/b"), ())


def test_working_directory_in_a_path_stays_visible(tmp_path: Path):
    with compiled(tmp_path, "-shared", "-fPIC", "-Wl,-rpath,/opt/a::/opt/b").open("rb") as f:
        file = read(f)
    assert file is not None
    assert file.runpath == ("/opt/a", "", "/opt/b")


def test_emptied_path_is_no_path(tmp_path: Path):
    binary = compiled(tmp_path, "-shared", "-fPIC", "-Wl,-rpath,/opt/a")
    data = binary.read_bytes().replace(b"/opt/a\0", bytes(7))
    file = read(io.BytesIO(data))
    assert file is not None
    assert file.runpath == ()


def test_versions_that_are_needed_of_each_library(tmp_path: Path):
    source = """
        #include <math.h>
        #include <stdio.h>
        int main(int argc, char **argv) { printf("%f", pow(argc, argc)); return argv == 0; }
    """
    found = read(compiled(tmp_path, "-lm", source=source).open("rb"))
    assert found is not None
    needed = dict(found.versions_needed)
    assert set(needed) == {"libm.so.6", "libc.so.6"}
    assert "GLIBC_2.29" in needed["libm.so.6"]
    assert "GLIBC_2.34" in needed["libc.so.6"]
    assert found.versions_defined == ()


def test_versions_and_symbols_that_a_library_offers(tmp_path: Path):
    script = tmp_path / "versions"
    script.write_text("V_1 { global: f; local: *; }; V_2 { global: g; } V_1;")
    flags = ("-shared", "-fPIC", f"-Wl,--version-script={script}", "-Wl,-soname,libv.so.1")
    source = "int f(void) { return 1; } int g(void) { return 2; } int hidden(void) { return 3; }"
    library = compiled(tmp_path, *flags, source=source)
    found = read(library.open("rb"))
    assert found is not None
    assert found.versions_defined == ("libv.so.1", "V_1", "V_2")
    assert {"f", "g"} <= read_symbols(library.open("rb")).defined
    assert "hidden" not in read_symbols(library.open("rb")).defined
    shown = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True)
    names = {line.split()[-1].partition("@")[0] for line in shown.stdout.splitlines()}
    assert read_symbols(library.open("rb")).defined == names
    assert read_symbols(io.BytesIO(b"no ELF")) == (frozenset(), frozenset())


def test_symbols_that_a_library_takes_from_others(tmp_path: Path):
    source = """
        #include <stdio.h>
        extern int nowhere(void);
        extern int perhaps(void) __attribute__((weak));
        int f(void) { return puts("x") + nowhere() + (perhaps ? perhaps() : 0); }
    """
    library = compiled(tmp_path, "-shared", "-fPIC", source=source)
    found = read_symbols(library.open("rb"))
    assert found.undefined == {"puts", "nowhere"}
    shown = subprocess.run(
        ["nm", "-D", "--undefined-only", library], capture_output=True, text=True
    )
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert found.undefined == {name.partition("@")[0] for kind, name in lines if kind == "U"}
    assert "perhaps" in {name for kind, name in lines if kind == "w"}


def test_object(object_file: Path):
    with object_file.open("rb") as f:
        file = read(f)
    assert file is not None
    assert (file.type, file.needed, file.code) == ("rel", (), ())


def test_more_sections_than_the_header_counts(tmp_path: Path):
    assembly = tmp_path / "many.s"
    assembly.write_text("".join(f'.section .s{i},"a"\n.byte 1\n' for i in range(0xFF00)))
    binary = tmp_path / "many.o"
    subprocess.run(["gcc", "-c", assembly, "-o", binary], check=True)
    with_sections(binary, [(".nv_fatbin", region(entry(ELF, 120)))])
    assert names(io.BytesIO(binary.read_bytes())) == ["sm_120"]


@pytest.mark.parametrize("option", ["--strip-all", "--only-keep-debug"])
def test_stripped(tmp_path: Path, option: str):
    binary = compiled(tmp_path, "-shared", "-fPIC", "-g", "-Wl,-soname,libtiny.so.1")
    content = tmp_path / "fatbin"
    content.write_bytes(region(entry(ELF, 120)))
    add = ["--add-section", f".nv_fatbin={content}", "--set-section-flags"]
    subprocess.run(["objcopy", *add, ".nv_fatbin=alloc,readonly,data", binary], check=True)
    subprocess.run(["objcopy", option, binary], check=True)
    with binary.open("rb") as f:
        file = read(f)
    assert file is not None
    # A file of separate debug information has the headers of all this, but not the contents.
    whole = option == "--strip-all"
    assert file.soname == ("libtiny.so.1" if whole else None)
    assert file.code == ((Code("elf", 120),) if whole else ())


@pytest.mark.parametrize("data", [b"", b"\x7f", b"\x7fEL", b"#!/bin/sh\n", b"!<arch>\n"])
def test_not_elf(data: bytes):
    assert not is_elf(data)
    assert read(io.BytesIO(data)) is None


def test_position_of_the_stream_does_not_matter(object_file: Path):
    stream = io.BytesIO(object_file.read_bytes())
    stream.seek(7)
    assert read(stream) == read(stream)


# Device code


def test_device_code_of_a_file(fat):
    found = fat(region(entry(ELF, 120, FLAG_A), entry(PTX, 75, payload=bytes(3_000_000))))
    assert names(found) == ["sm_120a", "compute_75"]


def test_relocatable_device_code(object_file: Path, tmp_path: Path):
    binary = shutil.copy(object_file, tmp_path / "both.o")
    linked, separate = region(entry(ELF, 120, FLAG_A)), region(entry(PTX, 120, FLAG_A))
    with_sections(
        binary, [(".nv_fatbin", linked), (".nv_fatbin2", b"x"), ("__nv_relfatbin", separate)]
    )
    # The order of the sections is objcopy's.
    assert sorted(names(io.BytesIO(binary.read_bytes()))) == ["compute_120a", "sm_120a"]


def test_a_damaged_fat_binary_is_a_damaged_file(fat):
    with pytest.raises(MalformedElf, match="unknown kind 77"):
        read(fat(region(entry(77, 120))))


# Damaged files


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("library")
    flags = ["-pie", "-fPIE", "-Wl,-soname,libtiny.so.1", "-Wl,-rpath,/opt/a", "-s"]
    fatbin = region(), region(entry(ELF, 120, FLAG_A), entry(PTX, 120)), bytes(8)
    sections = [(".nv_fatbin", b"".join(fatbin)), ("__nv_relfatbin", region(entry(ELF, 90)))]
    return with_sections(compiled(folder, *flags), sections).read_bytes()


def only_malformed(data: bytes) -> None:
    with suppress(MalformedElf):
        read(io.BytesIO(data))


def test_every_truncation_within_the_headers(library: bytes):
    for length in range(4, 2048, 7):
        with pytest.raises(MalformedElf):
            read(io.BytesIO(library[:length]))


def test_truncated_file_on_disk(library: bytes, tmp_path: Path):
    # Seeking far past the end works in memory and fails on disk.
    truncated = tmp_path / "truncated"
    truncated.write_bytes(library[:40] + b"\xff" * 8 + library[48:])
    with truncated.open("rb") as f, pytest.raises(MalformedElf, match="section headers"):
        read(f)


def test_names_that_are_not_text(library: bytes):
    with pytest.raises(MalformedElf, match="not UTF-8"):
        read(io.BytesIO(library.replace(b"libtiny.so.1", b"libtiny.so.\xff")))


def test_string_without_end(library: bytes):
    segment = library.index(b"/lib", 64)
    end = library.index(b"\0", segment)
    with pytest.raises(MalformedElf, match=r"interpreter .* without end"):
        read(io.BytesIO(library[:end] + b"x" + library[end + 1 :]))


@in_time
@given(st.binary(max_size=4096))
def test_any_bytes(data: bytes):
    only_malformed(data)
    only_malformed(b"\x7fELF" + data)
    only_malformed(b"\x7fELF\x02\x01\x01" + data)


@in_time
@given(data=st.data())
def test_any_mutation(library: bytes, data: st.DataObject):
    damaged = bytearray(library)
    # Mostly the places that are read: headers at the start, section headers and names at the
    # end. Anywhere else a change rarely matters.
    places = st.one_of(
        st.integers(0, 1024),
        st.integers(len(library) - 4096, len(library) - 8),
        st.integers(0, len(library) - 8),
    )
    values = st.one_of(
        st.sampled_from([b"\0" * 8, b"\xff" * 8, b"\0\0\0\0\0\0\0\x80", b"\xff"]),
        st.binary(min_size=1, max_size=8),
    )
    for place, value in data.draw(st.lists(st.tuples(places, values), min_size=1, max_size=4)):
        damaged[place : place + len(value)] = value
    only_malformed(bytes(damaged))


@in_time
@given(data=st.data())
def test_any_fat_binary(library: bytes, data: st.DataObject):
    start = library.index(region(entry(ELF, 120, FLAG_A), entry(PTX, 120)))
    size = len(region(entry(ELF, 120), entry(PTX, 120)))
    damaged = bytearray(library)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[start + data.draw(st.integers(0, size - 1))] = data.draw(st.integers(0, 255))
    only_malformed(bytes(damaged))
