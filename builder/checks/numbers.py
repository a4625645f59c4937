"""Check: kernels give the results of ggml's CPU code, on a simulated card that computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set

from builder.checks import server_trials
from builder.checks.cases import Case, CaseResult, Outcome
from builder.checks.kernel_test import NumbersTrial
from builder.checks.subject import Context, InapplicableError, on_a_card
from builder.checks.verdict import Check

KIND = "numbers"
EXPECTED = "as ggml's CPU code, within ggml's limits"
ATTENTION = "FLASH_ATTN_EXT"
TYPES = ("type_KV", "type_K")
"""The parameter of a case that names the cache's type: of both K and V, or of K."""
NAMED = 4  # cases that a check names
COMPARED = {Outcome.EQUAL, Outcome.DIFFERS}
UNTRIED = {Outcome.NOT_COMPUTED, Outcome.NO_REFERENCE}


def check(context: Context) -> Iterator[Check]:
    """Compare the chosen cases of the tree's own test-backend-ops, group by group."""
    subject = "kernels on a simulated card that computes"
    return on_a_card(_checks(context), KIND, subject, EXPECTED)


def _checks(context: Context) -> Iterator[Check]:
    with_card, results = trial(context), dict[str, CaseResult]()
    for group, found in with_card.results():
        yield from _group(context, group.title, found)
        results |= {each.case.name: each for each in found}  # groups may share some
    text = context.help(context.recipe.image.entrypoint)
    if types := server_trials.cache_types(text):
        yield cache_types(types, [*results.values()])
    yield _coverage(with_card, [*results.values()])


def trial(context: Context) -> NumbersTrial:
    """The comparison of an image's numbers.

    Raises ``InapplicableError`` where it has nothing to compare, ``BuilderError``.
    """
    server, test = context.server, context.numbers_test
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
    differing = [
        (each.case.name, f"{each.case.name}: {each.why}")
        for each in found
        if each.outcome is Outcome.DIFFERS
    ]
    others = [f"{counts[each]} {each}" for each in Outcome if each not in COMPARED and counts[each]]
    lacking = [f"{each.case.name}: {each.why}" for each in found if each.outcome in UNTRIED]
    text = "; ".join([f"{counts[Outcome.EQUAL]} cases", *others, *lacking[:NAMED]])
    if differing or counts[Outcome.EQUAL]:
        yield context.rules.check(KIND, title, EXPECTED, differing, fine=text)
    else:
        yield Check.skipped(KIND, title, EXPECTED, text)


def cache_types(types: Set[str], results: Sequence[CaseResult]) -> Check:
    """Whether attention was compared for each type that the cache can have."""
    compared, on_cpu = (
        {_cache_type(each.case) for each in results if each.outcome in outcomes} & types
        for outcomes in (COMPARED, {Outcome.UNSUPPORTED})
    )
    subject, expected = f"types of {server_trials.CACHE}", "attention was compared for each"
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
    found += "".join(f"; not added: {each}" for each in trial.lacking)
    if not compared:
        return Check.untried(KIND, "coverage", "cases are compared", found)
    return Check.of(KIND, "coverage", "cases are compared", found, True)
