"""From nothing to a verified image, as rows of studies/measurements.md.

    # .venv/bin/python studies/fresh.py [RECIPE] [--runs N] [--checkout DIR]... [--json]

Fresh: ``builder build RECIPE`` with empty caches, on a Docker engine without images that this
script starts and removes.  Bare: the compile of the same context by ``docker buildx build`` alone,
without the compiler cache, on that engine, which has the base by then.  Docker:
``apt-get install docker.io`` in a new Debian root.  The ratio is docker + fresh over docker + bare.
Other checkouts of this repository take turns with this one: ``./farm test --version`` set DIR up.
The CPU time is the one of builder and its programs, and of the engine and its containers.
Needs root, dockerd, mmdebstrap and 10 GiB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from builder.build.build import BuildSession, ensure_bases_of, lay_out
from builder.cli.session import BuildProgress
from builder.core import settings
from builder.engines.families import load_catalog
from builder.sources import apt

REPOSITORY = Path(__file__).resolve().parents[1]


def install_docker(work: Path) -> float:
    """Seconds of ``apt-get install docker.io`` in a new Debian root."""
    times, sources = work / "times", work / "suite.sources"
    suite = apt.os_release()["VERSION_CODENAME"]
    sources.write_text(apt.deb822(apt.debian_sources(suite)))
    steps = ["date +%s.%N", 'chroot "$1" apt-get -qq install --yes docker.io', "date +%s.%N"]
    hook = "; ".join(steps).replace("%N", f"%N >>{times}")
    subprocess.run(
        [
            *("mmdebstrap", "--quiet", "--variant=apt", "--format=null"),
            *(f"--customize-hook={hook}", suite, "/dev/null", str(sources)),
        ],
        check=True,
        capture_output=True,
        env=os.environ | {"TMPDIR": str(work)},
    )
    began, ended = map(float, times.read_text().split())
    times.unlink()
    return ended - began


def cpu_of(process: int) -> float:
    """CPU seconds of a process and of all that it waited for (proc_pid_stat(5), fields 14-17)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def build(checkout: Path, recipe: str) -> tuple[float, float, dict[str, float]]:
    """Build a recipe; seconds, CPU seconds of builder, and the seconds of its stages."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [checkout / ".venv" / "bin" / "python", "-m", "builder", "build", recipe, "--json"],
        cwd=checkout,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    seconds = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, json.loads(done.stdout)["seconds"]


def bare(recipe: str, work: Path) -> float:
    """Seconds of a compile by buildx alone, on the base that is there."""
    catalog, progress = load_catalog(REPOSITORY), BuildProgress()
    session = BuildSession(catalog=catalog, settings=settings.load(), reporter=progress)
    plan = session.resolve(recipe)
    with session.active("bench") as active:
        laid_out = lay_out(plan, ensure_bases_of(plan, active), active, work)
    command = ["docker", "buildx", "build", "--progress=quiet", "--provenance=false"]
    command += ["--no-cache-filter=entrypoint,image,build", "--build-arg=CCACHE_DISABLE=1"]
    command += ["--target=image", "--output=type=image,name=bench:bare"]
    started = time.monotonic()
    subprocess.run([*command, *laid_out.arguments("image")], check=True, capture_output=True)
    return time.monotonic() - started


def digests() -> list[str]:
    """The images of the engine with their digests."""
    command = ["docker", "image", "ls", "--no-trunc", "--format={{.Repository}}:{{.Tag}} {{.ID}}"]
    return sorted(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    )


def run(checkout: Path, recipe: str) -> dict[str, Any]:
    """All figures of one checkout, on an engine of its own."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from support.machines import another_machine

    with tempfile.TemporaryDirectory(prefix="fresh-") as name:
        work = Path(name)
        (work / "client").mkdir()
        (work / "bare").mkdir()
        docker_s = install_docker(work)
        os.environ["BUILDER_CACHE_DIR"] = str(work / "cache")
        os.environ["BUILDER_STATE_DIR"] = str(work / "state")
        with another_machine(work / "client") as machine:
            os.environ["DOCKER_HOST"] = machine.host
            try:
                fresh_s, cpu_s, stages = build(checkout, recipe)
                engine_s, found = cpu_of(machine.process), digests()
                bare_s = bare(recipe, work / "bare")
            finally:
                del os.environ["DOCKER_HOST"]
    figures = {
        "docker_s": round(docker_s, 1),
        "fresh_s": round(fresh_s, 1),
        "bare_s": round(bare_s, 1),
        "cpu_s": round(cpu_s + engine_s, 1),
        "ratio": round((docker_s + fresh_s) / (docker_s + bare_s), 2),
        "stages": stages,
        "digests": found,
    }
    print(checkout, figures, file=sys.stderr)
    return figures


def rows(recipe: str, checkout: str, runs: list[dict[str, Any]]) -> dict[str, str]:
    """The figures of a checkout, as rows of studies/measurements.md."""
    ratios = [each["ratio"] for each in runs]
    spread = f"{statistics.median(ratios)} ({min(ratios)} to {max(ratios)})"
    of = {name: statistics.median(each[name] for each in runs) for name in ("fresh_s", "cpu_s")}
    title = f"from nothing to the verified image of {recipe}{checkout}"
    return {
        f"{title}: with the installation of Docker, over that and the bare compile": spread,
        f"{title}: seconds, CPU time": f"{of['fresh_s']:.0f} s, {of['cpu_s']:.0f} s",
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="hello-sm120")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--checkout", type=Path, action="append", default=[])
    parser.add_argument("--json", action="store_true", help="print all figures")
    options = parser.parse_args()
    checkouts = [REPOSITORY, *(each.resolve() for each in options.checkout)]
    runs = [{each: run(each, options.recipe) for each in checkouts} for _ in range(options.runs)]
    figures = {str(each): [found[each] for found in runs] for each in checkouts}
    same = len({tuple(each["digests"]) for found in figures.values() for each in found}) == 1
    if options.json:
        print(json.dumps({"same_digests": same, "runs": figures}, indent=2))
        return
    for each, found in figures.items():
        checkout = "" if each == str(REPOSITORY) else f" ({each})"
        for row, figure in rows(options.recipe, checkout, found).items():
            print(f"| {row} | {figure} |")
    print(f"| the images of all these runs have the same digests | {'yes' if same else 'no'} |")


if __name__ == "__main__":
    main()
