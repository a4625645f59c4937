"""The rules of the static checks, and the files that a recipe exempts from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from builder.checks.verdict import Check
from builder.recipes.probes import Accept

NAMED = 8  # offenders that a check names


class Rules:
    """Checks rules; remembers which exemptions of the recipe were used."""

    def __init__(self, accepted: Sequence[Accept] = ()) -> None:
        self._accepted = accepted
        self._used: set[int] = set()

    def accepts(self, kind: str, path: str, description: str = "") -> Accept | None:
        """The exemption of ``path``, or of a case, from a check, or None."""
        for number, accept in enumerate(self._accepted):
            if accept.check == kind and accept.covers(path, description):
                self._used.add(number)
                return accept
        return None

    def check(
        self,
        kind: str,
        subject: str,
        expected: str,
        offenders: Iterable[tuple[str, str]],
        fine: str = "none",
    ) -> Check:
        """One check of a rule.

        ``offenders`` are the paths that break it, each with a description; ``fine`` is the finding
        if there are none.
        """
        left: list[str] = []
        accepted_for: dict[str, int] = {}
        for path, description in offenders:
            accept = self.accepts(kind, path, description)
            if accept is None:
                left.append(description)
            else:
                accepted_for[accept.why] = accepted_for.get(accept.why, 0) + 1
        named = "; ".join(left[:NAMED])
        more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
        accepted = "".join(f"; accepted: {count} ({why})" for why, count in accepted_for.items())
        return Check.of(kind, subject, expected, (named + more or fine) + accepted, not left)

    def unused(self) -> Iterator[Check]:
        """A failed check for each exemption that nothing needs.

        Not of ``numbers``: whether a race shows depends on the order in which warps run.
        """
        for number, accept in enumerate(self._accepted):
            if number not in self._used and accept.check != "numbers":
                yield Check.of(
                    "accept",
                    f"{accept.check} {accept.covered}",
                    f"something that breaks the rule ({accept.why})",
                    "nothing does: remove it from the recipe",
                    False,
                )
