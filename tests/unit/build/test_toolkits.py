"""Releases of nvcc, and the wheels that belong to each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.build import compilers
from builder.core.errors import GoneError, UsageError
from support.indexes import Index, served, wheel

PARTS = (compilers.NVCC, *compilers.SAME_VERSION, *compilers.SAME_DAY, compilers.CUBLAS)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with served() as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
        yield index


def offer(index: Index, name: str, version: str, day: str, **files: bytes) -> None:
    held = {f"nvidia/cu13/{path.replace('__', '/')}": text for path, text in files.items()}
    project = name.replace("-", "_")
    index.put(
        project, version, wheel(project, version, held), **{"upload-time": f"{day}T01:02:03Z"}
    )


def release(index: Index, version: str, day: str, runtime: str | None = None) -> None:
    for name in PARTS:
        of_headers = name in (*compilers.SAME_DAY, compilers.CUBLAS)
        offer(index, name, runtime or version if of_headers else version, day)


def test_headers_are_those_of_the_day(index: Index) -> None:
    release(index, "13.2.51", "2026-03-09")
    release(index, "13.3.73", "2026-06-29", "13.3.29")
    release(index, "13.2.86", "2026-07-16")  # an older branch goes on
    release(index, "12.9.86", "2025-06-01")
    release(index, "13.4.46rc1", "2026-08-05")
    found = {each.version: each for each in compilers.listed()}
    assert [*found] == ["13.2.51", "13.2.86", "13.3.73"]
    versions = {
        version: {wheel.name: wheel.version for wheel in each.wheels}
        for version, each in found.items()
    }
    assert {*versions["13.2.51"].values()} == {"13.2.51"}
    assert versions["13.3.73"]["nvidia-cuda-runtime"] == "13.3.29"
    assert versions["13.3.73"]["nvidia-nvvm"] == "13.3.73"
    assert {*versions["13.2.86"].values()} == {"13.2.86"}
    assert found["13.3.73"].cublas.version == "13.3.29"


def test_only_some_versions_and_unknown_ones(index: Index) -> None:
    release(index, "13.2.51", "2026-03-09")
    release(index, "13.2.86", "2026-07-16")
    assert [each.version for each in compilers.listed(["13.2.86"])] == ["13.2.86"]
    with pytest.raises(UsageError, match=r"the package index has no nvcc 13\.2\.99") as refused:
        compilers.listed(["13.2.86", "13.2.99"])
    assert refused.value.why == "it has 13.2.51, 13.2.86"


def test_a_missing_part_is_named(index: Index) -> None:
    for name in PARTS:
        if name != "nvidia-nvvm":
            offer(index, name, "13.2.51", "2026-03-09")
    offer(index, "nvidia-nvvm", "13.2.86", "2026-07-16")
    with pytest.raises(GoneError, match=r"no nvidia-nvvm 13\.2\.51, which nvcc needs"):
        compilers.listed()
    offer(index, "nvidia-nvvm", "13.2.51", "2026-03-09")
    del index.files["nvidia_cublas-13.2.51-py3-none-any.whl"]
    offer(index, "nvidia-cublas", "13.2.86", "2026-07-16")
    with pytest.raises(GoneError, match="no nvidia-cublas of 2026-03-09 or before"):
        compilers.listed()


@pytest.mark.parametrize("place", ["nvvm__bin__cicc", "bin__cicc"])
def test_the_parts_become_one_tree_with_programs(index: Index, tmp_path: Path, place: str) -> None:
    files = {
        "nvidia-cuda-nvcc": {"bin__nvcc": b"#!/bin/sh\n", "lib__libx.a": b"no"},
        "nvidia-cuda-crt": {"include__crt.h": b"crt"},
        "nvidia-nvvm": {place: b"#!/bin/sh\n"},
        "nvidia-cuda-runtime": {"include__cuda.h": b"cuda"},
        "nvidia-cuda-cccl": {"include__nv__target": b"cccl"},
        "nvidia-cublas": {"include__cublas.h": b"cublas", "lib__libcublas.so.13": b"no" * 9999},
    }
    for name, held in files.items():
        offer(index, name, "13.2.51", "2026-03-09", **held)
    (toolkit,) = compilers.listed()
    nvcc = compilers.install(toolkit, tmp_path / "cache", tmp_path / "made", lambda _: None)
    root = tmp_path / "made" / "cuda"
    assert nvcc == root / "bin" / "nvcc"
    assert os.access(nvcc, os.X_OK)
    assert os.access(root / "nvvm" / "bin" / "cicc", os.X_OK)
    found = {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}
    assert found == {
        *("bin/nvcc", "nvvm/bin/cicc", "include/crt.h", "include/cuda.h"),
        *("include/nv/target", "include/cublas.h"),
    }
