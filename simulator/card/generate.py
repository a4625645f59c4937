"""Writes what the simulated libraries export and no source file here defines.

CUDA's headers declare some two thousand functions.  Those that the sources beside this file do
not define are generated from the prototypes: such a function passes the core its name, which
puts it into the report, and returns *not supported*.  Runs in the development stage of a base,
with nothing but Python and the compiler.

    generate.py cudart --include DIR --name libcudart.so.13 --output BASE --objects a.o b.o

writes BASE.cpp (the generated functions), BASE.map (the version script), BASE.ld (second names
of the functions that are defined) and BASE.functions (each declared name and who defines it);
for ``cuda`` also BASE.tables.cpp (what cuGetProcAddress and cuGetErrorName answer).
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# cudaErrorNotSupported (driver_types.h), CUDA_ERROR_NOT_SUPPORTED (cuda.h) and
# CUBLAS_STATUS_NOT_SUPPORTED (cublas_api.h).
NOT_SUPPORTED = {"cudaError_t": 801, "CUresult": 801, "cublasStatus_t": 15}

# What a type of a result is in the generated file, which includes no header that declares
# functions: those rename them by macros.  A function without parameters ignores its arguments.
PLAIN_TYPES = {
    "void": "void",
    "int": "int",
    "unsigned": "unsigned",
    "unsigned int": "unsigned",
    "size_t": "unsigned long",
    "float": "float",
    "double": "double",
    "cuComplex": "struct cuComplex",
    "cuDoubleComplex": "struct cuDoubleComplex",
    "cublasStatus": "unsigned",
    "struct cudaChannelFormatDesc": "struct cudaChannelFormatDesc",  # driver_types.h
}

# Other names of functions that take the same arguments, or more that change nothing: by the older
# ones, and by the newest one, the static runtime asks for them.
OTHER_NAMES = {
    "cuDeviceGetUuid": "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRelease": "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxReset": "cuDevicePrimaryCtxReset_v2",
    "cuCtxSynchronize_v2": "cuCtxSynchronize",
}

QUALIFIERS = {"extern", "enum", "const", "static", "inline"}
PER_THREAD = "-DCUDA_API_PER_THREAD_DEFAULT_STREAM"
ALL_VERSIONS = "-D__CUDA_API_VERSION_INTERNAL"


@dataclass(frozen=True)
class Library:
    """A library of CUDA's: the headers that declare it, and how its functions are called.

    ``passes``: the headers are read once for each, a tuple of headers and compiler options.
    ``versioned``: its symbols carry the library's name as their version, as the real one's do.
    """

    pattern: str
    passes: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    versioned: bool = True


# ``__CUDA_API_VERSION_INTERNAL`` switches off the macros that rename functions, so that each
# name is declared that the library exports: cuMemAlloc, cuMemAlloc_v2, cudaMemcpy_ptds.
LIBRARIES = {
    "cudart": Library(
        r"cuda[A-Z]\w*",
        (
            (("cuda_runtime_api.h", "cuda_profiler_api.h"), ()),
            (("cuda_runtime_api.h",), (PER_THREAD,)),
            (("cuda_runtime_api.h",), (ALL_VERSIONS,)),
        ),
    ),
    "cuda": Library(
        r"cu[A-Z]\w*",
        (
            (("cuda.h", "cudaProfiler.h"), ()),
            (("cuda.h",), (PER_THREAD,)),
            (("cuda.h",), (ALL_VERSIONS,)),
        ),
        versioned=False,
    ),
    # cublas.h is the interface of before CUDA 4, and cannot be included together with cublas_v2.h.
    "cublas": Library(
        r"cublas(?!Lt[A-Z])[A-Z]\w*",
        ((("cublas_v2.h", "cublasXt.h"), ()), (("cublas.h",), ())),
    ),
    "cublasLt": Library(r"cublasLt[A-Z]\w*", ((("cublasLt.h",), ()),)),
}


def preprocessed(
    compiler: str, include: Path, headers: tuple[str, ...], options: tuple[str, ...]
) -> str:
    """The text of these headers without comments, macros and compiler attributes."""
    source = "".join(f"#include <{name}>\n" for name in headers if (include / name).exists())
    command = [compiler, "-E", "-P", "-x", "c++", "-I", str(include), *options, "-"]
    text = subprocess.run(command, input=source, check=True, capture_output=True, text=True).stdout
    return re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)", " ", text)


def prototypes(text: str, pattern: str) -> dict[str, str]:
    """The functions that ``text`` declares: name to the type of its result.

    An inline function has a body, so no semicolon follows its parameters; a call in such a body
    has no type before it.
    """
    found: dict[str, str] = {}
    declaration = rf"(?P<type>[\w\s*]+?)\b(?P<name>{pattern})\s*\((?P<parameters>[^;{{}}]*)\)\s*;"
    for match in re.finditer(declaration, text):
        words = match["type"].replace("*", " * ").split()
        words = [word for word in words if word not in QUALIFIERS]
        if words and words[0] not in {"return", "else", "typedef"}:
            found[match["name"]] = " ".join(words)
    return found


def declared(library: Library, compiler: str, include: Path) -> dict[str, str]:
    """Every function that the library's headers declare, by name, with the type of its result."""
    found: dict[str, str] = {}
    for headers, options in library.passes:
        found |= prototypes(preprocessed(compiler, include, headers, options), library.pattern)
    return dict(sorted(found.items()))


def defined(objects: list[Path], nm: str) -> set[str]:
    """The global functions that these object files define."""
    if not objects:
        return set()
    command = [nm, "--defined-only", "--extern-only", "--format=posix", *map(str, objects)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[0] for line in lines if len(line.split()) > 2}


def stub(name: str, result: str) -> str:
    """The definition of a function that is not implemented."""
    if result in NOT_SUPPORTED:
        return f'int {name}(void) {{ unsupported("{name}"); return {NOT_SUPPORTED[result]}; }}'
    if result.endswith("*"):
        return f'void *{name}(void) {{ unsupported("{name}"); return nullptr; }}'
    if result not in PLAIN_TYPES:
        sys.exit(f"generate.py: {name} returns {result}, which PLAIN_TYPES does not have")
    plain = PLAIN_TYPES[result]
    value = "" if plain == "void" else " {}" if plain.startswith("struct") else f" ({plain})0"
    return f'{plain} {name}(void) {{ unsupported("{name}"); return{value}; }}'


def sorted_out(names: list[str], own: set[str]) -> dict[str, str]:
    """Who defines each name: ``source``, ``generated``, or the function of which it is the variant.

    The variants of a function for a thread's own default stream end in _ptsz and _ptds.  Nothing
    runs on a simulated stream, so they are second names of the function.
    """
    definer: dict[str, str] = {}
    for name in names:
        base = OTHER_NAMES.get(name) or re.sub(r"_pt[sd][sz]$", "", name)
        if name in own:
            definer[name] = "source"
        else:
            definer[name] = base if base in own else "generated"
    return definer


def code(results: dict[str, str], definer: dict[str, str]) -> str:
    """The C++ of the generated functions."""
    stubs = [stub(name, results[name]) for name in results if definer[name] == "generated"]
    lines = [
        "// Generated from CUDA's headers by generate.py.",
        '#include "simulator.h"',
        "using simulator::unsupported;",
        "struct cuComplex { float x, y; };",
        "struct cuDoubleComplex { double x, y; };",
        'extern "C" {',
        *stubs,
        "}",
    ]
    return "\n".join(lines) + "\n"


def entry_points(include: Path, names: set[str]) -> list[str]:
    """The C++ of the table for cuGetProcAddress: a name, a CUDA version, the function since then.

    cudaTypedefs.h has a type for each version of a function, ``PFN_cuMemAlloc_v2000`` and
    ``PFN_cuMemAlloc_v3020``; in this order they are cuMemAlloc, cuMemAlloc_v2, cuMemAlloc_v3.
    """
    versions: dict[str, set[int]] = {}
    for header in ("cudaTypedefs.h", "cudaProfilerTypedefs.h"):
        path = include / header
        text = path.read_text() if path.exists() else ""
        for match in re.finditer(r"\*PFN_(cu\w+?)_v(\d+)\)", text):
            versions.setdefault(match[1], set()).add(int(match[2]))
    rows = []
    for name, known in sorted(versions.items()):
        variants = [name, *(f"{name}_v{number}" for number in range(2, 9))]
        exported = [variant for variant in variants if variant in names]
        if len(exported) != len(known):
            sys.exit(f"generate.py: {name}: {len(known)} types and {len(exported)} functions")
        pairs = zip(sorted(known), exported, strict=True)
        rows += [f'    {{"{name}", {version}, "{symbol}"}},' for version, symbol in pairs]
    return ["extern const EntryPoint kEntryPoints[] = {", *rows, "    {nullptr, 0, nullptr},", "};"]


def result_names(text: str) -> list[str]:
    """The C++ of the table of CUresult's values and their names, from the text of cuda.h."""
    found = dict.fromkeys(re.findall(r"\b(CUDA_(?:SUCCESS|ERROR_\w+))\s*=\s*(\d+)", text))
    rows = [f'    {{{value}, "{name}"}},' for name, value in found]
    return ["extern const ResultName kResultNames[] = {", *rows, "    {0, nullptr},", "};"]


def driver_tables(compiler: str, include: Path, names: set[str]) -> str:
    """The C++ of the tables that driver.h declares."""
    text = preprocessed(compiler, include, ("cuda.h",), ())
    tables = [*entry_points(include, names), *result_names(text)]
    lines = ['#include "driver.h"', "namespace simulator {", *tables, "}  // namespace simulator"]
    return "\n".join(lines) + "\n"


def version_script(exported: list[str], version: str) -> str:
    """The linker's version script: these names are exported, and nothing else is."""
    body = "".join(f"    {name};\n" for name in exported)
    return f"{version} {{\n  global:\n{body}  local:\n    *;\n}};\n".lstrip()


def main() -> None:
    """Write the files that the Makefile asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--include", type=Path, required=True, help="CUDA's headers")
    parser.add_argument("--name", required=True, help="SONAME, and version of the symbols")
    parser.add_argument("--output", type=Path, required=True, help="results, without suffix")
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--objects", type=Path, nargs="*", default=[], help="the compiled sources")
    options = parser.parse_args()

    library = LIBRARIES[options.library]
    results = declared(library, options.compiler, options.include)
    if len(results) < 50:
        sys.exit(f"generate.py: the headers of {options.name} declare {len(results)} functions")
    own = defined(options.objects, options.nm)
    # What the compiler calls without a declaration in these headers, such as the registration
    # of kernels, is exported too.
    undeclared = {name for name in own - set(results) if re.match(r"__cuda|cu|__nv", name)}
    definer = sorted_out(list(results), own)
    variants = {name: base for name, base in definer.items() if base not in {"source", "generated"}}

    exported = sorted(set(results) | undeclared)
    files = {
        ".cpp": code(results, definer),
        ".map": version_script(exported, options.name if library.versioned else ""),
        ".ld": "".join(f"{name} = {base};\n" for name, base in variants.items()),
        ".functions": "".join(f"{name} {definer.get(name, 'source')}\n" for name in exported),
    }
    if options.library == "cuda":
        files[".tables.cpp"] = driver_tables(options.compiler, options.include, set(results))
    for suffix, text in files.items():
        options.output.with_suffix(suffix).write_text(text)
    by_hand = sum(1 for name in results if definer[name] == "source")
    print(
        f"{options.name}: {len(results)} functions declared, {by_hand} implemented, "
        f"{len(variants)} second names, {len(results) - by_hand - len(variants)} generated"
    )


if __name__ == "__main__":
    main()
