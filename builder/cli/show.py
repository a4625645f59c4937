"""``builder list`` and ``builder show``."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from builder.cli import options
from builder.cli.options import argument, catalog_at, farm, flag
from builder.cli.terminal import counted, line, log, pairs, paragraph, print_json, table, wrapped
from builder.core import sizes
from builder.core.errors import BuilderError, FetchError, RecipeError, WorldError, suggestion
from builder.core.platforms import PLATFORMS, Platform

if TYPE_CHECKING:
    from builder.plan.plan import AnyPlan
    from builder.presets.catalog import PresetEntry, Presets
    from builder.presets.schema import Figures, Memory, Preset, Result
    from builder.recipes.catalog import BrokenEntry, Catalog, Entry
    from builder.recipes.schema import BaseRecipe, Recipe

    AnyEntry = Entry[Recipe] | BrokenEntry[Recipe] | Entry[BaseRecipe] | BrokenEntry[BaseRecipe]


# Presets as tables: of ``builder list --presets`` and ``builder show PRESET``.


def _print_all(presets: Presets, *, as_json: bool) -> None:
    if as_json:
        found = [
            {
                "name": name,
                "preset": _dumped(entry.parsed) if entry.parsed else None,
                "problems": [str(problem) for problem in entry.problems],
            }
            for name, entry in presets.entries.items()
        ]
        print_json({"presets": found})
    else:
        rows = []
        for of in presets.valid():
            published = of.preset.published
            # With its unit: a table that is not for a terminal has no header.
            speed = f"{_figures(published.tokens_per_second)} tokens/s" if published else ""
            rows.append((of.name, of.preset.recipe, _cards(of.preset), speed, of.preset.summary))
        header = ("preset", "recipe", "card", "speed", "summary")
        table(header, rows, drops=("recipe", "card", "summary", "speed"), wraps="summary")
    if presets.problems():
        raise RecipeError("some presets are invalid", problems=presets.problems())


def _print_one(entry: PresetEntry, recipes: Catalog, *, as_json: bool) -> None:
    from builder.presets import command
    from builder.presets.schema import TABLES

    preset = entry.preset
    files = preset.files
    places = {
        place: file.repository or "" if file.whole else place.upper()
        for place, file in files.items()
    }
    words = command.arguments(preset, recipes.engine(preset.recipe).recipe, places)
    container = command.container_options(preset.container)
    if as_json:
        found = {"name": entry.name, "file": str(entry.file), **_dumped(preset)}
        print_json({**found, "command": words, "container_options": container})
        return
    environment = [f"{name}={value}" for name, value in preset.serve.environment.items()]
    pairs(
        {
            "name": entry.name,
            "summary": preset.summary,
            "recipe": preset.recipe,
            "card": _cards(preset),
            **{TABLES[place]: file.shown for place, file in files.items()},
            "memory": _memory(preset.memory),
            "method": _method(preset),
            "loses to": preset.loses_to or "",
            "source": _source(preset),
        },
        wraps=True,
    )
    paragraph("Options of the server", [shlex.join(group) for group in command.groups(words)])
    paragraph("Environment", [shlex.quote(each) for each in environment])
    paragraph("Options of the container", container)
    if preset.result:
        line("")
        header = ("context", "tokens/s", "runs", "accepted", "baseline", "memory", "differs")
        columns = zip(header, *(_row(preset, result) for result in preset.result), strict=True)
        header, *rows = zip(*(each for each in columns if any(each[1:])), strict=True)
        table(header, rows)
    paragraph("Caveats", [each.shown for each in preset.caveat])
    paragraph("Unverified", [f"{key}: {why}" for key, why in preset.unverified.items()])


def _dumped(preset: Preset) -> dict[str, Any]:
    return preset.model_dump(mode="json", exclude_defaults=True)


def _cards(preset: Preset) -> str:
    return f"{preset.cards} x {preset.card}" if preset.cards > 1 else preset.card


def _figures(found: Figures | None) -> str:
    if found is None:
        return ""
    if found.mean is None and not found.runs:
        return f"{found.least:g}-{found.most:g}"
    spread = f" ({found.least:g}-{found.most:g})" if found.least < found.most else ""
    return f"{round(found.middle, 2):g}{spread}"


def _memory(found: Memory | None) -> str:
    if found is None:
        return ""
    parts = ", ".join(f"{kind} {size:g}" for kind, size in found.kinds.items())
    total = f"{found.total:g} {found.unit}" if found.total is not None else ""
    return ": ".join(filter(None, (total, parts if total else f"{parts} {found.unit}")))


def _method(preset: Preset) -> str:
    given = preset.method.model_dump(exclude_defaults=True)
    given |= {"seeds": " ".join(map(str, given["seeds"]))} if "seeds" in given else {}
    task = given.pop("task", "")
    named = [f"{name.replace('_', '-')} {value}" for name, value in given.items()]
    return ", ".join(filter(None, [task, *named]))


def _source(preset: Preset) -> str:
    found = preset.source
    if found is None:
        return ""
    return "  ".join(filter(None, (found.title, found.published, found.url)))


def _row(preset: Preset, result: Result) -> tuple[str, ...]:
    speeds = result.tokens_per_second
    differs = [shlex.join(result.arguments), result.differs or "", result.task or ""]
    accepted = _figures(result.acceptance)
    if not accepted and result.accepted_share is not None:
        accepted = f"{result.accepted_share:.1f}"
    return (
        str(preset.context_of(result) or ""),
        _figures(speeds),
        str(speeds.count or len(speeds.runs) or ""),
        f"{accepted} %" if accepted else "",
        f"{result.baseline:g}" if result.baseline else "",
        _memory(result.memory),
        "; ".join(filter(None, differs)),
    )


# ``builder list`` and ``builder show``.

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
NAMED = re.compile(r'^recipe\s*=\s*"([^"]+)"', re.MULTILINE)
"""The recipe of a preset's file: it stands before the first table."""


def checked(
    root: Path, name: str, state: Path | None, platform: Platform | None = None
) -> dict[str, Any] | None:
    """What is known of a recipe's image without reading it; None: nothing.

    By the newest record of this machine (``here``), else the file of trials/: ``size`` in bytes to
    download; the numbers of checks that ``passed``, and of ``bad`` ones, which failed or could not
    be run; ``day``; ``commit`` of the source; build ``key``; ``platform``; ``today``: whether it is
    of the recipe as it is now; ``uncompared``: operations and ways to draft that no check compared.

    Only these figures are read: the types of a record take longer to import than the command runs.
    """
    unknown: dict[str, Any] = {"today": None, "uncompared": ""}
    found = []
    for file in (state / "records" / name).glob("*.json") if state else ():
        with suppress(OSError, ValueError, LookupError, TypeError):
            kept = json.loads(file.read_bytes())
            states = Counter(each["state"] for each in kept["verdict"]["checks"])
            bad = states["failed"] + states["untried"]
            left = "; ".join(each["found"] for each in kept["verdict"]["checks"] if _left(each))
            checks = {"passed": states["passed"], "bad": bad}
            about = {"day": kept["created"], "commit": kept.get("commit", ""), "key": kept["key"]}
            where = {"platform": kept["platform"], "here": True}
            size = kept["verdict"]["download_size"]
            found.append({"size": size, **checks, **about, **where, **unknown, "uncompared": left})
    with suppress(OSError, ValueError, LookupError, TypeError):
        kept = json.loads((root / "trials" / f"{name}.json").read_bytes())
        if not found:
            checks = {"passed": kept["checks"], "bad": sum(kept["failed"].values())}
            about = {"day": kept["created"], "commit": kept["commit"], "key": kept["key"]}
            where = {"platform": kept["platform"], "here": False}
            found.append({"size": kept["download_size"], **checks, **about, **where, **unknown})
    of_platform = [each for each in found if platform in {None, each["platform"]}]
    newest = max(of_platform, key=lambda each: str(each["day"]), default=None)
    return {**newest, "day": newest["day"][:10]} if newest else None


def _left(check: dict[str, Any]) -> bool:
    """Whether it is a check that names what was not compared: ways to draft
    (``checks/logit_test.py``), or operations (``checks/kernel_test.py``)."""
    subjects = {"the server's drafts", "operations"}
    return check["state"] == "skipped" and check["subject"] in subjects


def _presets_of(root: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in sorted((root / "presets").glob("*.toml")):
        text = file.read_text("utf-8", "replace") if file.is_file() else ""
        if named := NAMED.search(text.partition("\n[")[0]):
            found.setdefault(named[1], []).append(file.stem)
    return found


def _on_base(entries: Mapping[str, AnyEntry], base: str) -> list[str]:
    return [name for name, each in entries.items() if each.recipe and each.recipe.base == base]


def list_recipes(
    presets: bool = flag("--presets", "List the presets instead: published runs."),
    bases: bool = flag("--bases", "List the bases of the recipes instead."),
    everything: bool = flag(
        "--all", "Also recipes that are kept beside a newer one, with the reason; family and base."
    ),
    as_json: options.JsonOption = False,
) -> None:
    """List the current recipe of each engine and channel: GPU code, size, checks, built here.

    Size and checks are of the image that this machine built last, else of the repository's file in
    trials/: an empty cell is not known. The column "presets" counts published runs.
    Problems of invalid recipes are printed to standard error; the exit code is then 3.
    """
    root = farm()
    if presets:
        from builder.presets.catalog import with_recipes

        _print_all(with_recipes(root)[0], as_json=as_json)
        return
    found = catalog_at()
    if as_json:
        print_json(_listed(found))
    elif bases:
        rows = [
            (name, str(len(_on_base(found.engines, name))), entry.recipe.summary)
            for name, entry in found.bases.items()
            if entry.recipe is not None
        ]
        table(("base", "recipes", "summary"), rows, wraps="summary")
    else:
        _print_recipes(root, found, everything=everything)
    if found.problems():
        raise RecipeError("some recipes are invalid", problems=found.problems())


def _listed(found: Catalog) -> dict[str, Any]:
    from builder.recipes.catalog import problems_of

    return {
        "recipes": [
            {
                "name": name,
                "recipe": entry.recipe.model_dump(mode="json") if entry.recipe else None,
                "problems": [str(problem) for problem in problems_of(entry)],
            }
            for name, entry in found.engines.items()
        ],
        "bases": [
            {"name": name, "problems": [str(problem) for problem in problems_of(base)]}
            for name, base in found.bases.items()
        ],
    }


PLACES = {
    f"BUILDER_{name}" for name in ("CACHE_DIR", "CATALOG", "MODELS_DIR", "PROGRAM", "STATE_DIR")
}
"""Variables of which any value is valid."""


def _state_dir() -> Path | None:
    """The state directory, for a command that needs no other setting; None, and a warning, where
    the settings are invalid.  Settings take longer to import than such a command runs."""
    from platformdirs import user_config_path, user_state_path

    given = {name for name in os.environ if name.startswith("BUILDER_")} - PLACES
    if not given and not (user_config_path("builder") / "settings.toml").exists():
        return Path(os.environ.get("BUILDER_STATE_DIR") or user_state_path("builder"))
    try:
        return options.user_settings().state_dir
    except WorldError as error:
        log(f"warning: {error.what}: {'; '.join(error.why.splitlines())}")
        return None


def _print_recipes(root: Path, found: Catalog, *, everything: bool) -> None:
    from builder.recipes.schema import by_version

    presets, state, rows = _presets_of(root), _state_dir(), []
    recipes = [entry.recipe for entry in found.engines.values() if entry.recipe is not None]
    shown = [each for each in recipes if everything or not each.kept]
    for recipe in sorted(shown, key=by_version):
        code = [each for name in recipe.platform for each in recipe.on(name).cuda.arch]
        kept, facts = checked(root, recipe.name, state), [recipe.name, " ".join(code)]
        facts += [sizes.shown(kept["size"]) if kept else ""]
        passed = kept and (f"{kept['bad']} failed" if kept["bad"] else f"{kept['passed']} passed")
        facts += [passed or "", kept["day"] if kept and kept["here"] else ""]
        facts += [str(len(presets.get(recipe.name, [])) or "")]
        facts += [recipe.family, recipe.base, recipe.kept or ""] if everything else []
        rows.append((*facts, recipe.summary))
    header = ["recipe", "GPU code", "size", "checks", "built here", "presets"]
    header += ["family", "base", "kept for"] if everything else []
    drops = ("summary", "GPU code", "built here", "checks", "presets", "size", "base", "family")
    wraps = "kept for" if everything else "summary"
    table((*header, "summary"), rows, drops=drops[: None if everything else 4], wraps=wraps)
    if len(shown) < len(recipes):
        log(f"{counted(len(recipes) - len(shown), 'other recipe')} with --all")


def show(
    recipe: str = argument(
        "RECIPE|PRESET|BASE",
        "Name of a recipe, of an engine (its current recipe), of a base, or of a preset; the "
        "short name of a preset.",
        autocompletion=options.presets_and_recipes,
    ),
    platform: options.PlatformOption = None,
    flags: bool = flag(
        "--flags", "Also each definition of cmake with its origin, the bases, and the checks."
    ),
    inputs: bool = flag("--inputs", "Print today's plan instead: all inputs, and the build key."),
    dockerfile: bool = flag("--dockerfile", "Print the rendered Dockerfile instead."),
    as_json: options.JsonOption = False,
) -> None:
    """Show a recipe: image, source, GPU code, driver, size, checks, presets, patches, notes.

    Nothing is downloaded or built. The plan of --inputs, --dockerfile and --json is made for the
    architecture and the Debian root image of the Docker engine, if one answers; --flags --json is
    the explanation. For a preset, show its models, options and figures.
    """
    from builder.presets import is_preset

    root = farm()
    is_base = (root / "recipes" / "bases" / f"{recipe}.toml").exists()
    named = is_preset(recipe) or _is_recipe(root, recipe) or is_base
    target = recipe if named else _meant(root, recipe)
    if is_preset(target):
        from builder.presets.catalog import with_recipes

        if dockerfile or inputs or flags:
            raise typer.BadParameter("a preset has no Dockerfile, flags or inputs: name its recipe")
        presets, recipes = with_recipes(root)
        _print_one(presets.preset(target), recipes, as_json=as_json)
    elif dockerfile or inputs or (as_json and not flags):
        _show_plan(root, target, platform, dockerfile=dockerfile, as_json=as_json)
    elif not _is_recipe(root, target):
        _print_base(root, target)
    else:
        found = explanation(root, target, platform)
        print_json(found) if as_json else print_explanation(found, flags=flags)


def _is_recipe(root: Path, name: str) -> bool:
    """Whether a file is of the recipe, or of a version of the engine, with that name."""
    stems = [file.stem for file in (root / "recipes").glob("*.toml")]
    return any(stem == name or stem.startswith(f"{name}-") for stem in stems)


def _meant(root: Path, name: str) -> str:
    from builder.core import settings
    from builder.presets.choose import of_farm, resolved

    try:
        return resolved(of_farm(root)[1], name, settings.load().state_dir, log)[0]
    except RecipeError as error:
        if "did you mean" not in error.what:
            bases = [file.stem for file in (root / "recipes" / "bases").glob("*.toml")]
            error.what += suggestion(name, sorted(bases))
        raise


# A recipe, or a base, in a summary and in full.


def explanation(root: Path, name: str, platform: Platform | None) -> dict[str, Any]:
    """A recipe explained, with its presets and what is known of its image, as JSON data."""
    from builder.engines.families import load_catalog
    from builder.plan.explain import explained
    from builder.plan.resolver import Resolver

    catalog = load_catalog(root, only=[name])
    found = explained(catalog, name, platform)
    kept = checked(root, found["name"], _state_dir(), platform)
    if kept is not None:
        with suppress(BuilderError):  # such as a source tree that is missing
            keys = Resolver(catalog, "amd64").recipe_keys(found["name"], kept["platform"])
            kept["today"] = kept["key"] in keys
    presets = _presets_of(root).get(found["name"], [])
    return {**found, "presets": presets, "checked": kept}


def print_explanation(found: dict[str, Any], *, flags: bool) -> None:
    """Print what ``explanation`` found: a summary, with ``flags`` everything."""
    line(wrapped(f"{found['name']}: {found['summary']}", "  ", "") + "\n")
    pairs([each for each in _facts(found) if each[1]], wraps=True)
    for patch in found["patches"]:
        _print_patch(patch, flags=flags)
    for start in found["starts"]:
        about = {"drop when": start["drop_when"], "must print": ", ".join(start["prints"])}
        _below(f"Run at every start: {start['run']}: {start['why']}", about)
    paragraph("Notes and known problems", found["notes"])
    if not flags:
        line(f"\nMore: `builder show {found['name']} --flags`, --inputs, --dockerfile")
        return
    for base in found["bases"]:
        _print_base_of(base)
    line(f"\n{found['family_is']}")
    for number, definitions in enumerate(found["definitions"], 1):
        line(f"\nDefinitions of cmake call {number} (the last one of a name wins):")
        for origin in dict.fromkeys(each["from"] for each in definitions):
            line(f"  from {origin}:")
            of_origin = [each for each in definitions if each["from"] == origin]
            pairs([(f"    {each['name']}", each["value"]) for each in of_origin])
    paragraph("Environment", [f"{name}={value}" for name, value in found["image"]["env"].items()])
    paragraph("The smoke test checks that", found["checks"])
    paragraph("Accepted exceptions", found["accepted"])


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    image, several = found["image"], len(found["platforms"]) > 1
    code = [
        f"{' '.join(found['code'][name] or arch)}{f' ({name})' if several else ''}"
        for name, arch in found["platforms"].items()
    ]
    port = [f"port {image['port']}"] if image["port"] else []
    port += [f"health page /{image['health']}"] if image["port"] and image["health"] else []
    if image["web_page"] is not None:
        port.append("a web page" if image["web_page"] else "no web page")
    return [
        ("image", ", ".join(image["tags"])),
        *(("" if number else "source", text) for number, text in enumerate(found["source"])),
        ("about", "" if found["url"] in "; ".join(found["source"]) else found["url"]),
        ("engine", f"family {found['family']} on the base {found['bases'][0]['name']}"),
        ("GPU code", ", ".join(code)),
        ("driver", f"{found['driver']} or newer" if found["driver"] else "not known"),
        *_of_image(found),
        ("server", ", ".join(port)),
        ("starts", image["runs"] or "as the base image does"),
        ("license", found["license"]),
        ("presets", ", ".join(found["presets"])),
        ("kept for", found["kept"] or ""),
        ("extends", found["extends"] or ""),
    ]


def _of_image(found: dict[str, Any]) -> list[tuple[str, str]]:
    if found["checked"] is None:
        return [("checked", "never: neither on this machine nor in trials/")]
    of = found["checked"]
    where = "on this machine" if of["here"] else "elsewhere (trials/)"
    refused = f", {of['bad']} did not" if of["bad"] else ""
    text = f"{of['passed']} checks passed{refused} on {of['day']}, {where}"
    if len(found["platforms"]) > 1:
        text += f", for {of['platform']}"
    known = [each for each in found["source"] if each.startswith("commit ")]
    if of["commit"] and known and f"commit {of['commit']}" not in known:
        text += f"; that image was built from {of['commit'][:12]}, not from the recipe's commit"
    elif of["today"] is False:
        text += "; that image is of an earlier state of the recipe, or of its base"
    size = f"{sizes.shown(of['size'])} to download"
    return [("size", size), ("checked", text), ("numbers", of["uncompared"])]


def _print_patch(patch: dict[str, Any], *, flags: bool) -> None:
    title = "Patch" if patch["expect"] == "applies" else "Patch that finds its code absent:"
    about = {"drop when": patch["drop_when"], "discussed at": patch["upstream"]}
    if flags:
        about |= {
            "from": patch["where"],
            "allowed": ", ".join(patch["allowed"]),
            "must print": ", ".join(patch["prints"]),
            "installed as": patch["installed_as"],
            "checked by": patch["checked_by"] or f"no probe: {patch['no_probe'] or 'no reason'}",
        }
    _below(f"{title} {patch['name']}: {patch['why']}", about)


def _below(title: str, about: dict[str, str]) -> None:
    line("\n" + wrapped(title, "  ", ""))
    pairs({f"  {name}": value for name, value in about.items()}, wraps=True)


def _print_base(root: Path, name: str) -> None:
    from builder.engines.families import load_catalog
    from builder.plan.explain import base_of

    found = load_catalog(root)
    for base in map(found.base, found.chain(name)):
        _print_base_of(base_of(base.recipe))
    for title, entries in (("Recipes on it", found.engines), ("Bases on it", found.bases)):
        names = _on_base(entries, name)
        paragraph(title, [", ".join(names)] if names else [])
    line(f"\nMore: `builder show {name} --inputs`, --dockerfile")


def _print_base_of(base: dict[str, Any]) -> None:
    about = {
        "starts from": base["published"] or base["root"],
        "NVIDIA wheels": ", ".join(base["brings"]),
        "Python packages": ", ".join(base["python"]),
        **{f"Debian, {stage}": ", ".join(of) for stage, of in base["packages"].items()},
    }
    _below(f"Base {base['name']}: {base['summary']}", about)
    pairs([("  note", note) for note in base["notes"]], wraps=True)


# The plan of a recipe, or of a base.


def _show_plan(
    root: Path, name: str, platform: Platform | None, *, dockerfile: bool, as_json: bool
) -> None:
    from platform import machine

    from builder.build.roots import resolver_of
    from builder.core import settings
    from builder.engines.families import load_catalog
    from builder.plan.inputs import one_of

    recipes, own = load_catalog(root, only=[name]), settings.load()

    def plans(build: str | None) -> Sequence[AnyPlan]:
        resolver = resolver_of(recipes, own, log, build)
        if not _is_recipe(root, name):
            return (resolver.resolve_base(name, PLATFORMS[platform or "linux/amd64"]),)
        return resolver.plans(name, platform)

    if _is_recipe(root, name):
        recipes.engine(name)  # reports a broken recipe also where no engine answers
    try:
        found = plans(build_architecture())
    except FetchError as error:
        log(f"{error.what}: the plan is shown without that digest, so its key differs")
        found = plans(machine())
    if dockerfile:
        if _is_recipe(root, name):
            one_of(recipes.engine(name).recipe, platform)
        typer.echo(found[0].text, nl=False)
        return
    described = [_describe(plan) for plan in found]
    if as_json:
        print_json({"images": described} if len(described) > 1 else described[0])
        return
    for number, each in enumerate(described):
        if number:
            line("")
        _print_plan(each)


def build_architecture() -> str | None:
    """This machine's architecture if no engine answers; None if an engine can be asked."""
    from platform import machine

    from builder.docker import engine as docker

    try:
        docker.engine()
    except WorldError:
        return machine()
    return None


def _describe(plan: AnyPlan) -> dict[str, Any]:
    recipe = plan.recipe
    return {
        "name": plan.name,
        "summary": recipe.summary,
        "notes": list(getattr(recipe, "notes", [])),
        "file": str(plan.file),
        "family": recipe.family,
        "key": plan.key,
        **plan.inputs(),
        "base": _describe(plan.base) if plan.base else None,
    }


def _print_plan(plan: dict[str, Any]) -> None:
    apart = {"base", "debian", "labels", "notes", "packages", "patches", "platforms", "scripts"}
    build, target = plan["platforms"]
    lines = [(name, _plain(value)) for name, value in plan.items() if name not in apart]
    lines += [("platform", target if build == target else f"{target}, compiled on {build}")]
    lines += [("patch", _plain(patch)) for patch in plan.get("patches", [])]
    lines += [("note", note) for note in plan["notes"]]
    for context, files in plan["packages"].items():
        lines += [(context, f"{name} {version}  sha256:{sha}") for name, version, sha in files]
    for stage, packages in (plan.get("debian") or {}).items():
        lines.append(("debian", f"{stage}: {counted(len(packages), 'package')}; see --json"))
    lines += [("script", f"{name}  sha256:{sha}") for name, sha in plan["scripts"].items()]
    lines += [("label", f"{name}={value}") for name, value in plan.get("labels", {}).items()]
    pairs([(name, value) for name, value in lines if value])
    if plan["base"] is not None:
        line(f"\nbased on {plan['base']['name']}:")
        _print_plan(plan["base"])


def _plain(value: Any) -> str:
    """A text as it is, any other value as TOML writes it, without empty parts."""
    if isinstance(value, Mapping):
        value = {key: each for key, each in value.items() if each not in (None, "", [], (), {})}
    if value is None or isinstance(value, str):
        return value or ""
    return _as_toml(value) if value != {} else ""


def _as_toml(value: Any) -> str:
    """``value`` in one line of TOML, which has no null; importing tomlkit takes too long here."""
    if isinstance(value, Mapping):
        given = [(key, each) for key, each in value.items() if each is not None]
        named = [(key if BARE_KEY.fullmatch(key) else json.dumps(key), each) for key, each in given]
        return "{" + ", ".join(f"{key} = {_as_toml(each)}" for key, each in named) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_as_toml, value))}]"
    return json.dumps(value, ensure_ascii=False, default=str)
