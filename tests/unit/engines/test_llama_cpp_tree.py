"""What is read of a tree of llama.cpp: only what its text decides."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from builder.core.errors import RecipeError
from builder.engines.family import Draft
from builder.engines.llama_cpp import FEATURES, draft, rewrites_120
from builder.recipes.schema import Cuda
from support.environment import REPOSITORY
from support.trees import Tree

SHAPED = REPOSITORY / "tests/data/trees/llama_shaped"
ARG = "common/arg.cpp"
CUDA = "ggml/src/ggml-cuda/CMakeLists.txt"
SERVER = "tools/server/CMakeLists.txt"
# Declarations as llama.cpp's b10018 has them, shortened.
FUNCTION = """
    add_opt(common_arg(
        {"--spec-type"}, common_speculative_all_types_str(),
        "comma-separated list of types of speculative decoding to use",
        [](common_params & params, const std::string & value) { use(params, value); }
    ).set_spec().set_examples({LLAMA_EXAMPLE_SPECULATIVE, LLAMA_EXAMPLE_SERVER}));
"""
DRAFTERS = """
const std::map<std::string, common_speculative_type> common_speculative_type_from_name_map = {
    {"none",         COMMON_SPECULATIVE_TYPE_NONE},
    {"draft-mtp",    COMMON_SPECULATIVE_TYPE_DRAFT_MTP},   // {"not-this", X}
    {"old-name",     COMMON_SPECULATIVE_TYPE_DRAFT_MTP},
    {"ngram-mod",    COMMON_SPECULATIVE_TYPE_NGRAM_MOD}
};
std::string common_speculative_type_to_str(common_speculative_type type) {
    switch (type) {
        case COMMON_SPECULATIVE_TYPE_NONE:      return "none";
        case COMMON_SPECULATIVE_TYPE_DRAFT_MTP: return "draft-mtp";
        case COMMON_SPECULATIVE_TYPE_NGRAM_MOD: return "ngram-mod";
        default:                                return "unknown";
    }
}
"""


def shaped(changed: Mapping[str, str | None], name: str = "v0.2.0", commit: str = "") -> Tree:
    """The tree of llama.cpp's shape with other files; None takes one away."""
    files = {
        str(path.relative_to(SHAPED)): path.read_text()
        for path in SHAPED.rglob("*")
        if path.is_file()
    }
    return Tree(files | changed, name, commit)


def read(changed: Mapping[str, str | None] | None = None, *arch: str) -> Draft:
    found = draft(shaped(changed or {}), Cuda(arch=[*arch] or ["120"]))
    assert found is not None
    return found


def values(found: Draft, table: str) -> dict[str, object]:
    return {line.key: line.value for line in found.tables[table][0].lines}


def options(found: Draft) -> dict[object, object]:
    probes = [{line.key: line.value for line in probe.lines} for probe in found.tables["probe"]]
    return {probe["option"]: probe["has"] for probe in probes}


def source(path: str) -> str:
    return (SHAPED / path).read_text()


def test_a_tree_is_read() -> None:
    found = read()
    assert values(found, "cuda") == {"arch": ["120"], "vmm": False}
    assert values(found, "llama") == {"build_number": 7, "ui": False, "cpu_variants": True}
    assert values(found, "cmake") == {"targets": ["llama-server", "llama-cli", "llama-bench"]}
    assert options(found) == {
        "--spec-type": ["none", "draft-mtp", "ngram-simple"],
        "--cache-type-k": ["f32", "f16", "q8_0"],
    }


def test_a_ggml_without_cpu_code_by_generation_gets_none() -> None:
    """Such as the one of ik_llama.cpp: its definitions would be refused."""
    assert "cpu_variants" not in values(read({FEATURES: None}), "llama")


@pytest.mark.parametrize("path", ["CMakeLists.txt", "ggml/CMakeLists.txt", "include/llama.h"])
def test_another_tree_is_of_no_interest(path: str) -> None:
    assert draft(shaped({path: None}), Cuda(arch=["120"])) is None


def test_only_programs_that_cmake_makes_are_targets() -> None:
    bench = "tools/llama-bench/CMakeLists.txt"
    commented = (
        "# set(TARGET llama-bench)\nset(TARGET llama-bench-impl)\nadd_library(${TARGET} x)\n"
    )
    assert values(read({bench: commented}), "cmake")["targets"] == ["llama-server", "llama-cli"]

    for quoted in (
        'set(TARGET "llama-bench")',
        "SET (PROGRAM llama-bench)\nADD_EXECUTABLE(${PROGRAM} x)",
        "add_executable(\n  llama-bench x.cpp)",
    ):
        assert "llama-bench" in values(read({bench: quoted}), "cmake")["targets"], quoted


def test_a_tree_without_the_switch_for_cuda_is_refused() -> None:
    """Its image would compute on the CPU."""
    ggml = source("ggml/CMakeLists.txt")
    for old, new in (
        ("option(GGML_CUDA ", "option(FORK_CUDA "),
        ("option(GGML_CUDA ", "# option(GGML_CUDA "),
        ("option(GGML_CUDA_NO_VMM ", "option(GGML_CUDA_VMM_OFF "),
    ):
        with pytest.raises(RecipeError, match="has no option GGML_CUDA") as caught:
            read({"ggml/CMakeLists.txt": ggml.replace(old, new)})
        assert new.startswith("#") or new.split("(")[1].strip() in caught.value.why


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0a1b\nsize 1268430\n"


@pytest.mark.parametrize(
    ("files", "there"),
    [
        ({"tools/server/public/index.html.gz": ""}, True),
        ({"tools/server/public/index.html.gz": POINTER}, False),
        ({"tools/ui/dist/index.html": "<p>", "tools/ui/dist/bundle.js": "x"}, True),
        (
            {
                "tools/ui/dist/index.html": "<p>",
                "tools/ui/dist/a/bundle.js": POINTER,
                ".gitattributes": "*.js filter=lfs diff=lfs merge=lfs -text\n",
            },
            False,
        ),
    ],
)
def test_a_page_in_the_tree_is_embedded(files: dict[str, str], there: bool) -> None:
    assert values(read(files), "llama")["ui"] is there


SOURCE = {"tools/ui/package.json": "{}", "tools/ui/package-lock.json": "{}"}
TAKES = {"scripts/ui-assets.cmake": 'set(SRC_DIST_DIR "${UI_SOURCE_DIR}/dist")'}


@pytest.mark.parametrize(
    ("files", "ui"),
    [
        (SOURCE | TAKES, "tools/ui"),
        (SOURCE | TAKES | {"tools/ui/dist/index.html": "<p>"}, True),
        (SOURCE, False),  # its cmake takes no page from there
        ({"tools/ui/package.json": "{}"} | TAKES, False),  # nothing pins its packages
    ],
)
def test_a_page_whose_source_is_in_the_tree_is_built(files: dict[str, str], ui: bool | str) -> None:
    assert values(read(files), "llama")["ui"] == ui


@pytest.mark.parametrize(
    ("tag", "comment"),
    [("b7", ""), ("v0.2.0", ""), ("b10-mix-4b653db", "the commits up to b10-mix-4b653db")],
)
def test_a_number_that_differs_from_the_tag_is_explained(tag: str, comment: str) -> None:
    found = draft(shaped({}, tag), Cuda(arch=["120"]))
    assert found is not None
    number = found.tables["llama"][0].lines[0]
    assert (number.value, number.comment) == (7, comment)


@pytest.mark.parametrize(
    ("name", "parts", "probed"),
    [
        ("v0.5.0", (0, 5, 0), True),
        ("v0.5.0", (0, 4, 0), False),  # the number is of something else
        ("v0.5.0", (), False),
        ("b10018", (0, 5, 0), False),
    ],
)
def test_a_release_is_probed_for_its_number(
    name: str, parts: tuple[int, ...], probed: bool
) -> None:
    cmake = (SHAPED / "CMakeLists.txt").read_text()
    for part, number in zip(("MAJOR", "MINOR", "PATCH"), parts, strict=False):
        cmake += f"set(LLAMA_VERSION_{part} {number})\n"
    found = draft(shaped({"CMakeLists.txt": cmake}, name), Cuda(arch=["120"]))
    assert found is not None
    first, *others = (
        {line.key: line.value for line in each.lines} for each in found.tables["probe"]
    )
    assert (first.get("contains") == ["version: 0.5.0 (build"]) == probed
    assert [each.comment.startswith("Read from") for each in found.tables["probe"]].count(True) == 1
    assert "--spec-type" in found.values
    assert others


@pytest.mark.parametrize("commit", ["", "0c1e57098bba43ac29e6e3b677cdceebdd22334f"])
def test_an_sdist_has_no_number_of_commits(monkeypatch: pytest.MonkeyPatch, commit: str) -> None:
    monkeypatch.setattr(Tree, "commits", lambda _: None)
    found = draft(shaped({}, "0.3.36", commit), Cuda())
    assert found is not None
    expected = {"build_commit": commit[:9]} if commit else {}
    assert values(found, "llama") == {**expected, "ui": False, "cpu_variants": True}


def test_a_tree_that_keeps_120_gets_120a() -> None:
    plain = source(CUDA).replace("REGEX REPLACE", "# REGEX REPLACE")
    assert not rewrites_120(plain)
    found = read({CUDA: plain}, "120", "90-real", "120-virtual", "120a", "121")
    arch = ["120a", "90-real", "120a-virtual", "120a", "121a"]
    assert values(found, "cuda")["arch"] == arch


def test_the_drafters_of_newer_trees_are_those_with_a_name_and_a_text() -> None:
    changed = {ARG: FUNCTION, "common/speculative.cpp": DRAFTERS}
    assert options(read(changed)) == {"--spec-type": ["none", "draft-mtp", "ngram-mod"]}


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (ARG, "LLAMA_EXAMPLE_SERVER", "LLAMA_EXAMPLE_CLI"),
        (ARG, '"--spec-type"', '"--spec-kind"'),
        (ARG, "all_types_str()", "some_types_str()"),
        ("common/speculative.cpp", "from_name_map", "by_name"),
        ("common/speculative.cpp", '    {"old-name"', '#ifdef X\n    {"old-name"'),
        ("common/speculative.cpp", "type_to_str", "type_name"),
    ],
)
def test_drafters_that_the_text_does_not_decide_are_left_out(path: str, old: str, new: str) -> None:
    texts = {ARG: FUNCTION, "common/speculative.cpp": DRAFTERS}
    assert old in texts[path]
    assert options(read({**texts, path: texts[path].replace(old, new)})) == {}


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (ARG, "get_all_kv_cache_types() +", "some_types() +"),
        (ARG, "    GGML_TYPE_Q8_0,", "#ifdef X\n    GGML_TYPE_Q8_0,\n#endif"),
        (ARG, "kv_cache_types = {", "kv_types = {"),
        ("ggml/src/ggml.c", "[GGML_TYPE_Q8_0]", "[GGML_TYPE_Q8_1]"),
    ],
)
def test_cache_types_that_the_text_does_not_decide_are_left_out(
    path: str, old: str, new: str
) -> None:
    text = source(path)
    assert old in text
    assert options(read({path: text.replace(old, new)})).keys() == {"--spec-type"}


def test_options_are_those_of_the_server() -> None:
    assert read().options >= {"-ctk", "--cache-type-k", "--n-gpu-layers", "--host", "--spec-type"}
    elsewhere = FUNCTION.replace("LLAMA_EXAMPLE_SERVER", "LLAMA_EXAMPLE_CLI")
    assert read({ARG: elsewhere}).options == set()
    assert read({ARG: FUNCTION}).options == {"--spec-type"}


def test_a_server_in_examples_is_built_with_an_override() -> None:
    """As in ik_llama.cpp: the server is an example, and the build number is always git's."""
    changed = {
        SERVER: None,
        "tools/llama-bench/CMakeLists.txt": None,
        "examples/server/CMakeLists.txt": "set(TARGET llama-server)",
        "examples/llama-bench/CMakeLists.txt": "set(TARGET llama-bench)",
        "cmake/build-info.cmake": "set(LLAMA_BUILD_NUMBER ${BUILD_NUMBER})",
        "CMakeLists.txt": "set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)",
        "ggml/CMakeLists.txt": source("ggml/CMakeLists.txt") + 'option(GGML_NCCL "x" ON)\n',
    }
    found = read(changed)
    call, override = found.tables["cmake"]
    assert override.name == "[[cmake.override]]"
    assert {line.key: line.value for line in override.lines} == {
        "name": "LLAMA_BUILD_EXAMPLES",
        "value": True,
        "why": "llama-server is there",
    }
    assert {line.key: line.value for line in call.lines} == {
        "targets": ["llama-server", "llama-cli", "llama-bench"],
        "define": {"GGML_NCCL": False, "CMAKE_LIBRARY_OUTPUT_DIRECTORY": "/build/1/bin"},
    }
    assert values(found, "llama") == {"build_number": 7, "git": True, "cpu_variants": True}


def test_a_second_server_in_examples_changes_nothing() -> None:
    found = read({"examples/server/CMakeLists.txt": "set(TARGET llama-server)"})
    assert [table.name for table in found.tables["cmake"]] == ["[[cmake]]"]


def test_a_tree_without_a_server_is_refused() -> None:
    with pytest.raises(RecipeError, match="no recipe can be written") as caught:
        read({SERVER: None})
    assert "makes llama-server" in caught.value.why
    assert "docs/recipes.md" in str(caught.value)


@pytest.mark.parametrize(
    "cmake",
    [
        "if (NOT DEFINED LLAMA_BUILD_NUMBER)\n    set(LLAMA_BUILD_NUMBER ${BUILD_NUMBER})\nendif()",
        'set(LLAMA_BUILD_NUMBER 0 CACHE STRING "")',
        "# set(LLAMA_BUILD_NUMBER ${BUILD_NUMBER})",
        "",
    ],
)
def test_a_build_number_that_is_given_wins(cmake: str) -> None:
    assert read({"cmake/build-info.cmake": cmake})
