"""The build context: the Dockerfile, named contexts, secrets and build arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from builder.errors import WorldError
from builder.images import ptx
from builder.plan.plan import BasePlan, Plan
from builder.sources.gather import Sources
from builder.tools.docker import buildx
from builder.tools.docker import engine as docker
from builder.tools.docker.blobs import save_layout


@dataclass(frozen=True, slots=True)
class Context:
    """A build context that ``docker buildx build`` takes."""

    folder: Path
    """Holds the Dockerfile, and the roots' tars where there are any."""
    named: Mapping[str, str]
    """--build-context: a directory, or where an image of the base is found."""
    secrets: Mapping[str, Path]
    build_arguments: Mapping[str, str]
    platforms: Mapping[str, tuple[str, ...]]
    """By stage that becomes an image: "linux/amd64"."""
    epoch: int
    """The time of the newest input, in seconds since 1970: the time of the image."""

    @property
    def created(self) -> str:
        """The same as RFC 3339."""
        return datetime.fromtimestamp(self.epoch, UTC).isoformat()

    def arguments(self, stage: str) -> list[str]:
        """The options of ``docker buildx build`` for a stage, the context's path last."""
        platforms = ",".join(self.platforms[stage])
        options = [f"--platform={platforms}", f"--file={self.folder / 'Dockerfile'}"]
        options += [f"--build-context={name}={where}" for name, where in self.named.items()]
        options += [
            f"--secret={buildx.fields(f'id={name}', f'src={path}')}"
            for name, path in self.secrets.items()
        ]
        options += [f"--build-arg={name}={value}" for name, value in self.build_arguments.items()]
        return [*options, str(self.folder)]


def bases_at(images: Mapping[str, str], work: Path, *, seen: bool) -> dict[str, str]:
    """The images of the base by stage, as ``--build-context`` takes them.

    A builder that has ``seen`` the images of the engine takes them by name.  For any other they
    are written below ``work``, and only the layers that it lacks are sent
    (https://docs.docker.com/reference/cli/docker/buildx/build/#source-oci-layout).  Raises
    ``WorldError`` where the engine does not give one.
    """
    if seen:
        return {stage: f"docker-image://{image}" for stage, image in images.items()}
    found = {}
    for stage, image in images.items():
        folder = work / "bases" / stage
        base = docker.image(image)
        if base is None:
            raise WorldError(f"Docker lost the image {image}", hint="build again")
        save_layout(image, folder)
        found[stage] = f"oci-layout://{folder}@{base.digest}"
    return found


def assemble(
    plan: Plan | BasePlan,
    sources: Sources,
    bases: Mapping[str, str],
    jobs: int,
    work: Path,
    build_arguments: Mapping[str, str],
) -> Context:
    """Lay out the build context below ``work``.

    ``bases`` says where the images of the base are, by stage, as ``--build-context`` takes it;
    ``jobs`` 0 lets the machine that compiles decide.
    """
    folder = work / "context"
    folder.mkdir()
    text, wrappers = ptx.keeping(plan, work)
    (folder / "Dockerfile").write_text(text)
    for root in sources.roots:
        root.rename(folder / root.name)
    named = {name: str(path) for name, path in sources.folders.items()}
    named |= {f"base-{stage}": where for stage, where in bases.items()} | wrappers
    secrets: dict[str, Path] = {}
    if sources.apt_sources is not None:
        secrets["apt-sources"] = sources.apt_sources
    arguments = {**build_arguments, "SOURCE_DATE_EPOCH": str(sources.epoch)}
    if jobs:
        arguments["BUILDER_JOBS"] = str(jobs)
    platforms = {
        stage: tuple(f"linux/{name}" for name in plan.architectures(stage)) for stage in plan.stages
    }
    return Context(folder, named, secrets, arguments, platforms, sources.epoch)
