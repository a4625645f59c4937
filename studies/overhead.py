"""The overhead of builder over buildx, as rows of studies/measurements.md.

    ./farm build hello-sm120 && .venv/bin/python studies/overhead.py [RECIPE] [--runs N] [--json]

Overhead: the wall time of ``builder build RECIPE --rebuild`` over the wall time of a bare
``docker buildx build --no-cache`` of the same rendered context; both take turns, and the medians
are compared.  Unchanged: ``builder build RECIPE`` when nothing has changed.  Sizes: of the base's
image and of the images of all recipes that are built.
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

from builder.build import ccache, record
from builder.build.build import BuildSession, ensure_bases_of, lay_out
from builder.cli.session import BuildProgress
from builder.core import settings
from builder.core.errors import FetchError
from builder.docker import engine as docker
from builder.docker.containers import blobs_of
from builder.engines.families import load_catalog
from builder.image.contents import read_contents

REPOSITORY = Path(__file__).resolve().parents[1]


def build(root: Path, recipe: str, *options: str) -> tuple[float, Any]:
    """Run ``builder build``; its wall time (seconds) and its JSON."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "builder", "build", recipe, f"--catalog={root}", "--json", *options],
        cwd=REPOSITORY,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return time.monotonic() - started, json.loads(done.stdout)


def bare(session: BuildSession, recipe: str, work: Path) -> float:
    """Build the rendered context of a recipe with buildx alone; seconds.

    --no-cache empties the cache mounts of a Dockerfile (moby/buildkit#4250): this one has its own.
    """
    plan = session.resolve(recipe)
    with session.active("bench") as active:
        laid_out = lay_out(plan, ensure_bases_of(plan, active), active, work)
    file = laid_out.folder / "Dockerfile"
    file.write_text(file.read_text().replace(f"id={ccache.ID},", "id=bench-ccache,"))
    command = [docker.executable(), "buildx", "build", "--progress=quiet", "--no-cache"]
    command += ["--target=image", "--provenance=false", "--output=type=image,name=bench:bare"]
    started = time.monotonic()
    subprocess.run([*command, *laid_out.arguments("image")], check=True, capture_output=True)
    return time.monotonic() - started


def new_session(root: Path) -> BuildSession:
    """A catalog with the user's settings."""
    return BuildSession(
        catalog=load_catalog(root), settings=settings.load(), reporter=BuildProgress()
    )


def overhead(root: Path, recipe: str, runs: int) -> dict[str, float]:
    """Median seconds of both ways, and their ratios."""
    builder, smoke, bare_buildx = [], [], []
    for _ in range(runs):
        seconds, result = build(root, recipe, "--rebuild")
        builder.append(seconds)
        smoke.append(float(result["seconds"]["smoke"]))
        with tempfile.TemporaryDirectory() as folder:
            bare_buildx.append(bare(new_session(root), recipe, Path(folder)))
    docker.untag("bench:bare")
    without = [total - tested for total, tested in zip(builder, smoke, strict=True)]
    return {
        "builder_s": round(statistics.median(builder), 2),
        "of_which_smoke_s": round(statistics.median(smoke), 2),
        "bare_buildx_s": round(statistics.median(bare_buildx), 2),
        "ratio": round(statistics.median(builder) / statistics.median(bare_buildx), 2),
        "ratio_without_smoke": round(
            statistics.median(without) / statistics.median(bare_buildx), 2
        ),
    }


def unchanged(root: Path, recipe: str, runs: int) -> dict[str, float]:
    """Median seconds of a build without changes, and how many builds were started."""
    logs = settings.load().state_dir / "logs"
    before = set(logs.iterdir())
    results = [build(root, recipe) for _ in range(runs)]
    return {
        "seconds": round(statistics.median(seconds for seconds, _ in results), 2),
        "builds_started": len(set(logs.iterdir()) - before),
    }


def sizes(root: Path) -> dict[str, tuple[int, int]]:
    """Bytes to download and unpacked, of every recipe that is built and of its base."""
    session = new_session(root)
    found: dict[str, tuple[int, int]] = {}
    for name in session.catalog.engines:
        try:
            plan = session.resolve(name)
        except FetchError:  # a base without a pin, whose registry does not answer
            continue
        kept = record.read(session.settings.state_dir, name, plan.key)
        if kept is None:
            continue
        found[name] = (kept.verdict.download_size, kept.verdict.unpacked_size)
        base = f"{plan.base.name} (runtime)"
        if base not in found:
            with tempfile.TemporaryDirectory() as folder:
                blobs = blobs_of(plan.base.references["runtime"], Path(folder))
                contents = read_contents(blobs, Path(folder))
            found[base] = (contents.download_size, contents.unpacked_size)
    return found


def rows(figures: Any) -> dict[str, str]:
    """The figures by the rows of studies/measurements.md that they belong to."""
    cost, idle = figures["overhead"], figures["unchanged"]
    found = {
        "`build --rebuild` over a bare `docker buildx build` of the same context, without the "
        "smoke test": f"{cost['ratio_without_smoke']}",
        f"the same with the smoke test ({cost['of_which_smoke_s']} s)": f"{cost['ratio']}",
        "unchanged: seconds, builds started": f"{idle['seconds']} s, {idle['builds_started']}",
    }
    for name, (download, unpacked) in figures["sizes"].items():
        sizes = f"{download / 1e6:.0f} MB, {unpacked / 1e6:.0f} MB"
        found[f"{name}: download, unpacked"] = sizes
    return found


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="hello-sm120")
    parser.add_argument("--catalog", type=Path, default=REPOSITORY)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print all figures")
    options = parser.parse_args()
    where = (options.catalog, options.recipe, options.runs)
    figures = {
        "overhead": overhead(*where),
        "unchanged": unchanged(*where),
        "sizes": sizes(options.catalog),
    }
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for row, figure in rows(figures).items():
        print(f"| {row} | {figure} |")


if __name__ == "__main__":
    main()
