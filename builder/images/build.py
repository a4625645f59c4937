"""A context becomes an image of the engine, which is found and named; failures are explained."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from builder.errors import BuilderError, BuildError, WorldError
from builder.images.log import BuildLog, BuildStep
from builder.sources.context import BuildContext
from builder.tools.docker import buildx
from builder.tools.docker import engine as docker
from builder.tools.docker.buildx import Builder

STANDARD = "org.opencontainers.image."
# The attempts at a build that other work in the engine comes between.
RACES = 3


class BreakdownError(BuildError):
    """A step lacked memory, or an archive did not answer: the sources may be right."""


def build(
    context: BuildContext,
    stage: str,
    reference: str,
    labels: Mapping[str, str],
    log: BuildLog,
    on_progress: Callable[[BuildStep | str], None],
    builder: Builder,
    *,
    compression: str = "gzip",
    compress_base: bool = False,
    cache: str = "",
    anew: Sequence[str] = (),
) -> docker.Image:
    """Build one stage of a context into an image of the engine named ``reference``.

    ``compression`` of its layers is "gzip" or "zstd"; ``compress_base``: the layers of the
    image that it is built on get it as well, whatever they have; ``cache`` is the name on a
    registry that keeps the layers of all its steps; ``anew`` are the options of ``anew`` where no
    layer is taken from a cache.
    Raises ``BuildError`` with the first errors of the log, which is a ``BreakdownError`` where the
    sources are not at fault, ``SpaceError`` when the disk filled up, ``WorldError`` when the engine
    or the builder went away.
    """
    metadata = context.folder.parent / f"{stage}.metadata.json"
    archive = context.folder.parent / f"{stage}.oci.tar"
    # An image from another BuildKit is transferred completely, in the engine's own format.
    output = "type=image" if builder.is_engine else buildx.fields("type=oci", f"dest={archive}")
    arguments = [f"--target={stage}", "--provenance=false"]
    output += f",oci-mediatypes=true,name={reference},compression={compression}"
    arguments += [f"--output={output}{',force-compression=true' if compress_base else ''}"]
    arguments += [f"--metadata-file={metadata}"]
    arguments += _cached_at(cache) if cache else []
    arguments += [f"--label={name}={value}" for name, value in labels.items()]
    arguments += [f"--annotation={annotation}" for annotation in annotations_of(labels)]
    arguments += anew
    for attempt in range(1, RACES + 1):
        log.begin()
        status = buildx.build(
            builder,
            [*arguments, *context.arguments(stage)],
            lambda line: on_progress(log.line(line)),
        )
        # All other layers are cached.
        if status == 0 or attempt == RACES or not log.race_lost:
            break
    if status != 0:
        raise _explained(reference, log, builder)
    if not builder.is_engine:
        docker.load(archive, reference)
        archive.unlink()
    digest = json.loads(metadata.read_text("utf-8")).get("containerimage.digest")
    found = docker.image(reference)
    if found is None or digest not in {None, found.digest}:
        raise BuildError(f"Docker lost the image {reference} just built", hint="build again")
    return found


def anew(*, compiles: bool, ccache: bool = True) -> list[str]:
    """The options of a build that takes no layer from a cache.

    A Dockerfile that ``compiles`` has the stages entrypoint, build and image.  --no-cache would
    empty the compiler cache of every engine (moby/buildkit#4250), so the stage build has the
    argument REBUILD.  Without ``ccache`` its results are not used.
    """
    if not compiles:
        return ["--no-cache"]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    options = ["--no-cache-filter=entrypoint,image", f"--build-arg=REBUILD={now}"]
    return options if ccache else [*options, "--build-arg=CCACHE_DISABLE=1"]


def annotations_of(labels: Mapping[str, str]) -> list[str]:
    """The annotations of an image's manifest, as buildx takes them: the labels that the OCI image
    specification defines ("Pre-Defined Annotation Keys").  A registry shows them."""
    return [
        f"manifest:{name}={value}" for name, value in labels.items() if name.startswith(STANDARD)
    ]


def _cached_at(reference: str) -> list[str]:
    """Layers are taken from a registry and kept there, also the layers of steps in between.

    https://docs.docker.com/build/cache/backends/registry/; the manifest is an image's, because
    many registries take no other.  A cache that cannot be written to fails no build.
    """
    to = f"type=registry,ref={reference},mode=max,image-manifest=true,oci-mediatypes=true"
    return [f"--cache-from=type=registry,ref={reference}", f"--cache-to={to},ignore-error=true"]


def _explained(reference: str, log: BuildLog, builder: Builder) -> BuilderError:
    if log.disk_full:
        return buildx.full_disk(builder, f"{reference} was being built; the log is {log.path}")
    try:
        buildx.require_builder(builder)
    except WorldError as error:
        who = "Docker" if builder.is_engine else f"the builder {builder.name}, or Docker,"
        return WorldError(f"{who} went away during the build", f"{error}\nthe log is {log.path}")
    text = log.path.read_text("utf-8", errors="replace")
    errors = "\n".join(log.errors) or "\n".join(text.splitlines()[-15:])
    what = f"the build of {reference} failed" + (f": {log.reason}" if log.reason else "")
    why = f"{errors}\nthe full log is {log.path}"
    if log.breakdown:
        return BreakdownError(what, why, log.breakdown)
    hints = " and ".join(sorted(log.all_text_hints))
    return BuildError(
        what, why, hints or "read the first error above; the log has the command that it came from"
    )
