"""Check: the steps that patch the engine at start succeed, and lead to its entrypoint."""

from __future__ import annotations

import json
from collections.abc import Iterator

from builder.families.layout import LAYOUT
from builder.smoke.context import Context
from builder.smoke.verdict import Check
from builder.tools.docker import containers

PLAN = LAYOUT.start_plan
STOP = "BUILDER_START=only"
SAYS = "start: stopping before"
GRACE = 60.0  # seconds beside the time of the steps, for the interpreter to start


def check(context: Context) -> Iterator[Check]:
    """The entrypoint after the steps is the engine's own, and the steps pass without a GPU."""
    recipe, extended = context.recipe, context.subject.extended
    if not recipe.start:
        return
    file = context.contents.files.get(PLAN)
    plan = json.loads(file.text or "{}") if file else {}
    expected = (extended.config if extended else {}).get("Entrypoint") or []
    found = plan.get("entrypoint") or []
    yield Check.of(
        "start",
        "the entrypoint after the steps",
        json.dumps(expected),
        json.dumps(found),
        found == expected,
    )
    started = containers.run(
        context.subject.reference,
        recipe.image.entrypoint[1:],
        entrypoint=recipe.image.entrypoint[0],
        timeout=GRACE + sum(step.seconds for step in recipe.start),
        # The patches are written into the container's own layer.
        extra=("--read-only=false", f"--env={STOP}"),
    )
    lines = started.output.strip().splitlines()
    found_status = f"exit status {started.status}: {' | '.join(lines[-3:])}"
    passed = started.status == 0 and SAYS in started.output
    yield Check.of("start", "the steps before the engine", "exit status 0", found_status, passed)
