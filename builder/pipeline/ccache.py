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
from collections.abc import Collection, Sequence
from pathlib import Path
from uuid import uuid4

from builder import farm
from builder.errors import BuilderError, BuildError, WorldError
from builder.images.stages import ensure_bases
from builder.pipeline.session import BuildSession
from builder.plan.dockerfile import render_template
from builder.plan.plan import Plan
from builder.tools.docker import buildx
from builder.tools.docker.blobs import build_contexts
from builder.tools.docker.buildx import Builder
from builder.tools.files import atomic_write, mentions_full_disk

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


def mounts_ccache(plan: Plan) -> bool:
    """Whether a recipe compiles with the compiler cache mounted."""
    return plan.family.uses_ccache


def compile_image(plan: Plan, session: BuildSession) -> str | None:
    """The image in which a recipe compiles, built where it is missing; None: it compiles nothing.

    Raises like ``ensure_bases``.
    """
    if not mounts_ccache(plan):
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
    dockerfile = _rendered("ccache-save", mount=identifier, limit=f"{limit * 2**30:.0f}")
    try:
        with atomic_write(file) as waiting:
            what = f"keep the compiler cache in {file}"
            output = buildx.fields("type=tar", f"dest={waiting}")
            named = [_devel(image, work, builder)]
            _build(dockerfile, work, what, output, named, builder, file.parent)
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
    dockerfile = _rendered("ccache-load", mount=identifier)
    named = [_devel(image, work, builder), f"--build-context=kept={context}"]
    what = f"take the compiler cache of {file}"
    _build(dockerfile, work, what, "type=cacheonly", named, builder, work)
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

    ``digests`` are sha256 (hex) of machine code; the rest is as for ``save``.  Raises like it.
    """
    wanted = work / "wanted"
    wanted.mkdir()
    (wanted / "digests").write_text("".join(f"{digest}\n" for digest in sorted(digests)))
    dockerfile = _rendered("ptx", mount=identifier, limit=str(PTX_LIMIT))
    named = [_devel(image, work, builder), f"--build-context=wanted={wanted}"]
    output = buildx.fields("type=local", f"dest={folder}")
    _build(dockerfile, work, "take the PTX of the engine", output, named, builder, folder.parent)


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


def _rendered(name: str, **variables: str) -> str:
    """A Dockerfile of builder's own, whatever templates the catalog has."""
    folder = farm.installed() / "dockerfiles"
    return render_template(folder, f"{name}.Dockerfile.j2", once=uuid4().hex, **variables)


def _devel(image: str, work: Path, builder: str) -> str:
    """The option by which a builder finds the stage that engines are compiled in."""
    seen = buildx.builder(builder).is_engine
    context = build_contexts({"devel": image}, work / "bases", seen=seen)["devel"]
    return f"--build-context=base-devel={context}"


def _build(
    dockerfile: str,
    work: Path,
    what: str,
    output: str,
    named: Sequence[str],
    builder: str,
    written: Path,
) -> None:
    """Run a tiny build that writes to the directory ``written``, or to the engine.

    Raises with the end of its log where it fails.
    """
    (work / "context").mkdir()
    (work / "Dockerfile").write_text(dockerfile)
    lines: list[str] = []
    arguments = [f"--file={work / 'Dockerfile'}", "--provenance=false", f"--output={output}"]
    arguments += [*named, str(work / "context")]
    on = buildx.builder(builder)
    if buildx.build(on, arguments, lines.append) != 0:
        raise _explained(what, "\n".join(lines[-TAIL:]), on, written)


def _explained(what: str, output: str, builder: Builder, written: Path) -> BuilderError:
    if mentions_full_disk(output):
        return buildx.full_disk(builder, f"cannot {what}:\n{output}", written)
    buildx.require_builder(builder)  # names the reason where the builder is gone
    return BuildError(f"cannot {what}", output)
