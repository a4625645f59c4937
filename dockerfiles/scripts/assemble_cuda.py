"""Make a CUDA toolkit directory out of NVIDIA's PyPI wheels; runs inside the devel stage.

The ``nvidia-*`` wheels for CUDA 13 all unpack into one ``nvidia/cu13`` tree that has the
shape of ``/usr/local/cuda``, but for what a wheel cannot carry: executable bits, symbolic
links, the loader's configuration and the driver stub.  Found by comparing the tree with
NVIDIA's Debian packages.  Needs only the standard library and a C compiler.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

# One tree since CUDA 13; before, each wheel had a directory of its own.
TREE = re.compile(r"nvidia/(?:cu\d+|cu[a-z_]+|nv[a-z_]+)/(.+)")
EXECUTABLES = ("bin", "nvvm/bin")
NVML_PROTOTYPE = re.compile(r"\bnvmlReturn_t\s+(?:DECLDIR\s+)?(nvml[A-Z]\w*)\s*\(")
NVML_ERROR_LIBRARY_NOT_FOUND = 12  # of nvml.h
PROTOTYPE = re.compile(r"\bCUresult\s+(?:__attribute__\(\(\w+\)\)\s+)?(cu[A-Z]\w*)\s*\(")
CUDA_ERROR_STUB_LIBRARY = 34  # the value that cuda.h gives to "this is the stub, not a driver"
PROCESS_ID = """
#include <stdlib.h>
int getpid(void) { return strtoul(getenv("SOURCE_CHECKSUM"), 0, 10) & 0x7fffffff; }
"""
# A line marker ends in 3, or in 3 and 4, before the lines of a system header (GCC manual,
# "Preprocessor Output"): those depend on the platform.
WITH_PROCESS_ID = r"""#!/bin/sh
for source; do :; done   # the last argument
SOURCE_CHECKSUM=$(awk '/^# [0-9]/ {{ skipped = / 3( 4)?$/; next }} !skipped' "$source" | cksum)
SOURCE_CHECKSUM=${{SOURCE_CHECKSUM%% *}} LD_PRELOAD={library} exec {program} "$@"
"""


def unpack(wheel: Path, root: Path) -> int:
    """Unpack the CUDA tree of one wheel below ``root``; return the number of files."""
    count = 0
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            inside = TREE.fullmatch(info.filename)
            if inside is None or info.is_dir():
                continue
            target = (root / inside[1]).resolve()
            if not target.is_relative_to(root.resolve()):
                sys.exit(f"{wheel.name}: {info.filename} leaves the tree")
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(info) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            count += 1
    return count


def set_executable_bits(root: Path) -> None:
    """Wheels lose the mode bits: everything in the bin directories is a program."""
    for folder in EXECUTABLES:
        for program in (root / folder).glob("*"):
            if program.is_file():
                program.chmod(0o755)


def link_libraries(root: Path) -> None:
    """Give every ``libX.so.13`` the ``libX.so`` that the linker looks for, and ``lib64``."""
    for library in sorted((root / "lib").glob("lib*.so.*")):
        name = library.name.split(".so.")[0] + ".so"
        link = library.with_name(name)
        if not link.exists():
            link.symlink_to(library.name)
    lib64 = root / "lib64"
    if not lib64.exists():
        lib64.symlink_to("lib")


def fix_process_id(root: Path, compiler: str) -> None:
    """Give ``cudafe++``, where the toolkit has it, a process id that depends on its input alone.

    It puts the id into the names of what has internal linkage, in a source file that defines no
    function or variable for others: two compiles by nvcc 13.0 gave two names.  The id is a checksum
    of the preprocessed source: a file that is compiled twice, with other macros, for one library
    still gets two names.  System headers do not count: device code of a cross build is that of a
    native one.
    """
    program = root / "bin" / "cudafe++"
    if not program.exists():
        return
    folder = root / "lib" / "builder"
    folder.mkdir(parents=True)
    library, real = folder / "process_id.so", folder / program.name
    flags = ["-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(library)]
    subprocess.run([compiler, *flags], input=PROCESS_ID, check=True, text=True)
    program.rename(real)
    program.write_text(WITH_PROCESS_ID.format(library=library, program=real))
    program.chmod(0o755)


def driver_symbols(include: Path, compiler: str) -> list[str]:
    """The driver functions that ``cuda.h`` declares, after its own renaming macros.

    Both passes are needed: the plain one names what new programs call (``cuMemAlloc_v2``),
    the internal one what older objects still import (``cuMemAlloc``).
    """
    names: set[str] = set()
    for define in ("-DBUILDER_PLAIN", "-D__CUDA_API_VERSION_INTERNAL"):
        done = subprocess.run(
            [compiler, "-E", "-P", define, "-x", "c", "-I", str(include), str(include / "cuda.h")],
            check=True,
            capture_output=True,
            text=True,
        )
        names.update(PROTOTYPE.findall(done.stdout))
    return sorted(names)


def make_driver_stub(root: Path, compiler: str, include: Path) -> int:
    """Write ``lib64/stubs/libcuda.so`` with every driver function; return how many."""
    symbols = driver_symbols(include, compiler)
    if len(symbols) < 300:
        sys.exit(f"cuda.h gave only {len(symbols)} driver functions: its shape has changed")
    make_stub(root, compiler, "libcuda.so", symbols, CUDA_ERROR_STUB_LIBRARY)
    return len(symbols)


def make_nvml_stub(root: Path, compiler: str, include: Path) -> int:
    """Write ``lib64/stubs/libnvidia-ml.so``, where a wheel brought nvml.h; return how many."""
    header = include / "nvml.h"
    if not header.exists():
        return 0
    text = header.read_text("utf-8", errors="replace")
    symbols = sorted(set(NVML_PROTOTYPE.findall(text)))
    if len(symbols) < 100:
        sys.exit(f"nvml.h gave only {len(symbols)} functions: its shape has changed")
    make_stub(root, compiler, "libnvidia-ml.so", symbols, NVML_ERROR_LIBRARY_NOT_FOUND)
    return len(symbols)


def make_stub(root: Path, compiler: str, name: str, symbols: list[str], status: int) -> None:
    """Write a library whose functions do nothing but return ``status``; its SONAME ends in .1."""
    stubs = root / "lib" / "stubs"
    stubs.mkdir(parents=True, exist_ok=True)
    body = "".join(f"int {symbol}(void) {{ return {status}; }}\n" for symbol in symbols)
    flags = ["-shared", "-fPIC", "-O1", "-nostdlib", f"-Wl,-soname,{name}.1"]
    subprocess.run(
        [compiler, *flags, "-x", "c", "-", "-o", str(stubs / name)],
        input=body,
        check=True,
        text=True,
    )
    # An executable linked against a library that needs the driver is looked up by SONAME.
    link = stubs / f"{name}.1"
    link.unlink(missing_ok=True)
    link.symlink_to(name)


def stage_runtime(root: Path, staging: Path, libraries: list[str]) -> None:
    """Copy just the named libraries, links kept, to ``staging`` for the runtime image."""
    for name in libraries:
        found = sorted((root / "lib").glob(f"{name}.so.*"))
        if not found:
            sys.exit(f"no {name}.so.* among the wheels' libraries")
        target = staging / "usr/local/cuda/lib"
        target.mkdir(parents=True, exist_ok=True)
        for library in found:
            # A second name in the same layer, not a second copy: they are 600 MB.
            os.link(library, target / library.name, follow_symlinks=False)
    (staging / "usr/local/cuda/lib64").symlink_to("lib")
    write_loader_configuration(staging)


def write_loader_configuration(root: Path) -> None:
    """Tell the loader where the toolkit's libraries are: never the stubs."""
    conf = root / "etc/ld.so.conf.d"
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "cuda.conf").write_text("/usr/local/cuda/lib64\n")


def main() -> None:
    """Assemble the toolkit, and the runtime's share of it when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, action="append", required=True, help="later wins")
    parser.add_argument("--root", type=Path, required=True, help="where the toolkit goes")
    parser.add_argument("--compiler", required=True, help="C compiler of the build platform")
    parser.add_argument("--stub-compiler", help="C compiler of the target: makes the driver stub")
    parser.add_argument("--staging", type=Path, help="where the runtime's share goes")
    parser.add_argument("--runtime", action="append", default=[], help="a library of the runtime")
    options = parser.parse_args()
    for folder in options.wheels:
        for wheel in sorted(folder.glob("*.whl")):
            print(f"{wheel.name}: {unpack(wheel, options.root)} files", flush=True)
    set_executable_bits(options.root)
    link_libraries(options.root)
    fix_process_id(options.root, options.compiler)
    if options.stub_compiler:
        include = options.root / "include"
        count = make_driver_stub(options.root, options.stub_compiler, include)
        print(f"driver stub: {count} functions", flush=True)
        count = make_nvml_stub(options.root, options.stub_compiler, include)
        print(f"NVML stub: {count} functions", flush=True)
    if options.staging:
        stage_runtime(options.root, options.staging, options.runtime)


if __name__ == "__main__":
    main()
