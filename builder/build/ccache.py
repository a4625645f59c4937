"""The compiler cache of a builder, carried from one machine to another as a file.

ccache's directory is a cache mount of BuildKit, which lives as long as its engine does: a runner
that is removed after its job loses it.  One small build copies it out of the mount, another one
copies it back.  Both run in the stage in which engines are compiled, which has ccache and tar.
Beside ccache's results, the mount has the PTX of the machine code in them: builder.sources.context.
https://docs.docker.com/reference/dockerfile/#run---mounttypecache
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Collection, Mapping
from pathlib import Path
from uuid import uuid4

from builder.build.session import BuildSession
from builder.build.stages import ensure_bases
from builder.core import farm
from builder.core.errors import BuildError, WorldError
from builder.core.files import atomic_write, mentions_full_disk
from builder.docker import buildx
from builder.docker.blobs import build_contexts
from builder.plan.dockerfile import render_template
from builder.plan.plan import Plan

ID = "builder-ccache"
"""The cache mount of every template that compiles."""
RESULT = re.compile(
    r"(?:\./)?(?:(?:[0-9a-f]/)+[0-9A-Za-z]+|ptx/(?P<digits>[0-9a-f]{2})/(?P=digits)[0-9a-f]{62}\.gz)"
)
"""A file of ccache's: in directories of one digit each (ccache 4, "Cache structure"); or PTX, by
the sha256 of its machine code."""
FOLDER = re.compile(r"\.|(?:\./)?(?:[0-9a-f](?:/[0-9a-f])*|ptx(?:/[0-9a-f]{2})?)")
PTX_LIMIT = 4 << 30  # bytes of PTX; ccache has 20 GB
END = bytes(2 * tarfile.BLOCKSIZE)  # after the last file (tar(5), "POSIX ustar Archives")
TAIL = 8  # lines of a log that show why it failed


def compile_image(plan: Plan, session: BuildSession) -> str | None:
    """The image in which a recipe compiles, built where it is missing; None: it compiles nothing.

    Raises like ``ensure_bases``.
    """
    if not plan.family.uses_ccache:
        return None
    session.settings.require_directories()
    with session.active(f"base-{plan.base.name}") as active:
        ensure_bases(plan.base, active)
    return plan.devel


def save(
    image: str,
    file: Path,
    work: Path,
    limit: float,
    *,
    identifier: str = ID,
    builder: str = "",
) -> int:
    """Write the compiler cache of a builder into ``file``, a tar; its bytes.

    ``builder`` is as in ``buildx.builder``; ``image`` is the engine's, and has ccache and tar;
    ``work`` is an empty directory.  Above ``limit`` GiB, the results that were not used for longest
    are left out; in the builder nothing changes.  Raises ``BuildError``,
    ``SpaceError``, or ``WorldError`` where the engine does not answer; then ``file`` is what it
    was.
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
    """Add the results in ``file``, which ``save`` wrote, to the compiler cache of a builder; bytes.

    Raises like ``save``; ``WorldError`` for any other file, or a truncated one, before any of it is
    there.
    """
    if not file.is_file():
        raise WorldError(
            f"there is no compiler cache {file}", hint="`builder ci ccache save` writes one"
        )
    why = _wrong(file)
    if why:
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
    """Run a tiny build on the stage in which engines are compiled.

    It writes to the directory ``written``, or to the engine.  Raises with the end of its log where
    it fails.
    """
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
