"""The image layout: stated once for templates and checks, and equal in the scripts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from builder.engines.families import ENGINES
from builder.engines.layout import LAYOUT
from support.catalogs import load, rendered
from support.environment import REPOSITORY

SCRIPTS = REPOSITORY / "dockerfiles" / "scripts"


def test_the_start_script_is_installed_where_the_entrypoint_names_it() -> None:
    tree = ast.parse((SCRIPTS / "overlay.py").read_text())
    names = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert str(Path(LAYOUT.start).parent) in names
    assert {Path(LAYOUT.start).name, Path(LAYOUT.start_plan).name} <= set(names)
    assert Path(LAYOUT.start_plan).parent == Path(LAYOUT.start).parent


def test_no_template_states_the_layout_itself() -> None:
    for template in (REPOSITORY / "dockerfiles").glob("*.j2"):
        text = template.read_text()
        for value in (LAYOUT.engine, str(LAYOUT.uid), LAYOUT.home, LAYOUT.healthcheck):
            assert value not in text, template.name


@pytest.mark.parametrize("family", ENGINES)
def test_a_family_says_whether_it_compiles_with_ccache(family: str) -> None:
    catalog = load(REPOSITORY)
    names = [e.name for e in catalog.engines.values() if e.recipe and e.recipe.family == family]
    found = rendered(REPOSITORY, names[0])
    assert found.family.uses_ccache is ("type=cache,id=builder-ccache," in found.text)
