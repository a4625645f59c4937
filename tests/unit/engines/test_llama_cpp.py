"""The llama.cpp family: what it knows once, and what a recipe may not override."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from builder.core.errors import RecipeError
from builder.core.platforms import Platforms
from builder.engines.families import ENGINES, complete
from builder.engines.llama_cpp import NO_VMM
from builder.plan.explain import explained
from builder.plan.plan import instructions, link_lints
from builder.recipes.patches import PullPatch
from builder.recipes.probes import LibraryProbe, OptionProbe, RunProbe
from builder.recipes.schema import GitSource, Recipe
from builder.sources.mirrors import Repositories
from builder.upstream.track import upstream_target
from support.catalogs import load, rendered
from support.environment import REPOSITORY
from support.upstreams import Upstream

COLLECT = REPOSITORY / "dockerfiles" / "scripts" / "collect.py"
RECIPE = """
engine  = "x"
version = "1"
summary = "x"
license = "MIT"
family  = "{family}"
base    = "cuda-13.0"
source  = {{ git = "https://git.example.invalid/x", commit = "{commit}" }}
cuda    = {{ arch = ["120"], vmm = {vmm} }}
{llama}
{cmake}

[image]
repository = "x"
tags       = ["1"]
{image}

[[probe]]
option = "--x"
"""
LLAMA = "llama = { build_number = 7 }"
VARIANTS = "llama = { build_number = 7, cpu_variants = true }"
SDIST = f'{{ pypi = "x", version = "1", sha256 = "{"0" * 64}", root = "vendor/x" }}'
CMAKE = '[[cmake]]\ntargets = ["llama-server"]\n'


def write(catalog: Path, **other: str) -> None:
    values = {
        "family": "llama-cpp",
        "commit": "0123456789" * 4,
        "vmm": "false",
        "llama": LLAMA,
        "cmake": CMAKE,
        "image": "",
    }
    text = RECIPE.format(**(values | other))
    (catalog / "recipes" / "x-1.toml").write_text(text)


def calls(text: str) -> list[list[str]]:
    """The commands of a Dockerfile's RUN lines."""
    return [
        json.loads("[" + rest.partition("[")[2])
        for keyword, rest in instructions(text)
        if keyword == "RUN"
    ]


# The rules


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"llama": ""}, "needs a [llama] table"),
        ({"cmake": '[[cmake]]\ntargets = ["llama-cli"]'}, "must be in the targets"),
        ({"cmake": f'{CMAKE}[[cmake]]\nsource = "y"'}, "name the targets"),
        (
            {"cmake": f"{CMAKE}define = {{ GGML_NATIVE = true }}"},
            "is set by the family for every tree: use override",
        ),
        (
            {"cmake": f"{CMAKE}override = [{{ name = 'GGML_NATIVE', value = false, why = 'x' }}]"},
            "the family sets this value",
        ),
        (
            {"cmake": f"{CMAKE}override = [{{ name = 'GGML_NCCL', value = false, why = 'x' }}]"},
            "use define",
        ),
        (
            {"cmake": f"{CMAKE}override = [{{ name = 'GGML_NATIVE', value = true }}]"},
            "cmake.0.override.0.why: ",
        ),
        ({"cmake": f"{CMAKE}define = {{ LLAMA_BUILD_NUMBER = 1 }}"}, "use build_number in [llama]"),
        ({"cmake": f"{CMAKE}define = {{ GGML_CUDA_NO_VMM = false }}"}, "use vmm in [cuda]"),
        ({"cmake": f"{CMAKE}define = {{ GGML_CPU_ALL_VARIANTS = true }}"}, "use cpu_variants in"),
        (
            {"llama": VARIANTS, "cmake": f"{CMAKE}define = {{ GGML_AVX512 = true }}"},
            "GGML_AVX512: has no effect: [llama] cpu_variants is true",
        ),
        (
            {"llama": VARIANTS, "cmake": f"{CMAKE}define = {{ GGML_CPU_ARM_ARCH = 'armv9-a' }}"},
            "GGML_CPU_ARM_ARCH: has no effect",
        ),
        ({"family": "cmake", "image": 'entrypoint = ["/x"]'}, "has no use for [llama]"),
        ({"family": "cmake", "llama": ""}, "needs an entrypoint"),
        ({"llama": "llama = { build_number = 0 }"}, "at least 1"),
    ],
)
def test_what_the_family_refuses(catalog: Path, other: dict[str, str], message: str) -> None:
    write(catalog, **other)
    with pytest.raises(RecipeError) as caught:
        load(catalog).engine("x-1")
    assert message in caught.value.why
    assert re.search(r"x-1\.toml:\d+: ", caught.value.why)


OVERRIDE = "override = [{{ name = '{}', value = {}, why = 'x' }}]"
DEFINE = "define = {{ {} = {} }}"


@pytest.mark.parametrize(
    ("form", "name", "value", "reason"),
    [
        (OVERRIDE, "GGML_CUDA_NCCL", "true", "does not need libnccl.so.2"),
        (OVERRIDE, "GGML_CUDA_NCCL", "'YES'", "does not need libnccl.so.2"),
        (OVERRIDE, "GGML_CUDA_NCCL", "2", "does not need libnccl.so.2"),
        (OVERRIDE, "GGML_CUDA_NCCL", "'no'", "the family sets this value"),
        (OVERRIDE, "GGML_CUDA", "false", "computes on the GPU"),
        (OVERRIDE, "GGML_CUDA", "'OFF'", "computes on the GPU"),
        (OVERRIDE, "GGML_CUDA", "0", "computes on the GPU"),
        (OVERRIDE, "GGML_CUDA", "'NOTFOUND'", "computes on the GPU"),
        (OVERRIDE, "GGML_CUDA", "''", "computes on the GPU"),
        (OVERRIDE, "GGML_NATIVE", "true", "for the machine that builds"),
        (OVERRIDE, "BUILD_SHARED_LIBS", "false", "reads libggml-cuda.so"),
        (OVERRIDE, "CMAKE_INSTALL_RPATH", "'/usr/lib'", "beside them"),
        (OVERRIDE, "CMAKE_BUILD_WITH_INSTALL_RPATH", "'OFF'", "beside them"),
        (OVERRIDE, "LLAMA_BUILD_SERVER", "'OFF'", "the image starts llama-server"),
        (OVERRIDE, "LLAMA_BUILD_TOOLS", "false", "the image starts llama-server"),
        (DEFINE, "LLAMA_BUILD_COMMON", "false", "the image starts llama-server"),
        (DEFINE, "GGML_NCCL", "true", "does not need libnccl.so.2"),
        (DEFINE, "GGML_STATIC", "1", "reads libggml-cuda.so"),
        (DEFINE, "LLAMA_USE_SYSTEM_GGML", "true", "reads libggml-cuda.so"),
        (DEFINE, "LLAMA_NATIVE", "'ON'", "for the machine that builds"),
        (DEFINE, "CMAKE_BUILD_TYPE", "'Debug'", "CMAKE_BUILD_TYPE must be Release"),
        (DEFINE, "CMAKE_SKIP_RPATH", "true", "beside them"),
        (DEFINE, "CMAKE_CUDA_ARCHITECTURES", "'90'", "use arch in [cuda]"),
        (DEFINE, "CMAKE_CUDA_FLAGS", "'-O3 -gencode arch=compute_90,code=sm_90'", "the GPU code"),
        (DEFINE, "CMAKE_CUDA_FLAGS", "'--gpu-architecture=sm_90'", "the GPU code"),
        (DEFINE, "CMAKE_CXX_FLAGS_RELEASE", "'-O3 -march=native'", "the machine that builds"),
        (DEFINE, "CMAKE_CUDA_FLAGS", "'-Xcompiler=-march=native'", "the machine that builds"),
        (OVERRIDE, "LLAMA_BUILD_EXAMPLES", "'ON'", ""),
        (OVERRIDE, "LLAMA_OPENSSL", "false", ""),
        (DEFINE, "GGML_NCCL", "false", ""),
        (DEFINE, "GGML_CUDA_FA_ALL_QUANTS", "true", ""),
        (DEFINE, "GGML_AVX512", "'OFF'", ""),
        (DEFINE, "CMAKE_CUDA_FLAGS", "'-lineinfo -Xptxas=-v --threads=2'", ""),
    ],
)
def test_a_definition_against_the_familys_probes_is_refused(
    catalog: Path, form: str, name: str, value: str, reason: str
) -> None:
    write(catalog, cmake=CMAKE + form.format(name, value))
    if not reason:
        load(catalog).engine("x-1")
        return
    with pytest.raises(RecipeError) as caught:
        load(catalog).engine("x-1")
    assert reason in caught.value.why
    assert re.search(rf"x-1\.toml:\d+: cmake\.0\..*({name}|value)", caught.value.why)


@pytest.mark.parametrize(
    ("vmm", "probe", "words"),
    [
        ("false", 'needs = ["libcuda.so.1"]', "contradicts the family's probe"),
        ("true", 'needs_not = ["libcuda.so.1"]', "contradicts the family's probe"),
        ("false", 'needs = ["libnccl.so.2"]', "contradicts the family's probe"),
        ("false", 'needs = ["libcublas.so.13"]', ""),
        ("false", 'needs_not = ["libcuda.so.1"]', ""),
    ],
)
def test_a_probe_against_the_familys_is_refused(
    catalog: Path, vmm: str, probe: str, words: str
) -> None:
    more = f'\n[[probe]]\nlibrary = "libggml-cuda.so"\n{probe}\n[x]'
    write(catalog, vmm=vmm)
    file = catalog / "recipes" / "x-1.toml"
    file.write_text(file.read_text() + more.removesuffix("[x]"))
    if not words:
        load(catalog).engine("x-1")
        return
    with pytest.raises(RecipeError, match=words):
        load(catalog).engine("x-1")


@pytest.mark.parametrize(
    ("recipe", "old", "new", "words"),
    [
        ("hello-sm120-0.1.0", "NO_VMM = true", "NO_VMM = false", "contradicts vmm = false"),
        ("hello-sm120-0.1.0", "NO_VMM = true", "NO_VMM = 'off'", "contradicts vmm = false"),
        ("llama-cpp-python-0.3.36", "NO_VMM = true", "NO_VMM = 0", "contradicts vmm = false"),
        ("llama-cpp-python-0.3.36", "NATIVE = false", "NATIVE = true", "GGML_NATIVE must be OFF"),
        (
            "llama-cpp-python-0.3.36",
            'config = { "wheel',
            'config = { "cmake.args" = "-DGGML_CUDA_NO_VMM:BOOL=OFF", "wheel',
            "contradicts vmm = false",
        ),
        (
            "llama-cpp-python-0.3.36",
            'config = { "wheel',
            'config = { "cmake.define.GGML_NATIVE" = "1", "wheel',
            "GGML_NATIVE must be OFF",
        ),
    ],
)
def test_definitions_of_other_families_follow_from_the_recipe_too(
    catalog: Path, recipe: str, old: str, new: str, words: str
) -> None:
    shutil.copytree(REPOSITORY / "recipes/locks", catalog / "recipes/locks", dirs_exist_ok=True)
    text = (REPOSITORY / "recipes" / f"{recipe}.toml").read_text()
    assert old in text
    (catalog / "recipes" / f"{recipe}.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(RecipeError, match=words):
        load(catalog).engine(recipe)


@pytest.mark.parametrize(
    ("arch", "refused"),
    [
        ("120f", True),
        ("120f-virtual", True),
        ("121f-real", True),
        ("100f", True),
        ("120a-real", False),
        ("120-virtual", False),
    ],
)
def test_an_architecture_that_the_locked_cmake_refuses(
    catalog: Path, arch: str, refused: bool
) -> None:
    """cmake 3.31.6: "is not one of the following", after the sources were fetched."""
    write(catalog)
    file = catalog / "recipes" / "x-1.toml"
    file.write_text(file.read_text().replace('arch = ["120"]', f'arch = ["{arch}"]'))
    if not refused:
        rendered(catalog, "x-1")
        return
    with pytest.raises(RecipeError) as caught:
        rendered(catalog, "x-1")
    assert re.search(r"x-1\.toml:\d+: cuda\.arch: cmake 3\.31\.6 ", caught.value.why)
    assert f"refuses {arch}" in caught.value.why


def test_what_the_family_knows_is_in_every_image(catalog: Path) -> None:
    write(catalog, image='port = 9000\nenv = { A = "b" }')
    found = rendered(catalog, "x-1")
    text = found.text
    (configure,) = [call for call in calls(text) if call[0] == "cmake" and "-S" in call]
    assert {
        "-DGGML_CUDA=ON",
        "-DGGML_CUDA_NO_VMM=ON",
        "-DGGML_NATIVE=OFF",
        "-DGGML_CUDA_NCCL=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_NUMBER=7",
        "-DLLAMA_BUILD_COMMIT=012345678",
        "-DLLAMA_BUILD_UI=OFF",
        "-DLLAMA_USE_PREBUILT_UI=OFF",
        "-DCMAKE_INSTALL_RPATH=$ORIGIN",
    } <= set(configure)
    assert not [rest for keyword, rest in instructions(text) if "--network=default" in rest]
    assert 'LLAMA_ARG_HOST="0.0.0.0" LLAMA_ARG_PORT="9000" A="b"' in text
    assert "EXPOSE 9000" in text
    assert '["/usr/local/bin/healthcheck", "9000", "health"]' in text
    assert 'ENTRYPOINT ["/opt/builder/entrypoint", "/opt/engine/bin/llama-server", "--"]' in text
    assert "USER 10001:10001" in text


@pytest.mark.parametrize(
    ("version", "ref", "release"),
    [
        ("0.5.0", "v0.5.0", True),
        ("0.5.0", None, True),
        ("1", "v0.5.0", True),
        ("b10018", "b10018", False),
        ("de3ff81", "master", False),
        ("0.6.0-rc1", "v0.6.0-rc1", False),
    ],
)
def test_a_release_is_built_as_one(
    catalog: Path, version: str, ref: str | None, release: bool
) -> None:
    """A build of v0.5.0 without LLAMA_BUILD_IS_DEV=OFF calls itself 0.5.0-dev."""
    write(catalog)
    file = catalog / "recipes" / "x-1.toml"
    text = file.read_text().replace('version = "1"', f'version = "{version}"')
    if ref:
        text = text.replace("commit = ", f'ref = "{ref}", commit = ')
    file.unlink()
    (catalog / "recipes" / f"x-{version}.toml").write_text(text)
    plan = rendered(catalog, f"x-{version}")
    assert ("-DLLAMA_BUILD_IS_DEV=OFF" in plan.text) == release
    probes = [each for each in complete(plan.recipe).probe if isinstance(each, RunProbe)]
    (pattern,) = probes[0].matches
    after = "(build 7, commit 012345678) built with GNU 12"
    assert bool(re.search(pattern, f"version: 0.5.0-dev {after}")) != release
    assert re.search(pattern, f"version: 0.5.0 {after}")
    assert re.search(pattern, "version: 7 (012345678)")


def test_a_release_of_pypi_has_no_history(catalog: Path) -> None:
    """--version of the trees says 0 and "unknown" where there is no git."""
    write(catalog)
    file = catalog / "recipes" / "x-1.toml"
    text = re.sub(r"(?m)^source .*$", f"source = {SDIST}", file.read_text())
    for llama, version in (
        ("{ ui = false }", "0.5.0-dev (build 0, commit unknown)"),
        ('{ build_commit = "0c1e57098" }', "0.5.0-dev (build 0, commit 0c1e57098)"),
        ('{ build_number = 7, build_commit = "0c1e57098" }', "7 (0c1e57098)"),
    ):
        file.write_text(text.replace(LLAMA, f"llama = {llama}"))
        plan = rendered(catalog, "x-1")
        number, commit = re.findall(r"-DLLAMA_BUILD_(?:NUMBER|COMMIT)=(\w+)", plan.text)
        assert number in version
        assert commit in version
        (pattern,) = next(
            each.matches for each in complete(plan.recipe).probe if isinstance(each, RunProbe)
        )
        assert re.search(pattern, f"version: {version}")
    write(catalog, llama="llama = { ui = false }")
    with pytest.raises(RecipeError, match="build_number is required"):
        load(catalog).engine("x-1")


def test_a_recipe_overrides_a_definition_of_the_family_and_says_why(catalog: Path) -> None:
    override = "name = 'LLAMA_BUILD_EXAMPLES', value = true, why = 'the server is there'"
    write(catalog, cmake=f"{CMAKE}override = [{{ {override} }}]")
    found = rendered(catalog, "x-1")
    (configure,) = [call for call in calls(found.text) if "-S" in call]
    assert configure[:5] == ["/inside/used", "1", "LLAMA_BUILD_EXAMPLES", "--", "cmake"]
    given = [word for word in configure[5:] if "BUILD_EXAMPLES" in word]
    assert given == ["-DLLAMA_BUILD_EXAMPLES=ON"]
    libraries = [each for each in found.recipe.probe if isinstance(each, LibraryProbe)]
    assert [each.alternatives for each in libraries] == [["libggml.so"]]
    (call,) = explained(load(catalog), "x-1")["definitions"]
    origins = {each["value"]: each["from"] for each in call if "EXAMPLES" in each["name"]}
    assert origins["OFF"] == "family llama-cpp"
    assert "the server is there" in origins["ON"]


def test_a_later_definition_of_the_recipe_wins_where_it_may(catalog: Path) -> None:
    write(catalog, cmake=f"{CMAKE}define = {{ GGML_CUDA_FA_ALL_QUANTS = true }}")
    assert "-DGGML_CUDA_FA_ALL_QUANTS=ON" in rendered(catalog, "x-1").text


@pytest.mark.parametrize(
    ("platforms", "flag"),
    [
        (Platforms("amd64"), "GGML_AVX2=ON"),
        (Platforms("amd64", "arm64"), "GGML_CPU_ARM_ARCH=armv8.2-a+"),
    ],
)
def test_the_cpu_code_is_for_the_machines_of_the_platform(platforms: Platforms, flag: str) -> None:
    """Without these definitions ggml computes with SSE2, and with armv8-a."""
    text = rendered(REPOSITORY, "llama-cpp-b9831", platforms).text
    assert f'"-D{flag}' in text
    assert ("AVX" in text) is (platforms.target == "amd64")


@pytest.mark.parametrize("platforms", [Platforms("amd64"), Platforms("amd64", "arm64")])
def test_the_cpu_code_of_each_generation(catalog: Path, platforms: Platforms) -> None:
    """A tree that does not use the definitions would compute with SSE2, and on the CPU alone where
    libggml-cuda.so cannot be loaded."""
    write(catalog, llama=VARIANTS)
    file = catalog / "recipes" / "x-1.toml"
    file.write_text(f'platform = ["linux/{platforms.target}"]\n{file.read_text()}')
    found = rendered(catalog, "x-1", platforms)
    (configure,) = [call for call in calls(found.text) if "-S" in call]
    names = ["GGML_BACKEND_DL", "GGML_CPU_ALL_VARIANTS"]
    assert configure[: len(names) + 3] == ["/inside/used", "1", *names, "--"]
    assert {f"-D{name}=ON" for name in names} < set(configure)
    assert "-DCMAKE_PROJECT_TOP_LEVEL_INCLUDES=/inside/needs_cuda.cmake" in configure
    assert "needs_cuda.cmake" in found.scripts
    assert not re.search(r"GGML_(SSE|AVX|FMA|F16C|BMI|CPU_ARM)", found.text)
    assert '"cpu ' not in found.text, "the entrypoint would refuse CPUs that have a variant"
    libraries = [each for each in found.recipe.probe if isinstance(each, LibraryProbe)]
    assert [each.needs for each in libraries if each.library == "libggml.so"] == [
        ["libggml-cuda.so"]
    ]


def test_a_source_without_variants_is_refused(catalog: Path) -> None:
    write(catalog, llama=VARIANTS)
    recipe = rendered(catalog, "x-1").recipe
    family = ENGINES[recipe.family]
    assert not list(family.absent(recipe, ["ggml/src/ggml-cpu/arch/x86/cpu-feats.cpp"]))
    ((key, message),) = family.absent(recipe, ["ggml/src/ggml-cpu/ggml-cpu.c"])
    assert key == ("llama", "cpu_variants")
    assert "has no GGML_CPU_ALL_VARIANTS" in message


def test_a_pages_directory_is_found_however_it_is_written(catalog: Path) -> None:
    write(catalog, llama='llama = { build_number = 7, ui = "./tools/ui/" }')
    recipe = rendered(catalog, "x-1").recipe
    paths = ["tools/ui/package.json", "tools/ui/package-lock.json"]
    assert not list(ENGINES[recipe.family].absent(recipe, paths))
    ((key, message),) = ENGINES[recipe.family].absent(recipe, paths[:1])
    assert (key, message) == (("llama", "ui"), "the source has no tools/ui/package-lock.json")


def test_a_page_that_no_cmake_takes_is_refused(catalog: Path) -> None:
    write(catalog, llama='llama = { build_number = 7, ui = "other/page" }')
    (problem,) = load(catalog).problems()
    assert "llama.ui: cmake takes a page that was built in tools/ui" in str(problem)


# The stub link: in every cmake call, or no Dockerfile


@pytest.mark.parametrize("family", ["llama-cpp", "cmake"])
@pytest.mark.parametrize("platforms", [Platforms("amd64"), Platforms("arm64")])
def test_every_cmake_call_links_the_stub_where_vmm_is_on(
    catalog: Path, family: str, platforms: Platforms
) -> None:
    other = {"llama": "", "image": 'entrypoint = ["/x"]'} if family == "cmake" else {}
    how = 'install = "targets"\n' if family == "cmake" else ""
    two = f'{CMAKE}{how}[[cmake]]\nsource = "y"\ntargets = ["z"]\n{how}'
    write(catalog, family=family, vmm="true", cmake=two, **other)
    text = rendered(catalog, "x-1", platforms).text
    configures = [call for call in calls(text) if call[0] == "cmake" and "-S" in call]
    assert len(configures) == 2
    for call in configures:
        for flags in ("CMAKE_EXE_LINKER_FLAGS", "CMAKE_SHARED_LINKER_FLAGS"):
            (given,) = [word for word in call if word.startswith(f"-D{flags}=")]
            assert "/usr/local/cuda/lib64/stubs" in given


def test_a_dockerfile_in_which_one_call_lacks_the_stub_is_refused(catalog: Path) -> None:
    flags = 'define = { CMAKE_SHARED_LINKER_FLAGS = "-Wl,-O1" }'
    second = f'[[cmake]]\nsource = "y"\ntargets = ["z"]\n{flags}'
    write(catalog, vmm="true", cmake=CMAKE + second)
    with pytest.raises(RecipeError, match="is not acceptable") as caught:
        rendered(catalog, "x-1")
    assert "CMAKE_SHARED_LINKER_FLAGS of a cmake call has no -rpath-link to" in caught.value.why
    assert "stubs" in caught.value.why


def test_every_way_to_lose_the_stub_is_seen(catalog: Path) -> None:
    write(catalog, vmm="true")
    found = rendered(catalog, "x-1")
    recipe = found.recipe
    assert not list(link_lints(found.text, recipe, NO_VMM))
    stub = ":/usr/local/cuda/lib64/stubs"
    for broken in (
        found.text.replace(stub, ""),
        found.text.replace(stub, "", 1),
        found.text.replace(stub, ":/elsewhere"),
        found.text.replace("-Wl,-rpath-link,", "-L"),
        re.sub(r'"-DCMAKE_EXE_LINKER_FLAGS=[^"]*", ', "", found.text),
    ):
        assert broken != found.text
        assert list(link_lints(broken, recipe, NO_VMM))


# The catalog


PINS = {
    "beellama-0.1.1": ("547676e80c736e0c385ba0bdfd6d7ccebe61bb27", 9329),
    "beellama-0.1.2": ("633cd34fb6df72ad88a74e9320dad03ddd788fb1", 9341),
    "buun-b9304": ("aecbbd5daa47abd4229fb2c0906e8f102d814022", 9304),
    "atomic-b8995": ("2e81dc5f634501c744b69a65a8eeb84ba42e82ee", 8995),
    "turboquant-69d8e4b": ("69d8e4be47243e83b3d0d71e932bc7aa61c644dc", 9079),
    "llama-cpp-b9261": ("ad277572619fcfb6ddd38f4c6437283a4b2b8636", 9261),
    "llama-cpp-b9397": ("2f6c815dc450106ef877ae32f4472bfd5cf83e47", 9397),
    "llama-cpp-b9831": ("d1b34251bc57b696a5c91968069f8a0e6be13ef4", 9831),
    "llama-cpp-b8863": ("97895129e5f2bde94d13dc01ca41ee79e9b629f2", 8863),
    "llama-cpp-b8889": ("bcb5eeb64529806b8d1cb80eccbc22c7d0897cb2", 8889),
    "llama-cpp-mtp-267f8af": ("267f8afe857b7bd1a49e4fde9138ab0f7be36625", 9030),
    "llama-cpp-mtp-b9074": ("8bf7491b8eed58f01efd6699bb36ef2f4b2f322c", 9074),
}


def recipe_of(name: str) -> Recipe:
    recipe = load(REPOSITORY).engine(name).recipe
    assert recipe is not None
    return recipe


@pytest.mark.parametrize("name", PINS)
def test_a_recipe_pins_what_is_known_of_it(name: str) -> None:
    recipe = recipe_of(name)
    assert isinstance(recipe.source, GitSource)
    assert recipe.llama is not None
    assert (recipe.source.commit, recipe.llama.build_number) == PINS[name]
    assert not recipe.cuda.vmm
    assert recipe.notes


def test_what_an_engine_must_not_have_is_checked_too() -> None:
    bee = recipe_of("beellama-0.1.1")
    (types,) = [p for p in bee.probe if isinstance(p, OptionProbe) and p.option == "--spec-type"]
    assert types.missing == ["mtp"]


def test_atomic_has_its_patches_and_indras_no_submodules() -> None:
    patch, flushed, *_ = recipe_of("atomic-b8995").patch
    assert flushed.upstream == "ggml-org/llama.cpp#22155"
    assert isinstance(patch, PullPatch)
    assert patch.pull == 6
    assert patch.head == "2374b99c16937cf00d327c93b1d2d12d708d4f30"
    source = recipe_of("llama-cpp-mtp-b9074").source
    assert isinstance(source, GitSource)
    assert not source.submodules


def test_atomics_tags_are_followed_as_it_names_them_now(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "atomic")
    old = "feature-turboquant-kv-cache-b8995-2e81dc5"
    for tag in (old, "b10018-1.0.0", "b9090", "b10018-1.1.0", "b10018-1.0.10", "beta-2"):
        upstream.git("tag", tag, upstream.record(tag))
    (tmp_path / "work").mkdir()
    repositories = Repositories(tmp_path / "cache", tmp_path / "work", print)
    track = recipe_of("atomic-b10018-1.2.0").track
    assert upstream_target(upstream.url, track, repositories).name == "b10018-1.1.0"


# What runs inside the stage


def collect(built: Path, target: Path, *names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(COLLECT), "--strip", "true", str(built), str(target), *names]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_programs_and_libraries_are_collected_with_their_links(tmp_path: Path) -> None:
    built, target = tmp_path / "bin", tmp_path / "out"
    built.mkdir()
    (built / "server").write_text("x")
    (built / "server").chmod(0o755)
    (built / "other").write_text("x")
    (built / "libx.so.0.1").write_text("x")
    (built / "libx.so.0").symlink_to("libx.so.0.1")
    (built / "libx.so").symlink_to("libx.so.0")
    done = collect(built, target, "server")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in target.iterdir()) == [
        *("libx.so", "libx.so.0", "libx.so.0.1"),
        "server",
    ]
    assert (target / "libx.so").readlink() == Path("libx.so.0")
    again = collect(built, target, "server")
    assert "is there already: two cmake calls build it" in again.stderr
    missing = collect(built, tmp_path / "new", "bench")
    assert missing.returncode == 1
    assert "not built: bench" in missing.stderr
    (built / "libx.so").unlink()
    (built / "libx.so").symlink_to("/etc/libx.so")
    assert "outside its directory" in collect(built, tmp_path / "third", "server").stderr
