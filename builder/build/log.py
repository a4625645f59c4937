"""Why something failed: a build, by its log; builder itself, by its exception.

The log is searched for the first errors and their causes, and names the steps of a build.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from platformdirs import user_cache_path, user_state_path

from builder import __version__
from builder.core.errors import BuilderError, WorldError
from builder.core.files import full_disk, is_disk_full, mentions_full_disk

# "#14 26.59   [22/339] ccache ..." : step, seconds, what the command printed.
STEP_LINE = re.compile(r"#(\d+) (\d+\.\d+) (.*)")
NINJA = re.compile(r"\s*\[(\d+)/(\d+)\] (.*)")
# Lines of gcc, nvcc, ld, cmake, ninja, rustc, sh, git, npm, Python, apt and pip: what says why, not
# what follows from it.  nvcc and its programs put three blanks before the colon.
FIRST_ERROR = re.compile(
    r"(?:\berror\b(?:\[\w+\])? *[:#]|\bfatal error\b|undefined reference|cannot find -l"
    r"|CMake Error|FAILED:|(?:ptxas|nvcc|nvlink|fatbinary|cudafe\+\+) fatal|\bE: |^ERROR: "
    r"|No space left on device|Killed signal|^Killed$|: (?:command )?not found$"
    r"|: Permission denied$|^fatal: |^npm err"
    r"|^(?:\w+\.)*\w+(?:Error|Exception)(?::|$)"
    r"|requires \S+, which is not installed|has requirement .*, but you have"
    r"|Traceback \(most recent call last\))",
    re.IGNORECASE,
)
NOT_AN_ERROR = re.compile(
    r"^\s*\[\d+/\d+\] |error_code|Performing Test|-- Looking for|registry cache importer",
    re.IGNORECASE,
)
# Lines of ninja, Python, BuildKit and CMake that give no reason.
HEADING = re.compile(
    r"FAILED:|(?:\d+\.\d+ )?Traceback|(?:#\d+ )?ERROR: (?:failed to \w+: )*process|CMake Error.*:$"
)
# As dockerfiles/scripts/counted prints it.
REUSED = re.compile(r"compiler cache: (\d+) of (\d+) objects$")
# As dockerfiles/scripts/used prints it.
UNUSED = re.compile(
    r"error: the project does not use these definitions of \[\[cmake\]\] (\d+): (.*)"
)
PRINTED_OR_FAILED = re.compile(r"#(\d+) (?:\d+\.\d+|(ERROR):) (.*)")
KEEPING = re.compile(r"#(\d+) exporting cache to ")
# Messages of containerd, where another build or a removal of images comes between: a layer or a
# lease was collected between its check and its use (moby/buildkit#1937, #2288, #4419; the bare
# "not found" was seen here while layers were exported); another build gave the same name at this
# moment.
LOST_RACE = re.compile(
    r"snapshot \S+ does not exist|image \"\S+\": already exists|lease \"\S+\": not found"
    r"|missing lease requirement|^ERROR: failed to solve: not found$"
)
MEMORY = "a compile job ran out of memory: use fewer jobs (--jobs N), or raise memory_per_job"
# What was killed, or had no memory: words of gcc, collect2, clang, ld, nvcc, cargo, make, ninja, sh
# and bash, Python's subprocess, pip and the kernel.  status 9 is nvcc's, of a killed cicc.
NO_MEMORY = re.compile(
    r"(?:Killed|Terminated) signal terminated program"
    r"|internal compiler error: Killed|unable to execute command: Killed|Child killed"
    r"|(?:terminated with|died due to) signal (?:9|15)\b|signal: (?:9, SIGKILL|killed)"
    r"|Signals\.SIGKILL|non-zero exit status (?:-?9|137|247)\b|exit code: -9\b"
    r"|^Killed$|: line \d+: +\d+ Killed\b|\*\*\* \[.*\] (?:Killed|Error 137)\b|\[code=(?:137|9)\]"
    r"|Out of memory: Killed process|\boom-kill"
    r"|(?:virtual|link failed:) memory exhausted|out of memory allocating \d+ bytes"
    r"|memory allocation of \d+ bytes failed"
    r"|(?:LLVM ERROR|(?:fatal|catastrophic) error): out of memory"
    r"|ptxas fatal *: +Memory allocation|: Cannot allocate memory|^MemoryError"
    r"|instance of 'std::bad_alloc'|what\(\): +std::bad_alloc|heap out of memory$"
    r"|^[\w.+/-]+: out of memory$"
    r"|did not complete successfully: (?:exit code: 137|cannot allocate memory)"
    r"(?:: context canceled)?$",
    re.IGNORECASE,
)
NO_ARCHIVE = "Debian's archive did not answer: try again"
# Output of steps that fail for reasons outside the sources; apt continues after a warning without
# the packages.
BREAKDOWNS = (
    (NO_MEMORY, MEMORY),
    (
        re.compile(r"^[EW]: Failed to fetch https.*certificate", re.IGNORECASE),
        "the TLS certificate of Debian's mirror is not trusted in the build: name an http:// mirror"
        " with BUILDER_DEBIAN_MIRROR (apt verifies the archive's signatures)",
    ),
    (
        re.compile(r"^[EW]: Failed to fetch .*\b407\b"),
        "the proxy wants a login: HTTP_PROXY needs user and password before the proxy's name",
    ),
    (
        re.compile(r"^[EW]: Failed to fetch .*(?:Could not resolve|failure resolving)"),
        f"{NO_ARCHIVE} with a network, or correct HTTP_PROXY: a name does not resolve",
    ),
    (re.compile(r"^[EW]: Failed to fetch "), NO_ARCHIVE),
)
# What ptxas 13.0 refuses for sm_120 and sm_121, and accepts for sm_120a and sm_121f.
OF_120A = (
    r"mma with (?:block scale|with FP6/FP4)|\.kind::|\.block_scale|\.scale_vec"
    r"|\.m(?:8n16|16n16|16n8)'|cvt with \.(?:e2m1|e2m3|e3m2|ue8m0)|setmaxnreg"
    r"|\.multicast::cluster"
)
EXPLANATIONS = (
    (NO_MEMORY, MEMORY),
    (
        re.compile(rf"'(?:{OF_120A}).*not supported on \.target 'sm_12[01]'"),
        'the code needs sm_120a: arch = ["120a"] in [cuda]',
    ),
    (
        re.compile(r"'(?:wgmma|tcgen05|redux\.f32|\.rs').*not supported on \.target 'sm_12"),
        "no GPU of sm_12x has this instruction: leave out the code for sm_90a and sm_100a",
    ),
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


class BuildStep(NamedTuple):
    """The progress of a compile: ``done`` of ``total`` commands."""

    done: int
    total: int
    what: str


class BuildLog:
    """The full log of one build in a file, with its first errors."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.errors: list[str] = []
        self.all_text_hints: set[str] = set()
        self.race_lost = False  # whether another build was in the way: the same build again works
        self.disk_full = False
        self.breakdown = ""  # the hint for a step without memory or archive
        self._breakdowns: dict[str, str] = {}
        self.reused = self.objects = 0  # from the compiler cache, and all; 0: none
        self.not_kept = ""  # why a registry refused the layers; empty: it did not
        self.unused: list[tuple[int, str]] = []  # not used by cmake: its call's number, name
        self._keeping = ""
        self._stream = path.open("a", encoding="utf-8", errors="replace")
        self._context = 0

    def begin(self) -> None:
        """Another run of buildx begins: it counts its steps from one again."""
        self.race_lost = self.disk_full = False
        self.breakdown = ""
        self._breakdowns.clear()
        self.unused.clear()

    @property
    def reason(self) -> str:
        """The first error that gives a reason; empty: none does."""
        found = (each for each in self.errors if FIRST_ERROR.search(each))
        return next((each for each in found if not HEADING.match(each)), "")

    def line(self, line: str) -> BuildStep | str:
        """Write one line; return it, or the compile step that it reports."""
        self._stream.write(line + "\n")
        self._stream.flush()
        step = STEP_LINE.match(line)
        text = step[3] if step else line
        for pattern, hint in EXPLANATIONS:
            if pattern.search(text):
                self.all_text_hints.add(hint)
        self._remember(text)
        self._diagnose(line)
        if counted := REUSED.match(text):
            self.reused += int(counted[1])
            self.objects += int(counted[2])
        if unused := UNUSED.match(text):
            self.unused += [(int(unused[1]), name) for name in unused[2].split()]
        self.race_lost |= bool(LOST_RACE.search(text))
        self.disk_full |= mentions_full_disk(text)
        if keeping := KEEPING.match(line):
            self._keeping = f"#{keeping[1]} ERROR: "
        elif self._keeping and line.startswith(self._keeping):
            self.not_kept = line.removeprefix(self._keeping)
        if ninja := NINJA.match(text):
            return BuildStep(int(ninja[1]), int(ninja[2]), ninja[3])
        return line

    def _remember(self, text: str) -> None:
        if len(self.errors) >= 12:
            return
        if FIRST_ERROR.search(text) and not NOT_AN_ERROR.search(text):
            self._context = 3
        if self._context > 0:
            self._context -= 1
            if text.strip() and text.strip() not in self.errors:
                self.errors.append(text.strip()[:300])

    def _diagnose(self, line: str) -> None:
        """Remember the output of a step: it counts only if the step fails."""
        if found := PRINTED_OR_FAILED.match(line):
            number, failed, text = found.groups()
            for pattern, hint in BREAKDOWNS:
                if pattern.search(text):
                    self._breakdowns.setdefault(number, hint)
            if failed:
                self.breakdown = self.breakdown or self._breakdowns.get(number, "")

    def close(self) -> None:
        """Close the file, and remove it if it is empty."""
        self._stream.close()
        if self.path.stat().st_size == 0:
            self.path.unlink()


@contextmanager
def new_log(state: Path, name: str) -> Iterator[BuildLog]:
    """A new log below the state directory, named by the recipe and the time (UTC)."""
    log = BuildLog(state / "logs" / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S}.log")
    try:
        yield log
    finally:
        log.close()


# The steps of a build, by name instead of by the text of the instruction.

# "#14 [build 4/5] RUN ...": as buildx prints them with --progress=plain.
STEP = re.compile(r"#\d+ (?:\[((?!internal|context)[^\]]+)\] (.*)|(exporting layers)$)")
RUN_OPTIONS = re.compile(r"(?<=^RUN )(?:--\S+ )+")
WIDTH = 100  # of an instruction that has no name

# What an instruction of our Dockerfiles contains, and its name.  The first that fits counts.
NAMES = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"--directory=/entrypoint", "compile the entrypoint"),
        (r"/builder/needs\"", "write the needs of the image"),
        (r"assemble_cuda\.py", "install CUDA's libraries"),
        (r"useradd ", "create the user"),
        (r"--add-architecture", "add an architecture to dpkg"),
        (r"apt-get|/debian/.*\.deb", "install Debian packages"),
        (r"cross\.cmake", "set up the cross compiler"),
        (r"\"cmake\".* \"-S\"", "configure"),
        (r"\"cmake\", \"--build\"", "compile"),
        (r"\"compileall\"", "compile Python's files"),
        (r"extension\.py", "compile the extension"),
        (r"-name 'libggml-cuda", "set the library of kernels apart"),
        (r"\"pip\", \"wheel\"", "compile the Python package"),
        (r"-m pip .*install ", "install Python packages"),
        (r"\"pip\".* \"check\"", "check the Python packages"),
        (r"\"-m\", \"venv\"", "create a virtual environment"),
        (r"\"cmake\", \"--install\"|collect\.py|^RUN \[\"install\"", "install"),
        (r"diet\.py", "remove device code that no card runs"),
        (r"ln -s libcudart", "link CUDA's toolkit"),
        (r"relink\.py", "link copies of libraries"),
        (r"overlay\.py", "replace the patched files"),
        (r"/run/entrypoint/\.", "install the entrypoint"),
        (r"\"find\".* \"-delete\"", "remove static libraries"),
        (r"; ldconfig\"", "update the loader cache"),
        (r"^RUN \[\"/inside/reproducible\", \"[^\"]*\"\]", "set times and modes"),
        (r"^ADD rootfs", "unpack Debian's root"),
        (r"^COPY .*--from=source ", "copy the source"),
        (r"^COPY .*--from=devel /libraries/", "copy CUDA's libraries"),
        (r"^COPY .*--from=build /kernels/", "copy the kernels"),
        (r"^COPY .*--from=build ", "copy the engine"),
        (r"^COPY .*--from=entrypoint ", "copy the entrypoint"),
    )
)


def step_name(line: str) -> str | None:
    """The step that a line of buildx begins, ``[build 4/5] compile``; None: it begins none."""
    found = STEP.match(line)
    if found is None:
        return None
    position, instruction, export = found.groups()
    if export:
        return str(export)
    instruction = RUN_OPTIONS.sub("", instruction)
    name = next((name for pattern, name in NAMES if pattern.search(instruction)), instruction)
    text = f"[{position}] {name}"
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."


# Unexpected exceptions: an error message where the machine is the cause, else a crash report.


def as_builder_error(error: BaseException) -> BuilderError | None:
    """The error that an exception of the operating system means; None for a bug of builder."""
    if isinstance(error, BuilderError):
        return error
    if isinstance(error, ModuleNotFoundError) and _is_optional(error.name or ""):
        return WorldError(
            "the packages for builds and tests of images are not installed",
            f"there is no {error.name}",
            "install builder with its extra `build`: uv tool install '.[build]' or "
            "pipx install '.[build]', in a checkout",
        )
    if not isinstance(error, OSError):
        return None
    if is_disk_full(error):
        named = [Path(error.filename)] if isinstance(error.filename, str) else []
        why = ": ".join([*map(str, named), str(error.strerror)])
        return full_disk(why, *(named or [*_directories(), Path(tempfile.gettempdir())]))
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return WorldError(
            f"cannot read or write {error.filename or 'a file that builder needs'}",
            str(error.strerror or error),
            "check who owns it; BUILDER_CACHE_DIR and BUILDER_STATE_DIR name the directories that "
            "builder writes to",
        )
    return None


def _is_optional(module: str) -> bool:
    """Whether a module is of a package that only the extra ``build`` installs."""
    needed = map(Requirement, metadata.requires("builder") or ())
    markers = {each.name.replace("-", "_"): each.marker for each in needed}
    marker = markers.get(module.partition(".")[0])
    return marker is not None and not marker.evaluate({"extra": ""})


def write_report(error: BaseException) -> str:
    """Write a crash report; its path, or its text where no file can be written."""
    text = "".join(traceback.format_exception(error))
    try:
        _, state = _directories()
        folder = state / "crashes"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
        file.write_text(f"builder {__version__}, Python {sys.version}\n{text}")
    except OSError:
        return text
    return str(file)


def _directories() -> tuple[Path, Path]:
    """The cache and the state directory, from the settings if they can be read."""
    try:
        from builder.core import settings

        chosen = settings.load()
    except Exception:  # reading the settings may be the failure
        return user_cache_path("builder"), user_state_path("builder")
    return chosen.cache_dir, chosen.state_dir
