"""What a command needs that builds or checks images: its session and its reporter."""

from __future__ import annotations

from pathlib import Path

from builder.build import junit as junit_xml
from builder.build import reports
from builder.build.session import BuildSession
from builder.checks.smoke_subject import GpuTest
from builder.checks.verdict import Verdict
from builder.cli.options import catalog_at
from builder.cli.progress import BuildProgress
from builder.core import settings
from builder.core.platforms import Platform


def reporter(junit: Path | None = None) -> BuildProgress:
    """The reporter of builds; it writes each verdict to this file and the summary of a job."""
    verdicts: dict[str, Verdict] = {}

    def write(name: str, verdict: Verdict) -> None:
        verdicts[name] = verdict
        if junit is not None:
            junit_xml.write(junit, verdicts)
        reports.append_to_summary(reports.of_verdict(name, verdict))

    return BuildProgress(write)


def build_session(
    folder: Path | None,
    progress: BuildProgress | None = None,
    *,
    gpu_test: GpuTest | None = None,
    card: str | None = None,
    rebuild: bool = False,
    offline: bool = False,
    jobs: int | None = None,
    builder: str | None = None,
    platform: Platform | None = None,
) -> BuildSession:
    """The catalog with the options and the reporter of builds, and the user's settings.

    Raises ``RecipeError`` if there is no catalog, ``WorldError`` for invalid settings.
    """
    given = {"jobs": jobs, "buildx": builder}
    update = {name: value for name, value in given.items() if value is not None}
    return BuildSession(
        catalog=catalog_at(folder),
        settings=settings.load().model_copy(update=update),
        reporter=progress or reporter(),
        gpu_test=gpu_test,
        card=card,
        rebuild=rebuild,
        offline=offline,
        platform=platform,
    )
