"""A catalog with one engine to bisect, and its upstream."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from builder.cli.session import BuildProgress, build_session
from builder.upstream import bisect
from builder.upstream import bisect as bisect_state
from builder.upstream.bisect import BisectRequest, BisectResult, BisectState
from support.commands import Builder
from support.upstreams import Upstream

RECIPE = """\
engine  = "eng"
version = "1"
summary = "an engine"
license = "MIT"
family  = "llama-cpp"
base    = "cuda-13.0"
{source}
[cuda]
arch = ["120"]

[llama]
build_number = 1
build_commit = "0123456"

[[cmake]]
targets = ["llama-server"]
{patches}
[image]
repository = "eng"
tags       = ["1"]

[[probe]]
option = "--x"
"""


def grown(upstream: Upstream, count: int) -> list[str]:
    """Commits that each change a file."""
    return [upstream.commit(f"change {n}", **{"a.c": f"{n}\n"}) for n in range(1, count + 1)]


class Recorded(BuildProgress):
    """A reporter that keeps the lines."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.log = lines.append  # type: ignore[method-assign]


class Farm:
    """A catalog with one engine, and the command on it; no engine answers."""

    def __init__(self, catalog: Path, upstream: Upstream, builder: Builder) -> None:
        self.catalog = catalog
        self.upstream = upstream
        self.builder = builder
        self.kept = catalog.parent / "state" / "bisect" / "eng-1.json"
        self.lines: list[str] = []

    def write(self, pin: str, patches: str = "", source: str = "") -> None:
        source = source or f'[source]\ngit = "{self.upstream.url}"\ncommit = "{pin}"\n'
        text = RECIPE.format(source=source, patches=patches)
        (self.catalog / "recipes" / "eng-1.toml").write_text(text)

    def ask(self, good: str | None = None, bad: str | None = None, **more: Any) -> BisectResult:
        """Bisect in this process."""
        request = BisectRequest(good, bad, **{name: more.pop(name) for name in WAY & more.keys()})
        self.lines.clear()
        builds = build_session(root=self.catalog, progress=Recorded(self.lines))
        return bisect.bisect(builds, "eng", request, **more)

    @property
    def state(self) -> BisectState | None:
        return bisect_state.read_state(self.kept.parents[1], "eng-1")

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def run(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Bisect as a user does."""
        done = self.builder("bisect", "eng", *arguments, "--catalog", self.catalog)
        assert done.returncode == status, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        return done


WAY = {"test", "build_fails", "first_parent"}
