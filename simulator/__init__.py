"""The Python half of the simulated card: device code, kernels, models without weights, reports."""

from __future__ import annotations


class SimulatorError(Exception):
    """The card, its reports or its kernels cannot be used; no fault of the program that ran.

    Its arguments are what failed, why, and what to do next; the last two may be missing.
    """


class MalformedElf(ValueError):  # noqa: N818 (what it is, not what went wrong)
    """An ELF file or its device code is truncated or damaged; the text says at which byte."""
