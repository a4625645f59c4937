"""docker-bake.json: targets and groups, without a string that bake would evaluate.

https://docs.docker.com/build/bake/reference/.  Every string of the JSON is an HCL template.
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
"""The variable of the file for the directory of its contexts, which may be moved."""

Target = dict[str, Any]


def target(
    folder: Path, laid_out: Context, stage: str, tag: str, labels: Mapping[str, str]
) -> Target:
    """A target of the bake file; --load or --push of the bake decides on the output."""

    def placed(where: str | Path) -> str:
        path = Path(where)
        if not path.is_absolute():
            return literal(str(where))
        return f"${{{VARIABLE}}}/{literal(str(path.relative_to(folder / CONTEXTS)))}"

    escaped = {name: literal(text) for name, text in labels.items()}
    target: Target = {
        "context": placed(laid_out.folder),
        "dockerfile": "Dockerfile",
        "target": stage,
        "platforms": list(laid_out.platforms[stage]),
        "tags": [literal(tag)],
        "labels": escaped,
        "annotations": annotations_of(escaped),
        "contexts": {name: placed(where) for name, where in laid_out.named.items()},
        "args": {name: literal(text) for name, text in laid_out.build_arguments.items()},
        "secret": [
            buildx.fields(f"id={name}", f"src={placed(path)}")
            for name, path in sorted(laid_out.secrets.items())
        ],
        # The manifest of an image, as `builder build` makes it, and not an index.
        "attest": ["type=provenance,disabled=true"],
    }
    return {key: value for key, value in target.items() if value}


def written_here(file: Path) -> bool:
    """Whether builder wrote a bake file."""
    try:
        return VARIABLE in json.loads(file.read_text("utf-8"))["variable"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def identifier(name: str) -> str:
    """A name as a target: bake allows no dots."""
    return name.replace(".", "_")


def literal(text: str) -> str:
    """Text with HCL's template markers escaped.

    https://github.com/hashicorp/hcl/blob/main/hclsyntax/spec.md, "Template Literals".
    """
    return text.replace("${", "$${").replace("%{", "%%{")


def write(
    file: Path, folder: Path, targets: Mapping[str, Target], groups: Mapping[str, Sequence[str]]
) -> None:
    """Write the bake file; raises ``BuildError`` where buildx refuses or misreads it."""
    where = str(folder / CONTEXTS)
    written = {
        "variable": {VARIABLE: {"default": literal(where)}},
        "group": {name: {"targets": list(found)} for name, found in groups.items()},
        "target": targets,
    }
    file.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    read = buildx.print_bake(file, list(groups), {VARIABLE: str(file.parent / CONTEXTS)})
    for name, target in targets.items():
        for difference in _differences(target, read["target"].get(name, {})):
            raise BuildError(f"buildx misreads the bake target {name}", difference)


def _differences(target: Target, read: Target) -> Iterator[str]:
    """Where a target that buildx read differs from the written one."""
    if [literal(tag) for tag in read.get("tags", [])] != target["tags"]:
        yield f"tags: {read.get('tags')}"
    for part in ("labels", "args"):
        found = read.get(part, {})
        for name, text in target.get(part, {}).items():
            if literal(found.get(name, "")) != text:
                yield f"{part}, {name}: {found.get(name)!r}"
