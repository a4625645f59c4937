"""Makes a GitHub runner (Ubuntu) fit for builder; as root, where nothing else is to be kept.

Docker keeps images in containerd, where they have their digests. With ``--clear true`` the
toolchains go that no recipe needs; ``--need GIB`` says where that is not room enough.
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
# Of the runner's image (actions/runner-images, Ubuntu2404-Readme.md), the largest first.
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


def say(message: str) -> None:
    """Tell the job's log."""
    sys.stdout.write(f"{message}\n")
    sys.stdout.flush()


def with_containerd_store(text: str) -> str:
    """A daemon.json that also has images kept in containerd; the empty text is none."""
    config = json.loads(text or "{}")
    config["features"] = {**config.get("features", {}), "containerd-snapshotter": True}
    return json.dumps(config, indent=2) + "\n"


def free() -> float:
    """GiB that are free where Docker and the checkout are."""
    return shutil.disk_usage("/").free / 2**30


def keep_images_in_containerd() -> None:
    """Have the engine do so; it is started anew only where it did not."""
    text = DAEMON_JSON.read_text() if DAEMON_JSON.exists() else ""
    wanted = with_containerd_store(text)
    if text and json.loads(text) == json.loads(wanted):
        return
    DAEMON_JSON.parent.mkdir(parents=True, exist_ok=True)
    DAEMON_JSON.write_text(wanted)
    subprocess.run(["systemctl", "restart", "docker"], check=True)
    say("images are kept in containerd")


def clear() -> None:
    """Remove the toolchains."""
    before = free()
    subprocess.run(["rm", "-rf", "--one-file-system", "--", *CLEARED], check=True)
    say(f"{before:.1f} GiB of disk were free, {free():.1f} are now")


def main() -> None:
    """Do what the command line says; exits where this is no runner of GitHub's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clear", choices=("true", "false"), default="false")
    parser.add_argument("--need", type=float, default=0.0, metavar="GIB")
    wanted = parser.parse_args()
    if os.environ.get("GITHUB_ACTIONS") != "true":
        sys.exit("this removes toolchains and restarts Docker: it is for GitHub's runners only")
    keep_images_in_containerd()
    if wanted.clear == "true":
        clear()
    if free() < wanted.need:
        say(f"::warning::{free():.0f} GiB of disk are free, {wanted.need:.0f} may be needed")


if __name__ == "__main__":
    main()
