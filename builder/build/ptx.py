"""The PTX of an image's machine code, as one file: a tar, compressed with zstd.

Its members are named ``DIGEST.ptx`` by the sha256 (hex) of the machine code.  It is no part of the
image: with it anybody can compute the image's kernels on a CPU.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import IO, cast

from backports import zstd

from builder.core import archives
from builder.core.errors import FetchError
from builder.core.files import atomic_write, keep_newest

KIND = "application/vnd.builder.ptx.v1.tar+zstd"
"""The media type, and the type of the artifact that is attached to a pushed image."""
NAME = "ptx.tar.zst"
MOST = 30
"""Files of a recipe: a nightly image has its PTX in the registry, too."""
OPTIONS: dict[int, int] = {
    zstd.CompressionParameter.compression_level: 9,
    # Templates give many files of PTX that are alike.
    zstd.CompressionParameter.enable_long_distance_matching: 1,
    zstd.CompressionParameter.window_log: 27,  # what `zstd --decompress` takes without options
}


def path_of(state: Path, recipe: str, key: str) -> Path:
    """The file of the image of a key."""
    return state / "ptx" / recipe / f"{key[:12]}.tar.zst"


def pack(folder: Path, file: Path) -> None:
    """Write the PTX of ``folder``, files ``DIGEST.gz``, into ``file``.

    The same PTX gives the same bytes.  The newest files of a recipe stay.  Raises ``SpaceError``
    where the disk is full, ``OSError``.
    """
    with (
        atomic_write(file) as waiting,
        zstd.ZstdFile(waiting, "wb", options=OPTIONS) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for kept in sorted(folder.glob("*.gz")):
            text = gzip.decompress(kept.read_bytes())
            member = tarfile.TarInfo(f"{kept.stem}.ptx")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    keep_newest(file.parent, MOST, "*.tar.zst")


def digests(file: Path) -> frozenset[str]:
    """sha256 (hex) of the machine code whose PTX a file of ``pack`` has; none if there is no file.

    Raises ``FetchError`` where the file is damaged.
    """
    if not file.exists():
        return frozenset()
    try:
        with zstd.ZstdFile(file) as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
            return frozenset(member.name.removesuffix(".ptx") for member in tar)
    except (tarfile.TarError, zstd.ZstdError, EOFError) as error:
        raise FetchError(f"{file} is damaged", str(error), "remove it") from error


def unpack(file: Path, folder: Path) -> None:
    """Write the PTX of a file of ``pack`` to the new ``folder``: ``DIGEST.ptx``.

    Raises ``FetchError`` where the file is damaged, or unpacks to more than PTX does.
    """
    with zstd.ZstdFile(file) as packed:
        archives.unpack_stream(cast(IO[bytes], packed), folder, file.stat().st_size)
