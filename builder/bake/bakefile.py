"""docker-bake.json: targets and groups, written so that buildx reads what was meant.

https://docs.docker.com/build/bake/reference/; in its JSON every string is a template of HCL's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.errors import BuildError
from builder.images.build import annotations_of
from builder.images.context import Context
from builder.tools.docker import buildx

FILE = "docker-bake.json"
CONTEXTS = "contexts"
VARIABLE = "CONTEXTS"
"""The file's variable: where its contexts are, for who moves them."""
NOW = "${timestamp()}"
"""A label that says when it was baked, by the clock of who bakes."""

Target = dict[str, Any]


def target(
    folder: Path, laid_out: Context, stage: str, tag: str, labels: Mapping[str, str]
) -> Target:
    """A target of the bake file; its output is left to who bakes."""

    def placed(where: str | Path) -> str:
        path = Path(where)
        if not path.is_absolute():
            return literal(str(where))
        return f"${{{VARIABLE}}}/{literal(str(path.relative_to(folder / CONTEXTS)))}"

    told = {name: text if text == NOW else literal(text) for name, text in labels.items()}
    target: Target = {
        "context": placed(laid_out.folder),
        "dockerfile": "Dockerfile",
        "target": stage,
        "platforms": laid_out.platform.split(","),
        "tags": [literal(tag)],
        "labels": told,
        "annotations": annotations_of(told),
        "contexts": {name: placed(where) for name, where in laid_out.named.items()},
        "args": {name: literal(text) for name, text in laid_out.build_arguments.items()},
        "secret": [
            buildx.fields(f"id={name}", f"src={placed(path)}")
            for name, path in sorted(laid_out.secrets.items())
        ],
        # An image and nothing beside it, as a build of its own makes it.
        "attest": ["type=provenance,disabled=true"],
    }
    return {key: value for key, value in target.items() if value}


def written_here(file: Path) -> bool:
    """Whether a bake file is one of ours."""
    try:
        return VARIABLE in json.loads(file.read_text("utf-8"))["variable"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def identifier(name: str) -> str:
    """A name as bake takes it for a target: without dots."""
    return name.replace(".", "_")


def literal(text: str) -> str:
    """Text in which bake evaluates nothing: every string of its JSON is a template of HCL's.

    https://github.com/hashicorp/hcl/blob/main/hclsyntax/spec.md, "Template Literals".
    """
    return text.replace("${", "$${").replace("%{", "%%{")


def write(
    file: Path, folder: Path, targets: Mapping[str, Target], groups: Mapping[str, Sequence[str]]
) -> None:
    """Write the bake file, and have buildx read it; raises ``BuildError`` where it reads less."""
    where = str(folder / CONTEXTS)
    written = {
        "variable": {VARIABLE: {"default": literal(where)}},
        "group": {name: {"targets": list(found)} for name, found in groups.items()},
        "target": targets,
    }
    file.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    read = buildx.print_bake(file, list(groups), {VARIABLE: str(file.parent / CONTEXTS)})
    for name, target in targets.items():
        for what in _otherwise(target, read["target"].get(name, {})):
            raise BuildError(f"buildx reads the target {name} otherwise than it is meant", what)


def _otherwise(target: Target, read: Target) -> Iterator[str]:
    """What buildx read of a target in another way than it was written."""
    if [literal(tag) for tag in read.get("tags", [])] != target["tags"]:
        yield f"tags: {read.get('tags')}"
    for part in ("labels", "args"):
        found = read.get(part, {})
        for name, text in target.get(part, {}).items():
            if text != NOW and literal(found.get(name, "")) != text:
                yield f"{part}, {name}: {found.get(name)!r}"
