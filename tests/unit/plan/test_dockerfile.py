"""The rendered Dockerfiles: golden, and deaf to whatever a recipe's texts say."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

import dockerfile as buildkit
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.core.errors import RecipeError
from builder.core.platforms import Platforms
from builder.plan.inputs import BootstrappedRoot, RegistryRoot
from builder.plan.plan import LONGEST_LINE, Plan, lints
from builder.plan.resolver import plan, plan_base
from builder.recipes.catalog import parse
from builder.recipes.schema import Recipe
from support.catalogs import AMD64, load, mmdebstrap, rendered, unasked
from support.environment import REPOSITORY

GOLDEN = REPOSITORY / "tests/data/golden"
KEYS = REPOSITORY / "tests/data/keys.txt"
BASES = sorted(file.stem for file in (REPOSITORY / "recipes/bases").glob("*.toml"))
ENGINES = sorted(file.stem for file in (REPOSITORY / "recipes").glob("*.toml"))


def compare(name: str, text: str, request: pytest.FixtureRequest) -> None:
    file = GOLDEN / f"{name}.Dockerfile"
    command = "pytest tests/unit/plan/test_dockerfile.py --update-golden"
    if request.config.getoption("--update-golden"):
        file.write_text(text)
    assert file.exists(), f"tests/data/golden/{file.name} is missing: `{command}` writes it"
    assert text == file.read_text(), f"`{command}` writes it; git diff shows the change"


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_has_its_golden_dockerfile(name: str, request: pytest.FixtureRequest) -> None:
    compare(name, rendered(REPOSITORY, name).text, request)


def test_keys_are_stable(request: pytest.FixtureRequest) -> None:
    """A key that changes builds an image again on every machine."""
    keys = "".join(f"{name:33} {rendered(REPOSITORY, name).key}\n" for name in ENGINES)
    if request.config.getoption("--update-golden"):
        KEYS.write_text(keys)
    command = "pytest tests/unit/plan/test_dockerfile.py --update-golden"
    assert keys == KEYS.read_text(), f"`{command}` writes it; say in the commit why keys change"


def test_a_cross_build_has_its_golden_dockerfiles(request: pytest.FixtureRequest) -> None:
    found = rendered(REPOSITORY, "hello-sm120-0.1.0", Platforms("arm64"))
    assert found.base is not None
    compare("hello-sm120-0.1.0.arm64", found.text, request)
    compare("cuda-13.0.arm64", found.base.text, request)


def test_a_base_for_arm64_is_compiled_on_amd64() -> None:
    found = rendered(REPOSITORY, "llama-cpp-b9831", Platforms("amd64", "arm64")).base
    devel = found.debian.stages["devel"]
    assert {"libssl-dev:arm64", "g++-aarch64-linux-gnu"} <= {*devel.packages}
    assert {file.architecture for file in devel.files or ()} == {"amd64", "arm64", "all"}
    assert 'NVCC_PREPEND_FLAGS="-Xcudafe --unsigned_chars"' in found.text
    assert "/usr/local/share/cmake/aarch64-linux-gnu.cmake" in found.text
    stages = {stage: found.architectures(stage) for stage in found.references}
    assert stages == {"devel": ("amd64",), "system": ("arm64",), "runtime": ("arm64",)}
    assert found.base is not None
    assert found.base.architectures("root") == ("arm64", "amd64")
    wheels = found.packages
    assert {file.name for file in wheels["wheels"]} >= {"nvidia-cuda-nvcc", "nvidia-nvvm"}
    assert "nvidia-cublas" in {file.name for file in wheels["target-wheels"]}


def test_the_entrypoint_of_an_overlay_is_cross_compiled() -> None:
    found = rendered(REPOSITORY, "vllm-0.22.0", Platforms("arm64"))
    assert "FROM --platform=linux/arm64 base-root AS entrypoint" in found.text
    assert "CROSS=x86_64-linux-gnu-" in found.text
    assert found.tools is not None
    assert found.tools.architectures("root") == ("arm64",)
    root = found.tools.root
    assert isinstance(root, BootstrappedRoot)
    assert "gcc-x86-64-linux-gnu" in root.packages


def test_a_python_sdist_is_not_cross_compiled() -> None:
    with pytest.raises(RecipeError, match="cannot be cross-compiled") as caught:
        rendered(REPOSITORY, "llama-cpp-python-0.3.36", Platforms("arm64"))
    assert "BUILDER_COMPILE_ON=amd64" in str(caught.value)


def test_no_golden_file_is_left() -> None:
    names = {file.name.removesuffix(".Dockerfile").split(".arm64")[0] for file in GOLDEN.iterdir()}
    lost = sorted(names - {*ENGINES, *BASES, "debian-trixie.registry"})
    assert not lost, f"recipes/{lost[0]}.toml is missing: tests/data/golden has its Dockerfile"


@pytest.mark.parametrize("name", BASES)
def test_every_base_has_its_golden_dockerfile(name: str, request: pytest.FixtureRequest) -> None:
    found = load(REPOSITORY)
    compare(name, plan_base(found, name, AMD64, unasked(found, name)).text, request)


def test_a_root_from_a_registry_has_its_golden_dockerfile(request: pytest.FixtureRequest) -> None:
    found = load(REPOSITORY)
    registry = RegistryRoot("debian:trixie-slim", "sha256:" + "0" * 64)
    base = plan_base(found, "debian-trixie", AMD64, registry)
    compare("debian-trixie.registry", base.text, request)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# syntax=docker/dockerfile:1\nFROM x\n", "parser directive"),
        ("#  ESCAPE = `\nFROM x\n", "parser directive"),
        ("FROM x\nMAINTAINER me\n", "not an instruction"),
        ("FROM x\nRUN --network=none make\n", "needs the JSON form"),
        ('FROM x\nRUN ["make"]\n', "lacks --network"),
        ('FROM x\nRUN --network=default ["wget", "x"]\n', "only Debian's packages"),
        ("FROM x\nENV A=b \\\n", "continues on the next line"),
    ],
)
def test_a_dockerfile_that_breaks_our_rules_is_refused(text: str, said: str) -> None:
    assert [line for line in lints(text) if said in line]


# Hostile values

RECIPE = """
engine  = "x"
version = "1"
summary = {0}
license = "MIT"
url     = {0}
notes   = [{0}]
family  = "{family}"
base    = "cuda-13.0"
cuda    = {{ arch = ["120"] }}
{part}

[image]
repository = "x"
tags       = ["1"]
entrypoint = ["/x", {0}]
command    = [{0}]
port       = 80
health     = "health"
env        = {{ A = {0}, B = "b" }}

[[probe]]
run  = ["x", {0}]
contains = [{0}]
"""
CMAKE = """
[source]
path = "tree"

[[cmake]]
define = {{ A = {0}, B = "b" }}
"""
PYTHON = """
[source]
pypi    = "x"
version = "1"
sha256  = "{zeros}"

[python]
lock   = "lock.toml"
config = {{ A = {0} }}
define = {{ B = {0} }}
"""
OVERLAY = """
[source]
path = "tree"

[overlay]
package = "vllm"
version = "1*"
"""
HOSTILE = [
    *(
        '"',
        "'",
        "\\",
        "$",
        "`",
        "$(touch /x)",
        "${HOME}",
        ";",
        "&&",
        "|",
        "<<EOF",
        "#",
        "# syntax=x",
    ),
    *("\\\\", 'a"b', "trailing\\", "-x", "--network=host", "]", '"]', "['x']", "FROM scratch", "@"),
    *("a\nRUN touch /x", "\r", "\x00", "\u2028", "é", "日本", "\U0001f600", "{{ 1 }}", "{% raw %}"),
    *("%s", "*", "~", "a  b", " x", "x ", "\t", "escape=`", "$$", "\\$", '\\"', "\\n"),
]


def both(value: str) -> dict[str, Plan] | None:
    """The families' Dockerfiles with ``value`` in every field of free text; None: refused."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "recipes").mkdir()
        (root / "recipes" / "bases").mkdir()
        for base in ("cuda-13.0.toml", "debian-trixie.toml", "locks"):
            (root / "recipes" / "bases" / base).symlink_to(REPOSITORY / "recipes" / "bases" / base)
        (root / "tree").mkdir()
        entry = {"name": "x", "version": "1", "sha256": "0" * 64}
        lock = "".join(f"{key} = {json.dumps(text)}\n" for key, text in entry.items())
        (root / "recipes" / "lock.toml").write_text(
            f'python = "3"\nruntime = []\n[[build]]\n{lock}'
        )
        for family, part in (
            ("cmake", CMAKE),
            ("python-sdist", PYTHON),
            ("vllm-overlay", OVERLAY),
        ):
            quoted = (
                json.dumps(value, ensure_ascii=False) if value.isprintable() else json.dumps(value)
            )
            filled = part.format(quoted, zeros="0" * 64)
            text = RECIPE.format(quoted, family=family, part=filled)
            recipe, problems = parse(text, root / "recipes" / "x-1.toml", Recipe)
            if recipe is None:
                assert problems
                return None
            (root / "recipes" / "x-1.toml").write_text(text)
            catalog = load(root)
            entry_ = catalog.engine("x-1")
            found[family] = plan(catalog, entry_, AMD64, mmdebstrap(catalog))
            found[family].require_acceptable()
    return found


def decoded(text: str) -> list[tuple[str, bool, tuple[str, ...], tuple[str, ...]]]:
    """The instructions as BuildKit's own parser reads them."""
    return [
        (command.cmd.lower(), command.json, tuple(command.flags), tuple(command.value))
        for command in buildkit.parse_string(text)
    ]


def unquoted(word: str) -> str:
    """What BuildKit makes of one of our double-quoted ENV words."""
    assert word[0] == word[-1] == '"'
    out, rest = "", word[1:-1]
    while rest:
        if rest[0] == "\\" and rest[1] in '\\"$':
            out, rest = out + rest[1], rest[2:]
        else:
            assert rest[0] not in '"$', "would be expanded, or ends the word"
            out, rest = out + rest[0], rest[1:]
    return out


PLAIN = "harmless"


@cache
def plain() -> dict[str, Plan]:
    found = both(PLAIN)
    assert found is not None
    return found


def check(value: str) -> None:
    rendered_ones = both(value)
    if rendered_ones is None:
        return
    for family, hostile in rendered_ones.items():
        expected, found = decoded(plain()[family].text), decoded(hostile.text)
        assert len(found) == len(expected)
        for (cmd, is_json, flags, words), (cmd2, is_json2, flags2, words2) in zip(
            expected, found, strict=True
        ):
            assert (cmd, is_json, flags) == (cmd2, is_json2, flags2)
            if cmd == "env":
                words2 = tuple(unquoted(w) if w.startswith('"') else w for w in words2)
                words = tuple(unquoted(w) if w.startswith('"') else w for w in words)
            assert words2 == tuple(word.replace(PLAIN, value) for word in words)
        labels = hostile.inputs()["labels"]
        assert labels["org.opencontainers.image.description"] == value


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_is_data_or_refused(value: str) -> None:
    check(value)


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.text(min_size=1, max_size=30),
        st.lists(st.sampled_from(HOSTILE), min_size=1, max_size=5).map("".join),
    )
)
def test_any_value_is_data_or_refused(value: str) -> None:
    check(value)


def test_control_characters_are_what_is_refused() -> None:
    assert both("a\nb") is None
    assert both("\x1b[31m") is None
    assert both('quote " and $(x)') is not None


@pytest.mark.parametrize(
    "value",
    ["x" * 4000, '"' * 4000, "\U0001f600" * 2000, "\\" * 4000],
    ids=["letters", "quotes", "emoji", "backslashes"],
)
def test_a_very_long_value_is_data(value: str) -> None:
    assert both(value) is not None
    check(value)


def test_a_longer_value_is_refused() -> None:
    assert both("x" * 4001) is None


def test_a_line_that_buildkit_does_not_read_is_refused() -> None:
    fits = "FROM x\nENV A=" + "x" * (LONGEST_LINE - 6) + "\n"
    buildkit.parse_string(fits)
    assert list(lints(fits)) == []
    longer = fits.replace("A=", "AA=")
    with pytest.raises(buildkit.GoParseError):
        buildkit.parse_string(longer)
    assert [line for line in lints(longer) if "line 2: longer than" in line]


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.Dockerfile")), ids=lambda file: file.name)
def test_nothing_is_fetched_but_debian_packages_and_no_shell_reads_a_recipe(file: Path) -> None:
    text = file.read_text()
    assert "syntax=" not in text
    for command in buildkit.parse_string(text):
        if command.cmd.lower() == "run":
            assert command.json
            (network,) = [flag for flag in command.flags if flag.startswith("--network=")]
            assert network == "--network=none" or any("apt-get" in word for word in command.value)
