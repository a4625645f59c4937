"""Killed without a word at any moment: the next run completes, and nothing half-made is tagged."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from builder.publish.registry import MANIFESTS
from support.commands import ForkServer, Running
from support.overlaid import PACKAGE, StandIn, write_catalog
from support.smoke_tests import docker, images_at

pytestmark = [
    pytest.mark.docker,
    pytest.mark.xdist_group("kills"),
    pytest.mark.usefixtures("own_cache"),
]
COMPLETED = 4  # every so many kills one run goes to its end
REPOSITORY = "me/builder-test/overlaid"


class Farm:
    """A recipe that is another one each time, built and pushed by a process of its own."""

    def __init__(self, server: ForkServer, catalog: Path, image: str, registry: str) -> None:
        self.server = server
        self.catalog = catalog
        self.image = image
        self.registry = registry
        self.version = 0
        self.asserted: Counter[str] = Counter()
        """How many tags were followed to their last blob, how many verdicts were read."""

    def next_version(self) -> None:
        self.version += 1
        write_catalog(self.catalog, "", self.image, more='moving = ["latest"]')
        recipe = self.catalog / "recipes" / "overlaid-1.toml"
        text = recipe.read_text().replace('version = "1"\n', f'version = "{self.version}"\n', 1)
        text = text.replace('tags       = ["1"]', f'tags = ["{self.version}"]')
        recipe.unlink()
        for old in recipe.parent.glob("overlaid-*.toml"):
            old.unlink()
        (recipe.parent / f"overlaid-{self.version}.toml").write_text(text)

    def begin(self) -> AbstractContextManager[Running]:
        verbs = [[verb, "overlaid", "--catalog", str(self.catalog)] for verb in ("build", "push")]
        return self.server.running(*verbs, session=True)

    def complete(self) -> None:
        with self.begin() as process:
            _, said = process.communicate(300)
        assert process.returncode == 0, said

    def get(self, path: str) -> requests.Response:
        headers = {"Accept": ", ".join(MANIFESTS)}
        return requests.get(f"http://{self.registry}/v2/{path}", headers=headers, timeout=10)

    def tags(self) -> list[str]:
        answer = self.get(f"{REPOSITORY}/tags/list")
        return list(answer.json().get("tags") or []) if answer.ok else []

    def require_whole(self) -> None:
        """Every tag leads to an image that is there to its last blob; every name was earned."""
        for tag in self.tags():
            manifest = self.get(f"{REPOSITORY}/manifests/{tag}").json()
            if tag.startswith("sha256-"):  # attached
                continue
            for part in (manifest["config"], *manifest["layers"]):
                url = f"http://{self.registry}/v2/{REPOSITORY}/blobs/{part['digest']}"
                length = requests.head(url, timeout=10).headers.get("Content-Length")
                assert length == str(part["size"]), tag
            config = self.get(f"{REPOSITORY}/blobs/{manifest['config']['digest']}").json()
            version = config["config"]["Labels"]["org.opencontainers.image.version"]
            assert tag == "latest" or tag.partition("-")[0] == version
            self.asserted["tags"] += 1
        for name in images_at(self.registry):
            if ":unverified-" not in name:
                self.require_verified(name)

    def require_verified(self, name: str) -> None:
        """An image of the engine that has its name is verified, as its record says."""
        labels = json.loads(docker("image", "inspect", name))[0]["Config"]["Labels"]
        folder = Path(os.environ["BUILDER_STATE_DIR"]) / "records" / labels["builder.recipe"]
        record = folder / f"{labels['builder.key'][:12]}.json"
        # The tags come before the record: without one the image is smoke-tested anew.
        if record.exists():
            told: dict[str, Any] = json.loads(record.read_text())
            assert {check["state"] for check in told["verdict"]["checks"]} <= {"passed", "skipped"}
            self.asserted["verdicts"] += 1


@pytest.fixture
def farm(
    fork_server: ForkServer,
    registry: str,
    published: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: set[str],
) -> Iterator[Farm]:
    monkeypatch.setenv("BUILDER_NAMESPACE", f"{registry}/me")
    catalog = tmp_path / "catalog"
    for path, text in PACKAGE.items():
        file = catalog / "package" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    yield Farm(fork_server, catalog, published.build(), registry)
    made.update(images_at(registry))


def test_killed_at_any_moment(farm: Farm, request: pytest.FixtureRequest) -> None:
    kills: int = request.config.getoption("--kills")
    moments = random.Random(kills)
    for _ in range(2):  # the first one uploads what all of them share
        farm.next_version()
        began = time.monotonic()
        farm.complete()
        whole_run = time.monotonic() - began
    farm.next_version()
    interrupted = 0
    for kill in range(1, kills + 1):
        with farm.begin() as process:
            time.sleep(moments.uniform(0.02, 0.98) * whole_run)
            interrupted += process.poll() is None
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        farm.require_whole()
        if kill % COMPLETED == 0 or process.returncode == 0:
            farm.complete()
            farm.require_whole()
            latest, fixed = (
                farm.get(f"{REPOSITORY}/manifests/{tag}").content
                for tag in ("latest", str(farm.version))
            )
            assert latest == fixed
            farm.next_version()
    assert interrupted >= kills // 2
    # What was whole before the kills has at every look three tags or more (its version, its own
    # tag, latest) and two names with a record for each of two versions.
    assert farm.asserted["tags"] >= 3 * kills
    assert farm.asserted["verdicts"] >= 2 * 2 * kills
