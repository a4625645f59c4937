"""``builder compare`` of directories, files and OCI layouts: what it prints, and how it ends."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile
import time
from pathlib import Path

import pytest
from rich.console import Console

from builder.cli import image as compare
from builder.cli import terminal
from builder.image.compare import compare_trees, read_files
from support.commands import Builder, ForkServer
from support.cubins import Function, cubin
from support.fatbins import ELF, PTX, entry, library, region
from support.layouts import Image, layer


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two directories with a library of a kernel that differs, and one file that does not."""
    found = tmp_path / "before", tmp_path / "after"
    for folder, code in zip(found, (b"one ", b"two "), strict=True):
        folder.mkdir()
        (folder / "same").write_text("same")
        kernel = cubin(Function("_Z6kernelPf", code * 32))
        (folder / "lib.so").write_bytes(library(region(entry(ELF, 120, 0, kernel))).getvalue())
    return found


def test_nothing_differs(builder: Builder, folders: tuple[Path, Path]) -> None:
    done = builder("compare", str(folders[0]), str(folders[0]))
    assert (done.returncode, done.stdout) == (0, "the same files: 2 paths\n")


def test_one_path(builder: Builder, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "one").write_text("one")
    done = builder("compare", *[str(tmp_path / "folder")] * 2)
    assert done.stdout == "the same files: 1 path\n"


@pytest.mark.parametrize("form", ["{}/missing", "./missing", "~/missing", "../missing:1"])
def test_a_path_that_is_missing(builder: Builder, tmp_path: Path, form: str) -> None:
    missing = form.format(tmp_path)
    done = builder("compare", str(tmp_path), missing)
    assert done.returncode == 4
    assert done.stderr == f"builder: there is no file or directory {missing}\n"


def test_a_kernel_differs(builder: Builder, folders: tuple[Path, Path]) -> None:
    done = builder("compare", *map(str, folders))
    assert done.returncode == 17
    assert f"builder: {folders[0]} and {folders[1]} differ" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        "the files differ: 1 changed; 1 are equal" + lines[0].partition("are equal")[2],
        "the device code differs: 0 of 1 entries are equal; kernels: 1 changed",
    ]
    assert "changed\tlib.so\tsm_120\tSASS\t128\t32\t0\tkernel(float*)" in lines
    assert "/lib.so\tsm_120\t1\t0\t1\t0\t0" in lines


@pytest.mark.parametrize(
    ("machine", "card", "before", "after"),
    [
        (62, "12.0", ["0.3 MB -> 0", "0 -> 0.2 MB", "0 -> 0.1 MB"], [(PTX, 120), (ELF, 80)]),
        # A GB10 runs the machine code of 12.1 that a library of arm64 has.
        (183, "12.1", ["0.3 MB", "0", "0 -> 0.1 MB"], [(ELF, 121), (PTX, 80)]),
    ],
)
def test_what_the_card_does_with_a_librarys_code(
    builder: Builder,
    folders: tuple[Path, Path],
    machine: int,
    card: str,
    before: list[str],
    after: list[tuple[int, int]],
) -> None:
    def write(folder: Path, *codes: tuple[int, int, int]) -> None:
        entries = (entry(kind, arch, 0, bytes(size * 1000)) for kind, arch, size in codes)
        data = bytearray(library(region(*entries)).getvalue())
        data[18:20] = machine.to_bytes(2, "little")  # e_machine
        (folder / "lib.so").write_bytes(data)

    write(folders[0], (ELF, 120, 304))
    write(folders[1], (*after[0], 304 if after[0][0] == ELF else 200), (*after[1], 104))
    lines = builder("compare", *map(str, folders)).stdout.splitlines()
    at = lines.index("Device code on the card")
    assert lines[at + 2] == "\t".join(("/lib.so", card, *before))


def test_json(builder: Builder, folders: tuple[Path, Path]) -> None:
    (folders[1] / "same").chmod(0o600)
    found = json.loads(builder("compare", *map(str, folders), "--json").stdout)
    assert (found["same"], found["same_device_code"]) == (False, False)
    assert found["summary"][0].startswith("the files differ: 2 changed")
    code, mode = found["files"]
    assert (code["path"], code["state"]) == ("/lib.so", "changed")
    (function,) = code["code"]["functions"]
    assert (function["name"], function["state"], function["parts"]) == (
        "kernel(float*)",
        "changed",
        ["SASS"],
    )
    assert (mode["before"]["mode"], mode["after"]["mode"]) == ("644", "600")


def test_times_count_where_they_are_asked_for(builder: Builder, tmp_path: Path) -> None:
    for name, day in (("a", 1), ("b", 86_401)):
        (tmp_path / name).write_text("same")
        os.utime(tmp_path / name, (day, day))
    names = [str(tmp_path / name) for name in ("a", "b")]
    done = builder("compare", *names)
    assert (done.returncode, done.stdout) == (0, "the files are equal, apart from their time\n")
    done = builder("compare", *names, "--times")
    assert done.returncode == 17
    assert "time 1970-01-01T00:00:01Z -> 1970-01-02T00:00:01Z" in done.stdout


def layout(folder: Path, content: bytes, arm64: bytes = b"") -> Path:
    """An image for amd64, with ``arm64`` also one for that, in the OCI image layout."""
    image = Image()
    manifests = [
        image.manifest(layer(("etc/a", each)), architecture=name)
        for name, each in (("arm64", arm64), ("amd64", content))
        if each
    ]
    (folder / "blobs").mkdir(parents=True)
    index = image.in_folder(folder / "blobs/sha256", *manifests).index
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def test_images_in_the_oci_layout(builder: Builder, tmp_path: Path) -> None:
    names = []
    for name, content in (("a", b"one\n"), ("b", b"two\n")):
        names.append(str(layout(tmp_path / name, content)))
    done = builder("compare", *names)
    assert done.returncode == 17
    assert "0 of 1 layers are equal" in done.stdout
    assert "changed\t/etc/a\tcontent 4 bytes: 'one' -> 'two'" in done.stdout
    same = builder("compare", names[0], names[0])
    assert same.returncode == 0
    assert same.stdout.startswith("the same image: sha256:")
    (tmp_path / "b/index.json").write_text("[")
    broken = builder("compare", *names)
    assert broken.returncode == 4
    assert "index.json cannot be read" in broken.stderr


def test_images_for_several_platforms(builder: Builder, tmp_path: Path) -> None:
    contents = ((b"one\n", b"six\n"), (b"two\n", b"six\n"))
    a, b = (str(layout(tmp_path / f"{number}", *each)) for number, each in enumerate(contents))
    done = builder("compare", a, b)
    assert done.returncode == 17
    assert "changed\t/etc/a\tcontent 4 bytes: 'one' -> 'two'" in done.stdout
    same = builder("compare", a, b, "--platform", "linux/arm64")
    assert same.returncode == 0, same.stdout
    assert same.stdout.startswith("the same image: sha256:")


def test_an_image_that_is_not_for_the_platform(
    builder: Builder, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    both, one = layout(tmp_path / "both", b"one", b"six"), layout(tmp_path / "one", b"one")
    done = builder("compare", str(both), str(one), "--platform=linux/arm64")
    assert done.returncode == 4
    assert f"{one} has no image for linux/arm64" in done.stderr
    assert "it is there for linux/amd64\n" in done.stderr
    done = builder("compare", str(both), str(one), "--platform=arm64")
    assert done.returncode == 2
    assert "arm64 is none of linux/amd64, linux/arm64" in done.stderr
    done = builder("compare", *map(str, folders), "--platform=linux/arm64")
    assert done.returncode == 2
    assert "--platform is for images" in done.stderr


def endless(folder: Path) -> Path:
    """An image in the OCI layout whose layer has a tebibyte of zeros: it takes no room."""
    folder.mkdir()
    blobs = layout(folder, folder.name.encode()) / "blobs/sha256"
    found = json.loads((folder / "index.json").read_text())
    while "manifests" in found:
        (below,) = found["manifests"]
        found = json.loads((blobs / below["digest"][7:]).read_text())
    (described,) = found["layers"]
    info = tarfile.TarInfo("zeros")
    info.size = 1 << 40
    with (blobs / described["digest"][7:]).open("wb") as stream:
        stream.write(info.tobuf())
        stream.truncate(info.size + 10240)
        return Path(stream.name)


def test_ctrl_c_does_not_wait_for_the_layers(fork_server: ForkServer, tmp_path: Path) -> None:
    layers = [endless(tmp_path / name) for name in ("a", "b")]
    names = [str(tmp_path / name) for name in ("a", "b")]
    with fork_server.running(["compare", *names]) as process:
        files = Path(f"/proc/{process.pid}/fd")
        while not any(each.resolve() in layers for each in files.iterdir()):
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "builder: interrupted; the command can be run again\n"


def test_a_file_and_a_directory(builder: Builder, folders: tuple[Path, Path]) -> None:
    done = builder("compare", str(folders[0] / "same"), str(folders[1]))
    assert done.returncode == 2
    assert f"{folders[0] / 'same'} is a file, and {folders[1]} is not" in done.stderr


def test_a_name_of_nothing(builder: Builder, folders: tuple[Path, Path]) -> None:
    done = builder("compare", str(folders[0]), "hello-sm12")
    assert done.returncode == 4
    assert "did you mean hello-sm120" in done.stderr


def test_a_terminal_gets_the_verdict_first_and_a_screen_of_each_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100, soft_wrap=True, color_system=None)
    monkeypatch.setattr(terminal, "out", lambda: console)
    monkeypatch.setattr("builder.cli.image.out", lambda: console)
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    for number in range(40):
        (tmp_path / "after" / f"file{number}").write_text("x")
    trees = (read_files(tmp_path / name) for name in ("before", "after"))
    found = compare_trees(*trees, tmp_path)
    compare.print_comparison(found, times=False, as_json=False)
    lines = text.getvalue().splitlines()
    assert lines[0] == "the files differ: 40 added; 0 are equal"
    assert lines[-1] == "25 more rows: a pipe or a file gets them all"
    assert len(lines) < 24


def test_elf_files_that_differ_outside_of_their_sections(
    builder: Builder, folders: tuple[Path, Path]
) -> None:
    kept = (folders[0] / "lib.so").read_bytes()
    (folders[1] / "lib.so").write_bytes(kept + b"more")
    done = builder("compare", *folders)
    assert done.returncode == 17
    assert f"content {len(kept):,} -> {len(kept) + 4:,} bytes" in done.stdout
