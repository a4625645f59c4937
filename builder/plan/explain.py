"""A recipe explained: the inputs of its image, and where each definition comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from builder.core.errors import BuilderError, Problem
from builder.core.platforms import PLATFORMS, Platform, Platforms
from builder.engines import families
from builder.engines.cmake import definition_value
from builder.engines.families import complete
from builder.engines.layout import oldest_driver
from builder.plan.inputs import PlannedPatch, one_of, resolve_patches, where
from builder.recipes import probes, schema
from builder.recipes.catalog import Catalog, Entry, known_exceptions
from builder.recipes.patches import AddPatch, ScriptPatch


def explained(catalog: Catalog, name: str, platform: Platform | None = None) -> dict[str, Any]:
    """The explanation of a recipe's image for ``platform``, else its first one, as JSON data."""
    entry = catalog.engine(name)
    platform = one_of(entry.recipe, platform or entry.recipe.platform[0])
    target = PLATFORMS[platform]
    recipe = complete(entry.recipe.on(platform))
    family = families.ENGINES[recipe.family]
    return {
        "name": recipe.name,
        "summary": recipe.summary,
        "license": recipe.license,
        "url": recipe.url or where(recipe.source),
        "notes": list(recipe.notes),
        "kept": recipe.kept,
        "extends": recipe.extends,
        "platform": platform,
        "platforms": {each: list(entry.recipe.on(each).cuda.arch) for each in recipe.platform},
        "code": {each: _code(entry.recipe, each) for each in recipe.platform},
        "driver": oldest_driver(recipe, _cuda(catalog, recipe.base)),
        "source": _source(recipe),
        "patches": [_patch(planned) for planned in resolve_patches(entry, catalog.root)],
        "starts": [
            {
                "run": " ".join(step.run),
                "why": step.why,
                "drop_when": step.drop_when or "",
                "prints": list(step.contains),
            }
            for step in recipe.start
        ],
        "bases": [base_of(catalog.base(name).recipe) for name in catalog.chain(recipe.base)],
        "family": recipe.family,
        "family_is": f"Family {family.name}: {family.summary}.",
        "definitions": [
            [
                {"name": key, "value": definition_value(value), "from": layer.origin}
                for layer in layers
                for key, value in layer.definitions.items()
            ]
            for layers in family.layers(recipe, Platforms(target, target))
        ],
        "image": {
            "runs": " ".join([*recipe.image.entrypoint, *recipe.image.command]),
            "port": recipe.image.port,
            "health": recipe.image.health,
            # What other families' servers show to a browser is not known.
            "web_page": bool(recipe.llama.ui) if recipe.llama else None,
            "env": dict(recipe.image.env),
            "tags": [
                f"{recipe.image.repository}:{tag}{recipe.tag_suffix(each)}"
                for each in recipe.platform
                for tag in recipe.image.tags
            ],
        },
        "checks": [*(_probe(probe) for probe in recipe.probe), *_limits(recipe)],
        "accepted": [
            f"{each.covered} may break {each.check}: {each.why}"
            for each in (*recipe.accept, *known_exceptions(recipe.family))
        ],
    }


def _code(recipe: schema.Recipe, platform: Platform) -> list[str]:
    """The code that decides which cards run the image for a platform: "sm_120a"."""
    completed = complete(recipe.on(platform))
    return list(families.ENGINES[recipe.family].machine_code(completed))


def _cuda(catalog: Catalog, base: str) -> str | None:
    """The version of CUDA that a base brings, or a base below it: "13.0"; None: not known."""
    found = (catalog.base(name).recipe.cuda for name in catalog.chain(base))
    return next(filter(None, found), None)


def _patch(planned: PlannedPatch) -> dict[str, Any]:
    patch, origin = planned.patch, planned.patch.origin
    distribution = patch.add.distribution if isinstance(patch, AddPatch) else None
    return {
        "name": origin.name,
        "why": patch.why,
        "drop_when": patch.drop_when or "",
        "upstream": patch.upstream or "",
        "where": planned.url,
        "page": planned.page if origin.kind == "pull" else "",
        "commit": "" if origin.kind == "pick" else origin.after,  # of a range: its name has both
        "expect": patch.expect,
        "allowed": [f"leaving out {glob}" for glob in patch.leave_out],
        "prints": list(patch.script.contains) if isinstance(patch, ScriptPatch) else [],
        "installed_as": str(distribution) if distribution else "",
        "checked_by": _probe(patch.probe) if patch.probe else "",
        "no_probe": patch.no_probe or "",
    }


def _source(recipe: schema.Recipe) -> list[str]:
    match recipe.source:
        case schema.GitSource() as source:
            lines = [f"{source.git}", f"commit {source.commit}"]
            lines += [f"which was {source.ref}"] if source.ref else []
            lines += [] if source.submodules else ["without its submodules"]
            lines += [f"submodule {path} from {url}" for path, url in source.submodule.items()]
        case schema.PypiSource() as source:
            lines = [f"PyPI: {source.pypi} {source.version}", f"sha256 {source.sha256}"]
            lines += [] if source.root == "." else [f"of it {source.root}"]
        case schema.PathSource(path=path):
            lines = [f"{path} of this repository"]
        case schema.InstalledSource():
            lines = [where(recipe.source)]
    if recipe.overlay is not None:
        lines.append(f"installed as {recipe.overlay.package} {recipe.overlay.version}")
    if recipe.track is not None:
        track = recipe.track
        kind = "tags" if track.tag else "branch" if track.branch else "image"
        lines.append(f"updates: upstream's {kind} {track.tag or track.branch or track.image}")
        if track.channel is not None:
            moved = "a nightly run gives it a new image when upstream has moved"
            lines.append(f"channel {track.channel}: {moved}")
    return lines


def base_of(base: schema.BaseRecipe) -> dict[str, Any]:
    """A base as JSON data: what it starts from and brings."""
    published, root = base.published, base.root
    pin = published and (published.digest or f"not pinned: {published.note}")
    return {
        "name": base.name,
        "summary": base.summary,
        "notes": list(base.notes),
        "brings": [f"{wheel.name} {wheel.version}" for wheel in base.wheel],
        "published": f"{published.image} ({pin})" if published else "",
        "root": f"Debian {root.suite}: {root.image} or mmdebstrap" if root else "",
        "python": list(base.python.requirements) if base.python else [],
        "packages": {"devel": [*base.devel.packages], "runtime": [*base.runtime.packages]},
    }


def _probe(probe: probes.Probe) -> str:
    match probe:
        case probes.RunProbe():
            parts = [f"contains {text!r}" for text in probe.contains]
            parts += [f"matches {name}" for name in probes.pattern_names(probe.matches)]
            parts += [f"does not contain {text!r}" for text in probe.excludes]
            return ", ".join([f"{' '.join(probe.run)} exits {probe.status}", *parts])
        case probes.OptionProbe():
            parts = _listed("has", probe.has) + _listed("does not have", probe.missing)
            there = "is not" if probe.absent else "is"
            return ", ".join([f"{probe.option} {there} in --help", *parts])
        case probes.LibraryProbe():
            parts = _listed("has code for", probe.architectures) + _listed("needs", probe.needs)
            parts += _listed("does not need", probe.needs_not)
            parts += _listed("offers", probe.symbols) + _listed("does not offer", probe.symbols_not)
            counts = probe.symbols_at_least.items()
            parts += [f"offers at least {least} names like {like}" for like, least in counts]
            parts += [f"needs glibc {probe.glibc} at most"] if probe.glibc else []
            names = " or ".join([probe.library, *probe.alternatives])
            return ", ".join([f"{names} is there", *parts])
        case probes.FileProbe():
            parts = _listed("has", probe.has) + _listed("does not have", probe.missing)
            parts += [f"matches {name}" for name in probes.pattern_names(probe.matches)]
            parts += [f"sha256 {probe.sha256}"] if probe.sha256 else []
            parts += [f"no longer sha256 {probe.sha256_not}"] if probe.sha256_not else []
            there = "is not" if probe.absent else "is"
            return ", ".join([f"{probe.file} {there} there", *parts])
        case probes.PythonProbe():
            inside = f", in {probe.inside}" if probe.inside else ""
            parts = _listed("defines", probe.defines)
            parts += _listed("has", probe.has) + _listed("does not have", probe.missing)
            return ", ".join([f"{probe.python}{inside} is Python", *parts])


def _limits(recipe: schema.Recipe) -> list[str]:
    budget = recipe.budget
    limits = (
        ("to download", budget.download),
        ("unpacked", budget.unpacked),
        ("to download for somebody who has the image before", budget.update),
    )
    parts = [f"at most {most} MB {what}" for what, most in limits if most is not None]
    parts += [f"driver {recipe.cuda.driver} or newer is enough"] if recipe.cuda.driver else []
    serve = recipe.serve
    asked = f"answers /{serve.request.path}" if serve and serve.request else "serves a model"
    if serve and serve.refuses:
        parts.append(f"the server without a model says {serve.refuses!r} on a simulated card")
    elif serve:
        parts.append(f"the server {asked} and ends on SIGTERM")
    undefined = recipe.artifact.undefined if recipe.artifact else {}
    return parts + [f"{name} may be undefined: {why}" for name, why in undefined.items()]


def _listed(verb: str, names: Sequence[str]) -> list[str]:
    return [f"{verb} {', '.join(names)}"] if names else []


# Check recipes without building: errors, and warnings about parts that no check covers.

NVCC = "nvidia-cuda-nvcc"


class Checked(NamedTuple):
    """One recipe: why it cannot be built (a text of lines), and its warnings."""

    name: str
    error: str
    warnings: tuple[Problem, ...]


def lint(
    catalog: Catalog, name: str, miscompiling: Mapping[str, Sequence[str]] | None = None
) -> Checked:
    """Read, plan and render a recipe as a build would, and look for gaps between its probes.

    ``miscompiling`` are warnings about versions of nvcc.  Nothing is fetched.
    """
    from builder.plan.resolver import Resolver  # slow to import

    name = name if name in catalog.engines else catalog.engine(name).name
    try:
        entry = catalog.engine(name)
        Resolver(catalog, "amd64").plans(name)
    except BuilderError as error:
        return Checked(name, str(error), ())
    wrong = [
        base.problem(("wheel", index, "version"), message)
        for base in map(catalog.base, catalog.chain(entry.recipe.base))
        for index, wheel in enumerate(base.recipe.wheel)
        if wheel.name == NVCC
        for message in (miscompiling or {}).get(wheel.version, ())
    ]
    if rivals := catalog.rivals(entry.recipe):
        message = f"{', '.join(rivals)} is current, too: say in one of them why it is kept (kept)"
        wrong.append(entry.problem(("version",), message))
    return Checked(entry.name, "", (*_warnings(entry), *wrong))


def _warnings(entry: Entry[schema.Recipe]) -> Iterator[Problem]:
    for index, patch in enumerate(entry.recipe.patch):
        if patch.probe is None and patch.no_probe is None:
            message = f"{patch.name} has no probe, and no_probe does not say why"
            yield entry.problem(("patch", index), message)
    recipe = complete(entry.recipe)
    started = families.ENGINES[recipe.family].server_of(recipe) is not None
    if recipe.image.port is not None and not started and recipe.no_serve is None:
        message = "no [serve]: the server is never started, and no_serve does not say why"
        yield entry.problem(("image", "port"), message)
