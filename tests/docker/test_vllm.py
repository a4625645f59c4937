"""The real wheels of vLLM: what patches make of several releases, and the recipes on stand-ins.

The wheels come from the package index and stay in the cache.  What they require is not fetched:
nothing that is checked here needs it.  Images get the Python files and the libraries that probes
name: the rest is a gigabyte.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.docker import containers
from builder.recipes import locks
from builder.recipes.schema import PypiSource
from builder.sources import pypi
from simulator import elf
from support import upstreams
from support.catalogs import load
from support.commands import Builder
from support.cubins import Function, cubin
from support.environment import REPOSITORY, SHARED_CACHE
from support.fatbins import ELF, FLAG_A, FLAG_F, PTX, ZSTD, entry, library, region
from support.indexes import served, wheel
from support.overlaid import SITE
from support.small_root import PYTHON
from support.smoke_tests import docker

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.xdist_group("overlaid")]

LIBRARIES = ("vllm/_C.abi3.so", "vllm/_moe_C.abi3.so")
ACCEPTED = {
    "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": (entry(PTX, 80), entry(ELF, 80)),
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": (entry(ELF, 90, FLAG_A),),
    "vllm/_flashmla_C.abi3.so": (entry(ELF, 90, FLAG_A), entry(ELF, 100, FLAG_F)),
    "vllm/_C_stable_libtorch.abi3.so": (entry(PTX, 80), entry(ELF, 80)),
    "nvidia/cu13/lib/libcufft.so.12": (entry(ELF, 75),),
    "nvidia/cu13/lib/libcufile.so.0": (entry(ELF, 80), entry(PTX, 86)),
    "nvidia/cusparselt/lib/libcusparseLt.so.0": (entry(PTX, 75), entry(ELF, 75)),
}
"""The code of the wheels that the recipes accept."""
FLASHINFER = "flashinfer/jit/cpp_ext.py"
CUDART = "nvidia/cu13/lib/libcudart.so.13"
DEAD = "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"
LINKED = """
cd "$CUDA_HOME"; cat lib64/libcudart.so; readlink lib64/stubs/libcuda.so.1
head -c 4 lib64/stubs/libcuda.so | tail -c 3
"""
TEXTS = re.compile(r"\.py$|\.dist-info/(?!RECORD$)")
ATTENTION = "vllm/v1/attention/backends/turboquant_attn.py"
# Like patch_tolist_cudagraph.py: two places, exit 0 where one is found, and it
# looks first for an installed vLLM, then where Python 3.12 has it.  The real one imports vLLM; here
# what that requires is not installed, so that finding it must do.
TOLIST = f"""
import sys
from importlib.util import find_spec
from pathlib import Path

installed = find_spec("vllm")
site = Path(installed.origin).parent.parent if installed else Path("{SITE}")
FILE = site / "{ATTENTION}"
GUARD = "if torch.cuda.is_current_stream_capturing():"
SITES = {{
    "A": (
        "            prefill_max_seq = max(attn_metadata.seq_lens[num_decodes:].tolist())\\n",
        f"            {{GUARD}}\\n                prefill_max_seq = attn_metadata.max_seq_len\\n",
    ),
    "B": (
        "        N, Hq, D = query.shape\\n",
        f"        {{GUARD}}\\n            "
        "return torch.zeros(N, Hq, D, device=query.device, dtype=query.dtype)\\n",
    ),
}}
if not FILE.is_file():
    sys.exit(f"not there: {{FILE}}")
text = FILE.read_text()
found = {{}}
for site, (anchor, added) in SITES.items():
    found[site] = "applied" if anchor in text else "anchor-not-found"
    text = text.replace(anchor, anchor + added)
FILE.write_text(text)
print(f"Patched {{FILE}}. Site A={{found['A']}}, Site B={{found['B']}}", file=sys.stderr)
"""

TABLE = """
engine  = "table"
version = "0.20.0"
summary = "Patches against several releases"
license = "Apache-2.0"
family  = "vllm-overlay"
base    = "cuda-13.0"

[source]
pypi    = "vllm"
version = "0.20.0"
sha256  = "24d28892e210200f6e1bd13f699c42a74cd2bb7364c11248e2348f677c7f6dfb"

[[patch]]
file = "vllm-0.19-fla-tma.patch"
why  = "the effect of vllm-project/vllm#36325"

[[patch]]
why    = "no list out of a GPU tensor while a graph is captured"

[patch.script]
git    = "{url}"
commit = "{commit}"
path   = "tolist.py"
at     = "{site}"
edits  = ["{attention}"]
contains   = ["Site A=applied", "Site B=applied"]

[cuda]
arch = ["120"]

[image]
repository = "builder-test/table"
tags       = ["1"]

[[probe]]
file = "/x"
"""


@pytest.fixture
def tolist(tmp_path: Path) -> tuple[str, str]:
    """The repository and the commit of the script."""
    upstream = upstreams.Upstream(tmp_path / "scripts")
    return upstream.url, upstream.commit("one", **{"tolist.py": TOLIST})


def test_what_patches_make_of_several_releases(
    builder: Builder, hello: dict[str, Any], catalog: Path, tolist: tuple[str, str]
) -> None:
    assert hello["references"]  # its base runs the script
    shutil.copytree(REPOSITORY / "patches", catalog / "patches")
    text = TABLE.format(url=tolist[0], commit=tolist[1], attention=ATTENTION, site=SITE)
    (catalog / "recipes" / "table-0.20.0.toml").write_text(text)
    against = [w for v in ("0.19.0", "0.22.0") for w in ("--against", v)]
    done = builder("patch", "check", "table", "--catalog", catalog, *against, "--json")
    assert done.returncode == 11, done.stderr
    assert "file vllm-0.19-fla-tma.patch: conflicts" in done.stderr
    findings = json.loads(done.stdout)
    found = {(f["patch"].split()[0], f["commit"]): f["state"] for f in findings}
    assert {key: state for key, state in found.items() if key[1] in text + str(against)} == {
        ("file", "0.19.0"): "applies",
        ("file", "0.20.0"): "conflicts",
        ("file", "0.22.0"): "conflicts",
        ("script", "0.19.0"): "absent",
        ("script", "0.20.0"): "applies",
        ("script", "0.22.0"): "conflicts",
    }
    (half,) = [f for f in findings if f["commit"] == "0.22.0" and f["patch"].startswith("script")]
    assert "Site A=anchor-not-found, Site B=applied" in " ".join(half["details"])
    # The newest release is looked at unasked, as upstream's newest is.
    assert {f["target"] for f in findings} > {"pin", "0.19.0", "0.22.0"}


def real_wheel(recipe: str) -> Path:
    """The wheel that a recipe of the repository pins."""
    found = load(REPOSITORY).engine(recipe).recipe
    assert found is not None
    source = found.source
    assert isinstance(source, PypiSource)
    file = locks.PinnedFile(source.pypi, source.version, source.sha256)
    (wheel,) = pypi.fetch([file], SHARED_CACHE, print)
    return wheel


def without_libraries(wheel: Path) -> dict[str, bytes]:
    """A wheel's Python files and metadata, and libraries of one kernel where probes look."""
    attention = region(entry(ELF, 120, ZSTD, cubin(Function("_Z9attentionPf"))))
    code = library(attention, region(entry(PTX, 80), entry(ELF, 80))).getvalue()
    with zipfile.ZipFile(wheel) as found:
        kept = {name: found.read(name) for name in found.namelist() if TEXTS.search(name)}
    accepted = {name: library(region(*codes)).getvalue() for name, codes in ACCEPTED.items()}
    return kept | accepted | dict.fromkeys(LIBRARIES, code)


def machine_code(wheel: Path, work: Path) -> int:
    """How many fat binaries of the real vllm/_C.abi3.so have machine code for sm_120."""
    with zipfile.ZipFile(wheel) as found:
        file = Path(found.extract(LIBRARIES[0], work))
    with file.open("rb") as stream:
        read = elf.read(stream)
    file.unlink()
    assert read is not None
    return [code.name for code in read.code].count("sm_120")


def stand_in(files: dict[str, bytes], name: str, work: Path, made: set[str]) -> None:
    """vLLM's Python files where its image has them."""
    for path, content in files.items():
        file = work / "site" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    made.add(name)
    (work / "vllm").write_text("#!/bin/sh\n")
    (work / "vllm").chmod(0o755)
    text = f"FROM {PYTHON}\nCOPY site {SITE}\nCOPY vllm /usr/local/bin/vllm\n"
    text += f'ENV PYTHONPATH={SITE}\nENTRYPOINT ["vllm", "serve"]\n'
    (work / "Dockerfile").write_text(text)
    output = f"--output=type=image,name={name},compression=uncompressed"
    docker("buildx", "build", "--provenance=false", output, str(work))


NO_TORCH = """
[[accept]]
check = "imports"
path  = "/*"
why   = "the stand-in has no torch"
"""


def on_stand_in(recipe: str, root: Path, work: Path, made: set[str]) -> None:
    """The recipe of the catalog on a stand-in for its published image."""
    text = (REPOSITORY / "recipes" / f"{recipe}.toml").read_text()
    # pip and the packages that vLLM requires are not there.
    text = re.sub(r'\[\[probe\]\]\nrun  = \["python3", "-m", "pip".*?\n\n', "", text, flags=re.S)
    text = text.replace('repository = "vllm-sm120"', 'repository = "builder-test/vllm-sm120"')
    base = re.findall(r'^base    = "(.*)"', text, re.M)[0]
    file = root / "recipes" / "bases" / f"{base}.toml"
    (work / "image").mkdir()
    image = f"builder-test/{base}:1"
    stand_in(without_libraries(real_wheel(recipe)), image, work / "image", made)
    published = re.sub(r'image = ".*"', f'image = "{image}"', file.read_text())
    file.write_text(published.replace("disk = 40.0", "disk = 2.0"))
    shutil.copytree(REPOSITORY / "patches", root / "patches", dirs_exist_ok=True)
    (root / "recipes" / f"{recipe}.toml").write_text(text + NO_TORCH)


def test_0_19_1_is_patched_and_says_so(
    builder: Builder, python: str, catalog: Path, tmp_path: Path, made: set[str]
) -> None:
    assert python
    on_stand_in("vllm-0.19.1", catalog, tmp_path, made)
    done = builder("build", "vllm-0.19.1", "--catalog", catalog, "--json", "--rebuild")
    assert done.returncode == 0, done.stderr
    made.update(json.loads(done.stdout)["references"])
    assert "file vllm-0.19-fla-tma.patch is applied" in done.stderr
    assert "script patches/patch_tolist_cudagraph.py is skipped" in done.stderr
    checks = json.loads(done.stdout)["verdict"]["checks"]
    checked = [c["subject"] for c in checks if c["kind"] == "patch"]
    assert any("fla/ops/utils.py" in subject for subject in checked)
    assert any("turboquant_attn.py" in subject for subject in checked)
    code = {c["subject"]: c["found"] for c in checks if c["kind"] == "library"}
    assert "1 sm_120" in code[f"{SITE}/vllm/_C.abi3.so"]


@pytest.mark.parametrize(("recipe", "count"), [("vllm-0.19.1", 33), ("vllm-0.20.2-wheel", 32)])
def test_the_real_libraries_have_code_for_the_recipes_gpu(
    recipe: str, count: int, tmp_path: Path
) -> None:
    assert machine_code(real_wheel(recipe), tmp_path) == count


LOCK = """python = "3.13"

[[runtime]]
name    = "vllm"
version = "0.20.2"
sha256  = "{sha256}"
"""


@pytest.fixture
def small_wheel(
    images: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """vLLM 0.20.2 with no library but the CUDA runtime, in an index of its own: its sha256."""
    runtime = tmp_path / "libcudart"
    containers.copy_out(images["devel"], f"/usr/local/cuda/lib64/{Path(CUDART).name}", runtime)
    files = without_libraries(real_wheel("vllm-0.20.2-wheel")) | {FLASHINFER: b"", CUDART: b"13"}
    files["nvidia/cuda_runtime/lib/libcudart.so.13"] = runtime.read_bytes()
    with served() as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
        yield index.put("vllm", "0.20.2", wheel("vllm", "0.20.2", files))


def test_0_20_2_out_of_its_wheel_is_patched_by_its_script(
    builder: Builder,
    catalog: Path,
    tolist: tuple[str, str],
    small_wheel: str,
    made: set[str],
) -> None:
    name = "vllm-0.20.2-wheel"
    base = catalog / "recipes" / "bases" / "vllm-wheel-0.20.2.toml"
    text = base.read_text().replace('"g++", "libc6-dev", "python3", "python3-dev"', '"python3"')
    text = text.replace("disk = 45.0", "disk = 3.0")
    text = re.sub(r"(?m)^\[debian\]\nlock .*$", "", text)  # of other packages
    text = text.replace('"vllm==0.20.2"', '"vllm==0.20.2", "cuda-toolkit[nvcc]"')
    text = text.replace("requirements =", 'nvcc = true\nunchecked = "not fetched"\nrequirements =')
    base.write_text(text + f'\n[[python.dead]]\npath = "{DEAD}"\nwhy = "9.0 only"\n')
    (base.parent / "locks" / "vllm-0.20.2.toml").write_text(LOCK.format(sha256=small_wheel))
    recipe = (REPOSITORY / "recipes" / f"{name}.toml").read_text()
    recipe = recipe.replace('"vllm-sm120"', '"builder-test/vllm-sm120"')
    recipe = re.sub(r'(?m)^sha256  = ".*"', f'sha256  = "{small_wheel}"', recipe, count=1)
    # Other packages are read, too.
    recipe = re.sub(r'\[\[accept\]\]\ncheck = "closure"\n.*\n.*\n', "", recipe)
    head, script = recipe.split("[patch.script]")
    for key, value in {
        "git": tolist[0],
        "commit": tolist[1],
        "path": "tolist.py",
        "sha256": hashlib.sha256(TOLIST.encode()).hexdigest(),
    }.items():
        script = re.sub(rf"(?m)^{key} .*$", f'{key} = "{value}"', script, count=1)
    (catalog / "recipes" / f"{name}.toml").write_text(f"{head}[patch.script]{script}{NO_TORCH}")
    done = builder("build", name, "--catalog", catalog, "--rebuild")
    # The stand-in has no torch: its server does not start on the simulated card.
    assert done.returncode == 7, done.stderr
    assert re.search(r"1 of \d+ checks failed\n  device: starts: ", done.stderr)
    assert "ModuleNotFoundError: No module named 'torch'" in done.stderr
    (image,) = re.findall(r"the image is (\S+): it is kept", done.stderr)
    made.add(image)
    done = builder("smoke", image, "--catalog", catalog, "--json")
    checks = json.loads(done.stdout)["verdict"]["checks"]
    sites = [c["expected"] for c in checks if c["kind"] == "patch" and c["state"] == "passed"]
    assert "has prefill_max_seq = attn_metadata.max_seq_len" in sites
    assert any(expected.startswith("has return torch.zeros(N, Hq, D") for expected in sites)
    said = {c["subject"]: c["found"] for c in checks if c["kind"] in {"library", "contract"}}
    assert "1 sm_120" in said["/opt/engine/lib/python3.13/site-packages/vllm/_C.abi3.so"]
    linked = docker("run", "--rm", "--entrypoint=sh", image, "-euc", LINKED)
    below = docker("run", "--rm", "--entrypoint=sh", image, "-euc", "ls /usr/local")
    assert "cuda" not in below.split(), "the base must not bring CUDA's libraries"
    assert linked == "13libcuda.so\nELF"
    assert said["user"] == "10001:10001"
    assert said["entrypoint"] == '["/opt/builder/entrypoint", "vllm", "serve", "--"]'
    # All that it requires: pip would say what is missing.
    text = base.read_text().replace('unchecked = "not fetched"\n', "")
    base.write_text(text)
    done = builder("build", name, "--catalog", catalog)
    assert done.returncode == 6
    assert re.search(r"vllm 0\.20\.2 requires \S+, which is not installed", done.stderr)
