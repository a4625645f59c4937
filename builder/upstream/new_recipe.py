"""Writes the recipe of a source, from its tree and from the family that recognizes it.

A source is a commit of a git repository, or a tree in an sdist of PyPI.

Nothing is invented: a value that the tree does not decide is left out, or it is an error that names
the option for it.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from identify.vendor.licenses import LICENSES

from builder.core.errors import PROGRAM, Problem, RecipeError
from builder.core.platforms import Platforms
from builder.engines import cmake_tree, families
from builder.engines.cmake import merged
from builder.engines.families import ENGINES
from builder.engines.family import Draft
from builder.engines.layout import LAYOUT
from builder.plan import explain
from builder.plan.inputs import PypiFile
from builder.plan.resolver import Resolver
from builder.recipes import edit
from builder.recipes.catalog import Catalog, CatalogFile, locks_of, parse, read_text
from builder.recipes.draft import DraftTable, Line, lines_of, text
from builder.recipes.edit import SHORT_COMMIT, NamedCommit
from builder.recipes.fields import TAG_GLOB, checked_ref, checked_url
from builder.recipes.probes import LibraryProbe, OptionProbe, RunProbe
from builder.recipes.schema import Cuda, GitSource, InstalledSource, PypiSource, Recipe
from builder.sources import gather, git, pypi
from builder.sources.mirrors import Repositories
from builder.upstream import track
from builder.upstream.track import ChosenCommit, SourceTree, chosen
from builder.upstream.update import OF_CMAKE, absent_paths, absent_submodules

# The settings of a recipe that a new recipe takes over, and the settings that it leaves out.

TABLES = ("cuda", "python", "layout", "artifact", "debian", "serve", "budget", "build")
OF_IMAGE = ("entrypoint", "command", "port", "health", "env", "user", "compression")
DIGITS = re.compile(r"\b[0-9a-f]{7,40}\b")
INTERPRETERS = re.compile(r"(?:.*/)?(?:python[0-9.]*|sh|bash|env)")
COMMIT = re.compile(r"\b(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7,40}\b")


def _foreign_definitions(like: Recipe, tree: SourceTree) -> frozenset[str]:
    """The definitions of a recipe that no CMake file of a tree names; none where submodules may."""
    texts = "" if tree.gitlinks else tree.cmake
    names = {name for call in like.cmake for name in call.define if not OF_CMAKE.fullmatch(name)}
    return frozenset(name for name in names if texts and not _mentions(texts, name))


def _tables_of(like: Recipe, foreign: Collection[str]) -> dict[str, Sequence[DraftTable]]:
    """The tables that a recipe of the same kind takes over, by name.

    Values that name a commit or the version, and ``foreign`` definitions, are left out.
    """
    values = like.model_dump(exclude_unset=True)
    found: dict[str, Sequence[DraftTable]] = {
        name: [DraftTable(f"[{name}]", lines_of(values[name]))] for name in TABLES if name in values
    }
    calls = []
    for call in values.get("cmake", []):
        define = {
            name: value
            for name, value in call.pop("define", {}).items()
            if name not in foreign and not _names_pin(value, like)
        }
        calls.append(
            DraftTable("[[cmake]]", lines_of(call | ({"define": define} if define else {})))
        )
    found["cmake"] = calls
    above = f"As in {like.name}; the smoke test shows whether it holds here."
    probes = [probe for probe in values.get("probe", []) if not _names_pin(probe, like)]
    found["probe"] = _commented(map(lines_of, probes), above)
    return found


def _commented(probes: Iterable[list[Line]], above: str) -> list[DraftTable]:
    return [
        DraftTable("[[probe]]", lines, "" if index else above) for index, lines in enumerate(probes)
    ]


def _plain_options(like: Recipe) -> list[str]:
    return [
        probe.option
        for probe in like.probe
        if isinstance(probe, OptionProbe) and not (probe.has or probe.missing or probe.absent)
    ]


def _left_out(
    like: Recipe, options: frozenset[str] | None, foreign: Collection[str]
) -> Iterator[str]:
    """A line for each setting that is not taken over, with the reason; ``options`` are the tree's,
    where the family reads it."""
    for patch in like.patch:
        yield f"the patch {patch.name} of {like.name}: `builder patch add --help`"
    for step in like.start:
        yield f"[[start]] {' '.join(step.run)} of {like.name}: add it if this tree needs it"
    if options is None:
        probes = like.model_dump(exclude_unset=True).get("probe", [])
        for probe in (probe for probe in probes if _names_pin(probe, like)):
            yield f"a probe of {like.name} that names its commit or version: {json.dumps(probe)}"
    else:
        for option in (name for name in _plain_options(like) if name not in options):
            yield f"the probe of {option} of {like.name}: the tree does not list it"
    for name, value in (pair for call in like.cmake for pair in call.define.items()):
        if _names_pin(value, like):
            yield f"the definition {name} = {value!r} of {like.name}: it names a commit"
    for name in sorted(foreign):
        yield f"the definition {name} of {like.name}: no CMake file of this tree names it"


def _lacking(recipe: Recipe, tree: SourceTree) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The keys of a recipe that name a part which no build of this tree makes, with a message.

    Nothing where a submodule is built by itself.
    """
    family = ENGINES[recipe.family]
    links = tuple(f"{link}/" for link in tree.gitlinks)
    if any(f"{call.source}/".startswith(links) for call in recipe.cmake):
        return
    texts = tree.cmake
    files = {path.rpartition("/")[2] for path in tree.paths}
    made = ", ".join(sorted({each[1] for each in cmake_tree.PROGRAM.finditer(texts)})) or "none"
    seen = f"; programs in its CMake files: {made}"
    for path, name in _parts(recipe):
        plain = re.sub(r"^lib(.+?)\.(?:so|a)\b.*", r"\1", name)
        if name not in files and not any(_mentions(texts, each) for each in (name, plain)):
            yield path, f"the tree makes no {name}{seen}"
            seen = ""
    given = merged(
        [layer for layers in family.layers(recipe, Platforms("amd64")) for layer in layers]
    )
    switches = cmake_tree.switches(texts)
    if switches and not any(given.get(name, value != "OFF") for name, value in switches.items()):
        message = f"CUDA code is compiled only with {' or '.join(switches)}: set it with define"
        yield ("cmake",), message


def _parts(recipe: Recipe) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The programs and libraries of the engine that a recipe names, each with its key."""
    for word in recipe.image.entrypoint:
        if word.startswith(f"{LAYOUT.engine}/") and not INTERPRETERS.fullmatch(word):
            yield ("image", "entrypoint"), word.rpartition("/")[2]
    for index, file in enumerate(recipe.artifact.files if recipe.artifact else ()):
        yield ("artifact", "files", index), file.rpartition("/")[2]
    for index, probe in enumerate(recipe.probe):
        if isinstance(probe, RunProbe) and not INTERPRETERS.fullmatch(probe.run[0]):
            yield ("probe", index, "run"), probe.run[0].rpartition("/")[2]
        elif isinstance(probe, OptionProbe) and probe.program:
            yield ("probe", index, "program"), probe.program.rpartition("/")[2]
        elif isinstance(probe, LibraryProbe) and not probe.alternatives:
            yield ("probe", index, "library"), probe.library.rpartition("/")[2]


def _mentions(texts: str, name: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", texts) is not None


def _names_pin(value: Any, like: Recipe) -> bool:
    text = json.dumps(value)
    pin = like.source.commit if isinstance(like.source, GitSource) else ""
    version = rf"(?<![\w.]){re.escape(like.version)}(?![\w]|\.[0-9])"
    return (
        COMMIT.search(text) is not None
        or any(pin.startswith(word) for word in DIGITS.findall(text))
        or re.search(version, text) is not None
    )


# The recipe, written.

ORDER = (
    *("cuda", "llama", "ggml", "cmake", "python", "layout", "artifact", "debian", "image", "serve"),
    *("budget", "build", "probe"),
)
OF_LIKE = ("cmake", "build")
"""Tables that a recipe to be like decides, whatever the tree suggests."""
PAGE = "docs/recipes.md"
OF_PYPI = "pypi:"
PAGE_OF_REF = re.compile(r"(https?://.+?)/(?:-/)?(?:tree|commit|releases/tag)/([^?#]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """The user's options for a new recipe; None: the repository decides."""

    url: str
    """A git repository's, or ``pypi:PROJECT``, ``pypi:PROJECT==RELEASE``."""
    ref: str | None = None
    root: str | None = None
    """Directory of the source in an sdist."""
    like: str | None = None
    """Name of a recipe whose settings are taken over."""
    name: str | None = None
    """``ENGINE-VERSION``."""
    summary: str | None = None
    license: str | None = None


@dataclass(frozen=True, slots=True)
class NewRecipe:
    """A valid recipe that has not been written."""

    file: Path
    text: str
    recipe: Recipe
    found: ChosenCommit
    left_out: tuple[str, ...]
    warnings: tuple[Problem, ...]
    """As `recipe check` gives them."""
    shared: str
    """The URL of another source that has this engine's name in the catalog; empty: none has."""
    locks: Mapping[Path, Path]
    """The lock files of the recipe that it is like, and the recipe's own copies of them."""


def draft(catalog: Catalog, wish: Wish, repositories: Repositories, work: Path) -> NewRecipe:
    """The recipe of a source; ``work`` is a directory.

    Raises ``FetchError`` for a repository or an index that does not answer or lacks the ref,
    ``RecipeError`` where the recipe would not be valid: no family knows the tree, the license is
    not known, the recipe to be like does not fit.
    """
    like = _like(catalog, wish.like)
    if wish.root is not None:
        wish = replace(wish, root=posixpath.normpath(wish.root))
    if wish.url.startswith(OF_PYPI):
        tree, commit = _of_release(wish, repositories, work)
    else:
        tree, commit = _of_repository(wish, repositories)
    url = tree.url
    family, read = _family(tree, like)
    place = url or wish.root or wish.url
    inside = wish.root not in {None, "."} and not commit.target.commit
    version = cmake_tree.own_version(tree) if inside else default_version(commit.target)
    engine, version = _names(catalog, tree, (place, version), wish.name, like)
    own = _own_names(catalog, url) + ([(like.engine, like.image.repository)] if like else [])
    repository = next((each for name, each in own if name == engine), engine)
    foreign = _foreign_definitions(like, tree) if like else frozenset[str]()
    of_image = [Line("repository", repository)]
    if like is not None:
        of_image += lines_of(like.image.model_dump(exclude_unset=True, include={*OF_IMAGE}))
    elif read is not None:
        of_image += [line for table in read.tables.get("image", ()) for line in table.lines]
    tables = _tables(like, read, foreign) | {"image": [DraftTable("[image]", of_image)]}
    head = [
        Line("engine", engine),
        Line("version", version),
        _summary(catalog, tree, place, wish.summary),
        Line("license", wish.license or _license(tree)),
        *([Line("url", url)] if tree.tree and url.startswith("http") else []),
        Line("family", family),
        Line("base", like.base if like else read.base if read else ""),
        *([Line("platform", like.platform)] if like and len(like.platform) > 1 else []),
    ]
    written = text(
        [
            DraftTable(
                "", head, f"Written by `builder recipe new` from {_named(tree)}: not built yet."
            ),
            _source(tree, like, wish.root or "."),
            _track(tree),
            *(table for name in ORDER for table in tables.get(name, ())),
        ]
    )
    file = catalog.root / "recipes" / f"{engine}-{version}.toml"
    new = CatalogFile(file.stem, file, written)
    recipe, warnings = _checked(catalog, new, tree, like)
    locks = {}
    for table, lock in (locks_of(like) if like else {}).items():
        copied = f"locks/{file.stem}{'.debian' if table == 'debian' else ''}.toml"
        written = written.replace(f'"{lock}"', f'"{copied}"')
        locks[file.parent / lock] = file.parent / copied
    options = read.options if read else None
    left_out = tuple(_left_out(like, options, foreign)) if like else ()
    shared = next(
        (each for name in (engine, repository) for each in _others(catalog, url, name)), ""
    )
    return NewRecipe(file, written, recipe, commit, left_out, warnings, shared, locks)


def _of_repository(wish: Wish, repositories: Repositories) -> tuple[SourceTree, ChosenCommit]:
    url = checked_url(git.checked_url(wish.url))
    if page := PAGE_OF_REF.fullmatch(url):
        raise RecipeError(
            f"{url} is a page of a repository, not the repository",
            hint=f"`{PROGRAM} recipe new {page[1]} --ref {page[2]}`",
        )
    if wish.root is not None:
        raise RecipeError(
            f"--root {wish.root} is a directory of an sdist, and {url} is a repository",
            hint=f"`{PROGRAM} recipe new {OF_PYPI}PROJECT==RELEASE --root {wish.root}`",
        )
    found = chosen(url, wish.ref and checked_ref(wish.ref), repositories)
    return SourceTree(url, found.target, repositories), found


def _of_release(
    wish: Wish, repositories: Repositories, work: Path
) -> tuple[SourceTree, ChosenCommit]:
    project, _, release = wish.url.removeprefix(OF_PYPI).partition("==")
    if wish.ref is not None or not re.fullmatch(r"[\w.-]+", project):
        raise RecipeError(
            f"{wish.url} with --ref {wish.ref}" if wish.ref else f"{wish.url} names no project",
            hint=f"name project and release of PyPI: {OF_PYPI}PROJECT==RELEASE",
        )
    file = pypi.find_sdist(project, release or None)
    root = wish.root or "."
    found = gather.vendored(PypiFile(file, root), repositories, work)
    target = NamedCommit(file.version, found.commit, "release", file)
    place = f"{root} of {project} {file.version}" + (f", of {file.day}" if file.day else "")
    of = f" of {found.url}" if found.url else ""
    what = f"commit {found.commit}{of}" if found.commit else f"a tree{of} without its commit"
    about = f"{place}, is {what}"
    url = found.url if found.url.startswith("https://") else ""
    return SourceTree(url, target, repositories, found.tree), ChosenCommit(target, about)


def write(new: NewRecipe, root: Path) -> Iterator[Path]:
    """Write a recipe and its locks and, in a checkout of the farm, what its tests compare.

    Yields each file that was written.  ``pin lock`` of one recipe then changes no other's key.
    """
    name = new.file.stem
    texts = {new.file: new.text}
    for lock, own in new.locks.items():
        texts[own] = re.sub(r"(?<=`builder pin lock )[^`]+", name, read_text(lock), count=1)
    for file, written in texts.items():
        edit.write(file, written)
        yield file
    golden, keys = root / "tests/data/golden", root / "tests/data/keys.txt"
    if not (golden.is_dir() and keys.is_file()):
        return
    plan = Resolver(families.load_catalog(root), "amd64", "mmdebstrap").resolve(name, "linux/amd64")
    lines = [line for line in read_text(keys).splitlines() if line.split()[0] != name]
    lines = sorted([*lines, f"{name:33} {plan.key}"], key=str.split)
    for file, written in {
        golden / f"{name}.Dockerfile": plan.text,
        keys: "".join(f"{line}\n" for line in lines),
    }.items():
        edit.write(file, written)
        yield file


def _like(catalog: Catalog, name: str | None) -> Recipe | None:
    if name is None:
        return None
    recipe = catalog.engine(name).recipe
    whole = isinstance(recipe.source, PypiSource) and recipe.source.root == "."
    if whole or isinstance(recipe.source, InstalledSource):
        raise RecipeError(
            f"a recipe for a tree cannot be like {recipe.name}",
            f"the family {recipe.family} builds it from a package",
            f"`builder pin update {recipe.name} --to RELEASE` makes it another release",
        )
    return recipe


def _family(tree: SourceTree, like: Recipe | None) -> tuple[str, Draft | None]:
    cuda = like.cuda if like else Cuda(arch=["120"])
    for family in [ENGINES[like.family]] if like else ENGINES.values():
        try:
            read = family.draft(tree, cuda)
        except RecipeError as error:
            raise RecipeError(f"{_named(tree)}: {error.what}", error.why, error.hint) from error
        if read is not None or (like is not None and not family.reads_trees):
            return family.name, read
    if like is not None:
        raise RecipeError(
            f"{_named(tree)} is no tree of the family {like.family}",
            f"{ENGINES[like.family].summary}: {like.name} is of this family",
            "name another recipe with --like",
        )
    inside = "name the directory of the source in it with --root, " if tree.target.file else ""
    raise RecipeError(
        f"no family recognises {_named(tree)}",
        cmake_tree.described(tree),
        f"{inside}take over a recipe of the same kind with --like RECIPE, or write one: {PAGE}",
    )


def _tables(
    like: Recipe | None, read: Draft | None, foreign: frozenset[str]
) -> dict[str, Sequence[DraftTable]]:
    of_like = _tables_of(like, foreign) if like else {}
    if read is None:
        return of_like
    of_both = {name: of_like[name] for name in OF_LIKE if of_like.get(name)}
    options = [name for name in _plain_options(like) if name in read.options] if like else []
    above = f"Options of {like.name} that this tree has, too." if like else ""
    probes = _commented(([Line("option", name)] for name in options), above)
    of_both["probe"] = [*read.tables.get("probe", ()), *probes]
    return {**of_like, **read.tables, **of_both}


def _names(
    catalog: Catalog,
    tree: SourceTree,
    read: tuple[str, str],
    given: str | None,
    like: Recipe | None,
) -> tuple[str, str]:
    place, version = read
    known = [name for name, _ in _own_names(catalog, tree.url)]
    engine = like.engine if like and like.engine in known else _engine(catalog, place, known)
    if given is None:
        if not engine:
            raise RecipeError(
                f"{place} has the name of another engine of the catalog",
                hint="give it a name of its own: --name ENGINE-VERSION",
            )
        if not version:
            raise RecipeError(
                f"{_named(tree)} does not tell the version of {engine}",
                "it has neither the commit, nor a version in the CMakeLists.txt at the top",
                f"name it: --name {engine}-VERSION",
            )
        return engine, version
    for name in (like.engine if like else engine, *known, engine):
        if name and given.startswith(f"{name}-"):
            return name, given.removeprefix(f"{name}-")
    if version and given.endswith(f"-{version}"):
        return given.removesuffix(f"-{version}"), version
    head, dash, tail = given.rpartition("-")
    return (head, tail) if dash else (given, version)


def _engine(catalog: Catalog, url: str, known: Sequence[str]) -> str:
    """The engine of a repository: by its name, with its owner where another source has that name.

    Empty where this name is another source's, too.
    """
    *_, owner, last = ["", *urlsplit(url).path.strip("/").split("/")]
    names = [
        re.sub(r"[._]", "-", joined_by_single(name.removesuffix(".git")).lower())
        for name in (last, f"{owner}-{last}" if url.startswith(("http", "ssh", "git")) else last)
    ]
    if known:
        return names[0] if names[0] in known else known[0]
    return next((name for name in names if not [*_others(catalog, url, name)]), "")


def _own_names(catalog: Catalog, url: str) -> list[tuple[str, str]]:
    recipes = [recipe for recipe, home in _homes(catalog) if _same(home, url)]
    return [(recipe.engine, recipe.image.repository) for recipe in recipes]


def _homes(catalog: Catalog) -> Iterator[tuple[Recipe, str]]:
    """The recipes with a git repository, and its URL."""
    for entry in catalog.engines.values():
        if entry.recipe is not None and isinstance(entry.recipe.source, GitSource):
            yield entry.recipe, entry.recipe.source.git


def _others(catalog: Catalog, url: str, name: str) -> Iterator[str]:
    """The other sources of the catalog whose engine, or repository of images, has a name."""
    for entry in catalog.engines.values():
        recipe = entry.recipe
        if recipe is not None and name in {recipe.engine, recipe.image.repository}:
            source = recipe.source.git if isinstance(recipe.source, GitSource) else recipe.url
            if source is None or not _same(source, url):
                yield source or recipe.name


def _same(url: str, other: str) -> bool:
    """Whether two URLs name one repository, as far as their texts show it."""
    plain = [
        re.sub(r"^(?:\w+://)?(?:[^@/]*@)?([^/:]+)[:/]+", r"\1/", each).lower()
        for each in (url, other)
    ]
    first, second = (each.rstrip("/").removesuffix(".git") for each in plain)
    return first == second


def _named(tree: SourceTree) -> str:
    target = tree.target
    if target.file is not None:
        return f"{target.file.name} {target.file.version}"
    return f"commit {target.commit[:9]}" if target.kind == "commit" else f"{target.name}"


def _summary(catalog: Catalog, tree: SourceTree, place: str, given: str | None) -> Line:
    if given is not None:
        return Line("summary", given)
    place = urlsplit(place).path.strip("/").removesuffix(".git")
    files = sorted(path for path in tree.paths if README_FILE.fullmatch(path))
    for path, readme in tree.texts(files[:1]).items():
        found = HEADING.search(FENCED.sub("", readme))
        heading = " ".join(MARKUP.sub("", found[1]).split()) if found else ""
        heading = "".join(each for each in heading if each.isprintable())[:LONGEST_SUMMARY]
        if heading:
            others = [home for _, home in _homes(catalog) if not _same(home, tree.url)]
            taken = any(url.lower().endswith(f"/{heading.lower()}") for url in others)
            summary = f"{heading} of {place}" if taken else heading
            return Line("summary", summary, f"the first heading of {path}")
    return Line("summary", place)


def _license(tree: SourceTree) -> str:
    files = [path for path in tree.paths if LICENSE_FILE.fullmatch(path)]
    found = {path: identified(text) for path, text in sorted(tree.texts(files).items())}
    names = {name for candidates in found.values() for name in candidates}
    if len(names) == 1 and all(found.values()):
        return names.pop()
    reasons = [
        f"{path}: {' or '.join(candidates) or 'its text is none that is known word for word'}"
        for path, candidates in found.items()
    ]
    raise RecipeError(
        f"the license of {_named(tree)} is not known for sure",
        "\n".join(reasons) or "there is no license file at the top of the tree",
        "read it, and give its SPDX identifier: --license ID",
    )


def _source(tree: SourceTree, like: Recipe | None, root: str) -> DraftTable:
    target = tree.target
    if (file := target.file) is not None:
        of_file = {"pypi": file.name, "version": file.version, "sha256": file.sha256}
        return DraftTable("[source]", lines_of(of_file | ({} if root == "." else {"root": root})))
    lines = [Line("git", tree.url)]
    lines += [] if target.kind == "commit" else [Line("ref", target.name)]
    lines.append(Line("commit", target.commit))
    own = []
    if like is not None and isinstance(like.source, GitSource):  # how submodules are fetched
        moved = {
            path: url
            for path, url in like.source.submodule.items()
            if any(f"{path}/".startswith(f"{link}/") for link in tree.gitlinks)
        }
        own = [] if like.source.submodules else [Line("submodules", value=False)]
        own += [Line("submodule", moved)] if moved else []
    if not own and tree.gitlinks and tree.submodule_urls().keys().isdisjoint(tree.gitlinks):
        why = f".gitmodules has no URL for {', '.join(tree.gitlinks)}"
        own = [Line("submodules", value=False, comment=why)]
    return DraftTable("[source]", lines + own)


def _track(tree: SourceTree) -> DraftTable:
    target = tree.target
    lines = []
    if target.kind == "branch":
        lines = [Line("branch", target.name)]
    elif target.kind == "tag":
        glob = track.glob_of(target.name)
        # The glob of a tag that is only a commit matches tags of every kind.
        lines = [Line("tag", glob)] if re.fullmatch(TAG_GLOB, glob) and glob != "*" else []
    return DraftTable("[track]", lines)


def _checked(
    catalog: Catalog, new: CatalogFile, tree: SourceTree, like: Recipe | None
) -> tuple[Recipe, tuple[Problem, ...]]:
    """The recipe and its warnings.

    Raises ``RecipeError`` if a check fails, or the tree lacks a named part.
    """
    recipe, problems = parse(new.text, new.file, Recipe)
    if recipe is not None:
        absent = [
            *absent_submodules(recipe, tree),
            *absent_paths(recipe, tree),
            *(_lacking(recipe, tree) if like else ()),
        ]
        problems = tuple(new.problem(path, message) for path, message in absent)
    what = f"the recipe {new.name} would not be valid: nothing is written"
    hint = f"--name gives another name, --like another recipe: `{PROGRAM} recipe new --help`"
    if recipe is None or problems:
        why = "\n".join(f"{each.key}: {each.message}" for each in problems)
        raise RecipeError(what, why, hint)
    checked = explain.lint(families.load_catalog(catalog.root, new), new.name)
    if checked.error:
        raise RecipeError(what, checked.error, hint)
    return recipe, checked.warnings


def lines(new: NewRecipe) -> Iterator[str]:
    """Lines for the user: how the commit was found, and which settings were left out."""
    source = new.recipe.source
    if isinstance(source, GitSource):
        how = f": {new.found.how}" if new.found.how else ""
        yield f"commit {source.commit}{how}"
    else:
        yield new.found.how
    if new.found.others:
        yield f"other tags: {', '.join(new.found.others)}; --ref TAG takes one of them"
    if new.shared:
        yield f"{new.recipe.engine} is also a name of {new.shared} in this catalog"
    yield from (f"left out: {each}" for each in new.left_out)
    yield from (f"warning: {each.message}; see {PAGE}" for each in new.warnings)


# Recognises the text of a license: its SPDX identifier, only where the text is exactly that one.
#
# The texts come from choosealicense.com, which pre-commit's ``identify`` ships.

TITLE = re.compile(r"\A\s*[\w /()-]{0,40}Licen[sc]e[\w /().-]{0,20}\n", re.IGNORECASE)
COPYRIGHT = re.compile(r"^[ \t]*(?:Copyright|\(C\)|©) (?P<who>.*)$", re.MULTILINE)
TERMS = re.compile(r"licen[cs]e|permi|commercial|use[ds]?\b|only|provided", re.IGNORECASE)
RESERVED = re.compile(r"^[ \t]*All rights reserved\.?[ \t]*$", re.MULTILINE | re.IGNORECASE)
VERSIONS = {"AGPL-3.0", "GPL-2.0", "GPL-3.0", "LGPL-2.1", "LGPL-3.0"}
"""Licenses whose text does not say whether later versions count (SPDX: -only, -or-later)."""


def identified(text: str) -> tuple[str, ...]:
    """The SPDX identifiers that a license text may have: one if it is known for sure, or none.

    Two for a license of the GNU project: the text does not say which.  White space, the title, the
    copyright holder and an appendix on how to apply it do not count (SPDX, "License matching
    guidelines"); any other difference does.
    """
    found = _known().get(_normal(text))
    if found is None:
        return ()
    return (f"{found}-only", f"{found}-or-later") if found in VERSIONS else (found,)


@cache
def _known() -> dict[str, str]:
    return {_normal(text): name for name, text in LICENSES}


def _normal(text: str) -> str:
    """The words that count; a line on the copyright with terms of its own stays."""
    lines = "\n".join(text.lstrip("\ufeff").splitlines())
    kept = COPYRIGHT.sub(lambda line: line[0] if TERMS.search(line["who"]) else "", lines)
    kept = TITLE.sub("", RESERVED.sub("", kept))
    words = " ".join(kept.split()).lower()
    return (
        words.partition("end of terms and conditions appendix: ")[0]
        .removesuffix("end of terms and conditions")
        .strip()
    )


LICENSE_FILE = re.compile(r"(?:licen[cs]e|copying)(?:[._-][\w.-]*)?", re.IGNORECASE)
README_FILE = re.compile(r"readme(?:\.md|\.markdown)?", re.IGNORECASE)
FENCED = re.compile(r"^ *(```|~~~).*?^ *\1", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^# +(.+?) *#*$", re.MULTILINE)
MARKUP = re.compile(r"!\[[^\]]*\]\([^)]*\)|<[^>]*>|[`*]|(?<=\])\([^)]*\)|[\[\]]")
LONGEST_SUMMARY = 200


def default_version(target: NamedCommit) -> str:
    """The version of a recipe: a tag without its v, else the start of the commit.

    A release of PyPI that is the source itself has its own.
    """
    if target.kind != "tag":
        return target.commit[:SHORT_COMMIT] or target.name
    plain = target.name[1:] if re.match(r"v[0-9]", target.name) else target.name
    return joined_by_single(plain)


def joined_by_single(name: str) -> str:
    """A name of letters and digits that are joined by single ``.``, ``_`` or ``-``."""
    return re.sub(r"([._-])[._-]+", r"\1", re.sub(r"[^A-Za-z0-9._-]+", "-", name)).strip("._-")
