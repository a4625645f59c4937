"""``builder doctor``."""

from __future__ import annotations

from dataclasses import asdict

import typer

from builder.cli.options import JsonOption
from builder.cli.tables import table
from builder.cli.terminal import print_json
from builder.errors import WorldError


def doctor(as_json: JsonOption = False) -> None:
    """Check this machine for what builds need, and suggest fixes.

    The exit code is 4 if something is missing that every build needs.
    """
    from builder import settings
    from builder.host import doctor
    from builder.pipeline import way

    found = settings.load()
    findings = [*doctor.examine(found), *way.findings(found)]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = [(each.state, each.what, each.found, each.advice) for each in findings]
        table(("", "what", "found", "what to do"), rows)
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(WorldError.exit_code)
