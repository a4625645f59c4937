"""Package URLs and download locations, without users or local paths."""

from __future__ import annotations

import json
import re
from pathlib import Path

from builder.publish import attachments
from builder.publish.sbom import commit_purl, image_purl, public
from support.bills import DIGEST, DPKG, faults, in_catalog, record_of
from support.environment import REPOSITORY


def test_addresses() -> None:
    commit = "ab" * 20
    assert commit_purl("ssh://git@github.com/Me/Fork.git", commit, "x") == (
        f"pkg:github/me/fork@{commit}"
    )
    assert commit_purl("https://git.example.org/fork", commit, "x") == (
        f"pkg:generic/x@{commit}?vcs_url=git%2Bhttps://git.example.org/fork%40{commit}"
    )
    assert public("https://user:word@host:8443/a?b=c") == "https://host:8443/a"
    assert image_purl("localhost:5000/me/x", DIGEST) == (
        f"pkg:oci/x@{DIGEST}?repository_url=localhost:5000/me/x"
    )
    assert image_purl("me/x", DIGEST, "1").endswith("?repository_url=docker.io/me/x&tag=1")
    assert image_purl("x", DIGEST) == f"pkg:oci/x@{DIGEST}"


def test_no_document_has_a_token_of_a_url_or_a_local_path(tmp_path: Path) -> None:
    text = (REPOSITORY / "recipes" / "atomic-b8995.toml").read_text()
    for url in ("https://ghp_secret@git.example.org/me/fork.git", "file:///ghp_secret/fork"):
        changed = re.sub(r'git    = "[^"]*"', f'git    = "{url}"', text)
        assert url in changed
        made = in_catalog(tmp_path, "atomic-b8995", changed)
        found = attachments.documents_of(made, record_of(made), DPKG)
        for document in found.values():
            assert "ghp_secret" not in document
            assert "2e81dc5f634501c744b69a65a8eeb84ba42e82ee" in document
        assert faults(json.loads(found[attachments.SPDX])) == []
    assert "git.example.org" not in found[attachments.SPDX]
