"""Images read from their blobs: layers laid over each other, and broken ones."""

from __future__ import annotations

import gzip
import hashlib
import random
import subprocess
from pathlib import Path

import pytest

from builder.checks import cuda
from builder.core.errors import UntriedError
from builder.image.contents import Contents, ReadOptions, read_contents
from simulator.selection import Capability
from support.cubins import Function, cubin
from support.fatbins import ELF, FLAG_A, ZSTD, entry, library, region
from support.layouts import Image, layer
from support.smoke_tests import context_of


def contents_of(tmp_path: Path, *layers: bytes, options: ReadOptions | None = None) -> Contents:
    image = Image()
    return read_contents(
        image.in_folder(tmp_path / "blobs", image.manifest(*layers)), tmp_path, options
    )


def test_later_layers_replace_remove_and_hide(tmp_path: Path) -> None:
    found = contents_of(
        tmp_path,
        layer(("etc", None), ("etc/a", b"one"), ("etc/b", b"two"), ("var/x/y", b"deep")),
        layer(("etc/.wh.a", b""), ("etc/b", b"other"), ("var/.wh.x", b"")),
        layer(("opt", None), ("opt/c", b"c"), ("opt/d", b"d")),
        layer(("opt/.wh..wh..opq", b""), ("opt/e", b"e")),
    )
    assert sorted(found.files) == ["/etc", "/etc/b", "/opt", "/opt/e"]
    assert [layer.hidden for layer in found.layers] == [3 + 3 + 4, 0, 2, 0]
    assert [layer.unpacked for layer in found.layers] == [10, 5, 2, 1]
    assert found.unpacked_size == 6
    assert found.environment == {"A": "1", "B": ""}


def test_a_whiteout_does_not_apply_to_its_own_layer(tmp_path: Path) -> None:
    new = layer(
        ("a", None), ("a/new", b"2"), (".wh.a", b""), ("b/new", b"3"), ("b/.wh..wh..opq", b"")
    )
    found = contents_of(tmp_path, layer(("a/old", b"1"), ("b/old", b"1")), new)
    assert sorted(found.files) == ["/a", "/a/new", "/b/new"]


def test_a_file_in_the_place_of_a_directory_hides_all_of_it(tmp_path: Path) -> None:
    found = contents_of(tmp_path, layer(("a", None), ("a/b", b"12")), layer(("a", b"1")))
    assert sorted(found.files) == ["/a"]
    assert found.layers[0].hidden == 2


def test_a_hard_link_has_the_content_of_its_target_and_counts_once(tmp_path: Path) -> None:
    found = contents_of(tmp_path, layer(("a", b"text"), ("b", "=a"), ("c", "->b")))
    assert found.files["/b"].digest == hashlib.sha256(b"text").hexdigest()
    assert found.resolve("/c") == "/b"
    assert found.unpacked_size == 4


def test_a_file_whose_first_name_is_removed_keeps_its_bytes_and_its_code(tmp_path: Path) -> None:
    code = gpu_library("kernel")
    layers = [layer(("a.so", code), ("b.so", "=a.so"), ("c.so", "=a.so")), layer((".wh.a.so", b""))]
    wanted = ReadOptions(card=Capability(12, 0))
    found = contents_of(tmp_path, *layers, options=wanted)
    assert {path: file.shares for path, file in found.files.items()} == {
        "/b.so": "",
        "/c.so": "/b.so",
    }
    assert kernels_of(found) == {"/b.so": ["kernel"]}
    assert found.unpacked_size == len(code)
    assert [layer.hidden for layer in found.layers] == [0, 0]


def test_text_is_kept_only_where_it_is_wanted(tmp_path: Path) -> None:
    files = layer(("etc/ld.so.conf.d/x.conf", b"/lib/x"), ("a/b.py", b"x = 1"), ("a/c", b"y"))
    found = contents_of(tmp_path, files, options=ReadOptions(texts=frozenset({"/a/*.py"})))
    kept = {path: file.text for path, file in found.files.items() if file.text is not None}
    assert kept == {"/etc/ld.so.conf.d/x.conf": "/lib/x", "/a/b.py": "x = 1"}


def test_the_farms_platform_is_preferred_else_the_first_one(tmp_path: Path) -> None:
    image = Image()
    arm = image.manifest(layer(("arm", b"")), architecture="arm64")
    amd = image.manifest(layer(("amd", b"")))
    provenance = image.document({"predicate": 1})
    attested = provenance | {"platform": {"os": "unknown", "architecture": "unknown"}}
    both = read_contents(image.in_folder(tmp_path / "both", attested, arm, amd), tmp_path)
    assert (both.platform, sorted(both.files)) == ("linux/amd64", ["/amd"])
    other = Image()
    alone = other.manifest(layer(("arm", b"")), architecture="arm64")
    gone = {"digest": f"sha256:{'0' * 64}", "platform": {"os": "linux", "architecture": "amd64"}}
    provenance = other.document({"predicate": 2})
    attested = provenance | {"platform": {"os": "unknown", "architecture": "unknown"}}
    blobs = other.in_folder(tmp_path / "alone", attested, gone, alone)
    assert read_contents(blobs, tmp_path).platform == "linux/arm64"


def test_layers_may_be_compressed(tmp_path: Path) -> None:
    from backports import zstd

    plain = layer(("a", b"x" * 1000))
    for number, packed in enumerate((plain, gzip.compress(plain), zstd.compress(plain))):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert contents_of(folder, packed).files["/a"].size == 1000


def test_links_in_a_circle_end_nowhere(tmp_path: Path) -> None:
    found = contents_of(tmp_path, layer(("a", "->b"), ("b", "->a"), ("c", "->../../etc")))
    assert found.resolve("/a") is None
    assert found.resolve("/c") is None


@pytest.mark.parametrize("packing", ["plain", "gzip", "zstd"])
@pytest.mark.parametrize("broken", ["garbage", "cut", "gone"])
def test_a_broken_layer_says_nothing_of_the_image(
    tmp_path: Path, broken: str, packing: str
) -> None:
    from backports import zstd

    pack = {"plain": bytes, "gzip": gzip.compress, "zstd": zstd.compress}[packing]
    packed = pack(layer(("a", random.Random(1).randbytes(100_000))))
    image = Image()
    blobs = image.in_folder(tmp_path / "blobs", image.manifest(packed))
    file = blobs.folder / hashlib.sha256(packed).hexdigest()
    if broken == "gone":
        file.unlink()
    elif broken == "cut":
        file.write_bytes(packed[:50_000])
    else:
        file.write_bytes(packed[:600] + b"\0" * 40 + packed[640:])
    with pytest.raises(UntriedError):
        read_contents(blobs, tmp_path)


def test_the_image_that_names_the_platform_is_the_one_that_an_engine_runs(tmp_path: Path) -> None:
    image = Image()
    run = image.manifest(layer(("run", b"1")))
    hidden = image.manifest(layer(("hidden", b"1")))
    del hidden["platform"]
    assert "/run" in read_contents(image.in_folder(tmp_path / "blobs", hidden, run), tmp_path).files
    assert "/hidden" in read_contents(image.in_folder(tmp_path / "alone", hidden), tmp_path).files


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"null", b"\xff", b'{"layers": 5}'])
def test_a_broken_manifest_says_nothing_of_the_image(tmp_path: Path, document: bytes) -> None:
    image = Image()
    blobs = image.in_folder(tmp_path / "blobs", image.blob(document))
    with pytest.raises(UntriedError):
        read_contents(blobs, tmp_path)


def gpu_library(*kernels: str) -> bytes:
    code = cubin(*(Function(name) for name in kernels))
    return library(region(entry(ELF, 120, FLAG_A | ZSTD, code))).getvalue()


def kernels_of(contents: Contents) -> dict[str, list[str]]:
    return {each.path: [kernel.name for kernel in each.kernels] for each in contents.libraries()}


def test_kernels_are_kept_where_they_are_wanted(tmp_path: Path) -> None:
    layers = [
        layer(("opt/a.so", gpu_library("below")), ("opt/b.so", gpu_library("replaced"))),
        layer(
            ("opt/b.so", gpu_library("one", "two")),
            ("opt/hard.so", "=opt/b.so"),
            ("cuda/lib/c.so", gpu_library("vendor")),
            ("cuda.so", gpu_library("beside")),
        ),
    ]
    card = Capability(12, 0)
    for number, (options, kernels) in enumerate(
        [
            (ReadOptions(), {}),
            (
                ReadOptions(card=card),
                {
                    "/opt/a.so": ["below"],
                    "/opt/b.so": ["one", "two"],
                    "/cuda/lib/c.so": ["vendor"],
                    "/cuda.so": ["beside"],
                },
            ),
            (
                ReadOptions(card=card, code_above=1, code_outside="/cuda"),
                {"/opt/b.so": ["one", "two"], "/cuda.so": ["beside"]},
            ),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = contents_of(folder, *layers, options=options)
        assert kernels_of(found) == kernels
        assert all(file.elf and file.elf.code for file in found.files.values())


def test_damaged_gpu_code_is_named(tmp_path: Path) -> None:
    damaged = gpu_library("a").replace(b"\x28\xb5\x2f\xfd", b"none")
    wanted = ReadOptions(card=Capability(12, 0))
    contents = contents_of(tmp_path, layer(("opt/a.so", damaged)), options=wanted)
    with pytest.raises(UntriedError, match="the GPU code of /opt/a\\.so cannot") as raised:
        list(contents.libraries())
    assert "payload at byte 0x450: damaged zstd" in raised.value.why
    *_, check = cuda.check_architectures(context_of(contents))
    assert not check.passed
    assert "payload at byte" in check.found


def shared(folder: Path, name: str, source: str, *needed: str) -> bytes:
    """A library that gcc made."""
    file = folder / name
    options = ["-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{name}", "-Wl,--no-as-needed"]
    command = ["gcc", *options, "-x", "c", "-", "-x", "none", *(folder / each for each in needed)]
    subprocess.run([*command, "-o", file], input=source.encode(), check=True)
    return file.read_bytes()
