"""NVIDIA's own readers of device code; a plugin of pytest."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from support.smoke_tests import docker


@pytest.fixture(scope="session")
def cuobjdump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """cuobjdump of NVIDIA's wheel, which forgets the executable bit."""
    spec = importlib.util.find_spec("nvidia")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folders = [Path(folder) for folder in spec.submodule_search_locations]
    (program,) = [found for folder in folders for found in folder.glob("cu*/bin/cuobjdump")]
    copy = tmp_path_factory.mktemp("bin") / "cuobjdump"
    shutil.copy(program, copy)
    copy.chmod(0o755)
    return copy


def compile_in(devel: str, folder: Path, *calls: str) -> Path:
    """Run shell commands in the base to compile in, without network, in ``folder``."""
    sealed = ["--rm", "--network=none", f"--volume={folder}:/work", "--workdir=/work"]
    docker("run", *sealed, devel, "sh", "-euc", "\n".join(calls))
    return folder
