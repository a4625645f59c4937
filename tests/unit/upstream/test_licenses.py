"""Texts of licenses: sure, or none."""

from __future__ import annotations

import pytest
from identify.vendor.licenses import LICENSES

from builder.upstream.new_recipe import VERSIONS, identified

TEXTS = dict(LICENSES)
MIT = TEXTS["MIT"].replace("[year] [fullname]", "2023-2026 The ggml authors, Somebody")
APACHE = TEXTS["Apache-2.0"]


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_each_known_text_is_one_license(name: str) -> None:
    expected = (f"{name}-only", f"{name}-or-later") if name in VERSIONS else (name,)
    assert identified(TEXTS[name]) == expected


@pytest.mark.parametrize(
    "text",
    [
        MIT,
        MIT.replace("\n", "\r\n"),
        MIT.replace("MIT License", "The MIT License (MIT)"),
        MIT.split("\n", 2)[2],
        MIT.replace("\n\nPermission", "\nCopyright (c) 2024 B\nAll rights reserved.\n\nPermission"),
        " ".join(MIT.split("\n\n", 2)[2].split()),
    ],
    ids=["as it is", "CRLF", "title", "no title", "two holders", "one line"],
)
def test_what_does_not_count(text: str) -> None:
    assert identified(text) == ("MIT",)


def test_an_appendix_does_not_count() -> None:
    assert identified(APACHE.partition("   APPENDIX:")[0]) == ("Apache-2.0",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MIT",
        "MIT License\n",
        MIT.replace("to deal\n", "to deal\nnoncommercially\n"),
        MIT + "\nThe Software shall not be used by robots.\n",
        MIT.replace("authors, Somebody", "authors. Commercial use needs permission"),
        MIT + APACHE,
        APACHE.replace("reasonable and customary", "reasonable"),
    ],
    ids=["nothing", "name", "title", "word", "sentence", "holder", "two", "paraphrase"],
)
def test_any_other_difference_is_none(text: str) -> None:
    assert identified(text) == ()
