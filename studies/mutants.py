"""Planted faults that the numbers gate finds, as rows of simulator/README.md.

    ./farm ptx llama-cpp-0.5.0-dev --output DIRECTORY
    .venv/bin/python studies/mutants.py DIRECTORY [--of-each 40] [--seed 1] [--growth 10 5 3 2]

One instruction of a kernel's PTX is changed, and the kernel runs with the inputs of
simulator/ptx/real/ggml.py.  A fault or an error beyond ggml's limit shows by itself.  Some of the
mutants that pass enlarge the error more than threefold: a row says how many of them the rule finds.
The rule (kernel_test.py, ``grown``): it is more than GROWTH times the error without the change.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "simulator/ptx" / part) for part in ("real", "tests")]

import ggml  # noqa: E402
import numpy as np  # noqa: E402

from builder.checks.kernel_test import GROWTH, ROUNDING  # noqa: E402
from ptxlab.build import build  # noqa: E402
from ptxlab.interpreter import Library, Module, PtxError, PtxFaultError  # noqa: E402

CASES = (
    "q4_0 x8", "mxfp4 x8 fp4", "f16 64", "q8_0 128", "q4_0 256", "mma 64", "mma 128", "rms_norm",
    "soft_max shared", "soft_max global", "argsort", "rope", "get_rows q4_0", "ssm_conv",
)  # fmt: skip
"""Results in ggml.py, one for each kernel."""
MOST = 2_000_000  # instructions of a warp: a changed loop may have no end
ENLARGED = 3.0
ENDS = "not loaded", "same bits", "fault", "beyond the limit", "passes"


@dataclass(frozen=True)
class Case:
    """A launch that was recorded before it ran."""

    name: str
    text: str
    """The module's PTX without its other kernels."""
    kernel: str
    arguments: list[Any]
    options: dict[str, Any]
    result: int
    """The argument that the kernel writes its result to."""
    exact: ggml.Array

    def error(self, library: Library, text: str) -> tuple[float, bytes]:
        """The normalized mean square error with this PTX, and the result's bytes."""
        arguments = [a.copy() if isinstance(a, np.ndarray) else a for a in self.arguments]
        module = library.load(text)
        module.run(
            self.kernel, arguments, threads=1, fill=255, most_instructions=MOST, **self.options
        )
        out = arguments[self.result]
        with np.errstate(all="ignore"):
            return ggml.nmse(out.astype(np.float64), self.exact), out.tobytes()


class Recorder(ggml.Kept):
    """Kept PTX whose launches are recorded as cases."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cases: list[Case] = []
        self._launch: tuple[str, str, list[Any], list[Any], dict[str, Any]] | None = None
        self._found: tuple[int, ggml.Array] | None = None

    def module(self, library: Library, name: str, kernel: str) -> tuple[Module, str]:
        module, text = super().module(library, name, kernel)
        run = module.run

        def recorded(kernel: str, arguments: list[Any], **options: Any) -> Any:
            before = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
            self._launch = text, kernel, before, arguments, options
            return run(kernel, arguments, **options)

        module.run = recorded  # type: ignore[method-assign, assignment]
        return module, text

    def compared(self, got: ggml.Array, exact: ggml.Array) -> None:
        """The last launch's result is compared: the argument that has it is looked for."""
        for index, each in enumerate(self._launch[3] if self._launch else ()):
            if not isinstance(each, np.ndarray) or each.shape != got.shape:
                continue
            if np.array_equal(each.astype(np.float64), got.astype(np.float64)):
                self._found = index, exact

    def report(self, name: str, _error: float) -> None:
        """A case of ggml.py ends."""
        if self._launch and self._found and name in CASES:
            text, kernel, before, _, options = self._launch
            self.cases.append(
                Case(name, alone(text, kernel), kernel, before, options, *self._found)
            )
        self._found = None


def alone(text: str, kernel: str) -> str:
    """A module without its other kernels."""
    head, *parts = re.split(r"^(?=(?:\.visible |\.weak )?\.entry )", text, flags=re.M)
    kept = [head]
    for part in parts:
        own = re.match(rf"(?:\.visible |\.weak )?\.entry {kernel}\b", part)
        kept.append(part if own else part[part.rindex("\n}") + 2 :])
    return "".join(kept)


def recorded(library: Library, folder: Path) -> list[Case]:
    """The launches of ``CASES``, with what they should compute."""
    tree, nmse = Recorder(folder), ggml.nmse

    def watched(got: ggml.Array, exact: ggml.Array) -> float:
        tree.compared(got, exact)
        return nmse(got, exact)

    ggml.nmse = watched
    try:
        for check in ("mmq", "attention", "tiles", "rows", "blocks"):
            ggml.CHECKS[check](library, tree, tree.report)
    finally:
        ggml.nmse = nmse
    return tree.cases


# Changes of one instruction: the words of its class, and the text in its place.

SUM = re.compile(
    r"(?P<op>add|fma)(?P<form>\.rn)?(?P<ftz>\.ftz)?\.f32\s+"
    r"(?P<to>%\w+), (?P<a>[^,;]+), (?P<rest>[^;]+);"
)


def _half(line: str, _rng: random.Random) -> str:
    found = SUM.search(line)
    to = found["to"] if found else ""
    rounded = f"{{ .reg .b16 %mutant; cvt.rn.f16.f32 %mutant, {to}; cvt.f32.f16 {to}, %mutant; }}"
    return f"{line}\n{rounded}" if found else line


def _lane(line: str, rng: random.Random) -> str:
    found = SUM.search(line)
    if found is None or line.lstrip().startswith("@"):
        return line
    whole = found["a"] if found["op"] == "add" else found["rest"].split(", ")[-1]
    return (
        f"{{ .reg .pred %mutant; .reg .b32 %lane, %old; mov.b32 %old, {whole};\n{line}\n"
        f"mov.u32 %lane, %laneid; setp.eq.u32 %mutant, %lane, {rng.randrange(32)};\n"
        f"@%mutant mov.b32 {found['to']}, %old; }}"
    )


def _number(pattern: str, change: Callable[[int, random.Random], int]) -> Callable[..., str]:
    form = re.compile(pattern)

    def changed(line: str, rng: random.Random) -> str:
        found = form.search(line)
        if found is None:
            return line
        number = change(int(found[1], 0), rng)
        return f"{line[: found.start(1)]}{number}{line[found.end(1) :]}"

    return changed


def _lost_bit(mask: int, rng: random.Random) -> int:
    bits = [bit for bit in range(32) if mask >> bit & 1]
    return mask & ~(1 << rng.choice(bits)) if bits else mask


def _words(*pairs: tuple[str, str]) -> Callable[..., str]:
    def changed(line: str, _rng: random.Random) -> str:
        for pattern, other in pairs:
            if (made := re.sub(pattern, other, line)) != line:
                return made
        return line

    return changed


def _next_element(line: str, _rng: random.Random) -> str:
    found = re.search(r"\bld\.\w+(?:\.\w+)*\.[a-z]+(\d+)\s.*\[(%\w+)(?:\+(-?\d+))?\]", line)
    if found is None or "param" in line:
        return line
    offset = int(found[3] or 0) + int(found[1]) // 8
    return line.replace(found[0][found[0].rindex("[") :], f"[{found[2]}+{offset}]")


CHANGES: dict[str, Callable[[str, random.Random], str]] = {
    "a sum rounded to half": _half,
    "a lane leaves out an addition": _lane,
    "sum dropped": _words(
        (r"fma\.rn(\.ftz)?\.f32(\s+)([^,]+, [^,]+, [^,;]+), [^;]+;", r"mul\1.f32\2\3;")
    ),
    "log2(e) missing": _words((r"0f3FB8AA3B", "0f3F800000")),
    "loop bound": _number(r"setp\.\w+\.[su]32\s+%\w+, %\w+, (\d+);", lambda n, _: n + 1),
    "load one element on": _next_element,
    "selector of prmt": _number(
        r"prmt\.b32\s.*, (0x[0-9A-Fa-f]+|\d+)U?;", lambda n, rng: n ^ 1 << rng.randrange(12)
    ),
    "shift: signed or not": _words((r"shr\.u32", "shr.s32"), (r"shr\.s32", "shr.u32")),
    "shift by one more": _number(r"sh[lr]\.\w32\s.*, (\d+);", lambda n, _: n + 1),
    "dp4a: signed or not": _words((r"dp4a\.s32\.s32", "dp4a.u32.s32")),
    "bit of a mask lost": _number(r"and\.b32\s.*, (\d+);", _lost_bit),
    "shuffle distance": _number(
        r"shfl\.sync\.\w+\.b32\s.*, (\d+), \d+, -?\d+;", lambda n, _: n // 2 or 2
    ),
}


def mutants(case: Case, of_each: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Changed modules, each with the words of its change."""
    start = case.text.index(f"entry {case.kernel}")
    lines = case.text.splitlines(keepends=True)
    first = case.text[:start].count("\n")
    for words, change in CHANGES.items():
        able = [i for i in range(first, len(lines)) if change(lines[i], rng) != lines[i]]
        for i in sorted(rng.sample(able, min(of_each, len(able)))):
            yield words, "".join([*lines[:i], change(lines[i], rng), *lines[i + 1 :]])


@dataclass(frozen=True)
class Outcome:
    """How a mutant ended."""

    words: str
    end: str
    growth: float = 1.0
    """How many times the error it has; infinite where there was none."""
    counted: float = 1.0
    """The same as the rule counts it: errors below ``ROUNDING`` are all the same."""


def judged(
    case: Case, library: Library, words: str, text: str, right: tuple[float, bytes]
) -> Outcome:
    """The outcome of a mutant."""
    try:
        error, result = case.error(library, text)
    except PtxFaultError:
        return Outcome(words, "fault")
    except PtxError:
        return Outcome(words, "not loaded")
    if not error <= ggml.LIMIT:
        return Outcome(words, "beyond the limit")
    if result == right[1]:
        return Outcome(words, "same bits")
    growth = error / right[0] if right[0] else float("inf")
    return Outcome(words, "passes", growth, max(error, ROUNDING) / max(right[0], ROUNDING))


def row(words: str, some: list[Outcome], growths: list[float]) -> str:
    """A row of the table."""
    enlarged = [each for each in some if each.growth > ENLARGED]
    seen = [each for each in enlarged if each.counted > ENLARGED]
    cells = [words, *(str(sum(each.end == end for each in some)) for end in ENDS)]
    cells += [str(len(enlarged)), str(len(seen))]
    cells += [str(sum(each.counted > growth for each in enlarged)) for growth in growths]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--of-each", type=int, default=40, help="of a change, in a kernel")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--growth", type=float, nargs="+", default=[GROWTH, 5, 3, 2])
    parser.add_argument("--library", type=Path)
    given = parser.parse_args()
    library = Library(given.library or build() / "libptx.so")
    outcomes: list[Outcome] = []
    for case in recorded(library, given.folder):
        right = case.error(library, case.text)
        rng = random.Random(f"{given.seed} {case.name}")  # noqa: S311  (the same sample every time)
        for words, text in mutants(case, given.of_each, rng):
            outcomes.append(judged(case, library, words, text, right))
        print(f"{case.name}: error {right[0]:.1e}", file=sys.stderr, flush=True)
    heads = ["change", *ENDS, f"over {ENLARGED:g} times", f"of these beyond {ROUNDING:g}"]
    heads += [f"found at {growth:g}" for growth in given.growth]
    print(f"| {' | '.join(heads)} |\n|---{'|---:' * (len(heads) - 1)}|")
    for words in CHANGES:
        print(row(words, [each for each in outcomes if each.words == words], given.growth))
    print(row("all", outcomes, given.growth))


if __name__ == "__main__":
    main()
