"""The table of checks: all checks are in it, each under its kind, and docs/checks.md has them."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pkgutil import iter_modules
from typing import get_args

import pytest

from builder import checks
from builder.checks.check import CHECKS_OF_LAYERS, CHECKS_OF_PROGRAMS, Row, options_for
from builder.checks.subject import Context, Subject
from builder.image.contents import Contents, File, Layer
from builder.recipes.probes import Accept
from support.environment import REPOSITORY
from support.smoke_tests import context_of, extended_image, hello_recipe

CHECKS = (*CHECKS_OF_LAYERS, *CHECKS_OF_PROGRAMS)
FILES = (File("/opt/a", "file", size=1, mode=0o6666), File("/build/x.a", "file", digest="1"))
LAYER = Layer("sha256:1", 1, 2, 0, "COPY", FILES)
IMAGE = Contents({file.path: file for file in FILES}, {"os": "linux"}, (LAYER,), 1)


def test_every_check_is_in_the_table() -> None:
    used = {row.check for row in CHECKS}
    for module in iter_modules(checks.__path__, f"{checks.__name__}."):
        for name, function in inspect.getmembers(import_module(module.name), inspect.isfunction):
            if name.startswith("check") and "context" in inspect.signature(function).parameters:
                assert function in used, f"builder/checks/check.py has no row for {module.name}"


@pytest.mark.parametrize("row", CHECKS, ids=lambda row: row.check.__qualname__)
def test_the_page_has_every_check(row: Row) -> None:
    page = (REPOSITORY / "docs/checks.md").read_text()
    kinds = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert row.kind in kinds, "docs/checks.md has no row for this check"


def context(*, extends: bool, recipe: bool) -> Context:
    extended = extended_image(0, {}) if extends else None
    return context_of(IMAGE, hello_recipe() if recipe else None, extended=extended)


@pytest.mark.parametrize("extends", [False, True])
@pytest.mark.parametrize("recipe", [False, True])
def test_checks_of_layers_have_the_kind_of_their_row(extends: bool, recipe: bool) -> None:
    given = context(extends=extends, recipe=recipe)
    rows = [row for row in CHECKS_OF_LAYERS if row.applies(given)]
    found = {(row.kind, check.kind) for row in rows for check in row.check(given)}
    assert all(kind == own for kind, own in found), found
    kinds = {kind for kind, _ in found}
    assert {"leftovers", "set-uid", "world-writable", "secrets", "layers"} <= kinds
    assert ("extended" in kinds) == extends
    assert ("times" in kinds) == recipe


def test_programs_of_an_image_without_a_recipe_are_not_run() -> None:
    without = context(extends=False, recipe=False)
    assert [row for row in CHECKS_OF_PROGRAMS if row.applies(without)] == []


def test_what_can_be_accepted_is_checked() -> None:
    accepted = {*get_args(Accept.model_fields["check"].annotation)}
    assert accepted <= {"vulnerabilities", *(row.kind for row in CHECKS)}  # of pushes


@pytest.mark.parametrize(("devel", "unread"), [("base:devel", 0), (None, 3)])
def test_the_code_of_our_own_base_is_read_for_a_simulated_card(
    devel: str | None, unread: int
) -> None:
    subject = Subject("vllm:1", "", hello_recipe(), devel=devel, extended=extended_image(3, {}))
    options = options_for(subject)
    assert str(options.card) == "12.0"
    assert options.code_above == unread
