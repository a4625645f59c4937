"""extension.py MODULE NAME LAYER ARCH...: compile the extension NAME of PyTorch, which importing
MODULE compiles, for the cards ARCH ("120"), and put it beside the packages in the directory LAYER.

MODULE must be one that takes an installed extension, and else calls
``torch.utils.cpp_extension.load``.  It runs inside a stage, without a card.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import sysconfig
from pathlib import Path

BUILD = "/build"
CACHE = {
    "CCACHE_DIR": "/ccache",
    "CCACHE_MAXSIZE": "20G",
    "CCACHE_NOHASHDIR": "1",
    "CCACHE_COMPILERCHECK": "content",
}


def capability(arch: str) -> str:
    """ "120a" as TORCH_CUDA_ARCH_LIST has it: "12.0a"."""
    digits = arch.rstrip("a")
    return f"{digits[:-1]}.{digits[-1]}{arch[len(digits) :]}"


def main() -> None:
    """Compile and install."""
    module, name, layer, *archs = sys.argv[1:]
    if "CUDA_HOME" not in os.environ:
        sys.exit("error: the base has no nvcc: set nvcc = true in its [python]")
    os.environ |= CACHE
    # What torch/utils/cpp_extension.py reads.  It calls both compilers through ccache by itself.
    os.environ |= {
        "TORCH_CUDA_ARCH_LIST": ";".join(map(capability, archs)),
        "TORCH_EXTENSIONS_DIR": BUILD,
    }
    importlib.import_module(module)
    (built,) = Path(BUILD).rglob(f"{name}.so")
    folder = Path(layer + sysconfig.get_path("platlib"))
    folder.mkdir(parents=True)
    shutil.copyfile(built, folder / built.name)


main()
