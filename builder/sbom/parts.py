"""What an image is made of: also what a scanner of its files cannot see.

The plan knows the fork and its commit, the patches, the wheels and the bases; the image's own
database knows its Debian packages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from packageurl import PackageURL

from builder.plan.inputs import (
    Archive,
    BasePlan,
    BootstrappedRoot,
    GitCommit,
    Installed,
    Plan,
    PypiFile,
    SourceTree,
)
from builder.plan.rendered import BaseImage, EngineImage
from builder.recipes.schema import PathSource
from builder.sbom import addresses
from builder.sbom.debian import Dpkg
from builder.tools.registry.transport import split

Kind = Literal["engine", "python", "debian", "base", "script"]
OWN = {"gitCommit": "builder:commit", "builderTree": "builder:tree", "builderKey": "builder:key"}
"""What those digests are called that are not of a file."""


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that an image is made of.

    ``purl`` is its package URL.  ``digest`` is a DigestSet of in-toto
    (https://github.com/in-toto/attestation, spec/v1/digest_set.md): "sha256" of a file or of an
    image, "gitCommit", and our own "builderTree" for a tree of the repository and "builderKey"
    for a base.  ``origin`` is where it comes from, as a URL or ``git+URL@COMMIT``.
    """

    kind: Kind
    name: str
    version: str = ""
    purl: str = ""
    digest: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    license: str = ""
    """SPDX expression; empty: not known."""
    about: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    shipped: bool = True
    """False: it took part in making the image, and is not in it."""

    @property
    def identity(self) -> str:
        """What no other part of an image has: a package may be there as two files."""
        exact = self.digest.get("sha256", "")
        return f"{self.purl}#{exact[:12]}" if exact else self.purl

    @property
    def known(self) -> dict[str, str]:
        """Its properties and our own digests, for formats that know only hashes of files."""
        own = {OWN[name]: value for name, value in self.digest.items() if name in OWN}
        return own | dict(self.properties)


def engine_of(plan: Plan) -> Part:
    """The engine as its source is, before it is patched."""
    recipe = plan.recipe
    name, version = recipe.engine, recipe.version
    common = Part("engine", name, version, license=recipe.license, about=recipe.summary)
    match plan.source:
        case GitCommit(url=url, commit=commit, submodules=whole, moved=moved):
            left_out = {} if whole else {"builder:submodules": "left out"}
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
        case Archive(url=url, sha256=digest):
            place = addresses.public(url)
            known = {"download_url": place, "checksum": f"sha256:{digest}"}
            purl = addresses.generic_purl(name, version, known)
            return replace(common, purl=purl, digest={"sha256": digest}, origin=place)
        case SourceTree(identity=identity):
            assert isinstance(recipe.source, PathSource)
            return replace(
                common,
                purl=addresses.generic_purl(name, version),
                digest={"builderTree": identity},
                properties={"builder:path": recipe.source.path},
            )
        case Installed(name=project, version=known):
            # Of the base; a version with * in it is looked for, and not known here.
            exact = "" if "*" in known else known
            purl = addresses.python_purl(project, exact)
            return replace(common, purl=purl, properties={"builder:installed": known})


def bases(image: EngineImage, digests: Mapping[str, str], shipped: bool) -> Iterator[Part]:
    """What the image stands on; ``digests`` are those of our own images, by their names."""
    for below in image.base.chain():
        plan = below.plan
        names = f"builder-base/{plan.name}:"
        digest = next((digests[name] for name in digests if name.startswith(names)), "")
        part = Part(
            "base",
            plan.name,
            below.short_key,
            addresses.generic_purl(plan.name, below.short_key),
            {"builderKey": below.key},
            about=plan.recipe.summary,
            properties={"builder:image": digest} if digest else {},
            shipped=shipped,
        )
        if isinstance(plan.root, BootstrappedRoot):
            drawn = f"packages of {plan.root.suite} as of {plan.root.as_of}"
            part = replace(part, properties={**part.properties, "builder:root": drawn})
        yield part
        if plan.base is None and plan.root is not None and plan.root.way == "registry":
            yield _published(plan.root.image, plan.root.digest, shipped)


def _published(image: str, digest: str, shipped: bool) -> Part:
    """An image that somebody else publishes; without a digest it is not known which one."""
    repository, _, tag = image.rpartition(":")
    return Part(
        "base",
        repository,
        tag,
        addresses.image_purl("/".join(split(repository)), digest, tag),
        {"sha256": digest.removeprefix("sha256:")} if digest else {},
        shipped=shipped,
    )


def _with_bases(image: EngineImage) -> list[EngineImage | BaseImage]:
    return [image, *image.base.chain()]


def wheels(image: EngineImage, base_shipped: bool) -> Iterator[Part]:
    """The files of PyPI; ``base_shipped``: what the bases' runtimes hold is in the image."""
    for each in _with_bases(image):
        plan = each.plan
        shipped = base_shipped or isinstance(plan, Plan)
        for context, files in plan.packages.items():
            for file in files:
                yield Part(
                    "python",
                    file.name,
                    file.version,
                    addresses.python_purl(file.name, file.version),
                    {"sha256": file.sha256},
                    shipped=shipped and _stays(plan, context, file.name),
                )


def _stays(plan: Plan | BasePlan, context: str, name: str) -> bool:
    """Whether a wheel ends in the image, or only took part in making it.

    Of a CUDA toolkit those stay whose libraries are linked and shipped; they are the target
    platform's.
    """
    if isinstance(plan, BasePlan) and plan.recipe.wheel:
        if plan.platforms.cross:
            return context == "target-wheels"
        return name in {wheel.name for wheel in plan.recipe.wheel if wheel.library}
    return context != "build-wheels"


def scripts(image: EngineImage, base_shipped: bool) -> Iterator[Part]:
    """The programs of builder's own that images hold, or that took part in making one."""
    starts = bool(image.plan.recipe.start)
    kept = {"healthcheck", *(["start.py"] if starts else [])}
    for each in _with_bases(image):
        shipped = base_shipped or isinstance(each.plan, Plan)
        for name, digest in each.plan.scripts.items():
            yield Part(
                "script",
                name,
                "",
                addresses.generic_purl(f"builder-{name}", ""),
                {"sha256": digest},
                shipped=shipped and name in kept,
            )


def debian_packages(image: EngineImage, dpkg: Dpkg | None, base_shipped: bool) -> Iterator[Part]:
    """What dpkg has installed, and by name what was asked for and is not among it."""
    vendor = dpkg.distribution if dpkg else "debian"
    distro = f"{vendor}-{dpkg.release}" if dpkg and dpkg.release else (image.suite() or "")
    for package in dpkg.packages if dpkg else ():
        known = {"arch": package.architecture, "distro": distro}
        yield Part(
            "debian",
            package.name,
            package.version,
            _deb(vendor, package.name, package.version, known),
            properties={"builder:source": f"{package.source} {package.source_version}"},
        )
    there = {package.name for package in dpkg.packages} if dpkg else set()
    for name, shipped in sorted(_asked_for(image, unlisted=dpkg is None and base_shipped)):
        plain, _, architecture = name.partition(":")
        if plain not in there:
            platforms = image.plan.platforms
            arch = architecture or (platforms.target if shipped else platforms.build)
            purl = _deb(vendor, plain, "", {"arch": arch, "distro": distro})
            yield Part("debian", plain, "", purl, shipped=shipped)


def _deb(vendor: str, name: str, version: str, qualifiers: dict[str, str]) -> str:
    told = {key: value for key, value in qualifiers.items() if value}
    return PackageURL("deb", vendor, name, version or None, told).to_string()


def _asked_for(image: EngineImage, *, unlisted: bool) -> set[tuple[str, bool]]:
    """Debian packages that the recipes name for the build; those of the image where it does not
    list its own.  Each with whether it is in the image."""
    build = set(image.plan.recipe.debian.build)
    runtime = set(image.plan.recipe.debian.runtime)
    for below in image.base.chain():
        recipe = below.plan.recipe
        build.update(recipe.devel.packages)
        build.update(recipe.devel.cross if below.plan.platforms.cross else ())
        runtime.update(recipe.runtime.packages)
        runtime.update(recipe.root.packages if recipe.root else ())
    shipped = runtime if unlisted else set()
    return {(name, True) for name in shipped} | {(name, False) for name in build - shipped}
