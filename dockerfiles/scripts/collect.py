"""Take programs and their libraries out of a build directory; runs inside a stage.

llama.cpp's ``cmake --install`` wants everything that the tree could build, and copying by hand
follows links, so that each library is stored three times.  Here links stay links.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path


def found(built: Path, programs: list[str], *, everywhere: bool) -> tuple[list[Path], list[Path]]:
    """The programs and the shared libraries of a build directory, or of all below it."""
    if not everywhere:
        return [built / name for name in programs], sorted(built.glob("*.so*"))
    # cmake's own tries of the compiler leave programs too.
    files = [path for path in sorted(built.rglob("*")) if "CMakeFiles" not in path.parts]
    named = {path.name: path for path in files if path.name in programs and path.is_file()}
    return (
        [named.get(name, built / name) for name in programs],
        [path for path in files if ".so" in path.suffixes],
    )


def collect(built: Path, target: Path, programs: list[Path], libraries: list[Path]) -> list[Path]:
    """Copy programs and libraries of ``built``; return the files, not the links.

    Raises ``SystemExit`` with the name of a program that was not built, or of a file that another
    build directory brought as well.
    """
    target.mkdir(parents=True, exist_ok=True)
    missing = [path.name for path in programs if path.is_symlink() or not path.is_file()]
    if missing:
        sys.exit(f"error: not built: {', '.join(missing)} (looked in {built})")
    files = []
    for source in [*programs, *libraries]:
        copy = target / source.name
        if copy.exists() or copy.is_symlink():
            sys.exit(f"error: {copy} is there already: two cmake calls build it")
        if source.is_symlink():
            link = source.readlink()
            if len(link.parts) != 1:
                sys.exit(f"error: {source} links to {link}, outside its directory")
            copy.symlink_to(link)
        else:
            shutil.copy2(source, copy)
            files.append(copy)
    return files


def main() -> None:
    """Collect, strip, and say how much it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strip", required=True, help="the strip of the target platform")
    parser.add_argument(
        "--everywhere",
        action="store_true",
        help="look below the directory too, and have all find each other by $ORIGIN (patchelf)",
    )
    parser.add_argument("built", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("programs", nargs="+")
    options = parser.parse_args()
    programs, libraries = found(options.built, options.programs, everywhere=options.everywhere)
    files = collect(options.built, options.target, programs, libraries)
    subprocess.run([options.strip, "--strip-unneeded", *map(str, files)], check=True)
    if options.everywhere:
        subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", *map(str, files)], check=True)
    size = sum(file.stat().st_size for file in files) / 1e6
    print(f"collected: {len(files)} files, {size:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
