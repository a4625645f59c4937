"""What builder costs beside what it drives, as ratios of one run.

    ./farm build hello-sm120 && .venv/bin/python bench/bench.py [--runs N] [--json]

Overhead: the wall time of ``builder build hello-sm120 --rebuild`` over that of a bare
``docker buildx build --no-cache`` of the same rendered context, runs taken in turns, medians
compared.  Unchanged: the same command where nothing changed.  Sizes: of the base's and of every
built engine's image, beside the published image of BeeLlama 0.1.1 (2.67 GB).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from builder import families, settings
from builder.cli.console import BuildProgress
from builder.images import context
from builder.images.session import BuildOptions, BuildSession
from builder.images.stages import lay_out
from builder.recipes import catalog
from builder.records import record
from builder.smoke import reading
from builder.tools.docker import engine as docker
from builder.tools.docker.blobs import blobs_of

REPOSITORY = Path(__file__).resolve().parents[1]
PUBLISHED_BEELLAMA = 2.67e9  # bytes, as its registry shows it
ENGINE = "hello-sm120"


def builder(*arguments: str) -> tuple[float, dict[str, object]]:
    """Run the command line; return its wall time (seconds) and its JSON."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "builder", *arguments, "--json"],
        cwd=REPOSITORY,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return time.monotonic() - started, json.loads(done.stdout)


def bare(session: BuildSession, work: Path) -> float:
    """Build the rendered context of the engine with buildx alone; seconds."""
    image = session.resolve(ENGINE)
    images = image.base.references
    bases = context.bases_at(images, work, seen=True)
    runs_scripts = images["devel"]
    laid_out = lay_out(image, session.options, bases, None, runs_scripts, work, lambda _: None)
    command = [docker.executable(), "buildx", "build", "--progress=quiet", "--no-cache"]
    command += ["--target=image", "--provenance=false", "--output=type=image,name=bench:bare"]
    started = time.monotonic()
    subprocess.run([*command, *laid_out.arguments()], check=True, capture_output=True)
    return time.monotonic() - started


def new_session() -> BuildSession:
    """The farm's recipes with the user's settings."""
    engines = {name: family.check for name, family in families.ENGINES.items()}
    bases = {name: family.check for name, family in families.BASES.items()}
    found = catalog.load(REPOSITORY, engines, bases)
    return BuildSession(found, BuildOptions(settings.load()), BuildProgress())


def overhead(runs: int) -> dict[str, float]:
    """Median seconds of both ways, and their ratios."""
    whole, smoke, alone = [], [], []
    for _ in range(runs):
        seconds, result = builder("build", ENGINE, "--rebuild")
        whole.append(seconds)
        smoke.append(float(result["seconds"]["smoke"]))  # type: ignore[index]
        with tempfile.TemporaryDirectory() as folder:
            alone.append(bare(new_session(), Path(folder)))
    docker.untag("bench:bare")
    without = [total - tested for total, tested in zip(whole, smoke, strict=True)]
    return {
        "builder_s": round(statistics.median(whole), 2),
        "of_which_smoke_s": round(statistics.median(smoke), 2),
        "bare_buildx_s": round(statistics.median(alone), 2),
        "ratio": round(statistics.median(whole) / statistics.median(alone), 2),
        "ratio_without_smoke": round(statistics.median(without) / statistics.median(alone), 2),
    }


def unchanged(runs: int) -> dict[str, object]:
    """Median seconds of a build where nothing changed, and how many builds were begun."""
    logs = settings.load().state_dir / "logs"
    before = set(logs.iterdir())
    results = [builder("build", ENGINE) for _ in range(runs)]
    return {
        "seconds": round(statistics.median(seconds for seconds, _ in results), 2),
        "builds_begun": len(set(logs.iterdir()) - before),
        "reported_as_built": sum(bool(result["built"]) for _, result in results),
    }


def sizes() -> list[dict[str, object]]:
    """Bytes of the base's runtime and of every engine that is built here."""
    session = new_session()
    rows: list[dict[str, object]] = []
    for name in session.catalog.engines:
        image = session.resolve(name)
        kept = record.read(session.settings.state_dir, name, image.key)
        if kept is not None:
            verdict = kept.verdict
            rows.append(_row(name, verdict.download_size, verdict.unpacked_size))
        runtime = image.base.references["runtime"]
        base = f"{image.base.plan.name} (runtime)"
        if docker.image(runtime) is not None and all(row["image"] != base for row in rows):
            with tempfile.TemporaryDirectory() as folder:
                found = reading.read(blobs_of(runtime, Path(folder)), Path(folder))
            rows.append(_row(base, found.download_size, found.unpacked_size))
    return rows


def _row(name: str, download: int, unpacked: int) -> dict[str, object]:
    return {
        "image": name,
        "download_mb": round(download / 1e6, 1),
        "unpacked_mb": round(unpacked / 1e6, 1),
        "download_over_published_beellama": round(download / PUBLISHED_BEELLAMA, 3),
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ratios: dict[str, dict[str, Any]] = {
        "overhead": dict(overhead(options.runs)),
        "unchanged": unchanged(options.runs),
    }
    found = sizes()
    if options.json:
        print(json.dumps({**ratios, "sizes": found}, indent=2))
        return
    for name, figures in ratios.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in figures.items()))
    for row in found:
        print("size: " + ", ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
