"""Small images to stand on: a shell and a few programs of Debian, with or without Python.

All the smoke tests of a session read them: Debian's root has 3,800 files, these a few hundred.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from builder.core.files import named_lock
from builder.sources import apt
from support.commands import ForkServer
from support.environment import SHARED_CACHE
from support.smoke_tests import docker

SMALL = "builder-test/root:small"
PYTHON = "builder-test/python:small"
PROGRAMS = (
    "cat chmod chown cp cut date dirname env find grep head id ln ls mkdir mv printf rm sed sh "
    "sleep sort stat tail tee touch tr true truncate uname wc"
)
# What no script of ours and no test imports: half of the bytes and of the files.
WITHOUT = (
    "asyncio curses dbm multiprocessing pydoc_data _pyrepl sqlite3 test unittest venv wsgiref xml "
    "xmlrpc config-* encodings/cp* encodings/iso* encodings/mac* encodings/__pycache__/cp* "
    "encodings/__pycache__/iso* encodings/__pycache__/mac* lib-dynload/_codecs_* "
    "lib-dynload/_curses* lib-dynload/_dbm* lib-dynload/_hashlib* lib-dynload/_sqlite3* "
    "lib-dynload/_ssl* lib-dynload/*test* lib-dynload/readline*"
)
# The loader's paths lead through /lib and /lib64, which are links into /usr.
COLLECT = f"""RUN --network=none <<'EOF'
set -eu
mkdir /small
{{
    for name in {PROGRAMS}; do echo "/usr/bin/$name"; ldd "/usr/bin/$name"; done
    ls /usr/lib/*/libstdc++.so.6 /usr/lib/*/libgcc_s.so.1
    ls /etc/passwd /etc/group /usr/lib/os-release /var/lib/dpkg/status
    if [ -e /usr/bin/python3 ]; then
        for path in {WITHOUT}; do rm -rf /usr/lib/python3.*/$path; done
        echo /usr/bin/python3
        find /usr/lib/python3* -name '*.so' | xargs ldd /usr/bin/python3
    fi
}} | grep -o '/[^ :]*' | sed 's,^/lib,/usr/lib,' | sort -u >/files
xargs cp --dereference --parents --target-directory=/small </files
for folder in /usr/lib/python3*; do
    [ ! -e "$folder" ] || cp --archive --parents "$folder" /small
done
cd /small
ln -s usr/bin bin
ln -s usr/lib lib
ln -s usr/lib64 lib64
ln -s ../usr/lib/os-release etc/os-release
mkdir -p home opt root run srv tmp usr/local/bin
chmod 1777 tmp
EOF
FROM scratch
COPY --from=full /small/ /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""


def _build(name: str, text: str, *options: str) -> str:
    """Build the image, one process after the other: BuildKit refuses the name while another build
    gives it ("already exists")."""
    output = f"--output=type=image,name={name},compression=uncompressed"
    with named_lock(SHARED_CACHE, "small-images", lambda _: None):
        docker("buildx", "build", "--provenance=false", output, *options, "-", text=text)
    return name


@pytest.fixture(scope="session")
def debian_root(fork_server: ForkServer, request: pytest.FixtureRequest) -> str:
    """Debian's root, which the bases stand on; hello-sm120 is built only where it is not there."""
    plan = json.loads(fork_server.run(["show", "hello-sm120", "--json"]).stdout)
    name = f"builder-base/debian-trixie:root-{plan['base']['base']['key'][:12]}"
    command = ["docker", "image", "inspect", name]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        request.getfixturevalue("hello")
    return name


@pytest.fixture(scope="session")
def small_root(debian_root: str, made: set[str]) -> str:
    """A root without Python, apt and the locales."""
    made.add(SMALL)
    return _build(SMALL, f"FROM {debian_root} AS full\n{COLLECT}")


@pytest.fixture(scope="session")
def python(debian_root: str, tmp_path_factory: pytest.TempPathFactory, made: set[str]) -> str:
    """A small root with Debian's Python."""
    made.add(PYTHON)
    sources: Path = tmp_path_factory.mktemp("python") / "apt.sources"
    sources.write_text(apt.deb822(apt.debian_sources("trixie")))
    secret = "--mount=type=secret,id=apt,target=/etc/apt/sources.list.d/x.sources"
    secret = secret if sources.stat().st_size else ""
    install = "apt-get -qq update && apt-get -qq install --yes --no-install-recommends python3"
    text = f"FROM {debian_root} AS full\nRUN {secret} {install}\n{COLLECT}"
    return _build(PYTHON, text, f"--secret=id=apt,src={sources}")
