"""The README, docs/ and the program's texts: links, anchors, commands, options, plain words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest
import typer

from builder.cli.app import all_commands
from builder.core.errors import EXIT_CODES
from support.environment import REPOSITORY
from support.services import OPEN

SIMULATOR = [REPOSITORY / "simulator" / name for name in ("README.md", "card/README.md")]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")), *SIMULATOR]
COMMAND = re.compile(r"^[#$] \./farm (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]+))?\)")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# Constructions that hide the noun or the actor: repeat the noun, write subject, verb, object.
PHRASES = (
    r"(?i:\b(?:that|those|the same)[\s#/]+of\b|\bis theirs\b)|(?:^|[.:;!] +|\"\"\"|# |// )Of (?=\S)"
)
WORDS = r"(?i:\b(?:told|said|aloud|by now|in vain)\b)"
UNPLAIN = re.compile(f"{PHRASES}|{WORDS}", re.MULTILINE)
TEXTS = {
    "builder": ("py", "j2", "js"),
    "studies": ("py",),
    "dockerfiles": ("j2", "cpp"),  # other files go into images: their comments are part of keys
    "presets": ("toml",),
    "simulator": ("md", "py", "cpp", "h", "cu"),
}
"""The endings of the files with plain texts, by directory."""
FILES = [
    *PAGES,
    REPOSITORY / "simulator/run",
    *(
        file
        for folder, endings in TEXTS.items()
        for ending in endings
        for file in sorted((REPOSITORY / folder).rglob(f"*.{ending}"))
        if file not in PAGES
    ),
]
TESTS = sorted({*(REPOSITORY / "tests").rglob("*.py")} - {Path(__file__).resolve()})


def commands(page: Path) -> list[list[str]]:
    """The arguments of every ``./farm`` line of a page's console blocks."""
    text = page.read_text().replace("\\\n", " ")
    lines = [re.sub(r" && .*| \| .*", "", line) for line in COMMAND.findall(text)]
    return [shlex.split(re.sub(r"\[(-[^]]*)\]", r"\1", line), comments=True) for line in lines]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_the_readme_leads_to_every_page() -> None:
    linked = {path for path, _ in LINK.findall((REPOSITORY / "README.md").read_text())}
    assert {f"docs/{page.name}" for page in (REPOSITORY / "docs").glob("*.md")} <= linked


def test_the_manual_stays_small() -> None:
    pages = {page.name for page in (REPOSITORY / "docs").glob("*.md")} - {"development.md"}
    assert len(pages) <= 14, "write it into a page that is there; figures go to studies/"


def test_the_page_of_commands_has_every_command() -> None:
    page = (REPOSITORY / "docs/commands.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {word for row in rows for word in re.findall(r"`([a-z]+)", row)}
    group = all_commands()
    assert set(getattr(group, "commands", {})) <= named


def test_the_page_of_commands_has_every_exit_code() -> None:
    page = (REPOSITORY / "docs/commands.md").read_text()
    assert [*map(int, re.findall(r"^\| ([0-9]+) \|", page, re.MULTILINE))] == [*EXIT_CODES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_exist_with_their_options(page: Path) -> None:
    for arguments in commands(page):
        if arguments[0] == "test":
            continue
        command = all_commands()
        context = command.make_context("builder", list(arguments))
        rest = list(arguments)
        while hasattr(command, "commands") and rest:
            name, command, rest = command.resolve_command(context, rest)
            try:
                context = command.make_context(name, list(rest), parent=context)
            except typer.BadParameter as error:
                assert "does not exist" in error.message, error.message  # noqa: PT017
                break


def test_there_are_commands_to_check() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 40


COMMANDS = [
    file
    for name in (
        *(
            "README.md",
            "docs",
            "recipes",
            "presets",
            "builder",
            "dockerfiles",
            "studies",
            "patches",
        ),
        *("simulator", "engines", "cards", "farm", ".github"),
    )
    for file in [REPOSITORY / name, *(REPOSITORY / name).rglob("*")]
    if file.suffix in {"", ".md", ".toml", ".py", ".j2", ".yml", ".yaml", ".js", ".c", ".h"}
    and file.is_file()
    and "locks" not in file.parts
]


def test_no_command_opens_a_server_to_the_network() -> None:
    host = re.compile(r"\{(?:HOST|host)\}|\{\{ host \}\}")
    texts = {file: host.sub("127.0.0.1", file.read_text()) for file in COMMANDS}
    assert len(texts) > 300
    found = {str(file): OPEN.findall(text) for file, text in texts.items() if OPEN.search(text)}
    assert found == {}, "publish it on 127.0.0.1"


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        ("docker run -p 8080:8080 a", True),
        ("docker run --publish=8080:8080 a", True),
        ("docker run --publish 0.0.0.0:8080:8080 a", True),
        ("docker run -p 8080 a", True),
        ('[f"-p {image.port}:{image.port}"]', True),
        ("docker run --network host a", True),
        ("PublishPort=8080:8080", True),
        ('ports:\n  - "8080:8080"', True),
        ("hostPort: 8080", True),
        ("docker run -p 127.0.0.1:8080:8080 a", False),
        ("PublishPort=127.0.0.1:8080:8080", False),
        ('ports:\n  # one\n  - "127.0.0.1:8080:8080"', False),
        ("ports:\n  - name: http", False),
        ("mkdir -p 1/2 && cp -p a b --top-p 0.6", False),
    ],
)
def test_open_ports_are_found(text: str, *, is_open: bool) -> None:
    assert (OPEN.search(text) is not None) is is_open


def unplain(files: Iterable[Path], words: re.Pattern[str]) -> dict[str, list[str]]:
    """The matches of each file that has any."""
    found = {
        str(file.relative_to(REPOSITORY)): [
            match[0].strip() for match in words.finditer(file.read_text())
        ]
        for file in files
    }
    return {name: matches for name, matches in found.items() if matches}


def test_words_are_plain() -> None:
    hint = "repeat the noun, and write subject, verb, object: docs/development.md"
    assert unplain(FILES, UNPLAIN) == {}, hint
    # ``said`` and ``told`` are names in tests.
    assert unplain(TESTS, re.compile(PHRASES, re.MULTILINE)) == {}, hint


@pytest.mark.parametrize(
    "text",
    [
        "over that of a bare build",
        "Those of a base",
        "it is theirs",
        '"""Of the file."""',
        "# Of x",
        "// Of x",
        "it was told",
    ],
)
def test_unplain_words_are_found(text: str) -> None:
    assert UNPLAIN.search(text)
