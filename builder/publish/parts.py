"""The parts of an image, including parts that a scanner of its files cannot see.

The plan has the engine's commit, the wheels, the scripts and the bases; the image's dpkg database
has its Debian packages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from packageurl import PackageURL

from builder.docker.engine import split
from builder.plan.inputs import BootstrappedRoot, GitCommit, Installed, LocalTree, PypiFile, where
from builder.plan.plan import AnyPlan, BasePlan, Plan
from builder.publish import addresses
from builder.publish.debian import Dpkg
from builder.recipes.locks import DebianFile

Kind = Literal["engine", "python", "debian", "base", "script"]
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
    common = Part("engine", name, version, license=recipe.license, about=recipe.summary)
    match plan.source:
        case GitCommit(url=url, commit=commit, submodules=submodules, moved=moved):
            left_out = {} if submodules else {"builder:submodules": "left out"}
            elsewhere = {
                f"builder:submodule:{path}": addresses.public(place)
                for path, place in moved.items()
            }
            return replace(
                common,
                purl=addresses.commit_purl(url, commit, name),
                digest={"gitCommit": commit},
                origin=addresses.at_commit(url, commit),
                properties=left_out | elsewhere,
            )
        case PypiFile(file=file):
            purl = addresses.python_purl(file.name, file.version)
            return replace(common, purl=purl, digest={"sha256": file.sha256})
        case LocalTree(identity=identity):
            return replace(
                common,
                purl=addresses.generic_purl(name, version),
                digest={"builderTree": identity},
                properties={"builder:path": where(recipe.source)},
            )
        case Installed(name=project, version=known):
            # A version with * is a pattern: the exact one is known only in the base.
            exact = "" if "*" in known else known
            purl = addresses.python_purl(project, exact)
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
        addresses.generic_purl(base.name, base.short_key),
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
        yield _published(base.root.image, base.root.digest, shipped)


def _published(image: str, digest: str, shipped: bool) -> Part:
    """An image that another project publishes; ``digest`` may be empty: unknown."""
    repository, _, tag = image.rpartition(":")
    return Part(
        "base",
        repository,
        tag,
        addresses.image_purl("/".join(split(repository)), digest, tag),
        {"sha256": digest.removeprefix("sha256:")} if digest else {},
        shipped=shipped,
    )


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
                yield Part(
                    "python",
                    file.name,
                    file.version,
                    addresses.python_purl(file.name, file.version),
                    {"sha256": file.sha256},
                    shipped=shipped and _stays(each, context, file.name),
                )


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
    return context != "build-wheels"


def scripts(plan: Plan, base_shipped: bool) -> Iterator[Part]:
    """The scripts of builder that the image contains, or that the build ran; of programs the
    sources."""
    starts = bool(plan.recipe.start)
    entrypoint = plan.entrypoint
    kept = {*(["start.py"] if starts else []), *entrypoint}
    for each, shipped in _plans(plan, base_shipped):
        for name, digest in {**each.scripts, **each.entrypoint}.items():
            yield Part(
                "script",
                name,
                "",
                addresses.generic_purl(f"builder-{name}", ""),
                {"sha256": digest},
                shipped=shipped and name in kept,
            )


def debian_packages(plan: Plan, dpkg: Dpkg | None, base_shipped: bool) -> Iterator[Part]:
    """The installed packages, then by name the requested packages that are not installed."""
    vendor = dpkg.distribution if dpkg else "debian"
    distro = f"{vendor}-{dpkg.release}" if dpkg and dpkg.release else (plan.suite or "")
    files = [file for plan, _ in _plans(plan, base_shipped) for file in plan.debian.files]
    locked = {(file.name, file.version, file.architecture): file.sha256 for file in files}
    for package in dpkg.packages if dpkg else ():
        known = {"arch": package.architecture, "distro": distro}
        digest = locked.get((package.name, package.version, package.architecture))
        yield Part(
            "debian",
            package.name,
            package.version,
            _deb(vendor, package.name, package.version, known),
            {"sha256": digest} if digest else {},
            properties={"builder:source": f"{package.source} {package.source_version}"},
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
    purl = _deb(vendor, name, version, known)
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


def _deb(vendor: str, name: str, version: str, qualifiers: dict[str, str]) -> str:
    known = {key: value for key, value in qualifiers.items() if value}
    return PackageURL("deb", vendor, name, version or None, known).to_string()


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
