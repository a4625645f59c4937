"""The script that compiles an extension of PyTorch: what it sets, and where it puts the result."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from support.environment import REPOSITORY

SCRIPT = REPOSITORY / "dockerfiles" / "scripts" / "extension.py"
# Like torch/utils/cpp_extension.py: a directory of its own for each version of Python and CUDA.
MODULE = """
import os, pathlib
folder = pathlib.Path(os.environ["TORCH_EXTENSIONS_DIR"], "py313_cu130", "the_ext")
folder.mkdir(parents=True)
names = "TORCH_CUDA_ARCH_LIST", "CCACHE_DIR"
(folder / "the_ext.so").write_text(" | ".join(os.environ[name] for name in names))
"""


def test_it_compiles_for_the_cards_and_installs_beside_the_packages(tmp_path: Path) -> None:
    (tmp_path / "package.py").write_text(MODULE)
    layer, build = tmp_path / "layer", tmp_path / "build"
    known = {"CUDA_HOME": "/cuda", "PYTHONPATH": str(tmp_path)}
    script = SCRIPT.read_text().replace('"/build"', repr(str(build)))
    command = [sys.executable, "-c", script, "package", "the_ext", str(layer), "120", "120a"]
    done = subprocess.run(command, env=os.environ | known, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = Path(f"{layer}{sysconfig.get_path('platlib')}") / "the_ext.so"
    assert made.read_text() == "12.0;12.0a | /ccache"
