"""uv's resolver: compatible versions for another Python and platform than this machine's.

pip evaluates environment markers for the interpreter that it runs on, whatever its options
(pypa/pip#11664); uv does not (https://docs.astral.sh/uv/pip/compile/).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from builder.core.errors import FetchError, RecipeError
from builder.core.web_errors import TRUST
from builder.sources.pypi import pip_setting
from builder.sources.wheel_tags import NEWEST_GLIBC

PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)$")
KNOWN_GLIBC = 40  # the newest in uv's list of platforms
UNSATISFIABLE = re.compile(r"No solution found|requirements are unsatisfiable", re.IGNORECASE)
TIMEOUT = 1200.0  # seconds


def resolve(requirements: Sequence[str], python: str, cache: Path) -> list[tuple[str, str]]:
    """Names and versions of ``requirements`` and all their dependencies, as linux x86_64 wheels.

    Their metadata stays in ``cache``.  Raises ``RecipeError`` where no versions are compatible,
    ``FetchError`` where the index does not answer.
    """
    from uv import find_uv_bin  # of the extra `build`

    platform = f"x86_64-manylinux_2_{min(NEWEST_GLIBC, KNOWN_GLIBC)}"
    command = [find_uv_bin(), "pip", "compile", "-"]
    command += [f"--python-version={python}", f"--python-platform={platform}"]
    command += ["--only-binary=:all:", "--no-header", "--no-annotate", "--no-config", "--quiet"]
    command += ["--no-python-downloads", f"--cache-dir={cache / 'uv'}"]
    index = pip_setting("index-url")
    certificate = os.environ.get("REQUESTS_CA_BUNDLE") or pip_setting("cert")
    command += [f"--default-index={index}"] if index else []
    environment = dict(os.environ)
    if certificate:
        environment.setdefault("SSL_CERT_FILE", certificate)
    done = subprocess.run(
        command,
        input="".join(f"{line}\n" for line in requirements),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
        env=environment,
    )
    if done.returncode != 0:
        why = done.stderr.strip()
        if UNSATISFIABLE.search(why):
            raise RecipeError(
                f"no compatible versions for CPython {python} on linux x86_64",
                why,
                "change the requirements",
            )
        hint = TRUST if "certificate" in why else "try again"
        raise FetchError("cannot resolve the versions: the package index fails", why, hint)
    return [
        (match[1], match[2])
        for line in done.stdout.splitlines()
        if (match := PIN.match(line.strip()))
    ]
