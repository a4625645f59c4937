"""The names of a build's steps: real lines of BuildKit, and every instruction that we render."""

from __future__ import annotations

import pytest

from builder.build.log import step_name
from support.buildx_output import STEPS
from support.environment import REPOSITORY

GOLDEN = sorted((REPOSITORY / "tests/data/golden").glob("*.Dockerfile"))


def test_the_lines_of_buildkit_have_names() -> None:
    assert [step_name(line) for line in STEPS.splitlines()] == [
        "[1/1] unpack Debian's root",
        "[devel 2/4] install CUDA's libraries",
        "[devel 3/4] update the loader cache",
        "[image 1/5] install Debian packages",
        "[build 2/7] copy the source",
        "[build 3/7] configure",
        "[build 4/7] compile",
        "[build 5/7] install",
        "[build 6/7] set times and modes",
        "[image 2/5] copy the engine",
        "[image 3/5] copy the entrypoint",
        "[image 4/5] WORKDIR /home/engine",
    ]


def test_every_instruction_of_a_rendered_dockerfile_has_a_name() -> None:
    texts = [golden.read_text().replace('\\"', '"') for golden in GOLDEN]
    lines = {line for text in texts for line in text.splitlines() if not line.startswith("#")}
    instructions = sorted(line for line in lines if line.startswith(("RUN", "COPY", "ADD")))
    assert instructions
    names = {line: str(step_name(f"#5 [build 1/9] {line}")) for line in instructions}
    assert [line for line, name in names.items() if "RUN" in name or "--from" in name] == []


@pytest.mark.parametrize(
    ("instruction", "shown"),
    [
        ("RUN --network=none [bold]make[/bold]", "[build 4/5] RUN [bold]make[/bold]"),
        ("RUN " + "x" * 200, "[build 4/5] RUN " + "x" * 81 + "..."),
        ("COPY --from=elsewhere /a /b", "[build 4/5] COPY --from=elsewhere /a /b"),
    ],
)
def test_an_unknown_instruction_is_shown_shortened(instruction: str, shown: str) -> None:
    assert step_name(f"#14 [build 4/5] {instruction}") == shown


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("#8 exporting layers", "exporting layers"),
        ("#8 exporting layers 0.1s done", None),
        ("#8 CACHED", None),
        ("#1 [internal] load build definition from Dockerfile", None),
        ("#5 [context base-devel] load metadata for docker.io/x", None),
        ("#14 26.59   [22/339] ccache g++ -c /src/a.cpp", None),
    ],
)
def test_other_lines_begin_no_step(line: str, name: str | None) -> None:
    assert step_name(line) == name
