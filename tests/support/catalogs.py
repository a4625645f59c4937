"""Catalogs for tests that need no engine."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from shutil import copytree
from typing import Any

from builder.core.platforms import Platforms
from builder.engines import families
from builder.engines.families import load_catalog as load
from builder.plan.inputs import RootChoice
from builder.plan.plan import Plan
from builder.plan.resolver import Resolver, bootstrapped_root
from builder.recipes import catalog, locks
from builder.recipes.catalog import Catalog
from builder.recipes.locks import Install
from support.environment import REPOSITORY

AMD64 = Platforms("amd64")


def mmdebstrap(found: Catalog) -> RootChoice:
    """The root that needs no registry."""
    entry = found.base("debian-trixie")
    assert entry.recipe.root is not None
    return bootstrapped_root(entry, entry.recipe.root, AMD64)


def unasked(found: Catalog, base: str, platforms: Platforms = AMD64) -> RootChoice:
    """What a base stands on, as far as that is known without asking anybody."""
    return Resolver(found, platforms.build, "mmdebstrap").root_of(base, platforms)


def rendered(root: Path, name: str, platforms: Platforms = AMD64) -> Plan:
    """The image of a recipe of a catalog."""
    return Resolver(load(root), platforms.build, "mmdebstrap").resolve(name, platforms.image)


def write_lock(file: Path, text: str) -> None:
    """Write a Debian lock from a text without its digest, or with another text's digest."""
    data = tomllib.loads(text)
    installs = [Install.model_validate(each) for each in data["install"]]
    lock = locks.make(data["suite"], data["as_of"], installs)
    file.write_text(locks.text_of(lock, file.stem))


def without_locks(root: Path) -> None:
    """Take the Debian locks out of a catalog's bases: nothing asks Debian's servers."""
    for file in (root / "recipes" / "bases").glob("*.toml"):
        text = re.sub(r"(?m)^\[debian\]\nlock .*\n", "", file.read_text())
        file.write_text(re.sub(r"(?m)^\[root\]$", '[root]\nas_of = "2026-11-20"', text))


def never_built(root: Path) -> Path:
    """The farm with images whose names no engine has: the machine may hold the catalog's own."""
    for folder in ("presets", "cards", "shapes", "receipts", "dockerfiles", "patches"):
        copytree(REPOSITORY / folder, root / folder)
    for file in (REPOSITORY / "recipes").rglob("*.*"):
        copy = root / file.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = re.sub(r'(?m)^repository = "', 'repository = "never-built-', file.read_text())
        if (engine := re.search(r'(?m)^engine +?= "(.+)"', text)) and "repository =" not in text:
            image = f'[image]\nrepository = "never-built-{engine[1]}"\n'
            text = text.replace("[image]\n", image) if "[image]\n" in text else f"{text}\n{image}"
        copy.write_text(text)
    return root


def with_image(root: Path, image: str, digest: str | None, base: str = "debian-trixie") -> Catalog:
    """The catalog with another image, and neither packages nor lock, for a Debian root."""
    file = root / "recipes" / "bases" / f"{base}.toml"
    pin = f'\ndigest = "{digest}"' if digest is not None else ""
    text = re.sub(r"(?m)^image .*$", f'image = "{image}"{pin}', file.read_text())
    text = re.sub(r"(?m)^packages .*$", 'packages = []\nas_of = "2026-11-20"', text)
    file.write_text(re.sub(r"(?m)^(\[debian\]|lock .*)$", "", text))
    bases = {name: family.check for name, family in families.BASES.items()}
    return catalog.load(root, {}, bases)


def document_of(name: str) -> dict[str, Any]:
    """A recipe of this repository, with what it takes over from the recipe that it extends."""
    found = tomllib.loads((REPOSITORY / f"recipes/{name}.toml").read_text())
    if "extends" not in found:
        return found
    above = document_of(found["extends"])
    patches = found.get("patch", above.get("patch", [])) + found.get("add", {}).get("patch", [])
    return {**above, **found, "patch": patches}
