"""A recipe with two platforms, whose images are put together from files; a plugin of pytest.

No program of them runs, so no test needs an emulator, and nothing is compiled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from builder.build import record
from builder.build.build import BuildSession
from builder.build.record import Record
from builder.checks.verdict import Verdict
from builder.cli.session import build_session
from builder.plan.plan import Plan
from builder.upstream import night
from builder.upstream.patches import open_session
from support.commands import Builder
from support.registries import Proxy
from support.smoke_tests import docker

RECIPE = """
engine   = "two"
version  = "1"
summary  = "A file for two platforms"
license  = "MIT"
family   = "artifact"
base     = "cuda-13.0"
platform = ["linux/amd64", "linux/arm64"]

{source}
{track}

[cuda]
arch = ["120"]
vmm  = false

[cuda.arm64]
arch = ["121"]

[[cmake]]
targets = ["data"]

[artifact]
files = ["data"]
loads = false

[image]
repository = "builder-test/two"
tags       = ["1"]
moving     = ["latest"{channel}]

[build]
disk = 1.0

[[probe]]
file = "/data"
has  = ["ready"]
"""


def write_recipe(catalog: Path, source: str = "", track: str = "", channel: str = "") -> None:
    """The recipe; without a ``source`` a directory of the catalog."""
    if not source:
        (catalog / "engines" / "two").mkdir(parents=True, exist_ok=True)
        (catalog / "engines" / "two" / "CMakeLists.txt").write_text("project(two NONE)\n")
        source = '[source]\npath = "engines/two"'
    text = RECIPE.format(source=source, track=track, channel=channel)
    (catalog / "recipes" / "two-1.toml").write_text(text)


def put_together(
    session: BuildSession, name: str, folder: Path, data: Mapping[str, str]
) -> list[Plan]:
    """Images for the platforms of ``data``, which has the text of their only file.

    They have the names and labels of images that this machine built, and records that say so, so a
    build only checks them.
    """
    images = [plan for plan in session.plans(name) if plan.platform in data]
    for plan in images:
        work = folder / plan.key
        work.mkdir(parents=True, exist_ok=True)
        (work / "data").write_text(data[plan.platform])
        (work / "Dockerfile").write_text("FROM scratch\nCOPY data /data\nUSER root\n")
        labels = [f"--label={key}={value}" for key, value in plan.labels.items()]
        output = (
            f"--output=type=image,name={plan.references[0]},compression=gzip,oci-mediatypes=true"
        )
        options = ["--provenance=false", f"--platform={plan.platform}", output, *labels]
        docker("buildx", "build", *options, str(work))
        _note_built(session, plan)
    return images


def _note_built(session: BuildSession, plan: Plan) -> None:
    """A record that this machine built an image, and has not checked it."""
    digest = docker("image", "inspect", "--format={{.Id}}", plan.references[0])
    kept = Record(
        recipe=plan.name,
        platform=plan.platform,
        key=plan.key,
        contract="",
        references=plan.references,
        digest=digest,
        verdict=Verdict(digest, (), 0, 0),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds={},
        built_here=True,
    )
    record.write(session.settings.state_dir, kept)


@dataclass(frozen=True)
class Two:
    """The recipe in a catalog of the test's own."""

    catalog: Path
    builder: Builder
    made: set[str]

    def images(self, amd64: str = "", arm64: str = "") -> dict[str, dict[str, Any]]:
        """Verify images of these texts, for the platforms that have one; their records."""
        texts = {"linux/amd64": amd64, "linux/arm64": arm64}
        data = {platform: text for platform, text in texts.items() if text}
        work = self.catalog.parent / "together"
        images = put_together(build_session(root=self.catalog), "two", work, data)
        records = {}
        for plan in images:
            self.made.update(plan.references)
            done = self.run("build", "--platform", plan.platform, "--json")
            records[plan.platform] = json.loads(done.stdout)
        return records

    def run(self, command: str, *options: str, expect: int = 0) -> Any:
        """Run a command on the recipe."""
        done = self.builder(*command.split(), "two-1", *options, "--catalog", self.catalog)
        assert done.returncode == expect, done.stderr + done.stdout
        return done


@pytest.fixture
def two(catalog: Path, builder: Builder, made: set[str], proxy: Proxy) -> Two:  # noqa: ARG001
    """The recipe, to be pushed to the registry of the test."""
    write_recipe(catalog)
    return Two(catalog, builder, made)


def frozen_session(catalog: Path) -> tuple[BuildSession, str]:
    """The recipe as a nightly run freezes it now: a session that has it, and its name."""
    session = build_session(root=catalog)
    (channel,) = night.channels(session.catalog, session.settings, ["two-1"])
    with open_session(session.catalog, session.settings, session.log, offline=False) as sources:
        target = night.newest(channel, sources.repositories)
        frozen = night.frozen_channel(session.catalog, channel, target, sources.repositories)
    return replace(session, catalog=frozen.catalog), frozen.name
