"""Rules of presets: each is broken once, and the problem names file, line and key."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import Problem
from builder.engines.families import load_catalog
from builder.presets import catalog
from support.environment import REPOSITORY
from support.shipped import PRESETS, RECIPES

DFLASH = "qwen3.6-27b-dflash@5090-laptop"
MTP = "qwen3.6-35b-a3b-mtp@5090-laptop"
ATOMIC = "gemma-4-26b-a4b-mtp@5090-laptop"
DRAFT = "qwen3.6-35b-a3b-draft@3090"
VLLM = "gemma-4-e4b-mtp@5090-laptop"
LOWERED = "qwen3.6-27b-mtp-128k@5090-laptop"
LUCEBOX = "qwen3.6-27b-dflash-lucebox@5090"
A100 = "qwen3.6-35b-a3b-hifi-mtp@a100-80gb"


def problems(root: Path, name: str, edits: dict[str, str], stem: str = "") -> list[Problem]:
    """The problems of a shipped preset whose text was edited; each names a line of its key."""
    text = PRESETS.entry(name).text
    for old, new in edits.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    folder = root / "presets"
    folder.mkdir()
    (folder / f"{stem or name}.toml").write_text(text)
    found = catalog.load(replace(RECIPES, root=root)).problems()
    for problem in found:
        line = text.splitlines()[problem.line - 1]
        missing = problem.key not in text and problem.line == 1
        assert missing or any(part in line for part in problem.key.split(".")), line
    return list(found)


BROKEN = {
    "unknown recipe": (
        MTP,
        {'"llama-cpp-b9261"': '"llama-cpp-b9262"'},
        "recipe: no recipe is named llama-cpp-b9262; did you mean llama-cpp-b9261?",
    ),
    "no server": (
        MTP,
        {'"llama-cpp-b9261"': '"hami-core-pr188"'},
        "recipe: hami-core-pr188 is no server: its image has no port",
    ),
    "unknown card": (
        A100,
        {'"a100-80gb"': '"h100-80gb"', 'card = "the source': 'source = "the source'},
        "card: no card is named h100-80gb",
    ),
    "no source": (
        MTP,
        {"[source]": "", 'title     = "249': '# "249', "url       =": "#", "published =": "#"},
        "source: results have no source: name it, or list source in [unverified]",
    ),
    "empty source": (
        LOWERED,
        {"url =": 'published = "2026-05" #'},
        "source: give title or url",
    ),
    "no month": (MTP, {'"2026-05"': '"May 2026"'}, "source.published: 'May 2026': must be a"),
    "context twice": (
        MTP,
        {'"--parallel", "1",': '"-c", "4096",'},
        "serve.arguments: -c is set by context",
    ),
    "context with =": (
        VLLM,
        {'"--dtype", "auto",': '"--max-model-len=4096",'},
        "serve.arguments: --max-model-len=4096 is set by context",
    ),
    "model twice": (
        MTP,
        {'"--parallel", "1",': '"-m", "/model.gguf",'},
        "serve.arguments: -m is set by the table [model]",
    ),
    "value in the word of the option": (
        DFLASH,
        {'"--jinja",': '"--threads=8",'},
        "serve.arguments: --threads=8 is no option of llama.cpp",
    ),
    "option twice": (
        DFLASH,
        {'"--jinja",': '"--n-gpu-layers", "98",'},
        "serve.arguments: --n-gpu-layers is given 2 times",
    ),
    "option twice under two names": (
        DFLASH,
        {'"--jinja",': '"-nkvo", "--kv-offload",'},
        "serve.arguments: -nkvo is given 2 times",
    ),
    "option twice in a result": (
        A100,
        {'["--spec-draft-n-max", "6"]': '["-ngl", "9", "--n-gpu-layers", "9"]'},
        "result.2.arguments: --n-gpu-layers is given 2 times",
    ),
    "drafter without an option": (
        LUCEBOX,
        {', "--draft", "{draft}"': ""},
        "drafter: no option takes it: name it as {draft} in arguments of [serve]",
    ),
    "context without an option": (
        LUCEBOX,
        {"[serve]": "[serve]\ncontext = 512"},
        "serve: no option sets the context: name it as {context} in arguments of [serve]",
    ),
    "placeholder without a drafter": (
        ATOMIC,
        {"[drafter]": "[mmproj]"},
        "serve.arguments: {draft} needs the table [drafter]",
    ),
    "large context": (
        DFLASH,
        {"context           = 204800": "context           = 400000"},
        "result.2.context: is larger than the context of [serve], 262144",
    ),
    "larger than the published context": (
        LOWERED,
        {"published_context = 262144": "published_context = 262143"},
        "result.0.context: is larger than the context as published, 262143",
    ),
    "no smaller context": (
        LOWERED,
        {"context   = 131072": "context   = 262144"},
        "published_context: [serve] must have a context that is smaller",
    ),
    "no context beside a published one": (
        LOWERED,
        {"context   = 131072": ""},
        "published_context: [serve] must have a context that is smaller",
    ),
    "a result without its published context": (
        LOWERED,
        {"context           = 262144\ntokens_per_second": "tokens_per_second"},
        "result.0: must have its context",
    ),
    "the same result twice": (
        DFLASH,
        {"context           = 204800": "context           = 131072"},
        "result.1: two results have the same context and settings",
    ),
    "mean outside": (
        DFLASH,
        {"mean = 116.0,": "mean = 16.0,"},
        "result.1.tokens_per_second: the mean 16 is not between 107.12 and 127.32",
    ),
    "mean of other runs": (
        VLLM,
        {"mean = 178.6": "mean = 180"},
        "result.0.tokens_per_second: the mean is 180, and the mean of the runs 178.613",
    ),
    "count of listed runs": (
        VLLM,
        {"mean = 178.6": "count = 3"},
        "result.0.tokens_per_second: count is for runs that are not listed",
    ),
    "half a range": (
        VLLM,
        {"{ mean = 77.3 }": "{ max = 77.3 }"},
        "result.0.acceptance: give runs, mean, or min and max",
    ),
    "accepted more than drafted": (
        ATOMIC,
        {"[1974]": "[2974]"},
        "result.0: more tokens were accepted than drafted",
    ),
    "drafted of fewer runs": (
        ATOMIC,
        {"[1974]": "[1974, 1975]"},
        "result.0: drafted and accepted are not of the same number of runs",
    ),
    "acceptance of other runs": (
        ATOMIC,
        {"78.15": "87.15"},
        "result.0: accepted is 78.15 % of drafted, unlike acceptance",
    ),
    "acceptance above all": (
        VLLM,
        {"77.3": "177.3"},
        "result.0: acceptance is a percentage: at most 100",
    ),
    "another time": (
        ATOMIC,
        {"23.12": "32.12"},
        "result.0: tokens in seconds are 100.81 a second, not 140.03",
    ),
    "parts above the total": (
        MTP,
        {"total = 21.9": "total = 20"},
        "memory: its kinds sum up to more than total",
    ),
    "no memory": (
        VLLM,
        {"total = 8": "", '"memory.total" =': '"memory" ='},
        "memory: give total or kinds",
    ),
    "digest of no file": (A100, {"file       =": "#"}, "model: sha256 and size need file as well"),
    "unknown key in unverified": (
        VLLM,
        {'"memory.total"': '"memory.totl"'},
        'unverified."memory.totl": names no key of a preset; did you mean total?',
    ),
    "no thread": (
        DFLASH,
        {'"Anbeeld/beellama.cpp#7"': '"beellama 7"'},
        "caveat.1.thread: 'beellama 7': must be an issue or a pull request of GitHub",
    ),
    "unknown better one": (
        DRAFT,
        {'"qwen3.6-35b-a3b@3090"': '"qwen3.6-35b-a3b-drft@3090"'},
        "loses_to: no other preset is named qwen3.6-35b-a3b-drft@3090",
    ),
}


@pytest.mark.parametrize(
    "words",
    [
        *('"--port", "9000"', '"--port=9000"', '"--host", "::1"', '"--host", "x.sock"'),
        *('"--api-prefix", "/x"', '"--api_prefix=/x"', '"--uds", "/run/x"', '"--root-path", "/x"'),
        *('"--ssl-key-file", "x"', '"--ssl_keyfile=x"', '"--server-port", "1"', '"--ssl"'),
    ],
)
def test_an_option_that_moves_the_server_is_refused(tmp_path: Path, words: str) -> None:
    (found,) = problems(tmp_path, MTP, {"arguments = [": f"arguments = [{words},"})
    option = words.split('"')[1].partition("=")[0]
    assert found.key == "serve.arguments"
    assert found.message.startswith(f"{option} would move the server from the port of its image")


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("LLAMA_ARG_PORT", True),
        ("LLAMA_ARG_HOST", True),
        ("LLAMA_ARG_API_PREFIX", True),
        ("LLAMA_ARG_SSL_CERT_FILE", True),
        ("HELLO_ARG_PORT", True),
        ("TABBY_NETWORK_PORT", True),
        ("PORT", True),
        ("SSL_KEYFILE", True),
        ("SSL_CERT_FILE", False),  # OpenSSL's: the certificates that a client trusts
        ("VLLM_PORT", False),  # of vLLM's own processes, not of its API
        ("MASTER_PORT", False),
    ],
)
def test_a_variable_that_moves_the_server_is_refused(
    tmp_path: Path, name: str, *, refused: bool
) -> None:
    found = problems(tmp_path, MTP, {"[serve]\n": f'[serve]\nenvironment = {{ {name} = "1" }}\n'})
    assert [each.key for each in found] == ([f"serve.environment.{name}"] if refused else [])


@pytest.mark.parametrize("case", BROKEN)
def test_a_rule_that_is_broken_is_named_with_line_and_key(tmp_path: Path, case: str) -> None:
    name, edits, words = BROKEN[case]
    found = [f"{each.key}: {each.message}" for each in problems(tmp_path, name, edits)]
    assert [each for each in found if each.startswith(words)], found
    assert len(found) == (2 if case == "the same result twice" else 1), found


def test_the_name_of_the_file_ends_with_the_card(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, MTP, {}, stem="qwen@5090")
    assert found.message == "the file must be MODEL@5090-laptop.toml, not qwen@5090.toml"


def test_two_cards_are_in_the_name(tmp_path: Path) -> None:
    name = "qwen3.6-27b@3090"
    (found,) = problems(tmp_path, name, {'"3090"': '"3090"\ncards = 2'})
    assert found.message == f"the file must be MODEL@2x3090.toml, not {name}.toml"


def test_a_better_preset_is_of_the_same_card(tmp_path: Path) -> None:
    name = "qwen3.6-35b-a3b@3090"
    other = (REPOSITORY / "presets" / f"{MTP}.toml").read_text()
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / f"{MTP}.toml").write_text(f'loses_to = "{name}"\n{other}')
    shipped = PRESETS.entry(name).text
    (tmp_path / "presets" / f"{name}.toml").write_text(shipped)
    (problem,) = catalog.load(replace(RECIPES, root=tmp_path)).problems()
    assert problem.message == f"{name} was run on other cards"
    assert (problem.line, problem.key) == (1, "loses_to")


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("acceptance_of = 'nobody@5090'", "no other preset is named nobody@5090"),
        ("acceptance_of = 'qwen3.6-27b-mtp@5080'", "qwen3.6-27b-mtp@5080 has another model, or "),
        ("acceptance_of = 'qwen3.6-35b-a3b@5060-ti-16gb'", "drafts another number of tokens"),
        (f"acceptance_of = '{MTP}'", f"no other preset is named {MTP}"),
    ],
)
def test_an_acceptance_is_of_the_same_model_and_drafts(tmp_path: Path, key: str, why: str) -> None:
    shutil.copytree(REPOSITORY / "presets", tmp_path / "presets")
    file = tmp_path / "presets" / f"{MTP}.toml"
    file.write_text(f"{key}\n{file.read_text()}")
    (problem,) = catalog.load(replace(RECIPES, root=tmp_path)).problems()
    assert why in problem.message
    assert problem.key == "acceptance_of"


def test_a_preset_of_a_broken_recipe_is_broken(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "llama-cpp-b9261.toml").write_text('engine = "llama-cpp"\n')
    (tmp_path / "presets").mkdir()
    text = (REPOSITORY / "presets" / f"{MTP}.toml").read_text()
    (tmp_path / "presets" / f"{MTP}.toml").write_text(text)
    (problem,) = catalog.load(load_catalog(tmp_path)).problems()
    assert problem.message == "the recipe llama-cpp-b9261 is invalid"


def test_an_unknown_card_is_one_problem_not_two(tmp_path: Path) -> None:
    found = problems(tmp_path, MTP, {'card    = "5090-laptop"': 'card = "5091"'})
    assert [each.message for each in found] == [
        "no card is named 5091; did you mean 5090? List one without a file in [unverified]"
    ]


def test_an_option_that_adds_up_may_be_given_twice(tmp_path: Path) -> None:
    words = '"--override-tensor", "a=CPU", "-ot", "b=CPU",'
    assert problems(tmp_path, DFLASH, {'"--jinja",': words}) == []
