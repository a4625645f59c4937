"""Two nights of an engine on an unchanged base: what a registry and another engine get of them."""

from __future__ import annotations

import re
import time
from pathlib import Path
from random import Random

import pytest

from builder.build.build import build_image
from builder.build.log import BuildLog
from builder.docker import buildx
from builder.docker.containers import blobs_of, build_contexts
from builder.publish import tags
from builder.publish.push import LocalImage, upload
from builder.publish.registry import Manifest, Repository
from builder.sources.gather import BuildContext
from support.machines import REMOTE, Machine

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("overlaid")]

PULLED = re.compile(r'"GET /v2/\S*/blobs/(\S+) HTTP/\S+" 200 (\d+)')
"""A blob and its bytes in the registry's access log (combined log format)."""


def built(work: Path, engine: bytes, base: str, name: str, who: str = "") -> LocalImage:
    """An image with zstd layers, made by one of the machines: a file on a base."""
    work.mkdir()
    builder = buildx.builder(who)
    bases = build_contexts({"root": base}, work, seen=builder.is_engine)
    folder = work / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM base-root AS image\nCOPY --link engine /engine\n")
    (folder / "engine").write_bytes(engine)
    platforms = {"image": ("linux/amd64",)}
    laid_out = BuildContext(folder, {"base-root": bases["root"]}, {}, {}, platforms, 0)
    log = BuildLog(work / "log")
    done = build_image(
        laid_out,
        "image",
        name,
        {"builder.key": "k"},
        log,
        lambda _: None,
        builder,
        compression="zstd",
        compress_base=True,
    )
    log.close()
    blobs = blobs_of(name, work)
    manifest = blobs.file(done.digest).read_bytes()
    return LocalImage(Manifest(manifest, "application/vnd.oci.image.manifest.v1+json"), blobs)


def answered(log: Path, before: int, least: int) -> dict[str, str]:
    """The blobs of the registry's log behind ``before``: a line is written after the answer."""
    for _ in range(100):
        found = dict(PULLED.findall(log.read_text()[before:]))
        if len(found) >= least:
            break
        time.sleep(0.1)
    return found


def layers(image: LocalImage) -> list[tuple[str, str]]:
    return [(each.digest, each.mediaType.rpartition("+")[2]) for each in image.manifest.body.layers]


def test_the_second_night_is_an_update_of_the_engine_alone(
    machine: Machine, small_root: str, registry: str, made: set[str], tmp_path: Path
) -> None:
    name = f"{registry}/me/night"
    repository = Repository(name, print)
    served = tmp_path / "served.log"
    serve = f"exec docker-registry serve {tmp_path / 'registry.yml'} >{served}"
    moves, uploaded, pulled = [], [], []
    with machine.running("sh", "-c", serve):  # the other machine has a network of its own
        for night in (1, 2):
            made.add(f"{name}:{night}")
            engine = Random(night).randbytes(200_000)
            image = built(tmp_path / str(night), engine, small_root, f"{name}:{night}")
            uploaded.append(upload(repository, image))
            moves.append(tags.move(repository, "nightly", image.manifest.digest, f"night {night}"))
            before = served.stat().st_size if served.exists() else 0
            machine.docker("pull", "--quiet", f"{name}:nightly")
            pulled.append(answered(served, before, uploaded[-1]))
    assert {kind for _, kind in layers(image)} == {"zstd"}
    # The second night: the configuration and one layer, whose size the note of the move told.
    assert (len(pulled[0]), len(pulled[1])) == (uploaded[0], 2)
    assert uploaded[1] == 2
    config = image.manifest.body.config
    assert config is not None
    size = int(pulled[1].pop(config.digest))
    assert size == config.size
    assert [moves[0].update, moves[1].update] == [None, *map(int, pulled[1].values())]
    assert 200_000 < (moves[1].update or 0) < 205_000
    # Another BuildKit compresses the same layers to the same bytes.
    made.add(f"{name}:again")
    again = built(tmp_path / "again", engine, small_root, f"{name}:again", REMOTE)
    assert layers(again)[:-1] == layers(image)[:-1]
