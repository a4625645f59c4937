"""test-backend-ops runs on a simulated card that computes, with the libraries of an image."""

from __future__ import annotations

import csv
import io
import math
import posixpath
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, cached_property
from inspect import getsource
from itertools import accumulate, count
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from builder.checks import logit_test
from builder.checks.simulated import SimulatedServer, compiling_image, cross_prefix, key_of
from builder.checks.subject import Context, InapplicableError, on_a_card
from builder.checks.verdict import Check
from builder.core.errors import UntriedError
from builder.core.farm import installed
from builder.docker import buildx, containers
from builder.docker.containers import mount_options
from builder.docker.engine import Finished
from builder.image.contents import Contents
from builder.presets.cards import Card
from builder.recipes.catalog import read_model
from builder.recipes.fields import Model, Text
from simulator.report import RACE, Report
from simulator.work import function_of

# Cases of ggml's test-backend-ops: all cases of a tree, and the choice that an image must pass.

FILE = Path(__file__).with_name("cases.toml")
OTHERS = "other operations, one case each"
PARAMETER = re.compile(r"(\w+)=((?:\[[^]]*\]|[^,\[])*)")
CHAIN = re.compile(r"chain (\w+)\((.*)\)$", re.M)
"""A chain of operations that a kernel computes together, as ``cases.cpp`` lists it."""
ERROR = re.compile(r"\[error (\S+)\] ")
"""The error of one result of a case, as ``ours.h`` states it; ggml calls most of them nmse."""
LACKING = re.compile(r"not added: (.+)$", re.M)
"""Cases of ``cases.cpp`` that do not fit the tree."""
FIELDS = {"backend_name", "op_name", "op_params", "supported", "error_message"}
"""Columns of ``--output csv`` that are read (tests/test-backend-ops.cpp, csv_printer)."""


@dataclass(frozen=True)
class Case:
    """A case: an operation of ggml's, and its parameters as test-backend-ops prints them."""

    operation: str
    parameters: str
    supported: bool = True
    """Whether the engine computes it on a card; else it falls back to the CPU."""

    @property
    def name(self) -> str:
        """As ``test-backend-ops -o`` takes it."""
        return f"{self.operation}({self.parameters})"

    @cached_property
    def values(self) -> Mapping[str, str]:
        """The parameters by name: "type_a" is "q4_0", "ne" is "[16,10,10,10]"."""
        return dict(PARAMETER.findall(self.parameters))


class Outcome(StrEnum):
    """How a case ended."""

    EQUAL = "equal"
    """Within ggml's own limit of the result of its CPU code."""
    DIFFERS = "differs"
    UNSUPPORTED = "unsupported"
    """The engine itself does not compute it on a card."""
    NOT_COMPUTED = "not computed"
    """The simulated card cannot compute a kernel of it, which says nothing about the image."""
    NO_REFERENCE = "without a reference"
    """ggml's own CPU code ends in it: there is nothing to compare with."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The outcome of a case."""

    case: Case
    outcome: Outcome
    why: str = ""
    """The error beside ggml's limit, the kernels, or the faults that the card reported."""
    error: float | None = None
    """The greatest error of its results; None: the program does not state it."""


class Group(Model):
    """Cases that are chosen by one rule, and reported together."""

    title: Text
    operations: list[Text]
    where: dict[str, list[Text]] = Field(default_factory=dict)
    """The values that a parameter may have; a tree without the parameter keeps all cases."""
    each: list[Text] = Field(default_factory=list)
    """The first case of an operation is taken for each combination of their values."""

    def matches(self, case: Case) -> bool:
        """Whether a case is of one of the operations, and has the values."""
        return case.operation in self.operations and all(
            case.values.get(name, values[0]) in values for name, values in self.where.items()
        )

    def chosen(self, cases: Iterable[Case]) -> list[Case]:
        """The cases that are compared, in their order."""
        found: dict[tuple[str | None, ...], Case] = {}
        for case in cases:
            if self.matches(case):
                values = (case.values.get(name) for name in self.each)
                found.setdefault((case.operation, *values), case)
        return list(found.values())


class _File(Model):
    group: list[Group]


@cache
def groups() -> Sequence[Group]:
    """All groups of cases."""
    return read_model(FILE, _File).group


def chosen_of(cases: Sequence[Case]) -> Sequence[tuple[Group, list[Case]]]:
    """The chosen cases of a tree by group, with a group for the operations that a card computes
    and no other group does."""
    found = [(group, group.chosen(cases)) for group in groups()]
    known = {case.operation for _, chosen in found for case in chosen if case.supported}
    left = [case for case in cases if case.supported and case.operation not in known]
    others = Group(title=OTHERS, operations=sorted({case.operation for case in left}))
    return [*found, *([(others, others.chosen(left))] if left else [])]


def chains(output: str) -> list[Case]:
    """The chains of operations of a tree, which ``support`` lists with ``LISTING`` set."""
    return [Case(found[1], found[2]) for found in CHAIN.finditer(output)]


def lacking(output: str) -> list[str]:
    """The cases that ``cases.cpp`` could not add to the tree's, each with the reason."""
    return LACKING.findall(output)


def results(done: Finished, backend: str) -> Iterator[CaseResult]:
    """The cases of ``--output csv`` for a backend; other lines of the program come between.

    A case that was only listed counts as equal.  Raises ``UntriedError`` where the columns are
    unknown.
    """
    columns: Sequence[str] = ()
    before: list[str] = []
    for line in done.output.splitlines():
        start = line.find('"')
        values = next(csv.reader(io.StringIO(line[start:]))) if start >= 0 else []
        if not columns and {*values} >= FIELDS:
            columns = values
        elif columns and len(values) == len(columns):
            row = dict(zip(columns, values, strict=True))
            named = row["backend_name"].split(", ")  # of an unsupported case, all that lack it
            case = Case(row["op_name"], row["op_params"], row["supported"] == "1")
            if not case.supported and backend not in named and CPU in named:
                yield CaseResult(case, Outcome.NO_REFERENCE, "ggml's CPU code does not compute it")
            elif backend in named:
                printed = " ".join([*before, line[:start]])
                error = max(map(float, ERROR.findall(printed)), default=None)
                if not case.supported:
                    yield CaseResult(case, Outcome.UNSUPPORTED)
                elif failure := row["error_message"]:
                    why = ERROR.sub("", printed).strip() or failure
                    yield CaseResult(case, Outcome.DIFFERS, why, error)
                else:
                    yield CaseResult(case, Outcome.EQUAL, error=error)
            before = []
        elif columns:
            before.append(line)
    if not columns:
        ended = f"test-backend-ops ended with {done.status} and printed no table"
        raise UntriedError(ended, done.output[-2000:].strip())


# A tree's own test-backend-ops, compiled against the libraries of its image, and kept.

SOURCES = "dockerfiles/numbers"
PROGRAM = "test-backend-ops"
SOURCE = f"{PROGRAM}.cpp"
LIST = re.compile(r"^static std::vector<std::unique_ptr<test_case>> make_test_cases_eval\(\)", re.M)
"""The function of a tree that lists its cases."""
REPLACED = {
    "std::random_device": "builder_random_device",
    "std::thread::hardware_concurrency()": "builder_threads()",
    "err > ud->tc->max_err(ud->backend1)": "t1->op != GGML_OP_NONE && "
    "builder_exceeds(err, ud->tc->max_err(ud->backend1))",
    "struct callback_userdata {": "builder_begun(sentinels); struct callback_userdata {",
    "thread_local std::default_random_engine gen(": "std::default_random_engine gen(",
    "static std::vector<std::default_random_engine> ": "std::vector<std::default_random_engine> ",
}
"""Texts of the source, and what stands for them, by ours.h: the random numbers of cases, the error
of each result, and the tensors that the source puts between the tensors of a case."""
OLD_LIST = (
    "static bool test_backend(ggml_backend_t backend, test_mode mode, const char * op_name) {\n"
)
OLD_END, OLD_UNARY = "    // run tests\n", "op < GGML_UNARY_OP_COUNT; op++) {"
OLD_REPLACED = {
    "ggml_row_size(tensor->type, size)": "ggml_nbytes(tensor)",
    "err > ud->max_err": "t1->op != GGML_OP_NONE && builder_exceeds(err, ud->max_err)",
    r'printf("  %s(%s): ", op_desc(out).c_str(), vars().c_str());': "",
    r"\033[1;32mOK\033[0m": "",
    r"\033[1;31mFAIL\033[0m": "",
    OLD_UNARY: f"{OLD_UNARY} if (builder_gated(op)) continue;",
}
"""A source of 2024 (ik_llama.cpp) has its list of cases in a function: what stands before the list
and behind it, and texts that old.h cannot replace."""
OLD_CASE = re.compile(r".*new (test_\w+)\(.*;\n")
LINKED = re.compile(r"libggml(-base|-cpu)?\.so(\.\d+)*")
"""The libraries that the program calls; it finds the others as the image's own programs do."""


def in_tree(source: Path) -> Path | None:
    """The directory of ggml's tests in a source tree: llama.cpp itself, or where a tree has it."""
    found = sorted(source.rglob(f"tests/{SOURCE}"), key=lambda path: len(path.parts))
    return found[0].parent if found else None


def libraries(contents: Contents) -> dict[str, str]:
    """The paths in an image of the libraries that the program is linked with, by their names.

    Empty where ggml is a part of another file: then nothing can be called from outside.
    """
    return {
        parsed.soname: file.path
        for file, parsed in contents.elves()
        if parsed.soname and LINKED.fullmatch(parsed.soname)
    }


def compiled(tests: Path, reference: str, contents: Contents, devel: str, work: Path) -> Path:
    """The program, compiled without network in the image ``devel`` that the engine was compiled in.

    ``tests`` comes from ``in_tree``; ``contents`` were read of the image ``reference``; ``work`` is
    an empty directory.  Raises ``UntriedError`` where it does not compile, or a file of the image
    cannot be read; ``SpaceError`` where a disk is full.
    """
    image = compiling_image(devel)
    context, made = work / "context", work / "made"
    shutil.copytree(installed() / SOURCES, context)
    shutil.copytree(_headers(tests), context / "include")
    source = with_ours(with_more_cases(modern((tests / SOURCE).read_text("utf-8"))))
    (context / SOURCE).write_text(source, "utf-8")
    (context / "lib").mkdir()
    targets = {path: context / "lib" / name for name, path in libraries(contents).items()}
    containers.copy_all_out(reference, targets)
    output = buildx.build_files(context, {"BASE": devel, "CROSS": cross_prefix(image)}, made)
    if output:
        raise UntriedError(f"{PROGRAM} of the source tree does not compile", output)
    return made / PROGRAM


def program_key() -> str:
    """12 hex digits over the sources that are added to a tree's own program, and its changes."""
    changes = [*map(getsource, (modern, with_more_cases, with_ours))]
    texts = LIST.pattern, REPLACED, OLD_LIST, OLD_END, OLD_REPLACED, OLD_CASE.pattern
    return key_of(installed() / SOURCES, f"{changes} {texts}", (".",))


def modern(source: str) -> str:
    """The source with a function that lists its cases, and a main of ours, where it is of 2024."""
    if OLD_LIST not in source:
        return source
    for text, ours in OLD_REPLACED.items():
        source = source.replace(text, ours)
    before, _, rest = source.partition(OLD_LIST)
    known = {*re.findall(r"struct (test_\w+)", before)}
    cases = rest.partition(OLD_END)[0]
    cases = OLD_CASE.sub(lambda each: each[0] if each[1] in known else "", cases)
    listing = "static std::vector<std::unique_ptr<test_case>> make_test_cases_eval()"
    listing = f"{listing} {{\n{cases}return test_cases;\n}}\n"
    return f'#include "old.h"\n{before}#include "old_cases.h"\n{listing}#include "old_main.h"\n'


def with_more_cases(source: str) -> str:
    """The source with ``cases.cpp``, which adds to the list of its cases."""
    declared = "static std::vector<std::unique_ptr<test_case>> tree_cases()"
    return LIST.sub(f'{declared};\n#include "cases.cpp"\n{declared}', source, count=1)


def with_ours(source: str) -> str:
    """The source, whose random numbers are the same in each run, which states the error of each
    result, and fills what is between tensors."""
    for text, ours in REPLACED.items():
        source = source.replace(text, ours)
    return f'#include "ours.h"\n{source}'


def other_headers(tests: Path, source: Path) -> str:
    """A header of the ggml beside ``tests`` that a source tree has otherwise, or not; or empty."""
    theirs, own = _headers(tests), source / "ggml" / "include"
    return next(
        (
            file.name
            for file in sorted(theirs.glob("*.h"))
            if not (own / file.name).is_file()
            or (own / file.name).read_bytes() != file.read_bytes()
        ),
        "",
    )


def _headers(tests: Path) -> Path:
    for folder in (tests.parent / "ggml" / "include", tests.parent / "include"):
        if (folder / "ggml.h").is_file():
            return folder
    raise UntriedError("the source tree has no headers of ggml", f"looked beside {tests}")


# The cases, run on a simulated card.

CARD, CPU = "CUDA0", "CPU"
"""ggml's names of the card (ggml-cuda.cu, GGML_CUDA_NAME) and of its CPU code."""
LISTING = "BUILDER_LISTING"
"""The variable with which the program lists chains of operations, too (cases.cpp)."""
FINISHED = {0, 1}
"""test-backend-ops ends with 1 where a case differs."""
CPU_CODE = re.compile(r"loaded CPU backend from (\S+)")
"""The line of a ggml with GGML_CPU_ALL_VARIANTS (ggml-backend-reg.cpp, load_backend)."""
ABORTED = re.compile(r"\S+\.(?:cuh?|c|cpp|h):\d+: ")
"""The line of ggml_abort: FILE:LINE: MESSAGE (ggml/src/ggml.c)."""
TIMEOUT = 1800.0  # seconds for all cases of one run; the slowest machine counts
MOST = 16 << 20  # bytes of output: trees have up to 20,000 cases
NAMES = 100_000  # characters of names in one argument (execve(2): MAX_ARG_STRLEN is 131,072)
SOURCE_LINE = re.compile(r"from (?:\S*/)?([^/\s]+:\d+)")
PTX_LINE = re.compile(r"(PTX line \d+)")
ENDS = 10  # programs that may end in the middle before the others are given up
EXPLAINED = 6  # cases that are run again alone
NAMED = 4  # kernels that a message names


class _Run(NamedTuple):
    done: Finished
    results: Mapping[str, CaseResult]
    """By the names of their cases; of a run on the card."""
    report: Report | None


@dataclass
class NumbersTrial:
    """Runs test-backend-ops in containers of an image.

    ``binary`` comes from ``compiled``, ``ptx`` is a directory with the PTX of the image's
    machine code, ``work`` a directory for temporary files.
    """

    server: SimulatedServer
    card: Card
    binary: Path
    ptx: Path
    work: Path
    kernels: set[str] = field(default_factory=set)
    """The kernels of all cases together, by their mangled names."""
    launched: int = 0
    computed: int = 0
    """Launches that were computed to their end, or to a fault."""
    instructions: int = 0
    """Executed, counted for each thread."""
    lacking: list[str] = field(default_factory=list)
    """The cases that could not be added to the tree's, each with the reason."""
    operations: Set[str] = frozenset()
    """The operations of the tree's list that the engine computes on a card."""
    races: dict[str, tuple[str, str]] = field(default_factory=dict)
    """What ``races`` found in all cases together."""
    cpu_code: str = ""
    """The file of the CPU code that ggml chose for this machine; empty: it has one for all."""
    _runs: Iterator[int] = field(default_factory=count)
    _explanations: Iterator[int] = field(default_factory=count)

    def results(self) -> Iterator[tuple[Group, list[CaseResult]]]:
        """The outcome of the chosen cases, group by group.

        Raises ``UntriedError`` where the program does not run, ``TimedOutError``.
        """
        listed, chains = self._listed()
        self.operations = {case.operation for case in (*listed, *chains) if case.supported}
        chosen = chosen_of([*listed, *chains])
        wanted = {case.name for _, cases in chosen for case in cases}
        compared: dict[str, CaseResult] = {}
        for part in (listed, chains):  # a run computes its cases in the tree's order
            found = self._compare([case for case in part if case.name in wanted])
            compared |= {each.case.name: each for each in found}
        for group, cases in chosen:
            yield group, [compared[case.name] for case in cases]

    def outputs(self, case: Case) -> Report | None:
        """The card's report on a case alone, with a checksum of the values that each launch
        stored."""
        return self._run("test", case.name, outputs=True).report

    def _listed(self) -> tuple[list[Case], list[Case]]:
        run = self._run("support")
        if run.done.status != 0 or not run.results:
            ended = f"{PROGRAM} ended with {run.done.status} and lists no cases"
            raise UntriedError(ended, run.done.output[-1000:].strip())
        self.lacking = lacking(run.done.output)
        return [each.case for each in run.results.values()], chains(run.done.output)

    def _compare(self, chosen: Sequence[Case]) -> Iterator[CaseResult]:
        """The outcome of cases, which are in the tree's order.

        A case in which the program ends is named, and those behind it are tried in another run.
        """
        waiting = [case for case in chosen if case.supported]
        yield from (CaseResult(each, Outcome.UNSUPPORTED) for each in chosen if not each.supported)
        ended = 0
        while waiting and ended < ENDS:
            sizes = accumulate(len(case.name) + 1 for case in waiting)
            part = waiting[: max(1, sum(size <= NAMES for size in sizes))]
            run = self._run("test", ",".join(case.name for case in part))
            if run.report is not None:
                self.kernels |= run.report.kernels
                self.launched += run.report.launched
                self.computed += run.report.computed
                self.instructions += sum(each.instructions for each in run.report.launches)
                self.races |= races(run.report)
            for case in part:
                if case.name in run.results:
                    yield self._explained(run.results[case.name])
            left = [case for case in part if case.name not in run.results]
            waiting = [*left, *waiting[len(part) :]]
            if left:
                found = self._ended(waiting.pop(0), run)
                ended += found.outcome is not Outcome.NO_REFERENCE
                yield found
        why = f"{ENDS} cases ended the program before it"
        yield from (CaseResult(case, Outcome.NOT_COMPUTED, why) for case in waiting)

    def _ended(self, case: Case, run: _Run) -> CaseResult:
        found = _stopped(case, run)
        if found.outcome is Outcome.NOT_COMPUTED or (run.report and _faults(run.report)):
            return found
        on_cpu = self._run("test", case.name, backend=CPU)
        if on_cpu.done.status in FINISHED:
            return found
        why = f"ggml's CPU code ends the program with {on_cpu.done.status}"
        return CaseResult(case, Outcome.NO_REFERENCE, why)

    def _explained(self, found: CaseResult) -> CaseResult:
        if found.outcome is not Outcome.DIFFERS or next(self._explanations) >= EXPLAINED:
            return found
        report = self._run("test", found.case.name).report
        if report is None:
            return found
        names = ", ".join(sorted(map(function_of, report.kernels))[:NAMED])
        unordered = "; ".join(why for _, why in [*races(report).values()][:NAMED])
        wrong = _faults(report) or unordered or f"computed by {names}"
        return replace(found, why=f"{found.why}; {wrong}")

    def _run(
        self,
        mode: str,
        selected: str = "",
        *,
        backend: str = CARD,
        outputs: bool = False,
    ) -> _Run:
        """``support`` lists the selected cases (empty: all), ``test`` computes them."""
        work = self.work / f"run-{next(self._runs)}"
        # Beside the libraries: the program looks for them, and for those that they load, there.
        beside = posixpath.dirname(next(iter(libraries(self.server.contents).values())))
        program = posixpath.join(beside, PROGRAM)
        ptx = self.ptx if mode == "test" and backend == CARD else None
        mount = f"--volume={self.binary}:{program}:ro"
        on = self.server.on([self.card], None, work, ptx, races=not outputs, outputs=outputs)
        select = ["-o", selected] if selected else []
        with on as simulation:
            mounts = simulation.mounts
            env = {**mounts.env, **({LISTING: "1"} if mode == "support" else {})}
            done = containers.run(
                self.server.reference,
                [mode, "-b", backend, *select, "--output", "csv"],
                entrypoint=program,
                timeout=TIMEOUT,
                extra=[*mount_options(mounts.volumes, env), mount],
                once=True,
                most=MOST,
            )
            report = simulation.settled()
        if chosen := CPU_CODE.search(done.output):
            self.cpu_code = posixpath.basename(chosen[1])
        found = results(done, CARD) if backend == CARD else ()
        return _Run(done, {each.case.name: each for each in found}, report)


def _stopped(case: Case, run: _Run) -> CaseResult:
    done, report = run.done, run.report
    why = _faults(report) if report else ""
    if not why:
        lines = [line for line in done.output.splitlines() if line.strip() and '"' not in line]
        aborted = [line for line in lines if ABORTED.match(line)]  # a backtrace comes after it
        why = f"the program ended with {done.status}: {' '.join(aborted[-1:] or lines[-3:])}"
    lacks_only = report is not None and report.lacks_only
    return CaseResult(case, Outcome.NOT_COMPUTED if lacks_only else Outcome.DIFFERS, why)


def _faults(report: Report) -> str:
    faults = [each for each in report.violations if not each.why.startswith(RACE)][:NAMED]
    return "; ".join(f"{function_of(each.kernel)}: {each.why}" for each in faults)


def races(report: Report) -> dict[str, tuple[str, str]]:
    """What has no order, by kernel and line: a case, "race: KERNEL FILE:LINE", and a sentence.

    Without a line of the source the case is "race: KERNEL": lines of PTX change with each compiler.
    """
    found: dict[str, tuple[str, str]] = {}
    for each in report.violations:
        if each.why.startswith(RACE):
            kernel, source = function_of(each.kernel), SOURCE_LINE.search(each.why)
            line = source or PTX_LINE.search(each.why)
            place = f"{kernel} {line[1]}" if line else kernel
            found.setdefault(place, (RACE + (place if source else kernel), f"{place}: {each.why}"))
    return found


# Check: kernels give the results of ggml's CPU code, on a simulated card that computes.

KIND = "numbers"
EXPECTED = "as ggml's CPU code, within ggml's limits"
ATTENTION = "FLASH_ATTN_EXT"
TYPES = ("type_KV", "type_K")
"""The parameter of a case that names the cache's type: of both K and V, or of K."""
NAMED_CASES = 4  # cases that a check names
GROWTH = 10.0
"""How many times the least known error of a case its error may be."""
ROUNDING = 1e-11
"""Errors below are all the same: sums of floats in another order.  A sum that is rounded to half
once makes 1e-7."""
UNCOMPARED, EACH_OPERATION = "operations", "each that the tree's list has is compared"
"""The subject of the check that names operations without a case; `show` finds it by that."""
COMPARED = {Outcome.EQUAL, Outcome.DIFFERS}
UNTRIED = {Outcome.NOT_COMPUTED, Outcome.NO_REFERENCE}


def check_kernels(context: Context) -> Iterator[Check]:
    """Compare the chosen cases of the tree's own test-backend-ops, group by group."""
    return on_a_card(_checks(context), KIND, "kernels on a simulated card that computes", EXPECTED)


def _checks(context: Context) -> Iterator[Check]:
    with_card, results = trial(context), dict[str, CaseResult]()
    for group, found in with_card.results():
        yield from _group(context, group.title, found)
        results |= {each.case.name: each for each in found}  # groups may share some
    context.errors |= {
        name: each.error
        for name, each in sorted(results.items())
        if each.outcome is Outcome.EQUAL and each.error is not None
    }
    yield operations(with_card.operations, results.values())
    ordered = "all accesses have an order"
    yield context.rules.check(KIND, "races", ordered, with_card.races.values())
    text = context.help(context.recipe.image.entrypoint)
    if types := logit_test.cache_types(text):
        yield cache_types(types, [*results.values()])
    yield _coverage(with_card, [*results.values()])


def trial(context: Context) -> NumbersTrial:
    """The comparison of an image's numbers.

    Raises ``InapplicableError`` where it has nothing to compare, ``BuilderError``.
    """
    server, test = context.computing, context.numbers_test
    if isinstance(test.program, str):
        raise InapplicableError(test.program)
    work = context.work / "numbers"
    work.mkdir()
    return NumbersTrial(server, context.card, test.program, test.ptx, work)


def _group(context: Context, title: str, found: Sequence[CaseResult]) -> Iterator[Check]:
    if not found:
        yield Check.skipped(KIND, title, EXPECTED, "the tree has no such case")
        return
    counts = Counter(each.outcome for each in found)
    known = context.subject.least_errors
    faults = {
        each.case.name: each.why if each.outcome is Outcome.DIFFERS else grown(each, known)
        for each in found
        if each.outcome in COMPARED
    }
    differing = [(name, f"{name}: {why}") for name, why in faults.items() if why]
    others = [f"{counts[each]} {each}" for each in Outcome if each not in COMPARED and counts[each]]
    lacking = [f"{each.case.name}: {each.why}" for each in found if each.outcome in UNTRIED]
    text = "; ".join([f"{counts[Outcome.EQUAL]} cases", *others, *lacking[:NAMED_CASES]])
    if differing or counts[Outcome.EQUAL]:
        yield context.rules.check(KIND, title, EXPECTED, differing, fine=text)
    else:
        yield Check.skipped(KIND, title, EXPECTED, text)


def operations(known: Set[str], results: Iterable[CaseResult]) -> Check:
    """Whether each operation of the tree's list has a case that was compared."""
    left = known - {each.case.operation for each in results if each.outcome in COMPARED}
    found = f"without a case: {', '.join(sorted(left))}" if left else f"all {len(known)}"
    if left:
        return Check.skipped(KIND, UNCOMPARED, EACH_OPERATION, found)
    return Check.of(KIND, UNCOMPARED, EACH_OPERATION, found, True)


def grown(found: CaseResult, known: Mapping[str, tuple[float, str]]) -> str:
    """Why the error of an equal case is too large beside the least that is known; or empty."""
    least, image = known.get(found.case.name, (math.inf, ""))
    if found.error is None or found.error <= GROWTH * max(least, ROUNDING):
        return ""
    errors = f"its error is {found.error:.2g}, and {least:.2g} in {image}"
    return f"{errors}: {GROWTH:g} times are allowed"


def cache_types(types: Set[str], results: Sequence[CaseResult]) -> Check:
    """Whether attention was compared for each type that the cache can have."""
    compared, on_cpu = (
        {_cache_type(each.case) for each in results if each.outcome in outcomes} & types
        for outcomes in (COMPARED, {Outcome.UNSUPPORTED})
    )
    subject, expected = f"types of {logit_test.CACHE}", "attention was compared for each"
    found = f"compared: {', '.join(sorted(compared)) or 'none'}"
    if others := sorted(on_cpu - compared):
        found += f"; the engine computes on the CPU: {', '.join(others)}"
    if lacking := sorted(types - compared - on_cpu):
        found += f"; not compared: {', '.join(lacking)}"
        return Check.skipped(KIND, subject, expected, found)
    return Check.of(KIND, subject, expected, found, True)


def _cache_type(case: Case) -> str:
    if case.operation != ATTENTION:
        return ""
    return next((case.values[name] for name in TYPES if name in case.values), "")


def _coverage(trial: NumbersTrial, results: Sequence[CaseResult]) -> Check:
    """How much was compared.  An image that the card computes nothing of was not tried."""
    compared = sum(each.outcome in COMPARED for each in results)
    lacking = sum(each.outcome is Outcome.NOT_COMPUTED for each in results)
    operations = len({each.case.operation for each in results if each.outcome in COMPARED})
    found = f"{compared} cases of {operations} operations; {trial.computed:,} of "
    found += f"{trial.launched:,} launches of {len(trial.kernels)} kernels computed, "
    found += f"{trial.instructions / 1e9:.1f} billion instructions; {lacking} cases not computed"
    found += f"; compared with {trial.cpu_code}" if trial.cpu_code else ""
    found += "".join(f"; not added: {each}" for each in trial.lacking)
    if not compared:
        return Check.untried(KIND, "coverage", "cases are compared", found)
    return Check.of(KIND, "coverage", "cases are compared", found, True)
