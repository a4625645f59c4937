"""Check: no layer of the image contains a secret, even if a later layer removes it.

The formats of tokens are published by their issuers.  A finding is reported by its kind and
place; the secret itself is never shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from builder.image.contents import Contents

TOKENS: Mapping[str, tuple[str, str]] = {
    "private key": (
        "PRIVATE KEY-----",
        r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\s+[A-Za-z0-9+/=]{40}",
    ),
    "AWS key": ("AKIA", r"\bAKIA(?![A-Z0-9]*EXAMPLE)[A-Z0-9]{16}\b"),
    "temporary AWS key": ("ASIA", r"\bASIA(?![A-Z0-9]*EXAMPLE)[A-Z0-9]{16}\b"),
    "GitHub token": ("github_pat_", r"\bgithub_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}\b"),
    "classic GitHub token": ("ghp_", r"\bghp_[A-Za-z0-9]{36}\b"),
    "GitHub OAuth token": ("gho_", r"\bgho_[A-Za-z0-9]{36}\b"),
    "GitHub server token": ("ghs_", r"\bghs_[A-Za-z0-9]{36}\b"),
    "GitLab token": ("glpat-", r"\bglpat-[A-Za-z0-9_-]{20}"),
    "Docker Hub token": ("dckr_", r"\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{27}"),
    "Hugging Face token": ("hf_", r"\bhf_[A-Za-z]{34}\b"),
    "NVIDIA API key": ("nvapi-", r"\bnvapi-[A-Za-z0-9_-]{60}"),
    "OpenAI key": ("T3BlbkFJ", r"\bsk-[A-Za-z0-9_-]{10,}T3BlbkFJ[A-Za-z0-9_-]{20}"),
    "PyPI token": ("pypi-AgEIcHlwaS5vcmc", r"\bpypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50}"),
    "npm token": ("npm_", r"\bnpm_[A-Za-z0-9]{36}\b"),
    "Slack token": ("xox", r"\bxox[abprs]-[0-9]{8,}-[0-9A-Za-z-]{10}"),
}
"""By kind: a text that every such token contains, which is searched first, and its format."""
FORMS = [
    (kind, literal.encode(), re.compile(form.encode())) for kind, (literal, form) in TOKENS.items()
]
PASSWORD_IN_URL = re.compile(rb"\b[a-z][a-z0-9+.-]*://[^\s/:@\"'<>{}$]+:[^\s/@\"'<>{}$]+@")
CREDENTIAL_FILES = re.compile(
    r"/(?:\.git-credentials|\.netrc|_netrc|\.pypirc|\.npmrc|\.docker/config\.json"
    r"|\.aws/credentials|\.config/gh/hosts\.yml|\.cache/huggingface/token|\.kube/config"
    r"|\.ssh/id_[a-z0-9]+|id_(?:rsa|dsa|ecdsa|ed25519))$"
)
SECRET_NAME = re.compile(r"(?:TOKEN|PASSWORD|PASSWD|SECRET|API_?KEY|CREDENTIALS?)$", re.IGNORECASE)
ARGUMENTS = re.compile(r"^(?:RUN )?\|(\d+) (.*)")
ARGUMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(\"[^\"]*\"|\S*)")


def kinds(path: str, head: bytes) -> tuple[str, ...]:
    """Kinds of secret that a file seems to contain, by its name and the first MiB of its text."""
    found = ["credentials"] if CREDENTIAL_FILES.search(path) else []
    if b"\0" not in head[:8192]:
        found += _tokens(head)
        if path.startswith("/etc/") and PASSWORD_IN_URL.search(head):
            found.append("password in a URL")
    return tuple(dict.fromkeys(found))


def _tokens(text: bytes) -> list[str]:
    return [kind for kind, literal, form in FORMS if literal in text and form.search(text)]


def found_in(contents: Contents) -> Iterator[tuple[str, str]]:
    """Paths of every layer with a secret, each with a description."""
    for number, layer in enumerate(contents.layers, 1):
        for file in layer.files:
            for kind in file.secrets:
                shown = contents.files.get(file.path)
                gone = shown is None or shown.digest != file.digest
                where = f", of layer {number} only" if gone else ""
                yield file.path, f"{file.path} ({kind}{where})"


def found_in_configuration(image: Mapping[str, Any]) -> Iterator[str]:
    """Descriptions of secrets in environment, labels and history."""
    config = image.get("config") or {}
    pairs = [tuple(entry.partition("=")[::2]) for entry in config.get("Env") or []]
    for name, value in pairs:
        if value and SECRET_NAME.search(name):
            yield f"the environment sets {name}"
    texts = {f"the environment's {name}": value for name, value in pairs}
    texts |= {f"the label {name}": text for name, text in (config.get("Labels") or {}).items()}
    for number, step in enumerate(image.get("history") or [], 1):
        texts[f"step {number} of the history"] = text = str(step.get("created_by", ""))
        for name, value in arguments_of(text):
            if value and SECRET_NAME.search(name):
                yield f"step {number} of the history was given {name}"
    for place, text in texts.items():
        raw = text.encode()
        for kind in [
            *_tokens(raw),
            *(["password in a URL"] if PASSWORD_IN_URL.search(raw) else []),
        ]:
            yield f"{place} ({kind})"


def arguments_of(created_by: str) -> list[tuple[str, str]]:
    """The build arguments of an instruction of the history.

    BuildKit writes them before a RUN: ``RUN |2 A=1 B= /bin/sh -c ...``
    (moby/buildkit: frontend/dockerfile/dockerfile2llb/convert.go, ``runCommandString``).
    """
    match = ARGUMENTS.match(created_by)
    if match is None:
        return []
    found = ARGUMENT.findall(match[2])[: int(match[1])]
    return [(name, value.strip('"')) for name, value in found]
