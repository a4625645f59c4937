"""SLSA provenance of an image, as an in-toto statement.

https://slsa.dev/spec/v1.0/provenance; https://github.com/in-toto/attestation, spec/v1:
statement.md, resource_descriptor.md, digest_set.md, field_types.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from builder import __version__
from builder.build.record import Record
from builder.plan.plan import Plan
from builder.publish.changes import SourceChange
from builder.publish.parts import Part
from builder.publish.sbom import Bill

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:builder:recipe:v1"
"""``builder build RECIPE``.

externalParameters: ``recipe`` and ``version``, the names of the recipe and of the engine's version.
internalParameters: ``key``, the sha256 of all inputs of the image; ``contract``, the sha256 of what
the smoke test checks; ``platforms``, of the compiler and of the image.
resolvedDependencies has the recipe's pins."""
LOCAL = "urn:builder:local"
"""A builder that no platform vouches for."""


def platform(environment: Mapping[str, str]) -> str:
    """The URI of the builder: GitHub's workflow at its commit's ref, else ``LOCAL``.

    https://docs.github.com/en/actions/reference/workflows-and-actions/variables
    """
    server = environment.get("GITHUB_SERVER_URL", "")
    workflow = environment.get("GITHUB_WORKFLOW_REF", "")
    return f"{server}/{workflow}" if server and workflow else LOCAL


def to_json(bill: Bill, plan: Plan, record: Record, builder: str = LOCAL) -> str:
    """The statement on an image, unsigned; ``builder`` is the URI of the builder."""
    platforms = {"build": plan.platforms.build, "target": plan.platforms.target}
    statement = {
        "_type": STATEMENT,
        "subject": [
            {"name": bill.repository, "digest": {"sha256": bill.digest.removeprefix("sha256:")}}
        ],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"recipe": bill.recipe, "version": bill.version},
                "internalParameters": {
                    "key": plan.key,
                    "contract": record.contract,
                    "platforms": platforms,
                },
                "resolvedDependencies": list(_dependencies(bill)),
            },
            "runDetails": {
                "builder": {"id": builder, "version": {"builder": __version__}},
                "metadata": _times(plan.name, record),
            },
        },
    }
    return json.dumps(statement, indent=2) + "\n"


def _times(name: str, record: Record) -> dict[str, str]:
    """When the build began; and, where its stages are known, when it ended (without smoke)."""
    if not record.created:
        return {}
    started = datetime.fromisoformat(record.created).astimezone(UTC)
    stages = [record.seconds.get(f"{stage} {name}") for stage in ("fetch", "build")]
    known = [seconds for seconds in stages if seconds is not None]
    found = {"startedOn": _timestamp(started)}
    if len(known) == len(stages):
        found["finishedOn"] = _timestamp(started + timedelta(seconds=sum(known)))
    return found


def _timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _dependencies(bill: Bill) -> Iterator[dict[str, Any]]:
    yield _part(bill.engine)
    # A start step runs a file that is a dependency already: of a patch, or of the base.
    yield from (_change(change) for change in bill.changes if change.kind != "start")
    yield from map(_part, bill.parts)


def _part(part: Part) -> dict[str, Any]:
    return {
        "name": f"{part.name} {part.version}".strip(),
        "uri": part.origin or part.purl,
        **({"digest": dict(part.digest)} if part.digest else {}),
        "annotations": {"builder_kind": part.kind, "builder_shipped": part.shipped},
    }


def _change(change: SourceChange) -> dict[str, Any]:
    if change.content:
        digest = {"sha256": hashlib.sha256(change.content).hexdigest()}
    else:
        digest = {"gitCommit": change.after} if change.after else {}
    known = {
        "builder_base": change.before,
        "builder_path": change.path,
        "builder_page": change.page,
        "builder_why": change.why,
    }
    return {
        "name": change.name,
        **({"uri": change.location} if change.location else {}),
        **({"digest": digest} if digest else {}),
        "annotations": {
            "builder_kind": "patch",
            "builder_applied": change.applied,
            **{name: value for name, value in known.items() if value},
        },
    }
