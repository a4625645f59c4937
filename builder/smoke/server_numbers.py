"""Check: the server's answers on a card that computes, against the answers of its CPU."""

from __future__ import annotations

from collections.abc import Iterator

from builder.smoke.context import Context, on_a_card
from builder.smoke.model_numbers import KIND, Numbers
from builder.smoke.server_trials import USUAL_CACHE, cache_types, drafts
from builder.smoke.verdict import Check, CheckState


def check(context: Context) -> Iterator[Check]:
    """The numbers of an image's server."""
    return on_a_card(_checks(context), KIND, "the server", "the numbers of its CPU")


def _checks(context: Context) -> Iterator[Check]:
    work = context.work / "server-numbers"
    work.mkdir()
    work.chmod(0o755)  # the image's own user reads the models
    for found in numbers_of(context).checks(work):
        if found.state is CheckState.FAILED and context.rules.accepts(KIND, found.subject):
            offender = (found.subject, found.found)
            yield context.rules.check(KIND, found.subject, found.expected, [offender])
        else:
            yield found


def numbers_of(context: Context, *, outputs: bool = False) -> Numbers:
    """The trials of an image's server; ``outputs`` is as in ``Numbers``.

    Raises ``InapplicableError`` where there is nothing to try, ``BuilderError``.
    """
    server, test = context.server, context.numbers_test  # where there is none, nothing is started
    text = context.sandbox.help(tuple(context.recipe.image.entrypoint))
    return Numbers(
        server,
        context.card,
        test.ptx,
        drafts(text),
        sorted(cache_types(text) - {USUAL_CACHE}),
        driver_stub=context.stub,
        outputs=outputs,
    )
