"""The device code of a recipe's wheels, and what the diet saves: without Docker, wheel by wheel.

    .venv/bin/python studies/wheels.py RECIPE [WHEEL...] [--json]

Each wheel of the base's lock is fetched, unpacked, pruned as in the base's build, read as a layer
of an image, and deleted: the disk holds one wheel at a time.  The table has, for the first card of
the recipe, the libraries with device code: what is in them before the diet, and their size in gzip
before and after it.  Then the checks `code paths` and `cuda` on all wheels, with what the recipe
accepts; with names of wheels, only these are read, and nothing is checked.  The layers below the
wheels are not read.  Exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import io
import json
import runpy
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder.checks import cuda
from builder.checks.cuda import cards, check_code_paths
from builder.checks.subject import Context, Subject
from builder.checks.verdict import Check, CheckState
from builder.core import sizes
from builder.core.errors import BuilderError
from builder.docker.containers import Blobs
from builder.engines.families import complete, load_catalog
from builder.engines.layout import LAYOUT, SYSTEM_PATH
from builder.image.code_paths import CodePaths, code_paths
from builder.image.contents import Contents, File, ReadOptions, read_contents
from builder.recipes import locks
from builder.recipes.catalog import Catalog
from builder.recipes.locks import PinnedFile
from builder.recipes.schema import Recipe
from builder.sources import pypi
from simulator import elf
from simulator.selection import Capability

REPOSITORY = Path(__file__).resolve().parents[1]
KINDS = {"code paths", "cuda"}
DIET = runpy.run_path(str(REPOSITORY / "dockerfiles/scripts/diet.py"))


@dataclass(frozen=True, slots=True)
class Measured:
    """A library with device code; sizes are bytes."""

    wheel: str
    code: CodePaths
    """Before the diet."""
    before: int = 0
    after: int = 0
    """Its size in gzip; 0: the diet leaves it alone."""


def install(wheel: Path, site: Path) -> None:
    """Unpack a wheel as pip does, without its scripts.

    The files of ``NAME.data/purelib`` and ``platlib`` go to the top (PyPA, "Binary distribution
    format").
    """
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)  # noqa: S202 zipfile keeps names below the folder
        for each in archive.infolist():
            if each.external_attr >> 16 & 0o111 and not each.is_dir():
                (site / each.filename).chmod(0o755)
    for data in [*site.glob("*.data/purelib"), *site.glob("*.data/platlib")]:
        shutil.copytree(data, site, dirs_exist_ok=True)
    for data in site.glob("*.data"):
        shutil.rmtree(data)


def packed(file: Path) -> int:
    """The size of a file in gzip, as BuildKit compresses layers: level 6."""
    with file.open("rb") as stream, io.BytesIO() as target:
        with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=6) as archive:
            shutil.copyfileobj(stream, archive, 1 << 20)
        return target.tell()


def unpacked(wheel: PinnedFile, work: Path, place: Path) -> int:
    """Fetch a wheel below ``work``, install it to ``place``, and delete it; its size in bytes."""
    (fetched,) = pypi.fetch([wheel], work / "cache", lambda _: None)
    size = fetched.stat().st_size
    install(fetched, place)
    fetched.unlink()
    return size


def libraries(site: Path) -> Iterator[tuple[Path, elf.ElfFile]]:
    """The libraries with device code."""
    for file in sorted(site.rglob("*.so*")):
        if file.is_file() and not file.is_symlink():
            with file.open("rb") as stream:
                found = elf.read(stream)
            if found is not None and found.modules:
                yield file, found


def layer(work: Path, card: Capability) -> Contents:
    """The contents of an image for a card that has only ``work / "opt"``, as ``/opt``."""
    made = work / "layer"
    with tarfile.open(made, "w") as archive:
        archive.add(work / "opt", "opt")

    def blob(file: Path) -> str:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        file.rename(work / digest)
        return f"sha256:{digest}"

    def document(value: Any) -> str:
        (work / "document").write_text(json.dumps(value))
        return blob(work / "document")

    size, digest = made.stat().st_size, blob(made)
    config = document({"os": "linux", "architecture": "amd64", "config": {}})
    manifest = document(
        {"config": {"digest": config, "size": 0}, "layers": [{"digest": digest, "size": size}]}
    )
    blobs = Blobs(work, {"manifests": [{"digest": manifest}]})
    return read_contents(blobs, work, ReadOptions(card=card))


def measure(catalog: Catalog, name: str, only: Sequence[str]) -> dict[str, Any]:
    """Read the wheels of a recipe's base: all, or those that are named."""
    recipe = complete(catalog.engine(name).recipe)
    base = catalog.base(recipe.base)
    python = base.recipe.python
    if python is None:
        sys.exit(f"the base of {name} is not made of wheels")
    lock = locks.read_lock(base.file.parent / python.lock)
    card = cards(recipe)[0]
    dead = {each.path for each in python.dead}
    site = f"{LAYOUT.engine.lstrip('/')}/lib/python{lock.python}/site-packages"
    files: dict[str, File] = {}
    found: list[Measured] = []
    whole = 0
    wheels = [each for each in lock.runtime if not only or each.name in only]
    for number, wheel in enumerate(wheels, 1):
        print(f"{number}/{len(wheels)} {wheel.name} {wheel.version}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            place = work / site
            whole += unpacked(wheel, work, place)
            code = {
                file: code_paths(str(file.relative_to(place)), parsed.modules, card)
                for file, parsed in libraries(place)
            }
            theirs = python.capabilities and not wheel.name.startswith("nvidia")
            names = [file.relative_to(place) for file in code]
            before = {file: packed(file) for file in code if theirs}
            if before:
                with contextlib.redirect_stdout(sys.stderr):
                    DIET["main"](place, python.capabilities, dead & {*map(str, names)})
            found += [
                Measured(wheel.name, each, before[file], packed(file))
                if file in before
                else Measured(wheel.name, each)
                for file, each in code.items()
            ]
            files |= layer(work, card).files
    link = toolkit(lock.python) if python.nvcc else {}
    return {
        "recipe": name,
        "card": str(card),
        "libraries": sorted(found, key=lambda each: -each.code.whole),
        "wheels": whole,
        "checks": [] if only else checks(recipe, files | link),
    }


def toolkit(python: str) -> dict[str, File]:
    """The link that the base's build makes with ``nvcc``."""
    target = f"lib/python{python}/site-packages/nvidia/cu13"
    return {LAYOUT.toolkit: File(LAYOUT.toolkit, "link", target=target)}


def checks(recipe: Recipe, files: dict[str, File]) -> list[Check]:
    """The checks of the device code and of the CUDA packages."""
    environment = {"PATH": f"{LAYOUT.programs}:{SYSTEM_PATH}", **recipe.image.env}
    if LAYOUT.toolkit in files:
        environment["CUDA_HOME"] = LAYOUT.toolkit
    config = {"Env": [f"{name}={value}" for name, value in environment.items()]}
    contents = Contents(files, {"config": config}, (), 0)
    context = Context(Subject("", "", recipe), contents, Path())
    made = [*check_code_paths(context), *cuda.check(context)]
    unused = (each for each in context.rules.unused() if each.subject.startswith(tuple(KINDS)))
    return [*made, *unused]


def report(found: dict[str, Any]) -> None:
    """Print the table, the sums and the checks."""
    print("| library | runs as it is | compiled by the driver | never runs | gzip | after |")
    print("|---|---|---|---|---|---|")
    for each in found["libraries"]:
        row = (each.code.native, each.code.compiled, each.code.dead, each.before, each.after)
        cells = " | ".join(sizes.shown(size) if size else "" for size in row)
        print(f"| `{each.code.path}` | {cells} |")
    saved = sum(each.before - each.after for each in found["libraries"])
    whole = found["wheels"]
    print(f"\nwheels {sizes.shown(whole)}, of which the diet saves {sizes.shown(saved)}")
    for check in found["checks"]:
        print(f"{check.state:8} {check.kind}: {check.subject}: {check.found}")


def main() -> None:
    """Measure one recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("wheel", nargs="*")
    parser.add_argument("--catalog", type=Path, default=REPOSITORY)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        found = measure(load_catalog(options.catalog), options.recipe, options.wheel)
    except BuilderError as error:
        sys.exit(str(error))
    if options.json:
        print(json.dumps(found, default=asdict, indent=2))
    else:
        report(found)
    sys.exit(any(check.state is CheckState.FAILED for check in found["checks"]))


if __name__ == "__main__":
    main()
