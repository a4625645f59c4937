"""Check: the CUDA packages of an image belong together, and the compilers that they start exist.

All layers count.  Whether an extension finds its symbols in the image's torch is decided from the
symbol tables: that takes half a second for torch 2.11 and needs neither a driver nor the platform.
An import with LD_BIND_NOW needs both, and names only the first missing symbol.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from builder.contents.contents import Contents
from builder.contents.options import TORCH_VERSION, TRITON_COMPILER
from builder.smoke.code_paths import cards
from builder.smoke.context import Context
from builder.smoke.contract import RUNTIME_LIBRARY
from builder.smoke.verdict import Check

CUDA_OF_TORCH = re.compile(r"^cuda\b[^=\n]*= *['\"]([^'\"]+)['\"]", re.MULTILINE)
VERSION_OF_TORCH = re.compile(r"^__version__ = ['\"](\d+)\.(\d+)", re.MULTILINE)
NAMED_FOR_TORCH = re.compile(r"torch(\d{2,3})(?!\d)")
FLASHINFER = "/flashinfer/jit/cpp_ext.py"
BLACKWELL = 10  # major version of the compute capability


def check(context: Context) -> Iterator[Check]:
    """Torch, the CUDA runtimes, torch's extensions, and the compilers of Triton and FlashInfer."""
    contents, rules = context.contents, context.rules
    for path, file in contents.files.items():
        if path.endswith(TORCH_VERSION):
            found = CUDA_OF_TORCH.search(file.text or "")
            without = [] if found else [(path, f"{path}: built without CUDA")]
            version = f"CUDA {found[1]}" if found else ""
            yield rules.check("cuda", "torch has CUDA", "a version of CUDA", without, version)
    yield rules.check(
        "cuda",
        "one CUDA runtime",
        "libcudart of one major version",
        _older_runtimes(contents),
        "one or none",
    )
    if any(file.torch is not None for file in contents.files.values()):
        subject, expected = "torch has the symbols of its extensions", "every symbol is defined"
        yield rules.check("cuda", subject, expected, _without_symbols(contents), "all are")
    for path, file in contents.files.items():
        if path.endswith(TRITON_COMPILER):
            blackwell = max(cards(context.subject.recipe)).major >= BLACKWELL
            places = _ptxas(path, file.text or "", contents, blackwell=blackwell)
            yield _compiler(context, path, "ptxas for Triton", places)
        if path.endswith(FLASHINFER):
            yield _compiler(context, path, "nvcc for FlashInfer", [*_nvcc(contents)])


def _older_runtimes(contents: Contents) -> list[tuple[str, str]]:
    """The files of the runtimes whose major version is not the newest."""
    majors = {
        path: int(match[1])
        for path, file in contents.files.items()
        if file.elf is not None and (match := RUNTIME_LIBRARY.search(path))
    }
    newest = max(majors.values(), default=0)
    return [
        (path, f"{path} beside version {newest}")
        for path, major in sorted(majors.items())
        if major < newest
    ]


def _without_symbols(contents: Contents) -> Iterator[tuple[str, str]]:
    """The libraries that the image's torch does not fit, each with a symbol."""
    tables = {
        path: file.torch
        for path, file in sorted(contents.files.items())
        if file.torch is not None and not file.shares
    }
    defined = frozenset[str]().union(*(each.defined for each in tables.values()))
    others = for_other_torch(contents)
    for path, symbols in tables.items():
        lacking = sorted(symbols.undefined - defined)
        if lacking and path not in others:
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            yield path, f"{path} needs {lacking[0]}{more}"


def for_other_torch(contents: Contents) -> set[str]:
    """The libraries that are named for another torch than the image's, and not loaded.

    A package may have a library for each torch, and load the one for its own: torch-c-dlpack-ext
    0.1.5 has ``libtorch_c_dlpack_addon_torch25-cuda.so`` beside torch 2.11.
    """
    own = {
        "".join(match.groups())
        for path, file in contents.files.items()
        if path.endswith(TORCH_VERSION) and (match := VERSION_OF_TORCH.search(file.text or ""))
    }
    return {
        path
        for path, file in contents.files.items()
        if own and file.torch is not None
        if (named := NAMED_FOR_TORCH.search(posixpath.basename(path))) and named[1] not in own
    }


def _compiler(context: Context, path: str, subject: str, places: list[str]) -> Check:
    found = next((place for place in places if context.contents.resolve(place)), "")
    missing = [] if found else [(path, f"none of {', '.join(places)} exists")]
    return context.rules.check("cuda", subject, "one of its places has it", missing, found)


def _ptxas(compiler: str, text: str, contents: Contents, *, blackwell: bool) -> list[str]:
    """Where Triton 3.6.0 looks, in its order (knobs.py: ``env_nvidia_tool``; compiler.py:
    ``get_ptxas`` takes the one for Blackwell from compute capability 10.0 on)."""
    name = "ptxas-blackwell" if blackwell and "ptxas_blackwell" in text else "ptxas"
    variable = f"TRITON_{name.upper().replace('-', '_')}_PATH"
    own = posixpath.join(posixpath.dirname(compiler), "bin", name)
    return [*filter(None, [contents.environment.get(variable)]), own]


def _nvcc(contents: Contents) -> Iterator[str]:
    """Where FlashInfer 0.6.8 looks, in its order (jit/cpp_ext.py: ``get_cuda_path`` and the rule
    ``nvcc``)."""
    env = contents.environment
    home = env.get("CUDA_HOME") or env.get("CUDA_PATH")
    if "FLASHINFER_NVCC" in env:
        yield env["FLASHINFER_NVCC"]
    elif home:
        yield f"{home}/bin/nvcc"
    else:
        yield from (f"{folder}/nvcc" for folder in env.get("PATH", "").split(":") if folder)
        yield "/usr/local/cuda/bin/nvcc"
