"""Stand-ins for published images: a Python with a package where vLLM's images have theirs;
a plugin of pytest."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copyfile, copytree, rmtree
from typing import Any

import pytest

from builder.core.files import named_lock
from support.commands import Builder
from support.environment import REPOSITORY, SHARED_CACHE
from support.small_root import PYTHON
from support.smoke_tests import docker, run_image

SITE = "/usr/local/lib/python3.12/dist-packages"
OVERLAID = "builder-test/overlaid:1"
STAND_IN = f"builder-test/published:{os.environ.get('PYTEST_XDIST_WORKER', 'one')}"
"""Tests that run beside each other give it to images of their own."""
PUBLISHED: set[str] = set()
"""Stand-ins that this process has built."""
WRITTEN = 1_700_000_000  # all files of a diff: the same change gives the same bytes

PACKAGE = {
    "vllm/__init__.py": "",
    "vllm/ops.py": "CAPABILITY = 9\n\n\ndef tma(capability):\n    return capability >= 9\n",
    "vllm/worker.py": "def work():\n    return 'slow'\n",
    "vllm/old.py": "OLD = True\n",
    "vllm/entrypoints/openai/api_server.py": "import vllm.ops\n",
}
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"

BASE = """
name    = "stand-in"
summary = "What somebody else publishes"
license = "Apache-2.0"
family  = "published"

[published]
image = "{image}"
{pin}

[build]
disk = 1.0
"""

RECIPE = """
engine  = "overlaid"
version = "1"
summary = "A package with something laid over it"
license = "Apache-2.0"
family  = "vllm-overlay"
base    = "stand-in"

{source}

[overlay]
package = "vllm"
version = "{version}"

{parts}

[cuda]
arch = ["120"]
vmm  = true

[image]
repository = "builder-test/overlaid"
tags       = ["1"]
{image}

[build]
disk = 1.0

[[probe]]
file = "{site}/vllm/ops.py"
has  = ["CAPABILITY = "]
"""


@dataclass
class StandIn:
    """An image of a package; ``more`` are further lines of its Dockerfile."""

    work: Path
    made: set[str]
    files: dict[str, str | bytes] = field(default_factory=lambda: dict(PACKAGE))
    version: str = "1.0"
    more: str = ""

    def build(self, name: str = STAND_IN) -> str:
        """Give the image a name.  It is built once for all tests."""
        content = (sorted(self.files.items()), self.version, self.more)
        digest = hashlib.sha256(repr(content).encode()).hexdigest()[:12]
        shared = f"builder-test/published:{digest}"
        if shared not in PUBLISHED:
            self._build(shared)
            PUBLISHED.add(shared)
        docker("image", "tag", shared, name)
        self.made.update({shared, name})
        return name

    def _build(self, name: str) -> None:
        folder = self.work / "stand-in"
        self.write(folder / "site")
        (folder / "vllm").write_text('#!/bin/sh\necho serving "$@"\n')
        (folder / "vllm").chmod(0o755)
        text = (
            f"FROM {PYTHON}\nCOPY site {SITE}\nCOPY vllm /usr/local/bin/vllm\n"
            f"ENV PYTHONPATH={SITE}\nRUN python3 -m compileall -q {SITE}\n{self.more}\n"
            'WORKDIR /srv\nENTRYPOINT ["vllm", "serve"]\nCMD ["--default"]\n'
        )
        (folder / "Dockerfile").write_text(text)
        output = f"--output=type=image,name={name},compression=uncompressed"
        with named_lock(SHARED_CACHE, "small-images", lambda _: None):
            docker("buildx", "build", "--provenance=false", output, str(folder))
        rmtree(folder)

    def write(self, site: Path) -> None:
        """The package as it is installed."""
        named = {f"vllm-{self.version}.dist-info/METADATA": METADATA.format(version=self.version)}
        for path, text in {**self.files, **named}.items():
            file = site / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode() if isinstance(text, str) else text)


def write_catalog(
    root: Path,
    parts: str,
    image: str,
    *,
    source: str = "",
    version: str = "1.0",
    pin: str = "",
    more: str = "",
) -> None:
    """A base and a recipe of the test's own; the source is the package as it was published."""
    pin = pin or 'note  = "made by a test"'
    (root / "recipes" / "bases").mkdir(parents=True, exist_ok=True)
    (root / "recipes" / "bases" / "stand-in.toml").write_text(BASE.format(image=image, pin=pin))
    bases = Path("recipes", "bases")  # the entrypoint is compiled in one of them
    (root / bases / "locks").mkdir(exist_ok=True)
    for tools in ("debian-trixie-gcc.toml", "locks/debian-trixie-gcc.debian.toml"):
        copyfile(REPOSITORY / bases / tools, root / bases / tools)
    source = source or '[source]\npath = "package"'
    own = f'env = {{ OVERLAID = "yes" }}\n{more}'
    text = RECIPE.format(parts=parts, source=source, version=version, image=own, site=SITE)
    (root / "recipes" / "overlaid-1.toml").write_text(text)


def diff(before: Mapping[str, str], after: Mapping[str, str | None], work: Path) -> str:
    """The diff between two sets of files, as diff(1) writes it."""
    for name, files in (("a", before), ("b", after)):
        for path, text in files.items():
            if text is not None:
                file = work / name / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
                os.utime(file, (WRITTEN, WRITTEN))
    done = subprocess.run(
        ["diff", "-ruN", "a", "b"], cwd=work, capture_output=True, text=True, check=False
    )
    return done.stdout


@pytest.fixture
def published(python: str, tmp_path: Path, made: set[str]) -> StandIn:  # noqa: ARG001
    made.add(OVERLAID)
    return StandIn(tmp_path, made)


@dataclass(frozen=True)
class Kept:
    """A built image of the recipe, as long as the tests run."""

    name: str
    record: dict[str, Any]
    records: Path


@dataclass(frozen=True)
class Build:
    """Builds a recipe with patches (TOML) on the stand-in."""

    builder: Builder
    published: StandIn
    root: Path
    kept: dict[str, Kept]
    folder: Path

    def __call__(
        self, parts: str = "", *, patch: str | None = None, expect: int = 0, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        again = ["--rebuild"] if options.pop("rebuild", True) else []
        self._write(parts, patch, options)
        done = self.builder("build", "overlaid-1", "--catalog", self.root, "--json", *again)
        assert done.returncode == expect, done.stderr
        if expect == 0:
            self.published.made.update(json.loads(done.stdout)["references"])
        return done

    def once(self, parts: str = "", *, patch: str | None = None, **options: Any) -> dict[str, Any]:
        """The record of an image that is built for the first test that wants it.

        The others get its names and its records, as if it had been built for them.  Its base is
        pinned: no command asks a registry for it.
        """
        if "image" not in options:
            options["image"] = self.published.build()
            digest = docker("image", "inspect", "--format={{.Id}}", options["image"])
            options.setdefault("pin", f'digest = "{digest}"')
        self._write(parts, patch, options)
        namespace = os.environ.get("BUILDER_NAMESPACE", "")
        identity = hashlib.sha256(repr((namespace, self.published.more)).encode())
        for file in sorted(self.root.rglob("*")):
            if file.is_file():
                identity.update(str(file.relative_to(self.root)).encode() + file.read_bytes())
        key = identity.hexdigest()[:12]
        records = Path(os.environ["BUILDER_STATE_DIR"]) / "records"
        if key in self.kept:
            found = self.kept[key]
            for reference in found.record["references"]:
                docker("image", "tag", found.name, reference)
            copytree(found.records, records, dirs_exist_ok=True)
            return deepcopy(found.record)
        done = self.builder("build", "overlaid-1", "--catalog", self.root, "--json")
        assert done.returncode == 0, done.stderr
        record = json.loads(done.stdout)
        found = Kept(f"builder-test/kept:{key}", record, self.folder / key)
        docker("image", "tag", record["references"][0], found.name)
        copytree(records, found.records)
        self.published.made.update({found.name, *record["references"]})
        self.kept[key] = found
        return deepcopy(record)

    def _write(self, parts: str, patch: str | None, options: dict[str, Any]) -> None:
        if patch is not None:
            (self.root / "patches").mkdir(parents=True, exist_ok=True)
            (self.root / "patches" / "x.patch").write_text(patch)
            parts = '[[patch]]\nfile = "x.patch"\nwhy = "so"\n' + parts
        self.published.write(self.root / "package")
        image = options.pop("image", None) or self.published.build()
        write_catalog(self.root, parts, image, **options)


@pytest.fixture(scope="session")
def kept() -> dict[str, Kept]:
    return {}


@pytest.fixture(scope="session")
def kept_records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@pytest.fixture
def build(
    builder: Builder,
    tmp_path: Path,
    published: StandIn,
    kept: dict[str, Kept],
    kept_records: Path,
) -> Build:
    return Build(builder, published, tmp_path / "catalog", kept, kept_records)


def ran(image: str, *command: str, options: tuple[str, ...] = ()) -> str:
    done = run_image(*options, "--entrypoint", command[0], image, *command[1:])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def change(tmp_path: Path, **files: str | None) -> str:
    """A patch of the package: ``ops`` is vllm/ops.py, None deletes."""
    told = {f"vllm/{name}.py": text for name, text in files.items()}
    before = {path: PACKAGE[path] for path in told if path in PACKAGE}
    return diff(before, told, tmp_path / "diff")
