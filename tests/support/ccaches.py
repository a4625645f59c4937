"""A compiler cache of a test's own; a plugin of pytest."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from builder.sources.gather import WRAPPERS
from support.environment import REPOSITORY
from support.smoke_tests import docker

COMPILE = (
    'ccache --zero-stats >/dev/null; echo "int f(int x) { return x * 3; }" >/a.c; '
    "ccache gcc -c /a.c -o /a.o; ccache --print-stats"
)


def records_of(mount: str) -> set[str]:
    """The ids of BuildKit's records of a cache mount."""
    own = [
        re.search(r"^ID:\s+(\S+)", record, re.MULTILINE)
        for record in docker("buildx", "du", "--verbose").split("\n\n")
        if f'with id "/{mount}"' in record
    ]
    assert None not in own
    return {found[1] for found in own if found}


class Mount:
    """A cache mount of the test's own, seen from the stage that engines are compiled in."""

    def __init__(self, image: str, work: Path) -> None:
        self.image = image
        self.work = work
        self.out = work
        """What the last script left."""
        self.name = f"builder-test-{uuid4().hex}"

    def run(self, script: str, mounts: str = "", made: str = "") -> str:
        """What a script prints with the mount at /ccache.

        ``mounts`` may be from the stage ``toolkit``, which is the image, and from the context
        ``wrappers``.  ``made`` is a file of the script's, which is left beside what is printed.
        """
        folder = self.fresh()
        command = json.dumps(["sh", "-euc", f"exec >/said; {script}"])
        (folder / "Dockerfile").write_text(
            f"FROM {self.image} AS toolkit\n"
            f"FROM {self.image} AS run\nARG ONCE={uuid4().hex}\n"
            f"RUN --network=none --mount=type=cache,id={self.name},target=/ccache "
            f"{mounts}{command}\n"
            f"FROM scratch\nCOPY --from=run /said {made} /\n"
        )
        self.out = folder / "out"
        context = f"--build-context={WRAPPERS}={REPOSITORY / 'dockerfiles/scripts'}"
        docker("buildx", "build", context, f"--output=type=local,dest={self.out}", str(folder))
        return (self.out / "said").read_text()

    def compiled(self) -> dict[str, int]:
        """Compile a file; how often ccache had it, and had not."""
        stats = dict(line.split("\t") for line in self.run(COMPILE).splitlines())
        return {name: int(stats[name]) for name in ("direct_cache_hit", "cache_miss")}

    def fresh(self) -> Path:
        folder = self.work / uuid4().hex
        folder.mkdir()
        return folder

    def drop(self) -> None:
        """Have BuildKit forget this mount, and no other."""
        # For a moment after a build BuildKit still uses its mounts, and prunes none of them.
        for _ in range(100):
            own = records_of(self.name)
            if not own:
                return
            for record in own:
                docker("buildx", "prune", "--force", f"--filter=id={record}")
            time.sleep(0.1)
        raise AssertionError(f"BuildKit does not forget the mount {self.name}")


@pytest.fixture
def mount(images: dict[str, str], tmp_path: Path) -> Iterator[Mount]:
    made = Mount(images["devel"], tmp_path)
    yield made
    made.drop()
