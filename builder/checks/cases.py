"""Cases of ggml's test-backend-ops: all cases of a tree, and the choice that an image must pass."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from pathlib import Path

from pydantic import Field

from builder.core.errors import UntriedError
from builder.docker.engine import Finished
from builder.recipes.catalog import read_model
from builder.recipes.fields import Model, Text
from builder.recipes.probes import Accept

FILE = Path(__file__).with_name("cases.toml")
PARAMETER = re.compile(r"(\w+)=((?:\[[^]]*\]|[^,\[])*)")
CHAIN = re.compile(r"chain (\w+)\((.*)\)$", re.M)
"""A chain of operations that a kernel computes together, as ``cases.cpp`` lists it."""
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


class _Fault(Model):
    case: Text
    why: Text


class _File(Model):
    group: list[Group]
    fault: list[_Fault]
    """Cases that differ in every tree of ggml before a change of upstream's."""


@cache
def _file() -> _File:
    return read_model(FILE, _File)


def groups() -> Sequence[Group]:
    """All groups of cases."""
    return _file().group


def known_faults() -> list[Accept]:
    """The faults of ggml that every recipe accepts."""
    return [Accept(check="numbers", case=each.case, why=each.why) for each in _file().fault]


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
            if row["backend_name"] == backend:
                case = Case(row["op_name"], row["op_params"], row["supported"] == "1")
                error = row["error_message"]
                if not case.supported:
                    yield CaseResult(case, Outcome.UNSUPPORTED)
                elif error:
                    printed = " ".join([*before, line[:start]]).strip()
                    yield CaseResult(case, Outcome.DIFFERS, printed or error)
                else:
                    yield CaseResult(case, Outcome.EQUAL)
            before = []
        elif columns:
            before.append(line)
    if not columns:
        ended = f"test-backend-ops ended with {done.status} and printed no table"
        raise UntriedError(ended, done.output[-2000:].strip())
