"""The sources of a comparison of numbers: the tests of the image's tree, and the kept PTX."""

from __future__ import annotations

import tempfile
from pathlib import Path

from builder.build import kept_ptx, ptx
from builder.build.session import BuildSession
from builder.checks import program
from builder.checks.smoke_subject import NumbersTest
from builder.checks.subject import Context
from builder.core.errors import BuilderError
from builder.core.files import atomic_write, keep_newest, named_lock
from builder.docker import engine as docker
from builder.image.contents import Contents
from builder.plan.plan import Plan
from builder.sources import gather

FOLDER = "numbers"
"""The directory, in the cache, of compiled tests: by build key and by ``program.key``."""
KEPT = 60  # programs; each has some megabytes


def are_expected(plan: Plan) -> bool:
    """Whether the image of a plan will have numbers to compare, as far as its recipe shows."""
    return plan.has_nvcc and plan.family.compiles_ggml(plan.recipe, plan.platforms)


def test_of(
    plan: Plan, image: docker.Image, context: Context, session: BuildSession
) -> NumbersTest | str | BuilderError:
    """The sources of the comparison of an image's numbers, as ``Context.numbers`` has them.

    Files are made in a directory of their own below the context's.
    """
    if not context.wants_numbers:
        return "its server is not tried on a simulated card"
    work = Path(tempfile.mkdtemp(prefix="numbers-", dir=context.work))
    work.chmod(0o755)  # the image's own user reads the PTX
    try:
        return _made(plan, image, session, context.contents, work)
    except BuilderError as error:
        return error


def _made(
    plan: Plan, image: docker.Image, session: BuildSession, contents: Contents, work: Path
) -> NumbersTest | str:
    devel = plan.base.references.get("devel")
    if devel is None or not plan.has_nvcc:
        return "the base has no nvcc: there is no PTX to compute from"
    kept_work = work / "kept"
    kept_work.mkdir()
    kept = kept_ptx.keep(plan, image, session.settings, kept_work)
    if kept is None or not kept.known:
        return (
            "its PTX is not known, so its kernels cannot be computed: "
            f"`builder ptx {plan.name} --compile` compiles it again"
        )
    texts = work / "ptx"
    ptx.unpack(kept.file, texts)
    texts.chmod(0o755)
    if not program.libraries(contents):
        return NumbersTest(texts, "the image has no libggml-base.so to call from outside")
    folder = session.settings.cache_dir / FOLDER
    binary = folder / f"{plan.key[:12]}-{program.key()}"
    with named_lock(session.settings.cache_dir, f"numbers-{plan.key[:12]}"):
        if not binary.exists():
            tests = program.in_tree(_source(plan, devel, session, work))
            if tests is None:
                return NumbersTest(texts, f"the source tree has no {program.SOURCE}")
            session.log(f"compiling {program.PROGRAM} of the source tree of {plan.title}")
            made = program.compiled(tests, image.reference, contents, devel, work)
            with atomic_write(binary) as waiting:
                waiting.write_bytes(made.read_bytes())
            binary.chmod(0o755)  # the image's own user runs it
            keep_newest(folder, KEPT)
    return NumbersTest(texts, binary)


def _source(plan: Plan, devel: str, session: BuildSession, work: Path) -> Path:
    """The patched source tree of a plan, below ``work``."""
    settings = session.settings
    options = gather.GatherOptions(
        settings.cache_dir, session.log, devel, session.offline, settings.debian_servers
    )
    return gather.source_of(plan, options, work)[0]
