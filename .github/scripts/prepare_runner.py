"""Prepare a runner that GitHub hosts (Ubuntu) for builder; run as root: it is thrown away after.

Docker's containerd image store is enabled, because only it keeps manifest digests.  With ``--clear
true``, toolchains that no recipe needs are removed; ``--need GIB`` warns if space is still short.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

DAEMON_JSON = Path("/etc/docker/daemon.json")
# From the runner image (actions/runner-images, Ubuntu2404-Readme.md), the largest first.
CLEARED = (
    "/usr/local/lib/android",
    "/usr/local/.ghcup",
    "/opt/ghc",
    "/opt/hostedtoolcache/CodeQL",
    "/usr/share/dotnet",
    "/usr/share/swift",
    "/home/linuxbrew",
    "/usr/lib/jvm",
    "/usr/share/miniconda",
    "/usr/local/share/chromium",
    "/usr/local/share/powershell",
    "/opt/google",
    "/opt/microsoft",
)


def log(message: str) -> None:
    """Print a line to the log of the job."""
    sys.stdout.write(f"{message}\n")
    sys.stdout.flush()


def with_containerd_store(text: str) -> str:
    """The text of daemon.json with the containerd image store enabled; an empty one is valid."""
    config = json.loads(text or "{}")
    config["features"] = {**config.get("features", {}), "containerd-snapshotter": True}
    return json.dumps(config, indent=2) + "\n"


def free() -> float:
    """GiB of free disk for Docker and the checkout."""
    return shutil.disk_usage("/").free / 2**30


def keep_images_in_containerd() -> None:
    """Enable the containerd image store; restart the engine if that changes its configuration."""
    text = DAEMON_JSON.read_text() if DAEMON_JSON.exists() else ""
    wanted = with_containerd_store(text)
    if text and json.loads(text) == json.loads(wanted):
        return
    DAEMON_JSON.parent.mkdir(parents=True, exist_ok=True)
    DAEMON_JSON.write_text(wanted)
    subprocess.run(["systemctl", "restart", "docker"], check=True)
    log("enabled the containerd image store")


def clear() -> None:
    """Remove the toolchains that no recipe needs."""
    before = free()
    subprocess.run(["rm", "-rf", "--one-file-system", "--", *CLEARED], check=True)
    log(f"{before:.1f} GiB of disk were free, now {free():.1f}")


def main() -> None:
    """Run the command line; refuses to run elsewhere than on a runner that GitHub hosts.

    Self-hosted runners and act set GITHUB_ACTIONS, too (docs.github.com, "Variables reference").
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clear", choices=("true", "false"), default="false")
    parser.add_argument("--need", type=float, default=0.0, metavar="GIB")
    wanted = parser.parse_args()
    if os.environ.get("RUNNER_ENVIRONMENT") != "github-hosted":
        sys.exit("this removes toolchains and restarts Docker: it is for GitHub's runners only")
    keep_images_in_containerd()
    if wanted.clear == "true":
        clear()
    if free() < wanted.need:
        log(f"::warning::{free():.0f} GiB of disk are free, {wanted.need:.0f} GiB may be needed")


if __name__ == "__main__":
    main()
