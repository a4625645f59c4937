"""The one error of the simulated card: what failed, why, and the next step."""

from __future__ import annotations


class SimulatorError(Exception):
    """The card, its reports or its kernels cannot be used; no fault of the program that ran.

    Its arguments are what failed, why, and what to do next; the last two may be empty.
    """

    def __init__(self, what: str, why: str = "", hint: str = "") -> None:
        super().__init__(what, why, hint)
