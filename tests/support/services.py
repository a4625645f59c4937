"""Services with arguments that break naive quoting, and the published presets as services."""

from __future__ import annotations

import re
import socket
from dataclasses import replace

from hypothesis import strategies as st

from builder.presets import service as model_files
from builder.presets.service import HOST, Mount, Run, Service, ServiceOption, Variable, service
from support.shipped import PRESETS, RECIPES

HOSTILE = (
    *("", " ", "'", '"', "\\", "$", "$$", "$(id)", "${HOME}", "%n", "%%", "{{ .Values }}", "{%"),
    *("#", " #", "- a", ": b", "\n", "a\nb", "\\n", "\t", "`id`", "!x", "*", "?", "~", "null"),
    *("yes", "0x1", "é", "\U0001f600", "\u2028", "<<EOF", "|", ">", "&&", ";", "--", "${PORT}"),
)
text = st.one_of(
    st.sampled_from(HOSTILE),
    st.lists(st.sampled_from(HOSTILE), min_size=2, max_size=4).map("".join),
    st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=12),
)
BASE = Service(
    name="builder-a",
    run="a@5090",
    title="a",
    image="me/a:1@sha256:" + "0" * 64,
    arguments=(),
    port=8080,
    published=8081,
    health="/health",
)


KEYED = replace(
    BASE,
    arguments=(ServiceOption(("--api-key-file", "/run/api-key.yaml")),),
    mounts=(
        Mount("/srv/models", "/models"),
        Mount("/state/keys/1.yaml", "/run/api-key.yaml", file=True),
    ),
    listen="0.0.0.0",  # noqa: S104
    key_file="/home/me/the key",
)
"""It is published for the LAN, and asks for a key."""


OPEN = re.compile(
    r"""(?<![\w-])(?:-p|--publish)[= ]+(?!["']?127\.0\.0\.1:)["']?"""
    r"""(?:[\d.{[$][^\s:]*:[^\s]*|\d+(?![\w/]))"""
    r"""|PublishPort=(?!127\.0\.0\.1:|\{\{ service)|hostPort|hostNetwork: *true"""
    r"""|(?:--net|--network)[= ]host|ports:\s+(?:#.*\s+)*-\s*["']?\d(?!27\.0\.0\.1:)"""
)
"""A port published on every address of the machine: engines ask for no password."""


@st.composite
def services(draw: st.DrawFn) -> Service:
    """A service with any arguments, values of variables, and reasons."""
    words = st.lists(text, min_size=1, max_size=3).map(tuple)
    arguments = draw(st.lists(st.builds(ServiceOption, words, text), max_size=4))
    variables = draw(st.lists(st.builds(Variable, st.just("A_VARIABLE"), text, text), max_size=1))
    notes = draw(st.lists(text, max_size=2))
    return replace(
        BASE,
        title=draw(text),
        arguments=tuple(arguments),
        environment=tuple(variables),
        mounts=(Mount("/srv/models", "/models"),),
        notes=tuple(notes),
        missing=tuple(notes),
    )


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.create_server((HOST, 0)) as found:
        return int(found.getsockname()[1])


def _published() -> dict[str, Service]:
    services = {}
    for entry in PRESETS.valid():
        recipe = RECIPES.engine(entry.preset.recipe).recipe
        files = model_files.mounted(entry.preset.files, "/srv/models", {})
        run = Run(entry.name, recipe, entry.preset)
        services[entry.name] = service(run, f"me/image:1@sha256:{'0' * 64}", files)
    return services


SERVICES = _published()
"""The service of each preset of the repository, by its name."""
