"""Two images compared: files after all layers, the layers themselves, the configuration."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from builder.core import files
from builder.core.errors import SpaceError, UntriedError
from builder.image.compare import Comparison, LayerDifference, compare_images
from support.layouts import Image, layer, layer_of, member

NAMES = ("before", "after")
BASE = layer_of(member("etc", type=tarfile.DIRTYPE, mode=0o755), member("etc/a", b"one"))


def compared(
    folder: Path, before: list[bytes], after: list[bytes], *config: dict[str, Any]
) -> Comparison:
    found = []
    for name, layers, more in zip(NAMES, (before, after), config or ({}, {}), strict=True):
        image = Image()
        found.append((name, image.in_folder(folder / name, image.manifest(*layers, **more))))
    (folder / "work").mkdir()
    return compare_images(*found, folder / "work")


def states(found: Comparison) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {each.path: (each.state, each.aspects) for each in found.files}


def test_one_image_is_the_same_without_reading_its_layers(tmp_path: Path) -> None:
    image = Image()
    manifest = image.manifest(BASE)
    blobs = image.in_folder(tmp_path / "blobs", manifest)
    for name, data in image.blobs.items():
        if data == BASE:
            (blobs.folder / name).unlink()
    found = compare_images(("a", blobs), ("b", blobs), tmp_path)
    assert found.digests == (manifest["digest"], manifest["digest"])
    assert found.same(times=True)


def test_every_property_of_a_path(tmp_path: Path) -> None:
    link = {"type": tarfile.SYMTYPE, "linkname": "a"}
    device = {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}
    before = layer_of(
        member("content", b"one\ntwo\n"), member("mode"), member("owner"), member("link", **link),
        member("time"), member("capable"), member("device", **device), member("same", b"same"),
        member("gone"), member("kind"),
    )  # fmt: skip
    attributes = {"SCHILY.xattr.security.capability": "\x01\x02"}
    after = layer_of(
        member("content", b"one\nnew\n"), member("mode", mode=0o4755), member("owner", gid=5),
        member("link", type=tarfile.SYMTYPE, linkname="b"), member("time", mtime=5),
        member("capable", pax_headers=attributes), member("device", **device | {"devminor": 5}),
        member("same", b"same"), member("come"), member("kind", type=tarfile.FIFOTYPE),
    )  # fmt: skip
    found = compared(tmp_path, [before], [after])
    assert states(found) == {
        "/capable": ("changed", ("attributes",)),
        "/come": ("added", ()),
        "/content": ("changed", ("content",)),
        "/device": ("changed", ("target",)),
        "/gone": ("removed", ()),
        "/kind": ("changed", ("kind", "content")),
        "/link": ("changed", ("target",)),
        "/mode": ("changed", ("mode",)),
        "/owner": ("changed", ("owner",)),
        "/time": ("changed", ("time",)),
    }
    assert found.equal == 2  # "/same", and "/time" apart from its time
    content = found.files[2]
    assert content.lines == ("two", "new")
    assert "/time" not in {each.path for each in found.differing()}
    assert "/time" in {each.path for each in found.differing(times=True)}


def test_the_files_after_all_layers_are_compared(tmp_path: Path) -> None:
    before = [BASE, layer(("etc/.wh.a", b""), ("opt", None), ("opt/x", b"x"))]
    after = [layer_of(member("etc", type=tarfile.DIRTYPE, mode=0o755)), before[1]]
    found = compared(tmp_path, before, after)
    assert found.files == ()
    assert found.same()
    assert [each.state for each in found.layers] == ["files", "equal"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (layer(("a", b"1")), gzip.compress(layer(("a", b"1"))), ("compression", ())),
        (gzip.compress(BASE), zstd.compress(BASE), ("compression", ())),
        (layer_of(member("a")), layer_of(member("a", mtime=9)), ("times", ("/a",))),
        (layer(("a", b"1"), ("b", b"2")), layer(("b", b"2"), ("a", b"1")), ("order", ())),
        (layer(("a", b"1")), layer(("a", b"1")) + bytes(10240), ("tar", ())),
        (layer(("a", b"1")), layer(("a", b"2"), ("b", b"2")), ("files", ("/a", "/b"))),
        (layer(("a", b"1"), ("b", "=a")), layer(("a", b"1"), ("b", b"1")), ("files", ("/b",))),
        (layer(("a", b"1"), ("c", b"1"), ("b", "=a")), layer(("a", b"1"), ("c", b"1"), ("b", "=c")),
         ("files", ("/b",))),
        (layer((".wh.a", b"")), layer(("a", b"")), ("files", ("/a",))),
    ],
    ids=["gzip", "zstd", "times", "order", "tail", "files", "link", "links", "whiteout"],
)  # fmt: skip
def test_what_differs_of_two_layers(
    tmp_path: Path, before: bytes, after: bytes, expected: tuple[str, tuple[str, ...]]
) -> None:
    found = compared(tmp_path, [BASE, before], [BASE, after])
    assert (found.layers[1].state, found.layers[1].paths) == expected


def test_a_whiteout_does_not_apply_to_its_own_layer(tmp_path: Path) -> None:
    new = layer(("etc", None), ("etc/new", b"2"), (".wh.etc", b""), ("opt/.wh..wh..opq", b""))
    old = layer(("opt/old", b"1"))
    found = compared(tmp_path, [BASE, old, new], [layer(("etc", None), ("etc/new", b"2"))])
    assert states(found) == {}


def test_the_mode_of_a_link_does_not_count(tmp_path: Path) -> None:
    link = {"type": tarfile.SYMTYPE, "linkname": "a"}
    before, after = (layer_of(member("b", mode=mode, **link)) for mode in (0o777, 0o644))
    assert compared(tmp_path, [before], [after]).same(times=True)


def test_layers_are_paired_by_their_tars(tmp_path: Path) -> None:
    one, two, three = (layer((name, b"1")) for name in ("one", "two", "three"))
    found = compared(tmp_path, [BASE, one, three], [BASE, one, two, three])

    def numbers(each: LayerDifference) -> tuple[int, int]:
        return each.before.number if each.before else 0, each.after.number if each.after else 0

    assert [(*numbers(each), each.state) for each in found.layers] == [
        (1, 1, "equal"),
        (2, 2, "equal"),
        (0, 3, "added"),
        (3, 4, "equal"),
    ]


def test_configurations_and_their_times(tmp_path: Path) -> None:
    before = {"created": "2026-01-01T00:00:00Z", "config": {"Env": ["A=1"], "User": "1"}}
    after = {"created": "2026-01-02T00:00:00Z", "config": {"Env": ["A=2"], "Labels": {"x.y": "1"}}}
    found = compared(tmp_path, [BASE], [BASE], before, after)
    assert [(each.name, each.before, each.after) for each in found.config] == [
        ("config.Env", ("A=1",), ("A=2",)),
        ("config.Labels.x.y", (), ("1",)),
        ("config.User", ("1",), ()),
    ]
    assert [each.name for each in found.times] == ["created"]
    assert not found.same()


def test_only_times_differ(tmp_path: Path) -> None:
    after = layer_of(
        member("etc", type=tarfile.DIRTYPE, mode=0o755), member("etc/a", b"one", mtime=7)
    )
    found = compared(tmp_path, [BASE], [after], {"created": "1"}, {"created": "2"})
    assert found.same()
    assert not found.same(times=True)
    assert found.equal == 2


def test_a_hard_link_is_not_two_files(tmp_path: Path) -> None:
    found = compared(tmp_path, [layer(("a", b"1"), ("b", "=a"))], [layer(("a", b"1"), ("b", b"1"))])
    assert states(found) == {
        "/a": ("changed", ("hard link",)),
        "/b": ("changed", ("hard link",)),
    }


def test_a_path_that_a_layer_has_twice(tmp_path: Path) -> None:
    found = compared(tmp_path, [layer(("a", b"0"), ("a", b"1"))], [layer(("a", b"2"))])
    (changed,) = found.files
    assert changed.lines == ("1", "2")


def test_a_damaged_layer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UntriedError, match="the image cannot be read"):
        compared(tmp_path, [BASE], [gzip.compress(BASE)[:-20]])


def test_a_disk_that_is_too_small_is_an_error_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount, _, total = files._disk_of(tmp_path)
    monkeypatch.setattr(files, "_disk_of", lambda _: (mount, 0.0, total))
    with pytest.raises(SpaceError, match="the comparison of 1 files needs"):
        compared(tmp_path, [layer(("a", b"1" * 4096))], [layer(("a", b"2" * 4096))])
