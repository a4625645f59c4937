"""The verdict on a comparison in a few sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from builder.core import sizes
from builder.image.results import Comparison
from builder.image.tree import FILE

STATES = ("added", "removed", "changed")


def summary(found: Comparison, *, times: bool = False) -> list[str]:
    """The verdict; with ``times``, modification times and dates of images count, too."""
    if found.digests and found.digests[0] == found.digests[1]:
        return [f"the same image: {found.digests[0]}"]
    lines = [_files(found, times=times)]
    if found.config or found.times:
        lines.append(_config(found))
    if found.layers:
        lines.append(_layers(found))
    if found.unread:
        paths = ", ".join(each.path for each in found.unread)
        lines.append(f"damaged, so that their code could not be compared: {paths}")
    code = _device_code(found)
    return [*lines, *([code] if code else [])]


def _files(found: Comparison, *, times: bool) -> str:
    differing = found.differing(times=times)
    hidden = len(found.files) - len(differing)
    aside = f"; besides, the times of {hidden:,} differ" if hidden else ""
    if [each.path for each in found.files] == [FILE]:
        return "the files differ" if differing else "the files are equal, apart from their time"
    if not differing:
        paths = "path" if found.equal == 1 else "paths"
        return f"the same files: {found.equal:,} {paths}{aside}"
    counts = _counts((each.path, each.state) for each in differing)
    return f"the files differ: {counts}; {found.equal:,} are equal{aside}"


def _counts(states: Iterable[tuple[str, str]]) -> str:
    found = Counter(state for _, state in states)
    return ", ".join(f"{found[each]:,} {each}" for each in STATES if found[each])


def _config(found: Comparison) -> str:
    if not found.config:
        return "the same configuration, apart from times"
    # For lists and tables such as history.3.comment, the name is enough.
    names = (each.name.split(".") for each in found.config)
    groups = dict.fromkeys(".".join(parts[: 2 if parts[0] == "config" else 1]) for parts in names)
    return f"the configuration differs: {', '.join(groups)}"


def _layers(found: Comparison) -> str:
    states = Counter(each.state for each in found.layers)
    equal = states.pop("equal", 0)
    if not states:
        return f"the same layers: {equal}"
    total = sum(each.after.size for each in found.layers if each.after)
    there = sum(each.after.size for each in found.layers if each.after and each.state == "equal")
    return (
        f"{equal} of {len(found.layers)} layers are equal; with the first image, "
        f"{sizes.shown(total - there)} of {sizes.shown(total)} of the second one are downloaded"
    )


def _device_code(found: Comparison) -> str:
    codes = [code for _, code in found.codes]
    if not codes:
        quiet = not found.digests or not found.differing() or found.unread
        return "" if quiet else "no file with device code differs"
    entries = sum(max(each.before, each.after) for code in codes for each in code.totals)
    files = f"{len(codes)} file{'s' if len(codes) > 1 else ''}"
    if all(code.same for code in codes):
        return f"the same device code, byte for byte: {entries:,} entries in {files} that differ"
    missing = [each for code in codes for each in code.totals if each.before != each.after]
    functions = [each for code in codes for each in code.functions]
    if not functions and not missing:
        return (
            f"the same kernels, byte for byte: the modules in {files} differ only in other "
            "sections and texts"
        )
    # A kernel counts once, whatever the number of architectures.
    counts = _counts(dict.fromkeys((each.name, each.state) for each in functions))
    equal = sum(each.equal for code in codes for each in code.totals)
    kernels = f"; kernels: {counts}" if counts else ""
    more = sum(each.more_spills > 0 for each in functions)
    fewer = sum(each.more_spills < 0 for each in functions)
    spills = f"; spills: up in {more:,}, down in {fewer:,}" if more or fewer else ""
    return f"the device code differs: {equal:,} of {entries:,} entries are equal{kernels}{spills}"
