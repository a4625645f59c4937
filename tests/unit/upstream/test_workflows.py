"""GitHub's workflows: what they may do, what they are pinned to, and that their commands exist."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from builder.cli.app import app
from builder.upstream.night import HOSTED, Job
from support.environment import REPOSITORY

pytestmark = pytest.mark.xdist_group("workflows")  # they share what a fixture makes
GITHUB = REPOSITORY / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
ACTIONS = sorted((GITHUB / "actions").glob("*/action.yml"))
FILES = [*WORKFLOWS, *ACTIONS]
PINNED = re.compile(r"[\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
PUBLISHING = re.compile(r"^\./farm (?:push|nightly|hub describe) ", re.MULTILINE)
DEPLOYING = {"pages": "write", "id-token": "write"}
SIGNING = {"contents": "read", "id-token": "write"}
PROPOSING = {"actions": "read", "contents": "write", "pull-requests": "write"}
PROPOSE = ".github/scripts/propose_updates"
every_workflow = pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
every_file = pytest.mark.parametrize(
    "file", FILES, ids=[str(file.relative_to(GITHUB)) for file in FILES]
)


def read(file: Path) -> dict[str, Any]:
    # YAML 1.1 reads the key "on" as true.
    loaded = yaml.safe_load(file.read_text())
    return {"on" if name is True else name: value for name, value in loaded.items()}


def jobs(file: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read(file).get("jobs", {})
    return found


def steps(file: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(file).values():
        yield from job["steps"]
    yield from read(file).get("runs", {}).get("steps", [])


def test_there_are_the_five() -> None:
    names = ["nightly", "pull-request", "release", "update", "weekly"]
    assert [file.stem for file in WORKFLOWS] == names
    for name in ("nightly", "update", "weekly"):
        started = read(GITHUB / f"workflows/{name}.yml")["on"]
        assert {"schedule", "workflow_dispatch"} == set(started)


@every_file
def test_every_action_is_pinned_by_commit_and_names_its_version(file: Path) -> None:
    for line in file.read_text().splitlines():
        _, uses, what = line.partition("uses: ")
        if uses and what.startswith("./"):
            assert (REPOSITORY / what / "action.yml").is_file()
        elif uses:
            assert PINNED.fullmatch(what), what


def test_an_action_has_one_pin_everywhere() -> None:
    pins = defaultdict(set)
    for file in FILES:
        for step in steps(file):
            name, at, pin = step.get("uses", "").partition("@")
            if at:
                pins["/".join(name.split("/")[:2])].add(pin)
    assert {"actions/checkout", "actions/cache", "actions/upload-artifact"} <= pins.keys()
    assert not {name: found for name, found in pins.items() if len(found) > 1}


@every_workflow
def test_nothing_is_allowed_but_reading_the_deployment_of_pages_and_pull_requests(
    file: Path,
) -> None:
    assert read(file)["permissions"] == {}
    for name, job in jobs(file).items():
        deploys = any("actions/deploy-pages@" in step.get("uses", "") for step in job["steps"])
        proposes = PROPOSE in [step.get("run") for step in job["steps"]]
        allowed = DEPLOYING if deploys else PROPOSING if proposes else {"contents": "read"}
        if "github.workflow_ref" in str(job.get("env")):  # it may sign by this identity
            allowed = SIGNING
        assert job["permissions"] == allowed, name
        # What may write runs neither builder nor what an upstream has.
        assert not proposes or len(job["steps"]) == 2
        assert not deploys or (len(job["steps"]), job["environment"]["name"]) == (1, "github-pages")
        assert 0 < job["timeout-minutes"] <= 360, name
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


@every_file
def test_no_expression_is_pasted_into_a_script(file: Path) -> None:
    for step in steps(file):
        assert "${{" not in step.get("run", ""), step


@every_workflow
def test_secrets_are_where_something_is_published_and_nowhere_else(file: Path) -> None:
    whole = read(file)
    for name, job in whole.pop("jobs").items():
        for step in job.pop("steps"):
            if "secrets." in json.dumps(step):
                assert PUBLISHING.match(step.get("run", "")), step
                assert "secrets." not in json.dumps({**step, "env": {}})
                assert job["environment"] == "publishing", name
                if "./farm hub describe" in step["run"]:
                    assert not [secret for secret in step["env"] if "COSIGN" in secret]
        assert "secrets." not in json.dumps(job), name
    assert "secrets." not in json.dumps(whole)
    if file.stem == "pull-request":
        assert "secrets." not in file.read_text()


def test_a_pull_request_keeps_nothing_that_others_would_take() -> None:
    assert "actions/keep" not in (GITHUB / "workflows" / "pull-request.yml").read_text()
    assert "cache/save" not in (GITHUB / "actions" / "prepare" / "action.yml").read_text()
    for file in FILES:  # it both restores and keeps
        assert not re.search(r"actions/cache@", file.read_text()), file


def test_one_release_and_one_night_of_a_recipe_run_at_a_time() -> None:
    """At the job: a workflow that waits in a group of all recipes drops the recipes of another.

    Not in one group: a night that comes would cancel a release that waits.  But two nights of one
    recipe, which move the same channel, are in one group.
    """
    release = "${{ matrix.channel != '' && 'nightly' || 'release' }}"
    for file in WORKFLOWS:
        for name, job in jobs(file).items():
            published = any(PUBLISHING.search(step.get("run", "")) for step in job["steps"])
            kind = release if file.stem == "release" else file.stem
            group = {"group": f"{kind}-${{{{ matrix.recipe }}}}"} if published else None
            assert job.get("concurrency") == group, name
    for name in ("nightly", "release"):
        assert "concurrency" not in read(GITHUB / "workflows" / f"{name}.yml")
    other = read(GITHUB / "workflows" / "pull-request.yml")["concurrency"]
    assert other["group"].startswith("pull-request-")


@every_workflow
def test_a_matrix_is_what_builder_prints_and_an_empty_one_makes_no_job(file: Path) -> None:
    known = {field.name for field in fields(Job)}
    for name, job in jobs(file).items():
        used = set(re.findall(r"\bmatrix\.(\w+)", json.dumps({**job, "outputs": {}})))
        used -= {"outputs", "json"} if name == "plan" else set()
        assert used <= known, name
        if "strategy" in job:
            assert job["needs"] == "plan"
            assert job["if"] == "needs.plan.outputs.count != '0'"
            assert job["strategy"]["matrix"] == "${{ fromJSON(needs.plan.outputs.matrix) }}"
            assert job["strategy"]["fail-fast"] is False
            assert job["runs-on"] == "${{ matrix.runner }}"
        else:
            assert job["runs-on"] == HOSTED


@every_workflow
def test_a_local_action_comes_after_the_checkout_that_brings_it(file: Path) -> None:
    for name, job in jobs(file).items():
        used = [step.get("uses", "").partition("@")[0] for step in job["steps"]]
        for place, action in enumerate(used):
            if action.startswith("./"):
                assert "actions/checkout" in used[:place], name


@every_workflow
def test_local_actions_get_the_inputs_that_they_have(file: Path) -> None:
    for step in steps(file):
        if step.get("uses", "").startswith("./"):
            action = REPOSITORY / step["uses"] / "action.yml"
            inputs = read(action)["inputs"]
            given = step.get("with", {})
            assert set(given) <= set(inputs)
            assert {name for name, about in inputs.items() if about.get("required")} <= set(given)


RECORDING = """#!/usr/bin/env bash
printf '%s\\0' "$@" >>"$RECORD"
echo >>"$RECORD"
echo '{"include": []}'
"""


def told(script: str, environment: dict[str, str], folder: Path) -> list[list[str]]:
    """What a script, run for real, says to ./farm: the arguments of each call."""
    folder.mkdir()
    programs = {"farm": RECORDING, "jq": "#!/bin/sh\necho 0\n", "sudo": '#!/bin/sh\nexec "$@"\n'}
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "ccache.tar").touch()
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    (folder / "recipes" / "bases" / "locks").mkdir(parents=True)
    for name in ("new-1", "bases/new-wheel-1", "bases/locks/new-1"):  # as `pin update` writes them
        (folder / "recipes" / f"{name}.toml").touch()
    (folder / "recipes" / "old-1.toml").write_text(
        'version = "1"\nkept    = "the version before 2"\n'
    )
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", script],
        cwd=folder,
        env={
            "PATH": f"{folder}:{os.environ['PATH']}",
            "HOME": str(folder),
            "RECORD": str(folder / "record"),
            "GITHUB_OUTPUT": str(folder / "output"),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [call.split("\0")[:-1] for call in (folder / "record").read_text().splitlines()]


def understood(arguments: list[str]) -> str:
    """The command that the command line takes these for; its own usage error where it does not."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("builder", list(arguments))
    names, rest = [], list(arguments)
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, list(rest), parent=context)
        names.append(name)
    return " ".join(names)


def farm_scripts() -> list[Any]:
    return [
        pytest.param(step["run"], list(step.get("env", {})), id=f"{file.stem}-{step.get('name')}")
        for file in FILES
        for step in steps(file)
        if "./farm" in step.get("run", "")
    ]


@pytest.mark.parametrize(("script", "variables"), farm_scripts())
def test_every_command_of_a_workflow_exists_with_its_options(
    script: str, variables: list[str], tmp_path: Path
) -> None:
    for number, value in enumerate(("hello-sm120", "")):
        environment = dict.fromkeys([*variables, "RECIPE"], value) | {"BEFORE": "HEAD"}
        if not value and "RECIPE" not in variables:
            environment["RECIPE"] = "hello-sm120"  # the job's own, which always has one
        calls = told(script, environment, tmp_path / str(number))
        assert calls
        for arguments in calls:
            if arguments[0] == "test":  # pytest's own options
                continue
            command = understood(arguments)
            assert f"./farm {command}" in script


def test_an_update_locks_the_new_recipe_and_its_new_base(tmp_path: Path) -> None:
    (script,) = (
        each["run"]
        for each in jobs(GITHUB / "workflows" / "update.yml")["update"]["steps"]
        if each.get("name") == "Update"
    )
    calls = told(script, {"RECIPE": "old-1"}, tmp_path / "checkout")
    assert calls == [
        ["pin", "update", "old-1", "--keep-old", "--force"],
        ["pin", "lock", "new-wheel-1"],
        ["pin", "lock", "new-1"],
    ]


def test_the_commands_that_publish_are_all_there() -> None:
    scripts = "\n".join(param.values[0] for param in farm_scripts())
    said = set(re.findall(r"\./farm ((?:(?:ci|hub|pin|recipe) )?[a-z]+)", scripts))
    everyday = {"build", "push", "nightly", "status", "site", "test"}
    assert said == everyday | {
        "hub describe",
        "recipe check",
        "ci matrix",
        "ci trials",
        "ci ccache",
        "pin lock",
        "pin outdated",
        "pin update",
    }


def prepare_runner() -> Any:
    file = GITHUB / "scripts" / "prepare_runner.py"
    spec = importlib.util.spec_from_file_location("prepare_runner", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"features": {"containerd-snapshotter": True}}),
        (
            '{"exec-opts": ["native.cgroupdriver=cgroupfs"], "features": {"buildkit": true}}',
            {
                "exec-opts": ["native.cgroupdriver=cgroupfs"],
                "features": {"buildkit": True, "containerd-snapshotter": True},
            },
        ),
        (
            '{"features": {"containerd-snapshotter": false}}',
            {"features": {"containerd-snapshotter": True}},
        ),
    ],
)
def test_what_docker_is_configured_to_stays(text: str, expected: dict[str, Any]) -> None:
    assert json.loads(prepare_runner().with_containerd_store(text)) == expected


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"GITHUB_ACTIONS": "true"},  # act
        {"GITHUB_ACTIONS": "true", "RUNNER_ENVIRONMENT": "self-hosted"},
        {"GITHUB_ACTIONS": "true", "RUNNER_ENVIRONMENT": ""},
    ],
)
def test_a_runner_is_prepared_nowhere_but_on_githubs(kind: dict[str, str]) -> None:
    file = GITHUB / "scripts" / "prepare_runner.py"
    names = ("GITHUB_ACTIONS", "RUNNER_ENVIRONMENT")
    environment = {name: text for name, text in os.environ.items() if name not in names} | kind
    done = subprocess.run(
        [sys.executable, str(file), "--clear", "true"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 1
    assert "for GitHub's runners only" in done.stderr
    assert done.stdout == ""


def test_another_runner_gets_no_packages_and_keeps_its_files() -> None:
    """Steps as root on the runner of a matrix, which may be somebody's own machine."""
    texts = [GITHUB / "actions/prepare/action.yml", *(GITHUB / "workflows").glob("*.yml")]
    seen = 0
    for file in texts:
        found = yaml.safe_load(file.read_text())
        jobs = found.get("jobs") or {"action": {"runs-on": "${{", "steps": found["runs"]["steps"]}}
        for job in jobs.values():
            for step in job["steps"]:
                if "sudo" in step.get("run", "") and "${{" in job["runs-on"]:
                    seen += 1
                    hosted = f"{step.get('if', '')}{step['run']}"
                    assert "github-hosted" in hosted, f"{file.name}: {step['name']}"
    assert seen >= 3
