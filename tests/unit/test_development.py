"""docs/development.md is followed: what it says adds a thing, and a place left out is named.

The places come from the page.  Each is filled in a copy of the repository, whose own tests and
commands are run then.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.checks.check import CHECKS_VERSION
from support.environment import REPOSITORY

PAGE = (REPOSITORY / "docs/development.md").read_text()
SECTIONS = dict(re.findall(r"^## Add (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
PLACEHOLDERS = {"NAME": "tiny", "ENGINE": "tiny", "VERSION": "1.0"}
COPIED = ("builder", "cards", "docs", "dockerfiles", "recipes", "shapes", "simulator", "tests")
LINKED = ("engines", "patches", "presets")
Edit = Callable[[Path, str], None]
"""Fills a place (its path) in a copy of the repository."""


def places(section: str) -> list[str]:
    """The first column of a section's table."""
    return re.findall(r"^\| `([^`]+)` \|", SECTIONS[section], re.MULTILINE)


def commands(section: str) -> list[list[str]]:
    """The arguments of pytest in a section's commands."""
    found = re.findall(r"^\$ \S+ -m pytest (.+)$", SECTIONS[section], re.MULTILINE)
    return [shlex.split(each) for each in found]


def filled(place: str) -> str:
    return re.sub("|".join(PLACEHOLDERS), lambda word: PLACEHOLDERS[word[0]], place)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_place_of_the_page_is_there(section: str) -> None:
    for place in places(section):
        pattern = re.sub("|".join(PLACEHOLDERS), "*", place)
        assert any(REPOSITORY.glob(pattern)), f"docs/development.md: there is no {place}"
    for arguments in commands(section):
        for file in arguments:
            assert file.startswith("-") or (REPOSITORY / file).is_file(), file


# The examples


def text(content: str) -> Edit:
    """A new file."""

    def write(root: Path, place: str) -> None:
        (root / place).write_text(content)

    return write


def of(model: str, **values: str) -> Edit:
    """A copy of another file with other values of some keys."""

    def write(root: Path, place: str) -> None:
        content = (root / model).read_text()
        for key, value in values.items():
            content, count = re.subn(
                rf"(?m)^{key}( *)= .*$", rf"{key}\1= {value}", content, count=1
            )
            assert count, key
        (root / place).write_text(content)

    return write


def inserted(*pairs: tuple[str, str]) -> Edit:
    """A line behind each line that begins so."""

    def write(root: Path, place: str) -> None:
        lines = (root / place).read_text().splitlines(keepends=True)
        for start, new in pairs:
            at = [number for number, line in enumerate(lines) if line.startswith(start)]
            assert at, start
            for number in reversed(at):
                lines.insert(number + 1, f"{new}\n")
        (root / place).write_text("".join(lines))

    return write


def golden(section: str) -> Edit:
    """The page's own command writes it."""

    def write(root: Path, place: str) -> None:
        if not (root / place).exists():
            assert suite(root, [*commands(section)[0], "-k", "tiny"]) == ""
        assert (root / place).is_file(), place

    return write


def suite(root: Path, arguments: Iterable[str]) -> str:
    """What the copy's own tests about the example say; nothing where they pass."""
    return ran(root, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)


def ran(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


FAMILY = '''\
"""Family ``tiny``: as ``cmake``."""

from __future__ import annotations

from builder.engines.cmake import CmakeTree


class Tiny(CmakeTree):
    """Tiny ones."""

    name = "tiny"
    summary = "tiny ones"
    template = "tiny.Dockerfile.j2"
'''
LOCK = """\
python = "3"

[[runtime]]
name    = "tiny"
version = "1.0"
sha256  = "0000000000000000000000000000000000000000000000000000000000000000"
"""
EXPORT = """


def tiny(service: Service) -> str:
    \"\"\"``NAME.tiny``.\"\"\"
    return f"tiny {service.image}\\n"
"""
CHECK = '''\
"""Check: the image has files."""

from __future__ import annotations

from collections.abc import Iterator

from builder.checks.subject import Context
from builder.checks.verdict import Check


def check(context: Context) -> Iterator[Check]:
    """The image has files."""
    found = len(context.contents.files)
    yield Check.of("tiny", "files", "at least one", str(found), found > 0)
'''
NEXT = CHECKS_VERSION + 1
MADE = f"""\
from builder.image.contents import Contents
from builder.checks import check
from builder.checks.subject import Context
from builder.checks.subject import Subject
from pathlib import Path

context = Context(Subject("image", ""), Contents({{}}, {{}}, (), 0), Path())
found = check._run(context, check.CHECKS_OF_LAYERS)
(state,) = {{each.state for each in found if each.kind == "tiny"}}
assert (state, check.CHECKS_VERSION) == ("failed", {NEXT})
"""
ROW = '    "tiny": Format(tiny, "{name}.tiny", "start {name}.tiny"),'


@dataclass(frozen=True)
class Example:
    """A small thing to add."""

    edits: Mapping[str, Edit]
    """By place, as the page names them, in the order in which they are filled."""
    proof: tuple[str, ...]
    """A command that needs the new thing: of builder, or of Python ("-c")."""
    left_out: str
    """A place that is left out for a moment; a test must name it."""


EXAMPLES = {
    "a check": Example(
        {
            "builder/checks/NAME.py": text(CHECK),
            "builder/checks/check.py": inserted(
                ("from builder.checks import contract,", "from builder.checks import tiny"),
                ('    Row("times", ', f'    Row("tiny", tiny.check, "any image", {NEXT}),'),
            ),
            "docs/checks.md": inserted(("| `times` |", "| `tiny` | there is no file |")),
        },
        ("-c", MADE),
        "docs/checks.md",
    ),
    "a family": Example(
        {
            "builder/engines/NAME.py": text(FAMILY),
            "builder/engines/families.py": inserted(
                (
                    "from builder.engines.overlay import",
                    "from builder.engines.tiny import Tiny",
                ),
                ("        Artifact(),", "        Tiny(),"),
            ),
            "dockerfiles/NAME.Dockerfile.j2": text('{% include "cmake.Dockerfile.j2" %}\n'),
            "recipes/ENGINE-VERSION.toml": of(
                "recipes/hello-sm120-0.1.0.toml",
                engine='"tiny"',
                version='"1.0"',
                family='"tiny"',
                repository='"tiny"',
            ),
            "tests/data/golden/ENGINE-VERSION.Dockerfile": golden("a family"),
            "docs/recipes.md": inserted(("| `cmake` |", "| `tiny` | tiny ones |")),
        },
        ("show", "tiny-1.0", "--dockerfile"),
        "docs/recipes.md",
    ),
    "an engine from wheels": Example(
        {
            "recipes/bases/ENGINE-wheel-VERSION.toml": of(
                "recipes/bases/vllm-wheel-0.20.2.toml",
                name='"tiny-wheel-1.0"',
                lock='"locks/tiny-1.0.toml"',
                requirements='["tiny==1.0"]',
            ),
            "recipes/bases/locks/ENGINE-VERSION.toml": text(LOCK),
            "recipes/ENGINE-VERSION-wheel.toml": of(
                "recipes/vllm-0.20.2-wheel.toml",
                engine='"tiny"',
                version='"1.0-wheel"',
                base='"tiny-wheel-1.0"',
            ),
            "tests/data/golden/ENGINE-wheel-VERSION.Dockerfile": golden("an engine from wheels"),
            "tests/data/golden/ENGINE-VERSION-wheel.Dockerfile": golden("an engine from wheels"),
        },
        ("show", "tiny-1.0-wheel"),
        "tests/data/golden/ENGINE-VERSION-wheel.Dockerfile",
    ),
    "an export": Example(
        {
            "builder/presets/exports.py": inserted(
                ("# The formats of ``builder export``.", EXPORT), ("FORMATS: ", ROW)
            ),
            "builder/cli/run.py": inserted(
                ('Format = Literal["compose"', 'Format = Literal[Format, "tiny"]')
            ),
            "docs/run.md": inserted(("| `compose` |", "| `tiny` | x | y | z |")),
        },
        ("export", "qwen3.6-27b-dflash@5090-laptop", "--format", "tiny", "--allow-incomplete"),
        "docs/run.md",
    ),
    "a card": Example(
        {
            "cards/NAME.toml": of("cards/5090.toml", name='"NVIDIA GeForce RTX tiny"'),
            "tests/unit/presets/test_cards.py": inserted(("NOMINAL = {", '    "tiny": 32,')),
        },
        ("choose", "--card", "tiny"),
        "tests/unit/presets/test_cards.py",
    ),
    "a model's shape": Example(
        {
            "shapes/NAME.toml": of("shapes/qwen3-0.6b.toml"),
            "tests/unit/presets/test_shapes.py": inserted(
                ("COUNTS = {", '    "tiny": (310, 0.596),')
            ),
        },
        ("-c", "from builder.presets.shapes import shape_of; assert shape_of('tiny').tensors"),
        "tests/unit/presets/test_shapes.py",
    ),
}


def test_every_section_has_an_example() -> None:
    assert {*EXAMPLES} == {*SECTIONS}


def test_the_page_is_followed(tmp_path: Path) -> None:
    """All of it in one copy of the repository; what is left out is named."""
    root = tmp_path / "copy"
    root.mkdir()
    for name in COPIED:
        shutil.copytree(
            REPOSITORY / name, root / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in LINKED:
        (root / name).symlink_to(REPOSITORY / name)
    shutil.copy(REPOSITORY / "pyproject.toml", root)
    for section, example in EXAMPLES.items():
        assert {*example.edits} == {*places(section)}
        for place, edit in example.edits.items():
            edit(root, filled(place))
        command = ["-m", "builder", *example.proof, "--catalog", str(root)]
        assert ran(root, *(example.proof if example.proof[0] == "-c" else command)) == ""
    files = {file for section in EXAMPLES for file in commands(section)[-1]}
    chosen = "tiny or golden_file_is_left or page_has or row_in_the_docs or each_shape"
    tests = [*sorted(files), "-k", chosen]
    assert suite(root, tests) == ""
    for example in EXAMPLES.values():
        leave_out(root, example.left_out)
    said = suite(root, tests)
    for example in EXAMPLES.values():
        assert filled(example.left_out) in said, f"{example.left_out} is not named:\n{said}"


def leave_out(root: Path, place: str) -> None:
    """Take away a new file, or what was added to an old one."""
    original = REPOSITORY / place
    if original.is_file():
        shutil.copy(original, root / place)
    else:
        (root / filled(place)).unlink()
