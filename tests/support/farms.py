"""A catalog with one engine, the engine's upstream, and the command line; a plugin of pytest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.catalogs import without_locks
from support.commands import Builder
from support.environment import REPOSITORY
from support.indexes import Index, served, wheel
from support.upstreams import Upstream, numbered

RECIPE = """\
# An engine of ours.
engine  = "eng"
version = "{version}"
summary = "an engine"   # short
license = "MIT"
family  = "llama-cpp"
base    = "cuda-13.0"

[source]
git    = "{url}"
ref    = "{ref}"       # for people
commit = "{commit}"    # decides

[track]
tag = "v*"

[cuda]
arch = ["120"]

[llama]
build_number = {number}   # counted

[[cmake]]
targets = ["llama-server"]
{patches}
[image]
repository = "eng"
tags       = ["{version}", "stays"]
moving     = ["stays"]

[[probe]]
option = "--x"
"""


@pytest.fixture
def farm_copy(tmp_path: Path) -> Path:
    """The recipes, presets and cards of the repository, and no receipts."""
    folder = tmp_path / "farm"
    folder.mkdir()
    for name in ("recipes", "presets", "cards", "patches", "dockerfiles", "engines"):
        (folder / name).symlink_to(REPOSITORY / name)
    return folder


class Farm:
    """A catalog with one engine, the engine's upstream, and the command line."""

    def __init__(self, catalog: Path, folder: Path, builder: Builder) -> None:
        self.catalog = catalog
        without_locks(catalog)
        self.recipes = catalog / "recipes"
        self.builder = builder
        self.upstream = Upstream(folder / "served" / "eng")
        self.url = self.upstream.url
        files = {"a.c": numbered(40), "b.c": "b\n", "CMakeLists.txt": "x\n"}
        self.pin = self.upstream.commit("one", **files)
        self.upstream.git("tag", "v0.1.0")

    def write(self, patches: str = "", **other: Any) -> Path:
        file = self.recipes / f"eng-{other.get('version', '0.1.0')}.toml"
        values = {
            "version": "0.1.0",
            "url": self.url,
            "ref": "v0.1.0",
            "commit": self.pin,
            "number": self.upstream.git("rev-list", "--count", self.pin),
            "patches": patches,
        }
        file.write_text(RECIPE.format(**(values | other)))
        return file

    def run(self, *arguments: str, status: int = 0) -> str:
        done = self.builder(*arguments, "--catalog", self.catalog)
        assert done.returncode == status, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        self.said = done.stderr
        return done.stdout

    def json(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", status=status))

    def pull(self, number: int, **files: str) -> str:
        head = self.upstream.pull(number, files, base=self.pin)
        return (
            f'\n[[patch]]   # needed\npull = {number}\nbase = "{self.pin}"\nhead = "{head}"\n'
            'why  = "it breaks without"   # truly\n'
        )


@pytest.fixture
def farm(catalog: Path, tmp_path: Path, builder: Builder, monkeypatch: pytest.MonkeyPatch) -> Farm:
    monkeypatch.setenv("BUILDER_CACHE_DIR", str(tmp_path / "cache"))
    return Farm(catalog, tmp_path, builder)


def states(findings: Any) -> dict[str, str]:
    return {finding["target"]: finding["state"] for finding in findings}


def text_line(file: Path, start: str) -> int:
    """The number of the first line that begins so."""
    return [line.startswith(start) for line in file.read_text().splitlines()].index(True) + 1


WHEEL = """\
engine  = "eng"
version = "1.0"
summary = "of a wheel"
license = "MIT"
family  = "vllm-overlay"
base    = "vllm-openai-0.19.1"
source  = {{ pypi = "vllm", version = "1.0", sha256 = "{sha256}" }}   # kept
overlay = {{ package = "vllm", version = "1.0" }}
cuda    = {{ arch = ["120"] }}
image   = {{ repository = "eng", tags = ["1.0", "stays"] }}

[[patch]]
file = "x.patch"
why  = "of 1.0"

[[probe]]
run  = ["x"]
contains = ["vllm 1.0"]
"""


@pytest.fixture
def index(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index with releases of vllm, the first of them the recipe's."""
    (farm.catalog / "patches").mkdir()
    text = "--- a/vllm/a.py\n+++ b/vllm/a.py\n@@ -4,3 +4,3 @@\n line 4\n-line 5\n+5\n line 6\n"
    (farm.catalog / "patches" / "x.patch").write_text(text)
    releases = {
        "1.0": numbered(9),
        "1.1": "line 0\n" + numbered(9),
        "1.10": numbered(9, line_4="other", line_5="words"),
        "1.2": numbered(9),
        "2.0rc1": numbered(9),
    }
    with served() as index:
        for day, (version, content) in enumerate(releases.items(), 1):
            made = wheel("vllm", version, {"vllm/a.py": content.encode(), "vllm/_C.so": b"x" * 999})
            about = {"upload-time": f"2026-01-{day:02}T00:00:00Z", "yanked": version == "1.2"}
            digest = index.put("vllm", version, made, **about)
            if version == "1.0":
                (farm.recipes / "eng-1.0.toml").write_text(WHEEL.format(sha256=digest))
        monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
        yield index


WHEEL_BASE = """\
name    = "eng-wheel-{version}"
summary = "vLLM {version} out of wheels"   # kept
license = "MIT"
family  = "python-wheels"
base    = "cuda-13.0"
notes   = ["as {version} was measured"]

[python]
lock         = "locks/eng-{version}.toml"
requirements = ["vllm=={version}", "other=={version}"]

[runtime]
packages = ["python3"]
"""
LOCK = """\
python = "3.13"

[[runtime]]
name    = "other"
version = "{version}"
sha256  = "{other}"

[[runtime]]
name    = "vLLM"
version = "{version}"
sha256  = "{sha256}"
"""
INSTALLED = """\
engine  = "eng"
version = "{version}-wheel"
summary = "vLLM {version} of the base"
license = "MIT"
family  = "vllm-overlay"
base    = "eng-wheel-{version}"
source  = {{ installed = "vllm" }}   # as the base has it
overlay = {{ package = "vllm", version = "{version}" }}
cuda    = {{ arch = ["120"] }}
image   = {{ repository = "eng", tags = ["{version}-wheel"] }}

[[probe]]
run  = ["x"]
contains = ["vllm {version}"]
"""


def write_installed(farm: Farm, index: Index, version: str) -> Path:
    """A recipe whose base has vllm of the index in its lock; the base's file."""
    sha256 = hashlib.sha256(index.files[f"vllm-{version}-py3-none-any.whl"]).hexdigest()
    values = {"version": version, "sha256": sha256, "other": "0" * 64}
    base = farm.recipes / "bases" / f"eng-wheel-{version}.toml"
    base.write_text(WHEEL_BASE.format(**values))
    (base.parent / "locks" / f"eng-{version}.toml").write_text(LOCK.format(**values))
    (farm.recipes / f"eng-{version}-wheel.toml").write_text(INSTALLED.format(**values))
    return base
