"""A build context becomes an image of the engine: buildx, its progress, its failures explained."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from builder.errors import BuilderError, BuildError, WorldError
from builder.images.context import Context
from builder.tools.docker import buildx
from builder.tools.docker import engine as docker
from builder.tools.docker.buildx import Builder
from builder.tools.files import mentions_full_disk

# "#14 26.59   [22/339] ccache ..." : step, seconds, what the command printed.
STEP_LINE = re.compile(r"#(\d+) (\d+\.\d+) (.*)")
NINJA = re.compile(r"\s*\[(\d+)/(\d+)\] (.*)")
# Of gcc, nvcc, ld, cmake, ninja, apt and pip: what says why, not what follows from it.
FIRST_ERROR = re.compile(
    r"(?:\berror\b ?[:#]|\bfatal error\b|undefined reference|cannot find -l|CMake Error|FAILED:"
    r"|ptxas fatal|nvcc fatal|\bE: |^ERROR: |No space left on device|Killed signal"
    r"|requires \S+, which is not installed|has requirement .*, but you have"
    r"|Traceback \(most recent call last\))",
    re.IGNORECASE,
)
NOT_AN_ERROR = re.compile(
    r"error_code|Performing Test|-- Looking for|registry cache importer", re.IGNORECASE
)
PRINTED_OR_FAILED = re.compile(r"#(\d+) (?:\d+\.\d+|(ERROR):) (.*)")
KEEPING = re.compile(r"#(\d+) exporting cache to ")
STANDARD = "org.opencontainers.image."
LOST_SNAPSHOT = re.compile(r"parent snapshot \S+ does not exist")
MEMORY = "a compile job ran out of memory: use fewer jobs (--jobs N), or raise memory_per_job"
# What a step prints that fails for no fault of what it builds, by the words of gcc, collect2 and
# nvcc; of apt, which goes on after a warning, and then lacks packages; and of BuildKit, about a
# step that was killed, or that its cgroup had no memory for.
BREAKDOWNS = (
    (
        re.compile(
            r"Killed signal terminated program|(?:terminated with|died due to) signal 9\b"
            r"|virtual memory exhausted|out of memory allocating \d+ bytes"
            r"|did not complete successfully: (?:exit code: 137|cannot allocate memory)$"
        ),
        MEMORY,
    ),
    (re.compile(r"^[EW]: Failed to fetch "), "Debian's archive did not answer: try again"),
)
EXPLANATIONS = (
    (re.compile(r"Killed signal|signal 9|out of memory|std::bad_alloc", re.IGNORECASE), MEMORY),
    (
        re.compile(r"undefined reference to .?cu[A-Z]"),
        "the driver's functions are not linked: every cmake call needs the stub, or vmm = false",
    ),
    (
        re.compile(r"Temporary failure (?:in name resolution|resolving)|Could not resolve"),
        "a name was looked up where the build has no network: fetch it before, as an input",
    ),
    (
        re.compile(r"Unable to locate package|has no installation candidate"),
        "Debian does not have that package: check [debian] in the recipe",
    ),
)


class BreakdownError(BuildError):
    """A step lacked memory, or an archive did not answer: this says nothing of what is built."""


@dataclass(frozen=True, slots=True)
class Built:
    """An image that the engine now has under ``reference``."""

    reference: str
    digest: str


@dataclass(frozen=True, slots=True)
class Step:
    """Where a compile stands: ``done`` of ``total`` commands."""

    done: int
    total: int
    what: str


Watch = Callable[[Step | str], None]


class BuildLog:
    """The full log of one build in a file, and the first errors that went by."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.errors: list[str] = []
        self.all_text_hints: set[str] = set()
        self.snapshot_lost = False
        self.disk_full = False
        self.breakdown = ""
        """What to do where the step that failed did so for no fault of what it builds."""
        self._breakdowns: dict[str, str] = {}
        self.not_kept = ""
        """Why a registry did not take the layers; empty: it did, or was not asked to."""
        self._keeping = ""
        self._stream = path.open("a", encoding="utf-8", errors="replace")
        self._context = 0

    def begin(self) -> None:
        """Another run of buildx begins: it counts its steps from one again."""
        self.snapshot_lost = self.disk_full = False
        self.breakdown = ""
        self._breakdowns.clear()

    def line(self, line: str) -> Step | str:
        """Write one line; return what it tells."""
        self._stream.write(line + "\n")
        self._stream.flush()
        step = STEP_LINE.match(line)
        said = step[3] if step else line
        for pattern, hint in EXPLANATIONS:
            if pattern.search(said):
                self.all_text_hints.add(hint)
        self._remember(said)
        self._diagnose(line)
        self.snapshot_lost |= bool(LOST_SNAPSHOT.search(said))
        self.disk_full |= mentions_full_disk(said)
        keeping = KEEPING.match(line)
        if keeping:
            self._keeping = f"#{keeping[1]} ERROR: "
        elif self._keeping and line.startswith(self._keeping):
            self.not_kept = line.removeprefix(self._keeping)
        ninja = NINJA.match(said)
        if ninja:
            return Step(int(ninja[1]), int(ninja[2]), ninja[3])
        return line

    def _remember(self, said: str) -> None:
        if len(self.errors) >= 12:
            return
        if FIRST_ERROR.search(said) and not NOT_AN_ERROR.search(said):
            self._context = 3
        if self._context > 0:
            self._context -= 1
            if said.strip() and said.strip() not in self.errors:
                self.errors.append(said.strip()[:300])

    def _diagnose(self, line: str) -> None:
        """A step that does not fail has got over what it printed."""
        found = PRINTED_OR_FAILED.match(line)
        if found is None:
            return
        number, failed, said = found.groups()
        for pattern, hint in BREAKDOWNS:
            if pattern.search(said):
                self._breakdowns.setdefault(number, hint)
        if failed:
            self.breakdown = self.breakdown or self._breakdowns.get(number, "")

    def close(self) -> None:
        """Close the file; one in which nothing was written goes."""
        self._stream.close()
        if self.path.stat().st_size == 0:
            self.path.unlink()


def build(
    context: Context,
    stage: str,
    reference: str,
    labels: Mapping[str, str],
    log: BuildLog,
    watch: Watch,
    builder: Builder,
    *,
    compression: str = "gzip",
    cache: str = "",
    rebuild: bool = False,
) -> Built:
    """Build one stage of a context into an image of the engine named ``reference``.

    ``compression`` is that of its layers, "gzip" or "zstd"; ``cache`` is the name on a registry
    that keeps the layers of all its steps; ``rebuild`` takes no layer from any cache, where its
    Dockerfile has the argument REBUILD.
    Raises ``BuildError`` with the first errors of the log, which is a ``BreakdownError`` where they
    are no fault of what is built, ``SpaceError`` when the disk filled up, ``WorldError`` when the
    engine or the builder went away.
    """
    metadata = context.folder.parent / f"{stage}.metadata.json"
    archive = context.folder.parent / f"{stage}.oci.tar"
    # What another BuildKit made comes over whole, in the format that the engine's own has.
    output = "type=image" if builder.is_engine else buildx.fields("type=oci", f"dest={archive}")
    arguments = [f"--target={stage}", "--provenance=false"]
    arguments += [
        f"--output={output},oci-mediatypes=true,name={reference},compression={compression}"
    ]
    arguments += [f"--metadata-file={metadata}"]
    arguments += _cached_at(cache) if cache else []
    arguments += [f"--label={name}={value}" for name, value in labels.items()]
    arguments += [f"--annotation={told}" for told in annotations_of(labels)]
    if rebuild:
        # --no-cache would empty the compiler cache, that of every engine (moby/buildkit#4250).
        arguments.append(f"--build-arg=REBUILD={datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}")
    for attempt in range(2):
        log.begin()
        status = buildx.build(
            builder, [*arguments, *context.arguments()], lambda line: watch(log.line(line))
        )
        # containerd collected a layer between its check and its use; all else is cached.
        if status == 0 or attempt or not log.snapshot_lost:
            break
    if status != 0:
        raise _explained(reference, log, builder)
    if not builder.is_engine:
        docker.load(archive)
        archive.unlink()
    written = json.loads(metadata.read_text("utf-8"))
    digest = written.get("containerimage.digest", "")
    found = docker.image(reference)
    if found is None:
        raise BuildError(f"the engine lost the image {reference} just built", hint="build again")
    return Built(reference, digest or found.digest)


def annotations_of(labels: Mapping[str, str]) -> list[str]:
    """What a registry shows without fetching an image's configuration, as buildx takes it for the
    image's manifest: of its labels those that the OCI image specification has a name for
    ("Pre-Defined Annotation Keys")."""
    return [
        f"manifest:{name}={value}" for name, value in labels.items() if name.startswith(STANDARD)
    ]


def _cached_at(reference: str) -> list[str]:
    """Layers are taken from a registry and kept there, those of every step.

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
        who = (
            "the Docker engine"
            if builder.is_engine
            else f"the builder {builder.name}, or the engine,"
        )
        return WorldError(f"{who} went away during the build", f"{error}\nthe log is {log.path}")
    text = log.path.read_text("utf-8", errors="replace")
    errors = "\n".join(log.errors) or "\n".join(text.splitlines()[-15:])
    what, why = f"the build of {reference} failed", f"{errors}\nthe full log is {log.path}"
    if log.breakdown:
        return BreakdownError(what, why, log.breakdown)
    hints = " and ".join(sorted(log.all_text_hints))
    return BuildError(
        what, why, hints or "read the first error above; the log has the command that it came from"
    )
