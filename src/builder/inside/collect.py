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


def collect(built: Path, target: Path, programs: list[str]) -> list[Path]:
    """Copy the programs and every shared library of ``built``; return the files, not the links.

    Raises ``SystemExit`` with the name of a program that was not built, or of a file that another
    build directory brought as well.
    """
    target.mkdir(parents=True, exist_ok=True)
    missing = [
        name for name in programs if (built / name).is_symlink() or not (built / name).is_file()
    ]
    if missing:
        sys.exit(f"error: not built: {', '.join(missing)} (looked in {built})")
    files = []
    for source in [*(built / name for name in programs), *sorted(built.glob("*.so*"))]:
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
    parser.add_argument("built", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("programs", nargs="+")
    options = parser.parse_args()
    files = collect(options.built, options.target, options.programs)
    subprocess.run([options.strip, "--strip-unneeded", *map(str, files)], check=True)
    size = sum(file.stat().st_size for file in files) / 1e6
    print(f"collected: {len(files)} files, {size:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
