"""Recognises the text of a license: its SPDX identifier, only where the text is exactly that one.

The texts come from choosealicense.com, which pre-commit's ``identify`` ships.
"""

from __future__ import annotations

import re
from functools import cache

from identify.vendor.licenses import LICENSES

TITLE = re.compile(r"\A\s*[\w /()-]{0,40}Licen[sc]e[\w /().-]{0,20}\n", re.IGNORECASE)
COPYRIGHT = re.compile(r"^[ \t]*(?:Copyright|\(C\)|©) (?P<who>.*)$", re.MULTILINE)
TERMS = re.compile(r"licen[cs]e|permi|commercial|use[ds]?\b|only|provided", re.IGNORECASE)
RESERVED = re.compile(r"^[ \t]*All rights reserved\.?[ \t]*$", re.MULTILINE | re.IGNORECASE)
VERSIONS = {"AGPL-3.0", "GPL-2.0", "GPL-3.0", "LGPL-2.1", "LGPL-3.0"}
"""Licenses whose text does not say whether later versions count (SPDX: -only, -or-later)."""


def identified(text: str) -> tuple[str, ...]:
    """The SPDX identifiers that a license text may have: one if it is known for sure, or none.

    Two for a license of the GNU project: the text does not say which.  White space, the title, the
    copyright holder and an appendix on how to apply it do not count (SPDX, "License matching
    guidelines"); any other difference does.
    """
    found = _known().get(_normal(text))
    if found is None:
        return ()
    return (f"{found}-only", f"{found}-or-later") if found in VERSIONS else (found,)


@cache
def _known() -> dict[str, str]:
    return {_normal(text): name for name, text in LICENSES}


def _normal(text: str) -> str:
    """The words that count; a line on the copyright with terms of its own stays."""
    lines = "\n".join(text.lstrip("\ufeff").splitlines())
    kept = COPYRIGHT.sub(lambda line: line[0] if TERMS.search(line["who"]) else "", lines)
    kept = TITLE.sub("", RESERVED.sub("", kept))
    words = " ".join(kept.split()).lower()
    return (
        words.partition("end of terms and conditions appendix: ")[0]
        .removesuffix("end of terms and conditions")
        .strip()
    )
