"""The rules of the static checks, and the files that a recipe exempts from them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence

from builder.recipes.schema import Accept
from builder.smoke.verdict import Check

NAMED = 8  # offenders that a check names


class Rules:
    """Judges what breaks a rule; remembers which acceptances were needed."""

    def __init__(self, accepted: Sequence[Accept] = ()) -> None:
        self._accepted = accepted
        self._used: set[int] = set()

    def accepts(self, kind: str, path: str) -> Accept | None:
        """The acceptance under which ``path`` may break the rule, or None."""
        for number, accept in enumerate(self._accepted):
            if accept.check == kind and fnmatch.fnmatchcase(path, accept.path):
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
        """One check over everything that breaks a rule.

        ``offenders`` are paths in the image, each with what is said of it; ``fine`` is what was
        found where there are none.
        """
        left: list[str] = []
        bent: dict[str, int] = {}
        for path, said in offenders:
            accept = self.accepts(kind, path)
            if accept is None:
                left.append(said)
            else:
                bent[accept.why] = bent.get(accept.why, 0) + 1
        named = "; ".join(left[:NAMED])
        more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
        accepted = "".join(f"; accepted: {count} ({why})" for why, count in bent.items())
        return Check(kind, subject, expected, (named + more or fine) + accepted, not left)

    def unused(self) -> Iterator[Check]:
        """A failed check for each acceptance that no file of the image needs."""
        for number, accept in enumerate(self._accepted):
            if number not in self._used:
                yield Check(
                    "accept",
                    f"{accept.check} {accept.path}",
                    f"a file that breaks the rule ({accept.why})",
                    "none does: the acceptance may go",
                    False,
                )
