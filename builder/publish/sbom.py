"""The bill of materials of one image: the engine, its changes, and all other parts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from debian.deb822 import Packages
from packageurl import PackageURL

from builder.build.record import Record
from builder.core.errors import UntriedError
from builder.core.names import GITHUB, github_page
from builder.docker import containers
from builder.docker.engine import split
from builder.plan.inputs import (
    BootstrappedRoot,
    GitCommit,
    Installed,
    LocalTree,
    PlannedPatch,
    PypiFile,
    where,
)
from builder.plan.plan import AnyPlan, BasePlan, Plan
from builder.recipes.locks import DebianFile
from builder.sources.apt import assignments

# Package URLs and download locations of the parts of an image.
#
# Package URLs: https://github.com/package-url/purl-spec (purl-types: github, generic, pypi, oci).
# Repositories at a commit: the download locations of SPDX 2.3, 7.7.  No address contains a user or
# a path of the build machine.


def public(url: str) -> str:
    """A URL without user and query, which may be tokens; empty for a local path."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return ""
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def at_commit(url: str, commit: str) -> str:
    """``git+URL@COMMIT``; empty where the repository has no public URL."""
    found = public(url)
    return f"git+{found}@{commit}" if found else ""


def package_url(
    kind: str, name: str, version: str = "", vendor: str = "", **qualifiers: str
) -> str:
    """A package URL; what is empty is left out.  "generic": it is in no package manager."""
    return PackageURL(kind, vendor, name, version, qualifiers).to_string()


def commit_purl(url: str, commit: str, name: str) -> str:
    """The package URL of a commit; ``name`` is used where the repository is not on GitHub."""
    found = GITHUB.fullmatch(url)
    if found is not None:
        return package_url("github", found[2], commit, found[1])
    return package_url("generic", name, commit, vcs_url=at_commit(url, commit))


def image_purl(repository: str, digest: str, tag: str = "") -> str:
    """The package URL of an image; a name of one part gets no registry.

    ``digest`` may be empty: then only the tag identifies the image.
    """
    place = "/".join(split(repository)) if "/" in repository else ""
    name = repository.rpartition("/")[2]
    return package_url("oci", name, digest, tag=tag, repository_url=place)


# The changes of an engine's source: patches, pull requests, steps at every start.


@dataclass(frozen=True, slots=True)
class SourceChange:
    """One change of the source.

    ``before`` and ``after`` are commits of the repository ``git``, a URL without a user; a script
    and added files have only ``after``.  ``page`` is the URL of the change for people, ``diff`` the
    URL of its text, both empty where there is none; ``content`` is the text of a patch file of this
    repository.  The recipe expects a change that is not ``applied`` to be absent.
    """

    kind: Literal["file", "pull", "pick", "script", "add", "start"]
    name: str
    why: str
    drop_when: str = ""
    upstream: str = ""
    git: str = ""
    before: str = ""
    after: str = ""
    page: str = ""
    diff: str = ""
    path: str = ""
    content: bytes = b""
    applied: bool = True

    @property
    def location(self) -> str:
        """``git+URL@COMMIT`` of the change; empty where it has no public URL."""
        return at_commit(self.git, self.after) if self.git else ""

    def description(self) -> str:
        """One line for people: name, source and reason."""
        commits = "..".join(commit for commit in (self.before, self.after) if commit)
        path = self.path if self.kind == "add" else ""  # part of the name of the others
        origin = " ".join(part for part in (self.git, path, commits) if part)
        until = f" (until {self.drop_when})" if self.drop_when else ""
        return f"{self.name}{f' of {origin}' if origin else ''}: {self.why}{until}"


def changes_of(plan: Plan) -> tuple[SourceChange, ...]:
    """Every patch of a plan in order, then the steps at every start."""
    starts = (
        SourceChange("start", f"at start: {' '.join(step.run)}", step.why, step.drop_when or "")
        for step in plan.recipe.start
    )
    return (*map(_change, plan.patches), *starts)


def _change(planned: PlannedPatch) -> SourceChange:
    patch, origin = planned.patch, planned.patch.origin
    return SourceChange(
        origin.kind,
        origin.name,
        patch.why,
        patch.drop_when or "",
        patch.upstream or "",
        git=public(planned.url),
        before=origin.before,
        after=origin.after,
        page=planned.page,
        diff=github_page(planned.url, origin.diff) if origin.diff else "",
        path=origin.path,
        content=planned.content,
        applied=patch.expect == "applies",
    )


# Debian packages of an image, from its dpkg database.

STATUS = "/var/lib/dpkg/status"
RELEASE = "/etc/os-release"
ABSENT = re.compile(r"Could not find the file|no such file or directory", re.IGNORECASE)
"""The engine's message for a path that a container does not have."""


class Package(NamedTuple):
    """An installed package; ``source`` is the package that it was built from."""

    name: str
    version: str
    architecture: str
    source: str
    source_version: str


class Dpkg(NamedTuple):
    """The installed packages of an image, sorted, and its distribution.

    ``distribution`` and ``release`` are ID and VERSION_ID of os-release(5): "debian", "13".
    """

    distribution: str
    release: str
    packages: tuple[Package, ...]


def installed(reference: str, work: Path) -> Dpkg | None:
    """The dpkg database of an image of the engine; None where the image has none.

    Files are copied to ``work``, which has none of them yet.  Raises ``UntriedError`` where the
    engine cannot copy them.
    """
    status, release = work / "dpkg-status", work / "os-release"
    try:
        containers.copy_all_out(reference, {STATUS: status, RELEASE: release})
    except UntriedError as error:
        if not ABSENT.search(error.why):
            raise
    copies = (status, release)
    found = [file.read_text("utf-8", errors="replace") if file.exists() else "" for file in copies]
    return parse_dpkg(*found) if status.exists() else None


def parse_dpkg(status: str, release: str) -> Dpkg:
    """The database, from the texts of /var/lib/dpkg/status and os-release."""
    variables = dict(assignments(release))
    packages = (
        Package(
            entry["Package"],
            entry["Version"],
            entry.get("Architecture", ""),
            entry.source or entry["Package"],
            str(entry.source_version),
        )
        # Lines, because the library takes a string for a file name.
        for entry in Packages.iter_paragraphs(status.splitlines(), use_apt_pkg=False)
        # Wanted, flag, state (dpkg-query(1)); removed packages may still have configuration files.
        if entry.get("Status", "").split()[2:] == ["installed"]
    )
    found = tuple(sorted(packages))
    return Dpkg(variables.get("ID", "debian"), variables.get("VERSION_ID", ""), found)


# The parts of an image, including parts that a scanner of its files cannot see.
#
# The plan has the engine's commit, the wheels, the scripts and the bases; the image's dpkg
# database has its Debian packages.

Kind = Literal["engine", "python", "debian", "base", "script", "OperatingSystem"]
PROPERTY_NAMES = {
    "gitCommit": "builder:commit",
    "builderTree": "builder:tree",
    "builderKey": "builder:key",
}
"""Digests that are not of a file, and their names as properties."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an image.

    ``purl`` is its package URL.  ``digest`` is a DigestSet of in-toto
    (https://github.com/in-toto/attestation, spec/v1/digest_set.md): "sha256" of a file or of an
    image, "gitCommit", and our own "builderTree" for a tree of the repository and "builderKey"
    for a base.  ``origin`` is its download location, a URL or ``git+URL@COMMIT``.
    """

    kind: Kind
    name: str
    version: str = ""
    purl: str = ""
    digest: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    source: str = ""
    """The source package of a Debian package, and its version, as scanners read them."""
    license: str = ""
    """SPDX expression; empty: unknown."""
    about: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    shipped: bool = True
    """Whether the image contains it; otherwise it was only used by the build."""

    @property
    def identity(self) -> str:
        """Unique within an image, which may have a package as two files."""
        exact = self.digest.get("sha256", "")
        return f"{self.purl}#{exact[:12]}" if exact else self.purl

    @property
    def all_properties(self) -> dict[str, str]:
        """Properties, and the digests that are not of a file."""
        digests = self.digest.items()
        found = {PROPERTY_NAMES[name]: value for name, value in digests if name in PROPERTY_NAMES}
        return found | dict(self.properties)


def engine_of(plan: Plan) -> Part:
    """The engine, as its source is before patches."""
    recipe = plan.recipe
    name, version = recipe.engine, recipe.version
    page = plan.family.page(recipe)
    built = {"builder:page": f"built out of the packages of {page}/package-lock.json"}
    common = Part(
        *("engine", name, version),
        license=recipe.license,
        about=recipe.summary,
        properties=built if page else {},
    )
    match plan.source:
        case GitCommit(url=url, commit=commit, submodules=submodules, moved=moved):
            left_out = {} if submodules else {"builder:submodules": "left out"}
            elsewhere = {
                f"builder:submodule:{path}": public(place) for path, place in moved.items()
            }
            return replace(
                common,
                purl=commit_purl(url, commit, name),
                digest={"gitCommit": commit},
                origin=at_commit(url, commit),
                properties={**common.properties, **left_out, **elsewhere},
            )
        case PypiFile(file=file, root=root):
            purl = package_url("pypi", file.name, file.version)
            part = {} if root == "." else {"builder:root": root}
            properties = {**common.properties, **part}
            return replace(common, purl=purl, digest={"sha256": file.sha256}, properties=properties)
        case LocalTree(identity=identity):
            return replace(
                common,
                purl=package_url("generic", name, version),
                digest={"builderTree": identity},
                properties={**common.properties, "builder:path": where(recipe.source)},
            )
        case Installed(name=project, version=known):
            # A version with * is a pattern: the exact one is known only in the base.
            exact = "" if "*" in known else known
            purl = package_url("pypi", project, exact)
            return replace(common, purl=purl, properties={"builder:installed": known})


def bases(plan: Plan, digests: Mapping[str, str], shipped: bool) -> Iterator[Part]:
    """The bases of the image; ``digests`` of their images are by name."""
    for below, within in all_bases(plan):
        yield from _base(below, digests, shipped and within)


def all_bases(plan: Plan) -> Iterator[tuple[BasePlan, bool]]:
    """Every base, and whether the image is made on it; else the entrypoint is compiled in it."""
    for lowest in plan.bases():
        yield from ((below, lowest is plan.base) for below in lowest.chain())


def _base(base: BasePlan, digests: Mapping[str, str], shipped: bool) -> Iterator[Part]:
    names = f"builder-base/{base.name}:"
    digest = next((digests[name] for name in digests if name.startswith(names)), "")
    part = Part(
        "base",
        base.name,
        base.short_key,
        package_url("generic", base.name, base.short_key),
        {"builderKey": base.key},
        about=base.recipe.summary,
        properties={"builder:image": digest} if digest else {},
        shipped=shipped,
    )
    if isinstance(base.root, BootstrappedRoot):
        packages = f"packages of {base.root.suite} as of {base.root.as_of}"
        part = replace(part, properties={**part.properties, "builder:root": packages})
    yield part
    if base.base is None and base.root is not None and base.root.way == "registry":
        digest = base.root.digest
        repository, _, tag = base.root.image.rpartition(":")
        purl = image_purl("/".join(split(repository)), digest, tag)
        known = {"sha256": digest.removeprefix("sha256:")} if digest else {}
        yield Part("base", repository, tag, purl, known, shipped=shipped)


def wheels(plan: Plan, base_shipped: bool) -> Iterator[Part]:
    """The files of PyPI; ``base_shipped``: the image contains the runtimes of its bases."""
    # An image on a base's stage ``system`` has none of the base's wheels.
    upper = [plan, *plan.base.chain()]
    used = {
        each.base.name for each in upper if each.base and "runtime" in each.family.requires_stages
    }
    for each, within in _plans(plan, base_shipped):
        shipped = within and (each is plan or each.name in used)
        for context, files in each.packages.items():
            for file in files:
                purl, digest = package_url("pypi", file.name, file.version), {"sha256": file.sha256}
                stays = shipped and _stays(each, context, file.name)
                yield Part("python", file.name, file.version, purl, digest, shipped=stays)


def _plans(plan: Plan, base_shipped: bool) -> Iterator[tuple[AnyPlan, bool]]:
    """The plans of the image and of all bases, each with whether the image contains its files."""
    yield plan, True
    for below, within in all_bases(plan):
        yield below, base_shipped and within


def _stays(plan: AnyPlan, context: str, name: str) -> bool:
    """Whether a wheel is in the image, or only used by the build.

    The image contains the wheels of a CUDA toolkit that have its runtime libraries; they are for
    the target platform.
    """
    if isinstance(plan, BasePlan) and plan.recipe.wheel:
        if plan.platforms.cross:
            return context == "target-wheels"
        return name in {wheel.name for wheel in plan.recipe.wheel if wheel.library}
    return not context.startswith("build-")


def scripts(plan: Plan, base_shipped: bool) -> Iterator[Part]:
    """The scripts of builder that the image contains, or that the build ran; of programs the
    sources."""
    kept = {*(["start.py"] if plan.recipe.start else []), *plan.entrypoint}
    for each, within in _plans(plan, base_shipped):
        for name, digest in {**each.scripts, **each.entrypoint}.items():
            purl, shipped = package_url("generic", f"builder-{name}"), within and name in kept
            yield Part("script", name, "", purl, {"sha256": digest}, shipped=shipped)


def debian_packages(plan: Plan, dpkg: Dpkg | None, base_shipped: bool) -> Iterator[Part]:
    """The installed packages, then by name the requested packages that are not installed."""
    vendor = dpkg.distribution if dpkg else "debian"
    distro = f"{vendor}-{dpkg.release}" if dpkg and dpkg.release else (plan.suite or "")
    files = [file for plan, _ in _plans(plan, base_shipped) for file in plan.debian.files]
    locked = {(file.name, file.version, file.architecture): file.sha256 for file in files}
    if dpkg and dpkg.release:
        # Without it, and its name in its identifier, trivy passes over all Debian packages.
        yield Part(
            "OperatingSystem", vendor, dpkg.release, package_url("generic", vendor, dpkg.release)
        )
    for package in dpkg.packages if dpkg else ():
        source = f"{package.source} {package.source_version}"
        upstream = source.replace(" ", "@")  # as syft writes it, and grype reads it
        upstream = "" if upstream == f"{package.name}@{package.version}" else upstream
        known = {"arch": package.architecture, "distro": distro, "upstream": upstream}
        digest = locked.get((package.name, package.version, package.architecture))
        yield Part(
            "debian",
            package.name,
            package.version,
            package_url("deb", package.name, package.version, vendor, **known),
            {"sha256": digest} if digest else {},
            source=source,
        )
    listed = {package.name for package in dpkg.packages} if dpkg else set()
    for name, shipped in sorted(_requested(plan, unlisted=dpkg is None and base_shipped)):
        plain, _, architecture = name.partition(":")
        if plain not in listed:
            platforms = plan.platforms
            arch = architecture or (platforms.target if shipped else platforms.build)
            yield _requested_part(files, plain, vendor, distro, arch, shipped=shipped)
    if plan.tools is not None:
        yield from _of_tools(plan.tools)


def _requested_part(
    files: Iterable[DebianFile], name: str, vendor: str, distro: str, arch: str, *, shipped: bool
) -> Part:
    """A package that a stage asked for; with version and digest if it is locked."""
    fitting = (file for file in files if file.architecture in {arch, "all"})
    file = next((file for file in fitting if file.name == name), None)
    version, digest = (file.version, {"sha256": file.sha256}) if file else ("", {})
    known = {"arch": file.architecture if file else arch, "distro": distro}
    purl = package_url("deb", name, version, vendor, **known)
    return Part("debian", name, version, purl, digest, shipped=shipped)


def _of_tools(base: BasePlan) -> Iterator[Part]:
    """The packages of the base that the entrypoint is compiled in: its Debian is its own."""
    recipes = [below.recipe for below in base.chain()]
    names = {name for each in recipes for name in each.devel.packages}
    names |= {name for each in recipes if each.root for name in each.root.packages}
    files = [file for below in base.chain() for file in below.debian.files]
    build = base.platforms.build
    for name in sorted(names):
        yield _requested_part(files, name, "debian", base.suite or "", build, shipped=False)


def _requested(plan: Plan, *, unlisted: bool) -> set[tuple[str, bool]]:
    """Debian packages that the recipes request, each with whether the image contains it.

    Runtime packages only where they are ``unlisted``: the image has no dpkg database.
    """
    build = set(plan.recipe.debian.build)
    runtime = set(plan.recipe.debian.runtime)
    for below in plan.base.chain():
        recipe = below.recipe
        build.update(recipe.devel.packages)
        build.update(recipe.devel.crossing(below.platforms))
        runtime.update(recipe.runtime.packages)
        runtime.update(recipe.root.packages if recipe.root else ())
    shipped = runtime if unlisted else set()
    return {(name, True) for name in shipped} | {(name, False) for name in build - shipped}


# The bill.

UNKNOWN = "1970-01-01T00:00:00+00:00"
"""The creation time of an image whose record has none."""


@dataclass(frozen=True, slots=True)
class Bill:
    """One image and its known contents."""

    repository: str
    tag: str
    digest: str
    """``sha256:`` of its manifest."""
    created: datetime
    recipe: str
    version: str
    summary: str
    properties: Mapping[str, str]
    engine: Part
    changes: tuple[SourceChange, ...]
    parts: tuple[Part, ...]
    gaps: tuple[str, ...]
    """Contents that are not listed, each in a sentence."""


def bill_of(plan: Plan, record: Record, dpkg: Dpkg | None) -> Bill:
    """The bill of materials of a verified image; ``dpkg``: its package database, if it has one."""
    repository, _, tag = record.references[0].rpartition(":")
    base_shipped = "runtime" in plan.family.requires_stages  # or it is made from scratch
    engine = engine_of(plan)
    parts = [
        *bases(plan, record.base, base_shipped),
        *wheels(plan, base_shipped),
        *scripts(plan, base_shipped),
        *debian_packages(plan, dpkg, base_shipped),
    ]
    return Bill(
        repository=repository,
        tag=tag,
        digest=record.digest,
        created=datetime.fromisoformat(record.created or UNKNOWN).astimezone(UTC),
        recipe=plan.recipe.name,
        version=plan.recipe.version,
        summary=plan.recipe.summary,
        properties={
            "builder:recipe": plan.recipe.name,
            "builder:key": plan.key,
            "builder:architectures": " ".join(plan.recipe.cuda.arch),
        },
        engine=engine,
        changes=changes_of(plan),
        # The patched package may be a wheel of the base: it is listed as the engine.
        parts=_each_once(part for part in parts if part.identity != engine.identity),
        gaps=tuple(_gaps(plan, dpkg, base_shipped)),
    )


def _each_once(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Sorted and without duplicates; a part is shipped where one of its duplicates is."""
    found: dict[str, Part] = {}
    for part in parts:
        before = found.get(part.identity, part)
        found[part.identity] = replace(before, shipped=before.shipped or part.shipped)
    return tuple(sorted(found.values(), key=lambda part: (part.kind, part.identity)))


def _gaps(plan: Plan, dpkg: Dpkg | None, base_shipped: bool) -> Iterator[str]:
    if not base_shipped:
        return
    if dpkg is None:
        yield "Debian packages: the image has no dpkg database; only the requested ones are listed"
    for below in plan.base.chain():
        published = below.recipe.published
        if published is not None:
            yield f"{published.image}: only its Debian packages are listed"
