"""PTX is kept while nvcc compiles: under the machine code that came of it, also after ccache."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from builder.build import ccache
from builder.build.log import BuildLog
from builder.image import device_code
from builder.sources.gather import MOUNTS
from support.ccaches import Mount
from support.commands import Builder

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

COMPILE = (
    "ccache --zero-stats >/dev/null; "
    'echo "__global__ void twice(float *p) { *p *= 2; }" >/kernel.cu; '
    "ccache nvcc -arch=sm_120 -c /kernel.cu -o /kernel.o; ccache --print-stats"
)
HIT = {"direct_cache_hit": 1, "cache_miss": 0}
MISS = {"direct_cache_hit": 0, "cache_miss": 1}


def compiled(mount: Mount, mounts: str = MOUNTS) -> dict[str, int]:
    """Compile a kernel; how often ccache had it, and had not."""
    said = mount.run(COMPILE, mounts, "/kernel.o")
    stats = dict(line.split("\t") for line in said.splitlines())
    return {name: int(stats[name]) for name in HIT}


def code_of(file: Path) -> tuple[str, list[str]]:
    """The sha256 of the machine code in a file, and the PTX beside it, word by word.

    ``-arch=sm_120`` puts the PTX that it compiles into the file, too, without comments.
    """
    found = {}
    with file.open("rb") as stream:
        for each in device_code.device_entries(stream):
            found[each.entry.code.name] = each.entry.payload(stream)
    return hashlib.sha256(found["sm_120"]).hexdigest(), words(found["compute_120"])


def unnamed(file: Path) -> bytes:
    """An object without the process id in the name of nvcc's temporary file."""
    return re.sub(rb"tmpxft_[0-9a-f]{8}", b"tmpxft", file.read_bytes())


def words(ptx: bytes) -> list[str]:
    return re.sub(r"//.*", "", ptx.decode().rstrip("\0")).split()


def taken(mount: Mount, digest: str) -> dict[str, list[str]]:
    """What the mount has of a module and of one that is not there."""
    folder, wanted = mount.fresh() / "taken", {digest, "0" * 64}
    ccache.take_ptx(mount.image, wanted, folder, mount.fresh(), identifier=mount.name)
    files = folder.glob("*.gz")
    return {file.stem: words(gzip.decompress(file.read_bytes())) for file in files}


def test_the_ptx_of_machine_code_from_the_compiler_cache_is_known(
    mount: Mount, tmp_path: Path
) -> None:
    assert compiled(mount) == MISS
    digest, ptx = code_of(mount.out / "kernel.o")
    assert compiled(mount) == HIT
    assert code_of(mount.out / "kernel.o") == (digest, ptx)
    assert taken(mount, digest) == {digest: ptx}
    # It moves with the compiler cache.
    file = tmp_path / "kept.tar"
    ccache.save(mount.image, file, mount.fresh(), 1.0, identifier=mount.name)
    mount.drop()
    assert taken(mount, digest) == {}
    ccache.load(mount.image, file, mount.fresh(), identifier=mount.name)
    assert taken(mount, digest) == {digest: ptx}


def test_keeping_ptx_changes_no_byte_and_no_result_of_the_compiler_cache(mount: Mount) -> None:
    assert compiled(mount, mounts="") == MISS
    without = unnamed(mount.out / "kernel.o")
    digest, _ = code_of(mount.out / "kernel.o")
    assert compiled(mount) == HIT
    assert taken(mount, digest) == {}, "an older result has no PTX"
    mount.drop()
    assert compiled(mount) == MISS
    assert unnamed(mount.out / "kernel.o") == without


def test_the_log_has_how_much_the_compiler_cache_had(mount: Mount, tmp_path: Path) -> None:
    compile_both = (
        'echo "int f() { return 3; }" >/a.c; echo "__global__ void k() {}" >/k.cu; '
        "/counted sh -c 'ccache gcc -c /a.c -o /a.o; ccache nvcc -arch=sm_120 -c /k.cu -o /k.o'"
    )
    with closing(BuildLog(tmp_path / "log")) as log:
        for reused, objects in ((0, 2), (2, 4)):
            for line in mount.run(compile_both, MOUNTS).splitlines():
                log.line(f"#9 1.0 {line}")
            assert (log.reused, log.objects) == (reused, objects)


def test_a_compile_that_fails_fails_when_it_is_counted(mount: Mount) -> None:
    assert mount.run("/counted sh -c 'exit 7' || echo $?", MOUNTS).split() == ["7"]


def test_a_compile_that_fails_without_a_word_on_a_full_disk_says_so(mount: Mount) -> None:
    fill = "cd /dev/shm; /counted sh -c 'cat /dev/zero >x 2>/dev/null' || echo $?"
    assert mount.run(fill, MOUNTS).splitlines()[-2:] == [
        "No space left on device: 0 KiB are free",
        "1",
    ]


def test_what_ptxas_refuses_fails_the_compile(mount: Mount) -> None:
    source = r'echo "__global__ void k() { asm(\"no.such;\"); }" >/k.cu'
    compiles = "nvcc -arch=sm_120 -c /k.cu -o /k.o || echo failed"
    assert mount.run(f"{source}; {compiles}; ls /ccache", MOUNTS).split() == ["failed"]


def test_ptx_that_cannot_be_kept_fails_no_compile(mount: Mount) -> None:
    source = 'touch /ccache/ptx; echo "__global__ void k() {}" >/k.cu'  # a file is in the way
    compiles = "nvcc -arch=sm_120 -c /k.cu -o /k.o && echo compiled"
    assert mount.run(f"{source}; {compiles}", MOUNTS).split() == ["compiled"]


def test_above_the_limit_the_ptx_that_was_used_last_stays(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{digit}0" * 32 for digit in "abcd"]
    folders = "; ".join(
        f"mkdir -p /ccache/ptx/{name[:2]}; cd /ccache/ptx/{name[:2]}; "
        f"head -c 1000 /dev/zero >{name}.gz; touch -d @{1700000000 + number} {name}.gz"
        for number, name in enumerate(names)
    )
    mount.run(folders)
    monkeypatch.setattr(ccache, "PTX_LIMIT", 2500)
    folder = mount.fresh() / "taken"
    ccache.take_ptx(mount.image, {names[0]}, folder, mount.fresh(), identifier=mount.name)
    left = mount.run("find /ccache/ptx -name '*.gz' -printf '%f\\n'").split()
    assert sorted(left) == [f"{names[0]}.gz", f"{names[3]}.gz"]


def test_the_ptx_of_hello_is_known(
    hello: dict[str, Any], builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDER_STATE_DIR", str(hello["state"]))
    folder, library = tmp_path / "ptx", tmp_path / "libhello-cuda.so"
    done = builder("ptx", "hello-sm120", "--compile", "--output", folder, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["modules"], told["missing"]) == (1, [])
    command = ["docker", "run", "--rm", "--network=none", "--entrypoint=cat"]
    path = "/opt/engine/lib/libhello-cuda.so"
    with library.open("wb") as stream:
        subprocess.run([*command, hello["references"][0], path], stdout=stream, check=True)
    digest, ptx = code_of(library)
    assert {file.stem: words(file.read_bytes()) for file in folder.iterdir()} == {digest: ptx}


def test_what_is_built_again_from_the_compiler_cache_is_the_same_and_its_ptx_is_kept(
    hello: dict[str, Any], builder: Builder
) -> None:
    assert builder("ptx", "hello-sm120", "--compile").returncode == 0
    again = builder("build", "hello-sm120", "--rebuild", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["digest"] == hello["digest"]
    assert "is not known" not in again.stderr
    told = json.loads(builder("ptx", "hello-sm120", "--json").stdout)
    assert (told["modules"], told["missing"]) == (1, [])
    assert Path(told["file"]).stat().st_size == told["size"]
