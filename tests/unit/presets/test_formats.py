"""The table of formats: each row has its function and its line in the docs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import pytest

from builder.cli.run import Format
from builder.presets.exports import FORMATS
from support.environment import REPOSITORY
from support.services import BASE, KEYED, OPEN, SERVICES

PAGE = REPOSITORY / "docs" / "run.md"
COMMENTED = ("compose", "docker-run", "helm", "kubernetes", "llama-swap", "quadlet")


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_written_by_its_function(name: str) -> None:
    for service in SERVICES.values():
        files = FORMATS[name].files(service)
        assert files
        assert all(files.values())
        assert not [text for text in files.values() if OPEN.search(text)]
        assert FORMATS[name].usage(service)


def commented(text: str) -> list[str]:
    """The comments of a file, each line without its mark."""
    return [line.strip()[1:] for line in text.splitlines() if line.strip().startswith("# ")]


@pytest.mark.parametrize("name", COMMENTED)
def test_a_comment_is_a_short_line_and_a_command_has_a_line_of_its_own(name: str) -> None:
    programs = r"hf download|docker (?:rm|save|run)|podman load|systemctl|loginctl|sudo|kubectl"
    programs += "|curl|llama-swap --config"
    for service in SERVICES.values():
        texts = FORMATS[name].files(replace(service, local=True)).values()
        lines = [line for text in texts for line in commented(text)]
        prose = [line for line in lines if not line.startswith("   ")]
        assert prose
        assert not [line for line in prose if len(line) > 100 or re.search(programs, line)]
        commands = [line for line in lines if line.startswith("   ")]
        assert all(re.match(rf"   (?:{programs})", line) for line in commands)


@pytest.mark.parametrize("name", sorted({*COMMENTED} - {"helm"}))
def test_a_file_names_what_the_machine_must_have(name: str) -> None:
    service = replace(BASE, missing=("Needs a:\n  hf download a",), notes=("b " * 60,))
    (text,) = FORMATS[name].files(service).values()
    needs = " ".join(line for line in commented(text) if "Needs " in line)
    gpu = "NVIDIA's device plugin" if name == "kubernetes" else "the NVIDIA Container Toolkit"
    assert gpu in needs
    assert "   hf download a" in commented(text)
    assert "NVIDIA" not in next(iter(FORMATS[name].files(replace(service, cards=0)).values()))


@pytest.mark.parametrize("name", COMMENTED)
def test_comments_say_who_reaches_the_server_and_the_key_that_it_asks_for(name: str) -> None:
    own = {"kubernetes": "The cluster alone", "helm": "The cluster alone"}
    for service, reaches, key in (
        (BASE, own.get(name, "This machine alone"), "no key"),
        (KEYED, "The network", "the key in /home/me/the key"),
        (replace(KEYED, listen="::", key_file=""), "The network", "no key"),
        (replace(BASE, listen="192.168.1.2"), "The network", "no key"),
    ):
        text = "".join(FORMATS[name].files(service).values())
        said = " ".join(commented(text))
        if name == "llama-swap":  # it reaches the container itself
            listen = {"::": "[::]"}.get(service.listen, service.listen)
            assert f"llama-swap --config config.yaml --listen {listen}:8081" in said
            assert "--publish=127.0.0.1:${PORT}:8080" in text
            assert ("passes the key in /home/me/the key on" in said) is bool(service.key_file)
            continue
        assert f"{reaches} reaches it; it asks for {key}." in said
        if name in {"kubernetes", "helm"}:
            assert ("type: LoadBalancer" in text) is (reaches == "The network")
            continue
        bearer = "Authorization: Bearer $(cat '/home/me/the key')"
        assert (f'curl -H "{bearer}" http://127.0.0.1:8081/v1/models' in said) is (service == KEYED)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_described(name: str) -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1, f"docs/run.md needs a row for {name} in its table of formats"


def test_the_command_takes_each_format() -> None:
    assert [*get_args(Format)] == [*FORMATS]
