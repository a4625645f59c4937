"""The command line: its commands, options and exit codes, and that it starts quickly."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from builder import __version__
from builder.cli import app as app_module
from builder.cli.app import OTHER_WORDS, PANELS, all_commands, app
from builder.core.errors import EXIT_CODES, WorldError
from support.commands import Builder
from support.environment import REPOSITORY
from support.shipped import PRESETS, RECIPES

GROUPS = {
    "recipe": ["new", "check", "explain", "export", "schema"],
    "patch": ["check", "add"],
    "pin": ["update", "outdated", "mirror", "lock", "image"],
    "tag": ["promote", "rollback", "history", "prune"],
    "hub": ["describe"],
    "ci": ["matrix", "trials", "ccache"],
    "ci ccache": ["save", "load"],
    "receipts": ["add"],
}


def commands(group: Any, *above: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the command line, with the words that call it."""
    for name, command in group.commands.items():
        yield (*above, name), command
        if hasattr(command, "commands"):
            yield from commands(command, *above, name)


ALL: Any = dict(commands(all_commands()))
HELP = REPOSITORY / "tests/data/help.txt"


def test_the_groups_have_the_commands_of_the_manual() -> None:
    groups = {" ".join(words): command for words, command in ALL.items()}
    found = {name: [*of.commands] for name, of in groups.items() if hasattr(of, "commands")}
    assert found == GROUPS


def test_help_lists_every_command_in_its_panel_and_every_exit_code(builder: Builder) -> None:
    page = builder("--help").stdout
    panels = re.findall(r"╭─ (\w+) ─+╮\n((?:│.*│\n)+)", page)
    listed = {name: re.findall(r"│ ([a-z]+) ", rows) for name, rows in panels}
    listed.pop("Options")
    assert listed == {name: [*commands] for name, commands in PANELS.items()}
    assert {name[0] for name in ALL} == {name for names in listed.values() for name in names}
    said = " ".join(page.split())
    for code, text in EXIT_CODES.items():
        assert f"{code} {text}".replace("`builder ", "builder ").replace("`", "") in said


def test_a_word_of_other_programs_leads_to_the_command(builder: Builder) -> None:
    """Never to one that the word only resembles and that changes something: ps is no push."""
    for words, said in {
        ("start",): "`builder run --help`",
        ("images",): "`builder list --help`",
        ("publish",): "`builder push --help`",
        ("buidl",): "did you mean build?",
        ("updat",): "did you mean update?",
        ("tag", "prume"): "did you mean prune?",
        ("pin", "updat"): "did you mean update?",
    }.items():
        done = builder(*words)
        assert done.returncode == 2
        assert f"no command is named {words[-1]}" in done.stderr
        assert said in done.stderr, words
    assert "did you mean" not in builder("nightl").stderr
    assert {*OTHER_WORDS}.isdisjoint(name[0] for name in ALL)


def test_help_and_version_are_words_too(builder: Builder) -> None:
    assert builder("help", "tag", "prune").stdout == builder("tag", "prune", "--help").stdout
    assert builder("help").stdout == builder("--help").stdout
    assert builder("version").stdout == builder("--version").stdout == f"builder {__version__}\n"


def test_help_shows_a_value_only_where_an_option_takes_one(builder: Builder) -> None:
    page = builder("run", "--help").stdout
    assert "--context TOKENS" in " ".join(page.split())
    assert not re.search(r"<\w+>|list\[", page)
    assert "--catalog" not in page
    assert "--catalog DIR" in " ".join(builder("--help").stdout.split())


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_and_option_has_help(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*words, "--help"], prog_name="builder")
    assert done.exit_code == 0
    assert f"Usage: builder {' '.join(words)}" in done.stdout
    for option in ALL[words].params:
        assert option.help, option.name


def test_the_help_of_every_command_is_as_kept(request: pytest.FixtureRequest) -> None:
    """No command, option or default goes or changes without a change of this file."""
    said = []
    for words, command in ALL.items():
        said += [" ".join(words), *(f"    {line}" for line in (command.help or "").splitlines())]
        for option in (each for each in command.params if not each.hidden):
            names = " ".join((*option.opts, *option.secondary_opts))
            default = "" if callable(option.default) else f" [{option.default}]"
            said.append(f"  {names}{default}: {option.help}")
    text = "".join(f"{line.rstrip()}\n" for line in said)
    if request.config.getoption("--update-golden"):
        HELP.write_text(text)
    command = "pytest tests/unit/cli/test_app.py --update-golden"
    assert text == HELP.read_text(), f"`{command}` writes it; git diff shows the change"


def test_an_option_name_has_one_meaning() -> None:
    """A directory is --output; a count is --keep; a text is --reason."""
    kinds: dict[str, set[str]] = {}
    for command in ALL.values():
        for option in command.params:
            for flag in option.opts:
                kinds.setdefault(flag, set()).add(option.metavar or str(option.bare_type()))
    assert kinds["--output"] == {"DIR"}
    assert kinds["--keep"] == {"N"}
    assert kinds["--reason"] == {"TEXT"}
    several = {flag for flag, found in kinds.items() if flag.startswith("--") and len(found) > 1}
    # What a pin or a tag is moved to: a ref, an image.  A model: a file, or one that is elsewhere.
    # The context: one size, or several.  A name: of the model that is requested, of a new recipe.
    # A format: of a bill, of what starts a preset.
    models = {"--model", "--draft", "--mmproj"}
    assert several == {"--from", "--to", *models, "--context", "--name", "--format"}


ENGINES = ["git", "requests", "python_on_whales", "pypi_simple", "jinja2"]
"""Packages that talk to others, or read what they made: `list` needs none of them."""


UNNEEDED = [
    *(
        "tomlkit",
        "rich.table",
        "rich.progress",
        "builder.build.build",
        "builder.build.reports",
    ),
    *("builder.checks.subject", "simulator.ledger", "builder.cli.session"),
]


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], [*ENGINES, "pydantic", "tomlkit", "rich.progress", "builder.build.build"]),
        (["list"], [*ENGINES, *UNNEEDED, "builder.presets.schema", "pydantic_settings"]),
        (["list", "--presets"], [*ENGINES, *UNNEEDED, "pydantic_settings"]),
        (["choose", "--card", "5090"], [*ENGINES, *UNNEEDED, "builder.presets.receipts"]),
        (["show", "qwen3.6-27b-dflash@5090-laptop"], [*ENGINES, *UNNEEDED, "pydantic_settings"]),
        # It looks whether the checked image is of today's recipe, by the key.
        (["show", "hello-sm120-0.1.0"], [*({*ENGINES} - {"jinja2"}), *({*UNNEEDED} - {"jinja2"})]),
        # Its plan has a Dockerfile, and asks the engine.
        (
            ["show", "hello-sm120-0.1.0", "--inputs"],
            [*({*ENGINES} - {"jinja2"}), *UNNEEDED, "builder.presets.schema"],
        ),
    ],
)
def test_nothing_heavy_is_loaded_without_need(arguments: list[str], heavy: list[str]) -> None:
    code = f"import sys\nfrom builder.cli.app import main\nsys.argv = ['builder', *{arguments}]\n"
    code += f"try:\n    main()\nfinally:\n    print(sys.modules.keys() & {heavy}, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout
    assert done.stderr.splitlines()[-1] == "set()"


OPENED = """
import sys
from builder.cli.app import main
opened = []
sys.addaudithook(lambda event, of: opened.append(str(of[0])) if event == "open" else None)
sys.argv = ["builder", *{arguments}]
try:
    main()
finally:
    print(*opened, sep="\\n", file=sys.stderr)
"""


def opened(*arguments: str) -> list[str]:
    """The recipes and cards that a command reads, as often as it reads them."""
    code = OPENED.format(arguments=[*arguments])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    files = [Path(line) for line in done.stderr.splitlines() if line.endswith(".toml")]
    folders = {REPOSITORY / "recipes", REPOSITORY / "cards"}
    return [file.stem for file in files if file.resolve().parent in folders]


def test_a_command_reads_only_the_files_that_it_needs() -> None:
    recipes = [file.stem for file in (REPOSITORY / "recipes").glob("*.toml")]
    assert {*opened("list")} == {*recipes}
    assert opened("show", "hello-sm120-0.1.0") == ["hello-sm120-0.1.0"]
    presets = [*PRESETS.valid(), *PRESETS.archived.values()]
    of_presets = {entry.preset.recipe for entry in presets if entry.preset}
    of_presets |= {
        each.recipe.extends
        for each in RECIPES.engines.values()
        if each.name in of_presets and each.recipe and each.recipe.extends
    }
    assert len(of_presets) < len(recipes)
    assert {*opened("list", "--presets")} == of_presets
    assert {*opened("show", "qwen3.6-27b-dflash@5090-laptop")} == of_presets
    cards = {"5050", *(entry.preset.card for entry in PRESETS.valid())}
    proposed = {file.stem for file in (REPOSITORY / "trials").glob("llama-cpp-b*.json")}
    assert {*opened("choose", "--card", "5050")} == {*of_presets, *proposed, *cards}


def test_only_the_command_that_is_called_is_made() -> None:
    for before in ([], ["--catalog", "a"], ["--catalog=a"]):
        assert [*app_module._commands([*before, "list", "--json"]).commands] == ["list"]
    for arguments in (["--help"], ["frobnicate"], []):  # a shell that completes gives none
        assert app_module._commands(arguments) is all_commands()


def test_a_wrong_command_line_is_told(builder: Builder) -> None:
    for arguments in (["frobnicate"], ["build"], ["build", "x", "--jobs", "none"]):
        done = builder(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_without_a_namespace_push_and_status_end_at_once(builder: Builder) -> None:
    for command in (["push", "hello-sm120"], ["push", "hello-sm120", "--dry-run"], ["status"]):
        done = builder(*command)
        assert done.returncode == 12, done.stderr
        assert done.stderr.count("BUILDER_NAMESPACE is not set") == 1, done.stderr
        assert "build it" not in done.stderr
        assert done.stdout == ""
    assert done.stderr.startswith("builder: status shows published images, and BUILDER_NAMESPACE")


def test_a_fault_of_our_own_leaves_a_report(tmp_path: Path) -> None:
    code = (
        "import builder.cli.app, builder.measure.doctor, sys\n"
        "builder.measure.doctor.examine = lambda settings: 1 / 0\n"
        "sys.argv = ['builder', 'doctor']\n"
        "builder.cli.app.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert "Traceback" not in done.stderr
    (report,) = (tmp_path / "state" / "crashes").iterdir()
    assert str(report) in done.stderr
    assert "ZeroDivisionError" in report.read_text()


def test_a_working_directory_that_was_removed_is_told(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'rmdir "$PWD" && exec "$1" -m builder list'
    command = ["sh", "-c", script, "sh", sys.executable]
    done = subprocess.run(command, cwd=gone, capture_output=True, text=True, check=False)
    assert done.returncode == WorldError.exit_code
    assert "the working directory does not exist" in done.stderr


def test_settings_that_are_wrong_are_all_told(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "config" / "builder"
    folder.mkdir(parents=True)
    (folder / "settings.toml").write_text('namespace = "UPPER"\nfoo = 1\njobs = -1\n')
    done = builder("doctor")
    assert done.returncode == 4
    for name in ("namespace", "foo", "jobs", str(folder / "settings.toml")):
        assert name in done.stderr


def test_what_is_not_there_is_told_with_what_is(builder: Builder, tmp_path: Path) -> None:
    done = builder("show", "helo-sm120")
    assert done.returncode == 3
    assert "did you mean hello-sm120" in done.stderr
    done = builder("list", "--catalog", tmp_path)
    assert done.returncode == 3
    assert "has no recipes/ directory" in done.stderr
    assert done.stdout == ""


def test_the_catalog_is_found_from_below_or_by_a_variable(
    builder: Builder, catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert builder("list", cwd=catalog / "recipes" / "bases").stdout == ""
    assert builder("list", cwd=REPOSITORY / "tests").stdout != ""
    assert builder("--catalog", catalog, "list").stdout == ""
    assert builder(f"--catalog={catalog}", "list").stdout == ""
    assert builder("list", "--catalog", catalog).stdout == ""
    monkeypatch.setenv("BUILDER_CATALOG", str(catalog))
    assert builder("list").stdout == ""
    assert builder("--catalog", REPOSITORY, "list").stdout != ""


def test_a_wrong_recipe_is_told_also_where_no_engine_answers(
    builder: Builder, catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    (catalog / "recipes" / "bad-1.toml").write_text('engine = "bad"\n')
    for command in ("build", "show", "smoke"):
        done = builder(command, "bad-1", "--catalog", catalog)
        assert done.returncode == 3, command
        assert "bad-1.toml:1: version: is missing" in done.stderr


def test_output_that_nobody_takes_is_no_fault_of_builder(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "builder", "recipe", "schema"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 10
    assert "a disk is full" in done.stderr
    with subprocess.Popen(
        [sys.executable, "-m", "builder", "list", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert not list(tmp_path.rglob("crashes"))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("tag", "promote", "hello-sm120", "a b", "--reason", "x"), "must be the tag of an image"),
        (
            ("tag", "rollback", "hello-sm120", "x", "--to", "sha256:12", "--reason", "x"),
            "a full digest",
        ),
        (("push", "hello-sm120", "--replace"), "only valid together"),
        (("push", "hello-sm120", "--reason", "x"), "only valid together"),
        (("push", "hello-sm120", "--over-budget"), "only valid together"),
        (("sbom", "hello-sm120", "--from", "../../x"), "must be the tag of an image"),
        (("recipe", "export", "hello-sm120", "-x"), "no option is named -x"),
        (("tag", "history", "hello-sm120", "x" * 129), "at most 128"),
        (("run", "llama-cpp-b9831", "-ngl", "9"), "go after --: ... -- -ngl"),
        (("export", "llama-cpp-b9831", "--ctx-size=5"), "go after --: ... -- --ctx-size=5"),
        (
            ("fit", "llama-cpp-b9831", "-fa", "on"),
            "no option is named -fa -> options of the",
        ),
        (("bench", "llama-cpp-b9831", "--modl", "x"), "did you mean --model?"),
        (("build",), "RECIPE is missing: Names of recipes"),
        (("build", "x", "--jobs"), "--jobs needs a value"),
        (("build", "x", "--jobs", "0"), "--jobs: must be at least 1"),
        (("build", "x", "--jobs", "no"), "--jobs: must be a whole number"),
        (("run", "x", "--port", "70000"), "--port: must be at most 65535"),
        (("export", "x", "--format", "docker"), "helm, kubernetes, llama-swap, quadlet; did you"),
        (("choose", "--memory", "12"), "give a unit: 12G"),
        (("show", "a", "b"), "too many words: b Usage: builder show"),
    ],
)
def test_words_that_the_command_line_refuses(
    builder: Builder, command: tuple[str, ...], said: str
) -> None:
    done = builder(*command)
    assert done.returncode == 2
    assert done.stderr.startswith("builder: ")
    assert "\n  -> " in done.stderr
    assert said in " ".join(done.stderr.split())


def test_commands_stand_in_back_ticks() -> None:
    """Wherever builder names one of its own commands: there the program's name is put in."""
    names = "|".join(sorted(" ".join(words) for words in ALL))
    bare = re.compile(rf"(?<![`\w./-])(?<!docker )builder (?:{names})\b")
    found = []
    files = sorted((REPOSITORY / "builder").rglob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found += [f"{file.name}:{node.lineno}: {it}" for it in bare.findall(node.value)]
    assert found == []
