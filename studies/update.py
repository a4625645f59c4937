"""Two nights of an engine on an unchanged base, as rows of studies/measurements.md.

    # .venv/bin/python studies/update.py [--compression zstd] [--json]

hello-sm120 is built with another build number each night, smoke-tested and pushed to Debian's
docker-registry.  A second Docker engine, which this script starts, pulls both nights.  The bytes
uploaded are the growth of the registry's files, the bytes pulled the sum of its access log.
Needs root, dockerd and docker-registry.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
ENGINE = "hello-sm120"
SENT = re.compile(r'"GET /v2/\S*/blobs/\S+ HTTP/\S+" 200 (\d+)')
"""Bytes of a blob in an access log of docker-registry (combined log format)."""


def catalog(folder: Path, night: int, compression: str) -> str:
    """Write the recipe of a night, and what it needs; its name."""
    for part in ("recipes/bases", "engines"):
        shutil.copytree(REPOSITORY / part, folder / part, dirs_exist_ok=True)
    text = (REPOSITORY / "recipes" / f"{ENGINE}-0.1.0.toml").read_text("utf-8")
    for old, new in (
        ("0.1.0", f"0.1.{night}"),
        ("HELLO_BUILD_NUMBER = 1", f"HELLO_BUILD_NUMBER = {night}"),
        ("version: 1 ", f"version: {night} "),
        ("[image]\n", f'[image]\nmoving = ["nightly"]\ncompression = "{compression}"\n'),
    ):
        if old not in text:
            raise SystemExit(f"the recipe of {ENGINE} has no {old!r}")
        text = text.replace(old, new)
    name = f"{ENGINE}-0.1.{night}"
    (folder / "recipes" / f"{name}.toml").write_text(text, "utf-8")
    return name


def builder(*arguments: str, **environment: str) -> Any:
    """Run builder; its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "builder", *arguments, "--json"],
        cwd=REPOSITORY,
        env=os.environ | environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout)


def size_of(folder: Path) -> int:
    """Bytes of all files below a directory."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def nights(work: Path, compression: str) -> list[dict[str, Any]]:
    """Both nights: bytes uploaded and pulled, and the seconds of the pull."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from support.environment import DOCKER_CONFIG
    from support.machines import another_machine
    from support.registries import CONFIGURATION, serving

    served = work / "served.log"
    found = []
    with (
        serving(work / "registry", CONFIGURATION) as address,
        another_machine(DOCKER_CONFIG) as machine,
        # The second engine has a network of its own: there, another server has the same files.
        machine.running("sh", "-c", f"exec docker-registry serve {work}/registry.yml >{served}"),
    ):
        environment = {
            "BUILDER_NAMESPACE": f"{address}/bench",
            "BUILDER_STATE_DIR": str(work / "state"),
        }
        for night in (1, 2):
            folder = work / str(night)
            name = catalog(folder, night, compression)
            record = builder("build", name, f"--catalog={folder}", **environment)
            before, logged = size_of(work / "registry"), served.stat().st_size
            pushed = builder("push", name, f"--catalog={folder}", **environment)
            started = time.monotonic()
            machine.docker("pull", "--quiet", f"{address}/bench/{ENGINE}:nightly")
            seconds = time.monotonic() - started
            sent = map(int, SENT.findall(served.read_text("utf-8")[logged:]))
            found.append(
                {
                    "uploaded": size_of(work / "registry") - before,
                    "pulled": sum(sent),
                    "seconds": round(seconds, 1),
                    "updates": pushed["updates"],
                }
            )
            names = [*record["references"], f"{address}/bench/{ENGINE}:nightly"]
            subprocess.run(["docker", "image", "rm", *names], capture_output=True, check=False)
    return found


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--compression", choices=["gzip", "zstd"], default="gzip")
    parser.add_argument("--json", action="store_true", help="print all figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        first, second = nights(Path(folder), options.compression)
    if options.json:
        print(json.dumps([first, second], indent=2))
        return
    ratios = [f"{second[what] / first[what]:.4f}" for what in ("uploaded", "pulled")]
    pulled = [f"{each['pulled'] / 1e6:.1f} MB" for each in (first, second)]
    title = f"two nights of {ENGINE} on an unchanged base ({options.compression})"
    print(f"| {title}: bytes uploaded, pulled; second night over first | {', '.join(ratios)} |")
    print(f"| the same: pulled each night; seconds of the first | {', '.join(pulled)}; ", end="")
    print(f"{first['seconds']} s |")


if __name__ == "__main__":
    main()
