"""What an image of wheels launches on a simulated card, with the diet and without it.

    ./farm build vllm-0.33.0-wheel
    .venv/bin/python studies/diet.py [RECIPE] [--card CARD] [--json]

Without the diet: a layer on the image with the libraries as their wheels have them, which is
deleted in the end.  Both images pass the smoke test's stage *device*; their servers are compared by
kernel and kind of code, not by the number of launches, which differs from start to start.  A
library with bytes outside its fat binaries that the diet changed is named, too.  Memory: the most
of the processes of all containers, without files (RssAnon).  Exit code 1 if something differs.
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from image_numbers import smoked
from wheels import libraries, unpacked

from builder.docker import engine
from builder.engines.families import complete, load_catalog
from builder.engines.layout import LAYOUT
from builder.recipes import locks
from builder.recipes.catalog import Entry
from builder.recipes.schema import BaseRecipe
from simulator.elf import loaded_fatbins

REPOSITORY = Path(__file__).resolve().parents[1]
WHOLE = "builder-bench-diet:whole"


def docker(*arguments: str) -> str:
    """What a command of Docker prints."""
    command = [engine.executable(), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def started(image: str, card: str | None) -> dict[str, Any]:
    """The server on the simulated card, and the memory of all checks in MiB."""
    verdict, memory = smoked(image, card)
    use = verdict["device"]
    if use is None:
        sys.exit(f"{image}: its server did not run on a simulated card")
    return {
        "card": use["card"],
        "launches": sum(use["launches"].values()),
        "kernels": sorted(use["launches"]),
        "code": sorted(use["code"]),
        "containers_mib": memory,
    }


def wheels_libraries(base: Entry[BaseRecipe], folder: Path) -> list[Path]:
    """Unpack the libraries with device code of a base's wheels, NVIDIA's excepted."""
    python = base.recipe.python
    if python is None or not python.capabilities:
        sys.exit(f"{base.name} has no wheels on a diet")
    lock = locks.read_lock(base.file.parent / python.lock)
    site = Path(f"lib/python{lock.python}/site-packages")
    names = []
    for wheel in lock.runtime:
        if wheel.name.startswith("nvidia"):
            continue
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            place = Path(work) / "site"
            unpacked(wheel, Path(work), place)
            for library, _ in libraries(place):
                names.append(site / library.relative_to(place))
                target = folder / names[-1]
                target.parent.mkdir(parents=True, exist_ok=True)
                library.rename(target)
    return names


def outside(file: Path) -> list[bytes]:
    """Digests of what lies before, between and behind the fat binaries of a library."""
    with file.open("rb") as stream:
        sections = sorted(loaded_fatbins(stream), key=lambda each: each.offset)
        starts = [0, *(each.offset + each.size for each in sections)]
        ends = [*(each.offset for each in sections), file.stat().st_size]
        digests = []
        for start, end in zip(starts, ends, strict=True):
            stream.seek(start)
            digests.append(hashlib.sha256(stream.read(end - start)).digest())
        return digests


def changed(image: str, folder: Path, names: Iterable[Path]) -> dict[str, list[str]]:
    """The libraries that the diet changed, and those with other bytes outside fat binaries."""
    container = docker("create", image)
    slim = folder.parent / "slim"
    lists: dict[str, list[str]] = {"slimmer": [], "differ": []}
    try:
        for name in names:
            docker("cp", f"{container}:{LAYOUT.engine}/{name}", str(slim))
            if outside(slim) != outside(folder / name):
                lists["differ"].append(str(name))
            elif not filecmp.cmp(slim, folder / name, shallow=False):
                lists["slimmer"].append(str(name))
            slim.unlink()
    finally:
        docker("rm", container)
    return lists


def measure(recipe: str, card: str | None) -> dict[str, Any]:
    """Build the image without the diet, start both, compare."""
    catalog = load_catalog(REPOSITORY)
    engine = complete(catalog.engine(recipe).recipe)
    slim = f"{engine.image.repository}:{engine.image.tags[0]}"
    found = {"slim": started(slim, card)}
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "engine"
        names = wheels_libraries(catalog.base(engine.base), folder)
        lists = changed(slim, folder, names)
        (folder.parent / "Dockerfile").write_text(f"FROM {slim}\nCOPY engine/ {LAYOUT.engine}/\n")
        docker("build", "--quiet", f"--tag={WHOLE}", work)
    try:
        found["whole"] = started(WHOLE, card)
    finally:
        docker("rmi", WHOLE)
    one, other = ({*found[each]["kernels"], *found[each]["code"]} for each in ("whole", "slim"))
    return {"recipe": recipe, **found, **lists, "only_one": sorted(one ^ other)}


def main() -> None:
    """Print a row, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", nargs="?", default="vllm-0.33.0-wheel")
    parser.add_argument("--card")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = measure(asked.recipe, asked.card)
    if asked.json:
        print(json.dumps(found, indent=2))
    else:
        launches = " and ".join(str(found[each]["launches"]) for each in ("whole", "slim"))
        print(
            f"| {asked.recipe} without the diet and with it: kernels, launches; kernels of only "
            f"one; libraries that the diet changed, elsewhere than in their fat binaries "
            f"| {len(found['slim']['kernels'])}, {launches}; {len(found['only_one'])}; "
            f"{len(found['slimmer'])}, {len(found['differ'])} |"
        )
    if found["only_one"] or found["differ"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
