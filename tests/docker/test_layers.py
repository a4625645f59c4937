"""Odd and hostile layers: what is read of them is what the engine makes of them."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from builder.core.errors import UntriedError
from builder.image.compare import read_image
from builder.image.contents import read_contents
from support.layouts import Entry, Image, layer, layer_of, member

TAKEN: dict[str, list[list[Entry]]] = {
    "hard link whose first name goes": [[("a", b"1"), ("b", "=a")], [(".wh.a", b"")]],
    "hard link to a link": [[("x", b"1"), ("a", "->x"), ("b", "=a")]],
    "hard link through a link": [[("o", None), ("o/f", b"1"), ("l", "->o"), ("b", "=l/f")]],
    "below a link of the layer": [[("o", None), ("o/e", None), ("a", "->o/e"), ("a/x", b"1")]],
    "below a link to nothing": [[("a", "->gone"), ("a/x", b"1")]],
    "below a link of another layer": [[("o", None), ("a", "->o"), ("o/y", b"1")], [("a/x", b"1")]],
    "below a file of another layer": [[("a", b"1")], [("a/x", b"1")]],
    "whiteout before its file": [[("a", b"1")], [(".wh.a", b""), ("a", b"2")]],
    "whiteout that is a folder": [[("a", b"1"), ("c", b"")], [(".wh.a", None)]],
    "opaque after its files": [
        [("d", None), ("d/old", b"1")],
        [("d", None), ("d/new", b"2"), ("d/.wh..wh..opq", b"")],
    ],
    "file for a folder": [[("d", None), ("d/old", b"1")], [("d", b"1")]],
    "file for a folder of the layer": [[("d", None), ("d/old", b"1"), ("d", b"1")]],
    "folder for a link": [[("e", None), ("e/x", b"1"), ("d", "->e")], [("d", None)]],
    "twice": [[("a", b"1"), ("a", b"22")]],
    "upwards": [[("d", None), ("d/e/../b", b"2"), ("d//./c", b"3")]],
}
"""What the engine takes: the entries of each layer."""

REFUSED = {
    "hard link to nothing": [layer(("a", b"1"), ("b", "=nothing"))],
    "hard link to what follows": [layer(("b", "=a"), ("a", b"1"))],
    "hard link to itself": [layer(("a", b"1"), ("a", "=a"))],
    "hard link to another layer": [layer(("a", b"1")), layer(("b", "=a"))],
    "hard link to a directory": [layer(("a", None), ("b", "=a"))],
    "below a file": [layer(("a", b"1"), ("a/x", b"1"))],
    "links in a circle": [layer(("a", "->b"), ("b", "->a"), ("a/x", b"1"))],
    "whiteout of nothing": [layer(("d/.wh.", b""))],
    "whiteout of the folder above": [layer(("d/.wh...", b""))],
    "NUL": [layer_of(member("a", b"1", pax_headers={"path": "a\0b"}))],
    "unknown type": [layer_of(member("a", type=b"Z"))],
    "cut off": [layer(("a", b"1" * 5000))[:2048]],
}


def within(folder: str, entry: Entry) -> Entry:
    name, content = entry
    if isinstance(content, str) and content.startswith("="):
        content = f"={folder}/{content[1:]}"
    return f"{folder}/{name}", content


def load(name: str, *layers: bytes) -> subprocess.CompletedProcess[bytes]:
    saved = Image().saved(name, *layers)
    return subprocess.run(["docker", "load"], input=saved, capture_output=True, check=False)


def forget(name: str) -> None:
    subprocess.run(["docker", "rmi", "--force", name], check=False, capture_output=True)


def exported(name: str) -> dict[str, bytes | str | None]:
    """The paths of a container, without what the engine adds to it; a link's is its target."""
    created = subprocess.run(["docker", "create", name, "x"], check=True, capture_output=True)
    container = created.stdout.decode().strip()
    try:
        done = subprocess.run(["docker", "export", container], check=True, capture_output=True)
    finally:
        subprocess.run(["docker", "rm", container], check=True, capture_output=True)
        forget(name)
    found: dict[str, bytes | str | None] = {}
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        for each in tar:
            if each.name.startswith("case"):
                first = tar.getmember(each.linkname) if each.islnk() else each
                content = tar.extractfile(first) if first.isfile() else None
                link = f"->{first.linkname}" if first.issym() else None
                found[f"/{each.name}"] = content.read() if content else link
    return found


@pytest.mark.docker
def test_what_the_engine_takes_has_the_same_files(tmp_path: Path) -> None:
    numbered = dict(enumerate(TAKEN.values()))
    entries: list[list[Entry]] = [
        [("mode", b"1"), *((f"case{number}", None) for number in numbered)],
        [],
    ]
    for number, layers in numbered.items():
        for into, these in zip(entries, layers, strict=False):
            into += [within(f"case{number}", each) for each in these]
    layers = [layer(*each) for each in entries]
    name = "builder-test/layers:taken"
    loaded = load(name, *layers)
    assert loaded.returncode == 0, loaded.stderr
    image = Image()
    blobs = image.in_folder(tmp_path / "blobs", image.manifest(*layers))
    found = exported(name)
    folders = {path for path, content in found.items() if content is None}
    smoked, tree = read_contents(blobs, tmp_path).files, read_image("a", blobs)
    copies = tree.extract(
        {path for path, node in tree.nodes.items() if node.kind == "file"}, tmp_path / "copies"
    )

    def content(path: str) -> bytes | str | None:
        node = tree.nodes[path]
        if node.kind == "file":
            return copies[path].read_bytes()
        return f"->{node.target}" if node.kind == "link" else None

    assert {path: content(path) for path in tree.nodes if path != "/mode"} == {
        path: content for path, content in found.items() if path in tree.nodes
    }
    assert found.keys() - tree.nodes.keys() <= folders, "only folders without an entry may lack"
    assert {path: (file.kind, file.digest) for path, file in smoked.items()} == {
        path: (node.kind, node.digest) for path, node in tree.nodes.items()
    }


@pytest.mark.docker
@pytest.mark.parametrize("case", REFUSED)
def test_what_the_engine_refuses_is_damaged(case: str, tmp_path: Path) -> None:
    name = f"builder-test/layers:refused-{list(REFUSED).index(case)}"
    assert load(name, *REFUSED[case]).returncode != 0
    forget(name)
    image = Image()
    blobs = image.in_folder(tmp_path / "blobs", image.manifest(*REFUSED[case]))
    with pytest.raises(UntriedError, match="the image cannot be read"):
        read_contents(blobs, tmp_path)
    with pytest.raises(UntriedError, match="the image cannot be read"):
        read_image("a", blobs)


@pytest.mark.docker
def test_a_global_header_renames_no_file(tmp_path: Path) -> None:
    hidden = layer_of(member("case0", b"1"))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", pax_headers={"path": "harmless"}):
        pass
    header = out.getvalue()[:1024]
    name = "builder-test/layers:global"
    assert load(name, header + hidden).returncode == 0
    assert exported(name) == {"/case0": b"1"}
    image = Image()
    blobs = image.in_folder(tmp_path / "blobs", image.manifest(header + hidden))
    assert [*read_contents(blobs, tmp_path).files] == ["/case0"]
