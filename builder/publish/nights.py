"""The nightly runs of a channel: kept in the registry, under a tag beside the channel's.

The registry is the state: any machine that has the recipes and a login sees the same runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from builder.core.errors import GoneError, RegistryError
from builder.core.json_model import first_error
from builder.image.code_paths import KernelSummary, worse
from builder.publish import verdicts
from builder.publish.registry import Repository

NIGHTLY_RUNS = "application/vnd.builder.nights.v1+json"
MOST = 100
LARGEST = 4_000_000  # bytes
LONGEST_REASON = 900  # characters
QUOTED = r"(?<=['\"])(?:file://)?~?/(?!/)(?:[^/\n'\"]+/)+"
BEFORE = r"(?:file://|(?<![\w/.~])|(?<=-[A-Z])(?<!\w-[A-Z]))"
"""Characters before a path, also a compiler's option; the path of a URL follows its host."""
PATH = re.compile(rf"{QUOTED}|{BEFORE}~?/(?!/)(?:[^\s/:'\"]+/)+")
"""The directories of an absolute path; in quotes they may hold spaces."""

Outcome = Literal["moved", "unchanged", "held", "failed"]


class NightlyRun(BaseModel):
    """One nightly run of a channel.

    ``moved``: the channel got a new image; ``unchanged``: it has the newest; ``held``: a person
    rolled it back from the newest, and it stays; ``failed``: it stays, for the ``reason``.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    recipe: str
    channel: str
    outcome: Outcome
    started: str
    """RFC 3339, UTC."""
    seconds: float
    upstream: str = ""
    """The tag, the branch or the image that the channel follows."""
    commit: str = ""
    """Its commit (40 hex digits), or the image's digest."""
    day: str = ""
    """The day (YYYY-MM-DD) of that commit or image; empty: not known."""
    digest: str = ""
    """The digest that the channel pointed to afterwards, where that is known."""
    reason: str = ""
    """Why the run failed or was held; for other runs a remark, or empty."""
    update: int | None = None
    """Bytes to download for somebody who has the image before, where the channel moved; of several
    platforms the most."""
    kernels: KernelSummary | None = None
    """The kernels of the image that the channel pointed to afterwards, where they are known: the
    worst that spill.  For several platforms, the kernels of the recipe's first one."""

    @property
    def good(self) -> bool:
        """Whether the run did not fail."""
        return self.outcome != "failed"


_FILE = TypeAdapter(list[NightlyRun])


def tag_of(channel: str) -> str:
    """The tag that keeps the nightly runs of a channel."""
    return f"{channel}.nights"


def nightly_runs(repository: Repository, channel: str) -> list[NightlyRun]:
    """The nightly runs of a channel, newest first; empty where it had none.

    Raises ``RegistryError`` where they cannot be read, ``FetchError``.
    """
    kept = repository.manifest(tag_of(channel))
    if kept is None:
        return []
    body = kept.body
    try:
        (layer,) = body.layers or []
        ours = body.artifactType == NIGHTLY_RUNS and layer.size <= LARGEST
        return _FILE.validate_json(repository.blob(layer.digest) if ours else b"another artifact")
    except (ValueError, GoneError) as error:
        why = first_error(error) if isinstance(error, ValidationError) else str(error)
        raise RegistryError(
            f"{repository.name}:{tag_of(channel)} cannot be read",
            why[:LONGEST_REASON],
            "something else wrote it; the next nightly run starts it anew",
        ) from error


def compared(repository: Repository, run: NightlyRun) -> NightlyRun:
    """The run; if its new image spills more than the image of the last good run, its reason says
    so.

    Runs that cannot be read are not compared with.
    """
    if run.outcome != "moved" or run.kernels is None:
        return run
    try:
        known = nightly_runs(repository, run.channel)
    except RegistryError:
        return run
    before = next((each.kernels for each in known if each.good and each.kernels), None)
    found = [f"more spills: {each}" for each in worse(before, run.kernels)] if before else []
    return run.model_copy(update={"reason": "\n".join(filter(None, (run.reason, *found)))})


def write(repository: Repository, run: NightlyRun) -> None:
    """Add a run to the runs of its channel; a file that cannot be read is started anew.

    The registry may be public: the reason names no path of this machine.
    """
    try:
        known = nightly_runs(repository, run.channel)
    except RegistryError:
        known = []
    run = run.model_copy(update={"reason": _without_paths(run.reason)})
    _store(repository, run.channel, [run, *known])


def require_writable(repository: Repository, channel: str) -> None:
    """Raise ``RegistryError`` where the registry does not let the tag of the runs move.

    The runs are put again with another annotation; new ones twice.  Raises ``FetchError``.
    """
    there = repository.manifest(tag_of(channel))
    known: list[NightlyRun] = []
    with suppress(RegistryError):
        known = nightly_runs(repository, channel)
    for number in range(1 if there else 2):
        _store(repository, channel, known, {"builder.tried": f"{datetime.now(UTC)} {number}"})


def _store(
    repository: Repository,
    channel: str,
    runs: Sequence[NightlyRun],
    annotations: Mapping[str, str] = {},
) -> None:
    content = _FILE.dump_json([*runs][:MOST], indent=1)
    file = verdicts.AttachedFile("nights.json", NIGHTLY_RUNS, content)
    verdicts.store(repository, tag_of(channel), NIGHTLY_RUNS, [file], annotations)


def _without_paths(text: str) -> str:
    home = str(Path.home())
    return PATH.sub(".../", text.replace(home, "~") if home != "/" else text)
