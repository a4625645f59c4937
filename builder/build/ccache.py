"""The compiler cache of a builder, carried from one machine to another as a file.

ccache's directory is a cache mount of BuildKit, which lives as long as its engine does: a runner
that is removed after its job loses it.  One small build copies it out of the mount, another one
copies it back.  Both run in the stage in which engines are compiled, which has ccache and tar.
Beside ccache's results, the mount has the PTX of the machine code in them: builder.sources.gather.
https://docs.docker.com/reference/dockerfile/#run---mounttypecache
"""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import tarfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast
from uuid import uuid4

from backports import zstd

from builder.core import archives, farm
from builder.core.errors import BuildError, FetchError, WorldError
from builder.core.files import atomic_write, keep_newest, mentions_full_disk
from builder.core.settings import Settings
from builder.docker import buildx
from builder.docker import engine as docker
from builder.docker.containers import blobs_of, build_contexts
from builder.engines.layout import LAYOUT
from builder.image.contents import ReadOptions, read_contents
from builder.plan.plan import Plan, render_template
from simulator.selection import Capability

ID = "builder-ccache"  # the cache mount of every template that compiles
RESULT = re.compile(
    r"(?:\./)?(?:(?:[0-9a-f]/)+[0-9A-Za-z]+|ptx/(?P<digits>[0-9a-f]{2})/(?P=digits)[0-9a-f]{62}\.gz)"
)
"""A file of ccache's: in directories of one digit each (ccache 4, "Cache structure"); or PTX, by
the sha256 of its machine code."""
FOLDER = re.compile(r"\.|(?:\./)?(?:[0-9a-f](?:/[0-9a-f])*|ptx(?:/[0-9a-f]{2})?)")
PTX_LIMIT = 4 << 30  # bytes of PTX; ccache has 20 GB
END = bytes(2 * tarfile.BLOCKSIZE)  # after the last file (tar(5), "POSIX ustar Archives")
TAIL = 8  # lines of a log that show why it failed


def save(
    image: str, file: Path, work: Path, limit: float, *, identifier: str = ID, builder: str = ""
) -> int:
    """Write the compiler cache of a builder into ``file``, a tar; its bytes.

    ``builder`` is as in ``buildx.builder``; ``image`` is the engine's, and has ccache and tar;
    ``work`` is an empty directory.  Above ``limit`` GiB, the results that were not used for longest
    are left out; in the builder nothing changes.  Where it fails, ``file`` is what it was.
    """
    variables = {"mount": identifier, "limit": f"{limit * 2**30:.0f}"}
    try:
        with atomic_write(file) as waiting:
            what = f"keep the compiler cache in {file}"
            output = buildx.fields("type=tar", f"dest={waiting}")
            _build("ccache-save", variables, image, work, what, output, file.parent, builder)
            return waiting.stat().st_size
    except OSError as error:
        raise WorldError(f"cannot write {file}", error.strerror or str(error)) from error


def load(image: str, file: Path, work: Path, *, identifier: str = ID, builder: str = "") -> int:
    """Add the results in ``file``, which ``save`` wrote, to a builder's compiler cache; bytes."""
    if why := _wrong(file) if file.is_file() else "there is no such file":
        raise WorldError(f"{file} is no compiler cache", why, "`builder ci ccache save` writes one")
    context = work / "kept"
    context.mkdir()
    try:
        os.link(file.resolve(), context / "kept.tar")
    except OSError:  # another file system
        shutil.copyfile(file, context / "kept.tar")
    what = f"take the compiler cache of {file}"
    named = f"--build-context=kept={context}"
    variables = {"mount": identifier}
    _build("ccache-load", variables, image, work, what, "type=cacheonly", work, builder, named)
    return file.stat().st_size


def take_ptx(
    image: str,
    digests: Collection[str],
    folder: Path,
    work: Path,
    *,
    identifier: str = ID,
    builder: str = "",
) -> None:
    """Write the PTX of machine code that the mount has, ``DIGEST.gz``, into the new ``folder``.

    ``digests`` are sha256 (hex) of machine code; the rest is as for ``save``.
    """
    wanted = work / "wanted"
    wanted.mkdir()
    (wanted / "digests").write_text("".join(f"{digest}\n" for digest in sorted(digests)))
    what, output = "take the PTX of the engine", buildx.fields("type=local", f"dest={folder}")
    named = f"--build-context=wanted={wanted}"
    variables = {"mount": identifier, "limit": str(PTX_LIMIT)}
    _build("ptx", variables, image, work, what, output, folder.parent, builder, named)


def _wrong(file: Path) -> str:
    """Why ``save`` did not write a file; empty if it did."""
    try:
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                shape = RESULT if member.isreg() else FOLDER
                if not (member.isreg() or member.isdir()) or not shape.fullmatch(member.name):
                    return f"it contains {member.name}, which ccache did not write"
            end = tar.offset
        with file.open("rb") as content:
            content.seek(end)
            return "" if content.read(len(END)) == END else "it is cut off"
    except (tarfile.TarError, OSError) as error:
        return str(error)


def _build(
    template: str,
    variables: Mapping[str, str],
    image: str,
    work: Path,
    what: str,
    output: str,
    written: Path,
    builder: str,
    *named: str,
) -> None:
    """Run a tiny build where engines are compiled; it writes to ``written``, or to the engine."""
    on = buildx.builder(builder)
    devel = build_contexts({"devel": image}, work / "bases", seen=on.is_engine)["devel"]
    (work / "context").mkdir()
    # A Dockerfile of builder's own, whatever templates the catalog has.
    folder = farm.installed() / "dockerfiles"
    text = render_template(folder, f"{template}.Dockerfile.j2", once=uuid4().hex, **variables)
    (work / "Dockerfile").write_text(text)
    lines: list[str] = []
    arguments = [f"--file={work / 'Dockerfile'}", "--provenance=false", f"--output={output}"]
    arguments += [f"--build-context=base-devel={devel}", *named, str(work / "context")]
    if buildx.build(on, arguments, lines.append) == 0:
        return
    end = "\n".join(lines[-TAIL:])
    if mentions_full_disk(end):
        raise buildx.full_disk(on, f"cannot {what}:\n{end}", written)
    buildx.require_builder(on)  # names the reason where the builder is gone
    raise BuildError(f"cannot {what}", end)


# The PTX of an image's machine code, as one file: a tar, compressed with zstd.
# Its members are named ``DIGEST.ptx`` by the sha256 (hex) of the machine code.  It is no part of
# the image: with it anybody can compute the image's kernels on a CPU.

KIND = "application/vnd.builder.ptx.v1.tar+zstd"  # media type, and type of the attached artifact
NAME = "ptx.tar.zst"
MOST = 30  # files of a recipe: a nightly image has its PTX in the registry, too
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
    """Write the PTX of ``folder``, files ``DIGEST.gz``, into ``file``: the same bytes each time."""
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


@dataclass(frozen=True, slots=True)
class Kept:
    """The PTX that is kept for an image, of so many different modules of machine code.

    ``missing`` are sha256 (hex) of the modules whose PTX is not known.
    """

    file: Path
    modules: int
    missing: frozenset[str]

    @property
    def known(self) -> int:
        """How many modules have their PTX in the file; 0: there may be no file."""
        return self.modules - len(self.missing)


def keep(plan: Plan, image: docker.Image, settings: Settings, work: Path) -> Kept | None:
    """Keep the PTX of an image compiled here; None: it has no machine code of nvcc's."""
    if not plan.has_nvcc:
        return None
    blobs = blobs_of(image.reference, work, image.digest)
    wanted: set[str] = set()  # sha256 (hex) of machine code
    for arch in plan.recipe.cuda.arch:
        # NVIDIA does not publish the PTX of CUDA's own libraries.
        options = ReadOptions(card=Capability.of_arch(arch), code_outside=LAYOUT.cuda)
        contents = read_contents(blobs, work, options, settings.cache_dir)
        for library in contents.libraries():
            wanted.update(each.machine_code for each in library.fat_binaries)
    wanted -= {""}
    if not wanted:
        return None
    file = path_of(settings.state_dir, plan.name, plan.key)
    known = digests(file) & wanted
    if known < wanted:
        folder, own_work = work / "ptx", work / "ptx-work"
        own_work.mkdir()
        devel = plan.base.references["devel"]
        take_ptx(devel, wanted, folder, own_work, builder=settings.buildx)
        taken = {each.stem for each in folder.glob("*.gz")}
        if len(taken) > len(known):
            pack(folder, file)
            known = frozenset(taken)
    return Kept(file, len(wanted), frozenset(wanted - known))
