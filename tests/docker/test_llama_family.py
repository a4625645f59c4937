"""The family llama-cpp on a tree of llama.cpp's shape: a submodule, a pull request, both vmm."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builder.checks import options
from builder.checks.logit_test import TRIALS
from builder.engines.families import complete, load_catalog
from builder.image.contents import Contents
from builder.presets.schema import Preset
from support import npm, upstreams
from support.commands import Builder
from support.environment import REPOSITORY
from support.smoke_tests import context_of, docker
from support.variants import labels

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("llama")]

REPOSITORY_NAME = "builder-test/llama-shaped"
KERNEL = "ggml/src/ggml-cuda/fattn.cu"
OURS = {"ggml-base", "ggml-cpu", "ggml-cuda", "ggml", "llama", "llama-common"}

RECIPE = """
engine  = "shaped"
version = "{name}"
summary = "A tree of llama.cpp's shape"
license = "MIT"
family  = "llama-cpp"
base    = "cuda-13.0"
cuda    = {{ arch = ["120"], vmm = {vmm} }}
llama   = {{ build_number = 2 }}

[source]
git    = "{url}"
ref    = "main"
commit = "{commit}"

[source.submodule]
"vendor/mini" = "{mini}"

[[cmake]]
targets = ["llama-server", "llama-cli", "llama-bench"]
define  = {{ CMAKE_UNITY_BUILD = true }}   # half of the compile

[image]
repository = "{repository}"
tags       = ["{name}"]

[build]
disk = 2.0

[[probe]]
run  = ["llama-server", "--version"]
contains = ["vendored: mini 1"]

[[probe]]
run  = ["llama-cli", "--prompt", "once"]
contains = ["ggml_cuda_init: failed to initialize CUDA", "once "]

[[probe]]
option = "--spec-type"
has    = ["none", "draft-mtp", "ngram-simple"]
missing  = ["mtp", "dflash"]

[[probe]]
option = "--cache-type-k"
has    = ["f32", "f16", "q8_0"]
missing  = ["turbo3"]
"""

PATCH = """
[[patch]]
pull  = 7
base  = "{base}"
head  = "{head}"
why   = "heads of 512 abort"
probe = {{ run = ["llama-server", "--version"], contains = ["heads up to 512"] }}
"""

PRESET = """
recipe  = "shaped-patched"
summary = "options that the tree has"
card    = "5090"
model   = { name = "M", repository = "unsloth/Qwen3.5-0.8B-GGUF", published_size = "0.6 GB" }

[serve]
arguments   = ["--spec-type", "draft-mtp", "-ctk", "q8_0"]
environment = { LLAMA_ARG_N_GPU_LAYERS = "99" }
context     = 4096
"""

FAULT = """
[[patch]]
pull  = 8
base  = "{base}"
head  = "{head}"
why   = "a planted fault"
probe = {{ run = ["llama-server", "--version"], contains = ["heads up to 256"] }}
"""

ACCEPTED = """
[[accept]]
check = "numbers"
case  = "*(*)"
why   = "planted"

[[accept]]
check = "numbers"
case  = "race: *"
why   = "planted"
"""

UNPATCHED = """
[[probe]]
run  = ["llama-server", "--version"]
contains = ["heads up to 256"]
"""


@dataclass(frozen=True)
class Shaped:
    """The repositories of the engine and of its submodule, and the commits that recipes name."""

    url: str
    mini: str
    commit: str
    base: str
    head: str
    faulty: str
    """The head of a pull request with ``PLANTED``."""

    def recipe(self, name: str, vmm: str) -> str:
        return RECIPE.format(
            name=name,
            vmm=vmm,
            url=self.url,
            mini=self.mini,
            commit=self.commit,
            repository=REPOSITORY_NAME,
        )


OPS = "ggml/src/ggml-cuda/ops.cu"
PLANTED = [
    # (file, what is right, what is wrong, the group, the kernel, what is said of it)
    (OPS, "both & 0x0F", "both & 0x07", "rows of embeddings", "dequantize_q4", "[GET_ROWS] ERR = "),
    (OPS, "out[i] = in[i]", "out[i + 1] = in[i]", "copies to a type", "cpy", "out of bounds"),
    (OPS, "[0] - 127)", "[0] - 126)", "products with one column", "sum_mxfp4", "[MUL_MAT] ERR = "),
    (OPS, "sum += each * each", "sum = __half2float(__float2half(sum + each * each))",
     "products with one column", "squares", "[MUL_MAT] ERR = "),
    (OPS, "__syncthreads();\n        if (threadIdx.x < half) part[threadIdx.x] += ",
     "if (threadIdx.x < half) part[threadIdx.x] += ", "races", "soft_max", "race: "),
    (OPS, "in[row + i] * scale", "in[row + i] * scale * 1.03f", "norms", "rms_norm",
     "[RMS_NORM] ERR = "),
    (OPS, "__syncthreads();\n    out[row", "out[row", "races", "l2_norm",
     "race: reads shared memory at offset 0, which lane 0 of the warp wrote with nothing between"),
    (KERNEL, "expf(scores[j] - better)", "i < 64 || j % 2 ? expf(scores[j] - better) : 0",
     "attention", "weighted_mean_kernel", "[FLASH_ATTN_EXT] ERR = "),
]  # fmt: skip
"""A wrong mask, an index out of bounds by one, a wrong scale of FP4 blocks, sums in half precision,
a missing barrier, a norm that is off by 3 %, a missing barrier where only the order of warps keeps
the numbers right, and tokens that are lost where a head has more than 64 floats."""


def planted(tree: Path) -> Iterator[tuple[str, str]]:
    """The files of the tree with all faults."""
    for name in (OPS, KERNEL):
        text = (tree / name).read_text()
        for file, right, wrong, *_ in PLANTED:
            assert file != name or right in text
            text = text.replace(right, wrong) if file == name else text
        yield name, text


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Shaped]:
    """Repositories as a forge keeps them: the pull request is reached by its ref alone."""
    tree = upstreams.Upstream(tmp_path / "upstream")
    mini = upstreams.Upstream(tmp_path / "mini")
    shutil.copytree(REPOSITORY / "tests/data/trees/llama_shaped", tree.folder, dirs_exist_ok=True)
    shutil.copytree(tree.folder / "vendor" / "mini", mini.folder, dirs_exist_ok=True)
    shutil.rmtree(tree.folder / "vendor" / "mini")
    mini.record("one")
    tree.git("submodule", "--quiet", "add", mini.url, "vendor/mini")
    moved = f"file://{tmp_path}/moved"
    tree.git("config", "--file", ".gitmodules", "submodule.vendor/mini.url", moved)
    base = tree.record("one")
    kernel = (tree.folder / KERNEL).read_text()
    longer = kernel.replace("LARGEST_HEAD = 256", "LARGEST_HEAD = 512")
    assert longer != kernel
    head = tree.pull(7, {KERNEL: longer})
    faulty = tree.pull(8, dict(planted(tree.folder)))
    # Upstream has moved on since the request was made.
    commit = tree.commit("two", **{"README.md": "# llama_shaped, continued\n"})
    yield Shaped(tree.url, mini.url, commit, base, head, faulty)
    images = set(docker("image", "ls", "--quiet", REPOSITORY_NAME).split())
    if images:
        docker("image", "rm", "--force", *images)


def build(builder: Builder, catalog: Path, recipe: str, name: str) -> Any:
    """Write the recipe into the catalog and build it: the JSON of the result."""
    (catalog / "recipes" / f"shaped-{name}.toml").write_text(recipe)
    done = builder("build", f"shaped-{name}", "--catalog", catalog, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def passed(result: Any) -> set[tuple[str, str]]:
    checks = result["verdict"]["checks"]
    assert {check["state"] for check in checks} <= {"passed", "skipped"}
    return {(check["kind"], check["expected"]) for check in checks}


SERVED = {
    ("serves", "healthy within 60 s"),
    ("serves", "12 tokens of text"),
    ("serves", "SIGTERM ends it with exit status 0 within 10 s"),
}


def version_found(result: Any) -> str:
    """What the family's own probe found: the version with the build number and the commit."""
    checks = result["verdict"]["checks"]
    (found,) = (each["found"] for each in checks if each["expected"].startswith("matches the"))
    return str(found)


def test_a_pull_request_and_a_moved_submodule(
    builder: Builder, catalog: Path, upstream: Shaped
) -> None:
    patch = PATCH.format(base=upstream.base, head=upstream.head)
    (catalog / "presets").mkdir()
    (catalog / "presets" / "m@5090.toml").write_text(PRESET)
    result = build(builder, catalog, upstream.recipe("patched", "false") + patch, "patched")
    assert result["built"] is True
    short = upstream.commit[:9]  # both wordings that the trees have for it
    assert re.search(rf"(?:build 2, commit |2 \(){short}\)", version_found(result))
    assert passed(result) >= {
        ("patch", "contains heads up to 512"),
        ("output", "contains vendored: mini 1"),
        ("library", "machine code for sm_120a"),
        ("library", "does not need libcuda.so.1"),
        ("closure", "no libcuda.so.1 among NEEDED"),
        ("copies", "each once, its other names as links"),
        ("option", "has draft-mtp"),
        ("option", "does not have mtp"),
        ("option", "has q8_0"),
        ("preset", "each is in --help and takes its value"),
        ("preset", "healthy within 600 s on the simulated 5090"),
        ("numbers", "as ggml's CPU code, within ggml's limits"),
        ("numbers", "cases are compared"),
    }
    image = result["references"][0]
    check_lies(catalog, image)
    check_choice(builder, catalog, result)
    numbers = {each["subject"]: each["found"] for each in result["verdict"]["checks"]}
    assert numbers["copies to a type"].startswith(
        "1 cases; 1 without a reference; CPY(type_src=f32,type_dst=turbo3,ne=[256,4,4,4]): "
        "ggml's CPU code ends the program with "
    )
    # What the program launched just before it ends with ggml's CPU code is not in its report.
    assert re.fullmatch(
        r"11 cases of 7 operations; (1\d) of \1 launches of [7-9] kernels computed, "
        r"0\.0 billion instructions; 0 cases not computed",
        numbers["coverage"],
    )
    found = labels(image)
    assert found["builder.patches"] == "pull 7"
    assert found["org.opencontainers.image.revision"] == upstream.commit
    check_links(image)
    assert passed(result) >= SERVED


def test_a_kernel_that_computes_wrong_numbers_gets_no_tag(
    builder: Builder, catalog: Path, upstream: Shaped
) -> None:
    patch = FAULT.format(base=upstream.base, head=upstream.faulty)
    recipe = upstream.recipe("faulty", "false") + patch
    (catalog / "recipes" / "shaped-faulty.toml").write_text(recipe)
    done = builder("build", "shaped-faulty", "--catalog", catalog)
    assert done.returncode == 7, done.stderr
    said = [line.strip() for line in done.stderr.splitlines() if "numbers: " in line]
    for *_, group, kernel, fault in PLANTED:
        (found,) = (line for line in said if line.startswith(f"numbers: {group}: "))
        assert fault in found, found
        assert kernel in found
    long = "FLASH_ATTN_EXT(hsk=128,nr23=[4,1],kv=1024,nb=1,mask=1,type_KV=f32)"
    (attention,) = (line for line in said if "numbers: attention: " in line)
    assert f"{long}: [FLASH_ATTN_EXT] ERR = " in attention
    assert "hsk=64," not in attention
    names = docker("image", "ls", "--format={{.Tag}}", REPOSITORY_NAME).split()
    assert "faulty" not in names
    build(builder, catalog, recipe + ACCEPTED, "faulty")
    right = build(builder, catalog, upstream.recipe("vmm", "true") + UNPATCHED, "vmm")
    check_memory_management(right)
    compared = ("compare", "shaped-vmm", "shaped-faulty", "--numbers", "--catalog", catalog)
    done = builder(*compared, "--json")
    assert done.returncode == 17, done.stderr
    found = json.loads(done.stdout)
    # Heads of 64 are right, and norms that only the order of warps keeps right; heads of 512 are
    # not supported, a copy has no reference.
    assert found["same"] == 4
    # The servers have no probabilities.
    for trial in TRIALS:
        assert f"{trial.model.name} is not compared: neither server answers" in done.stderr
    assert len(found["parted"]) == len(PLANTED)
    (parted,) = (each for each in found["parted"] if each["name"] == long)
    assert (parted["before"]["outcome"], parted["after"]["outcome"]) == ("equal", "differs")
    # The first launch scales the query.
    assert parted["launch"] == "launch 2, ggml_cuda::weighted_mean_kernel, stores other bytes"


def check_memory_management(result: Any) -> None:
    """An engine that links to the driver, with its memory management (``vmm``)."""
    assert passed(result) >= SERVED  # a stub stands in for the driver
    assert passed(result) >= {
        ("output", "contains heads up to 256"),
        ("library", "machine code for sm_120a"),
        ("library", "needs libcuda.so.1"),
    }
    image = result["references"][0]
    assert "builder.patches" not in labels(image)
    # The driver is the host's: the image has none, nor the stub that it was linked with.
    done = subprocess.run(
        ["docker", "run", "--rm", image, "--version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 127
    assert "libcuda.so.1: cannot open shared object file" in done.stderr


def test_a_recipe_that_was_written_for_the_tree(
    builder: Builder,
    catalog: Path,
    llama_tree: upstreams.Upstream,
    made: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What `recipe new` reads of a tree is so in the image; its page is built from its source."""
    with npm.served() as registry:
        monkeypatch.setenv("npm_config_registry", registry.url)
        llama_tree.commit("page", **npm.page_source(registry))
        _written_for_the_tree(builder, catalog, llama_tree, made)


def _written_for_the_tree(
    builder: Builder, catalog: Path, llama_tree: upstreams.Upstream, made: set[str]
) -> None:
    done = builder("recipe", "new", llama_tree.url, "--name", "shaped-new", "--catalog", catalog)
    assert done.returncode == 0, done.stderr
    done = builder("build", "shaped-new", "--catalog", catalog, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    made.update(result["references"])
    assert f"3 ({llama_tree.head()[:9]})" in version_found(result)
    assert passed(result) >= SERVED | {
        ("serves", "a page, whose scripts and styles load"),
        ("library", "machine code for sm_120a"),
        *(("option", f"has {value}") for value in ("none", "draft-mtp", "ngram-simple")),
        *(("option", f"has {value}") for value in ("f32", "f16", "q8_0")),
        ("library", "needs libggml-cuda.so"),
    }
    check_variants(result)
    # A commit that changes no kernel: only the rest of the engine is new.
    before = layers(result)
    llama_tree.commit("words", **{"README.md": "# Other words\n"})
    assert builder("pin", "update", "shaped-new", "--catalog", catalog).returncode == 0
    done = builder("build", "shaped-new", "--catalog", catalog, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    made.update(result["references"])
    changed = [old != new for old, new in zip(before, layers(result), strict=True)]
    assert changed[-4:] == [False, True, False, False]  # kernels, engine, entrypoint, home
    assert sum(changed) == 1


def check_variants(result: Any) -> None:
    """The tree has CPU code for two generations: each start takes the best, and says so."""
    numbers = {each["subject"]: each["found"] for each in result["verdict"]["checks"]}
    flags = {*re.findall(r"\w+", Path("/proc/cpuinfo").read_text())}
    best = "haswell" if {"avx2", "fma"} <= flags else "x64"
    assert f"; compared with libggml-cpu-{best}.so" in numbers["coverage"]
    image = result["references"][0]
    assert missing(image, "libggml-cpu-haswell.so") == (0, "libggml-cpu-x64.so")
    # As ggml does it, programs would compute on the CPU, without a word.
    assert missing(image, "libggml-cuda.so") == (127, "")
    assert missing(image, "libggml-cuda.so", "--version") == (127, "")


def missing(image: str, library: str, *arguments: str) -> tuple[int, str]:
    """The exit status of llama-cli where a library cannot be loaded, and its CPU code."""
    hidden = f"--volume=/dev/null:/opt/engine/bin/{library}:ro"
    words = ["docker", "run", "--rm", hidden, "--entrypoint=llama-cli", image]
    arguments = arguments or ("--prompt", "once")
    done = subprocess.run([*words, *arguments], capture_output=True, text=True, check=False)
    taken = re.findall(r"loaded CPU backend from /opt/engine/bin/(\S+)", done.stderr)
    return done.returncode, "".join(taken)


def layers(result: Any) -> list[str]:
    """The layers of a built image, by the digests of their files."""
    text = docker("image", "inspect", "--format={{json .RootFS.Layers}}", result["references"][0])
    return [str(layer) for layer in json.loads(text)]


def test_the_tree_fails_without_the_flags_of_the_family(
    builder: Builder, catalog: Path, upstream: Shaped
) -> None:
    recipe = upstream.recipe("bare", "false").replace('"llama-cpp"', '"cmake"')
    recipe = recipe.replace("llama   = { build_number = 2 }\n", "")
    recipe = recipe.replace('targets = ["llama-server", "llama-cli", "llama-bench"]\n', "")
    recipe = recipe.replace("[build]", 'entrypoint = ["/opt/engine/bin/llama-server"]\n\n[build]')
    (catalog / "recipes" / "shaped-bare.toml").write_text(recipe)
    done = builder("build", "shaped-bare", "--catalog", catalog)
    assert done.returncode == 6, done.stderr
    assert "LLAMA_BUILD_TESTS=ON would download files" in done.stderr


LIES = [
    (
        '"-ctk", "q8_0"',
        '"--spec-dflash-cross-ctx", "1024"',
        "--spec-dflash-cross-ctx is not listed",
    ),
    ('"draft-mtp"', '"dflash"', "--spec-type does not have dflash, only draft-mtp"),
    ('"q8_0"', '"turbo3"', "-ctk does not have turbo3, only "),
    ("_N_GPU_LAYERS", "_GPU_LAYER", "LLAMA_ARG_GPU_LAYER is the variable of no option"),
]


def check_lies(catalog: Path, image: str) -> None:
    """Presets with options of other forks, and with values that this build does not know."""
    recipe = complete(load_catalog(catalog).engine("shaped-patched").recipe)
    presets = {}
    for told, lie, _ in LIES:
        text = PRESET.replace(told, lie)
        assert text != PRESET
        presets[lie] = Preset.model_validate(tomllib.loads(text))
    nothing = Contents({}, {}, (), 0)
    context = context_of(nothing, recipe, reference=image, presets=presets)
    for check, (_, _, expected) in zip(options.check_preset_options(context), LIES, strict=True):
        assert check.state == "failed"
        assert check.found.startswith(expected)


def check_choice(builder: Builder, catalog: Path, result: Any) -> None:
    """`choose` has the memory of the trial, until the preset changes."""
    use = result["verdict"]["presets"]["m@5090"]
    chosen = ("choose", "--card", "5090-laptop", "--json", "--catalog", catalog)
    (found,) = json.loads(builder(*chosen).stdout)["fits"]
    assert (found["memory"], found["memory_by"]) == (use["peak"], "trial")
    preset = catalog / "presets" / "m@5090.toml"
    preset.write_text(preset.read_text().replace("4096", "8192"))
    done = builder(*chosen)
    assert done.returncode == 15
    (lost,) = json.loads(done.stdout)["excluded"]
    assert lost["why"][0].startswith("its memory is not known; it is composed for ")


def check_links(image: str) -> None:
    """Each library is one file; its two other names are links beside it."""
    arguments = ["/opt/engine/bin", "-name", "*.so*", "-printf", r"%y %f %l\n"]
    listed = docker("run", "--rm", "--entrypoint=find", image, *arguments).splitlines()
    files = {line.split()[1] for line in listed if line.startswith("f ")}
    links = dict(line.split()[1:] for line in listed if line.startswith("l "))
    versions = {name: re.search(r"(?<=\.so\.0\.)\d+\.\d+$", name) for name in files}
    assert all(versions.values()), files
    assert {name.partition(".so")[0] for name in files} == {f"lib{name}" for name in OURS}
    assert len(files) == len(OURS)
    expected = {}
    for name in files:
        plain = name.partition(".so")[0] + ".so"
        expected |= {plain: f"{plain}.0", f"{plain}.0": name}
    assert links == expected
