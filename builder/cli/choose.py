"""``builder choose``."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import typer

from builder.cli import options
from builder.cli.options import checked_capability, farm, flag, one_context, option, user_settings
from builder.cli.terminal import counted, line, log, out, paragraph, print_json, table
from builder.core import sizes
from builder.core.errors import PROGRAM, FitError, UnvouchedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builder.presets.cards import Machine
    from builder.presets.catalog import Presets
    from builder.presets.choose import Choice, Option
    from builder.presets.manifest import Fetched, Run
    from builder.presets.proposals import Proposal, Unserved

LEGEND = {
    "receipt": "r measured (receipt)",
    "published": "p published for this card",
    "computed": "c computed from its bandwidth",
}
"""The sources of tokens/s; the first letter stands for each."""
COLUMNS = (
    *("model", "preset", "quantization", "context", "memory", "download", "tokens/s", "source"),
    *("command", "why"),
)
"""The columns of the table that a pipe gets."""
FROM = ("model", "preset", "quantization", "context", "memory", "download", "tokens/s")
"""The columns of the table of another farm."""
GIB = 1 << 30
HEADER = ("quant", "context", "memory", "size", "tokens/s", "elsewhere")
"""The columns of a terminal after the name."""
DROPS = ("elsewhere", "size", "quant")  # what a narrow terminal does not show, the first one first


def _checked_driver(value: str | None) -> str | None:
    from builder.presets.cards import DRIVER

    if value is not None and not DRIVER.fullmatch(value):
        raise typer.BadParameter(f"{value!r} is no version of NVIDIA's driver such as 580.65.06")
    return value


def _checked_memory(value: str | None) -> str | None:
    try:
        return str(sizes.memory_of(value)) if value is not None else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def choose(
    card: list[str] | None = option(
        "--card CARD",
        "Card of cards/: 5090, 5090-laptop, ... Twice: two cards. Default: the cards of this "
        "machine, by nvidia-smi.",
        autocompletion=options.known_cards,
    ),
    memory: str | None = option(
        "--memory SIZE",
        "Memory of a card that has no file, as on its box: 12G. Needs --capability.",
        callback=_checked_memory,
    ),
    capability: str | None = option(
        "--capability MAJOR.MINOR",
        "Compute capability of a card that has no file: 12.0. Needs --memory.",
        callback=checked_capability,
    ),
    driver: str | None = option(
        "--driver VERSION",
        "Version of NVIDIA's driver: 580.65.06. Default: this machine's; with --card, drivers "
        "are not compared.",
        callback=_checked_driver,
    ),
    model: str | None = option(
        "--model TEXT", "Only presets whose name or model has each of these words: 'qwen3.6 27b'."
    ),
    context: str | None = option("--context TOKENS", "Smallest context: 65536 or 64K; K is 1024."),
    source: str | None = option(
        "--from URL",
        "Choose from the manifest of another farm: the address of its site, or of its "
        "manifest.json, or a file.",
    ),
    everything: bool = flag(
        "--all", "All presets that run, and why the others do not, grouped by reason."
    ),
    as_json: options.JsonOption = False,
) -> None:
    """Say what to start on a card: one run of each model, the largest model first.

    A model that is slower than one reads, or of unknown speed, comes after the others. For one
    model, a run that was measured or published for this card is taken, else the fastest that is
    made for cards with as much memory, or with the next smaller one.

    The number of tokens/s is of this card: measured by a receipt, published for it, or computed
    from its bandwidth (studies/speeds.md has the errors), then with "~".

    A preset runs if its image is for the machine's platform, has code for the card and was not
    refused, the driver is new enough, and the memory suffices. The memory is the largest known
    figure: of the trial of its image on a simulated card, of prompts that fill the context, of its
    source; without one, the cards of the published run decide. A preset that fits only by a figure
    that nobody confirmed is not recommended.

    For a model without such a preset, a run is proposed that nobody published: a smaller file that
    its repository lists, or one with experts in the machine's memory (--n-cpu-moe), with memory
    computed from the model's shape.

    With --from, the presets of another farm's registry, by what its manifest says: the largest
    download first. The signature of the manifest is required if BUILDER_TRUSTED_KEYS is set.

    A pipe gets one table with tabs. The exit code is 15 if no preset runs.
    """
    from builder.presets.choose import known, of_farm
    from builder.presets.proposals import proposals

    least = one_context(context) if context is not None else 0
    if source is not None:
        machine = _machine(farm(), card or [], memory, capability, driver or "")
        _choose_from(source, machine, least, model or "", everything=everything, as_json=as_json)
        return
    there, recipes = of_farm(farm())
    _require_presets(there, model)
    here = _machine(recipes.root, card or [], memory, capability, driver or "")
    own = user_settings()
    presets = known(recipes, there.valid(), own.state_dir)
    if presets.invalid:
        log(f"{counted(presets.invalid, 'receipt')} left out as invalid: `builder receipts`")
    answer = presets.choice(here, least, model or "")
    name = card[0] if card else "CARD" if memory else ""
    proposed, unserved = proposals(presets, answer, own.models_dir.expanduser(), name)
    best = answer.recommended
    start = _start(best, proposed, short=model is None)
    if as_json:
        print_json(_as_json(answer, proposed, unserved, start))
    else:
        _say(_shown(here))
        for remark in here.remarks:
            log(remark)
        show = _print if out().is_terminal else _print_tabs
        show(answer, best, proposed, unserved, everything=everything, short=model is None)
        _tell(best, proposed, unserved, start)
    if not answer.fits:
        raise FitError(f"no preset runs on {_shown(here)}", hint=_next_step(answer))


def _machine(
    root: Path, names: list[str], memory: str | None, capability: str | None, driver: str
) -> Machine:
    """The cards of --card, else the card of --memory and --capability, else this machine's."""
    from builder.presets import cards
    from simulator.selection import Capability

    if memory is None and capability is None:
        if names:
            return cards.machine_with(root, names, driver)
        found = cards.this_machine(root)
        return replace(found, driver=driver or found.driver)
    if names or memory is None or capability is None:
        raise typer.BadParameter(
            "give --memory and --capability together, and no --card", param_hint="--memory"
        )
    return cards.unnamed_card(int(memory), Capability.parse(capability), driver)


def _choose_from(
    source: str, machine: Machine, context: int, model: str, *, everything: bool, as_json: bool
) -> None:
    """The answer by another farm's manifest."""
    from builder.presets import manifest

    found = manifest.fetch(source)
    signer = _signer_of(found)
    fits, refused = manifest.choose(found.manifest, machine, context, model)
    found_runs = [(run, manifest.commands(run, image)) for run, image in fits]
    if as_json:
        rows = [{**run.model_dump(), "commands": listed} for run, listed in found_runs]
        print_json({"signer": signer, "fits": rows, "excluded": refused})
    else:
        table(FROM, [_cells_from(run) for run, _ in found_runs])
        for name, why in refused.items() if everything else ():
            log(f"{name}: {'; '.join(why)}")
        if found_runs:
            _say("\nStart the first:\n  " + "\n  ".join(found_runs[0][1]))
    if not fits:
        raise FitError(f"no preset of {source} runs on {_shown(machine)}", hint="--all says why")


def _cells_from(run: Run) -> tuple[str, ...]:
    """A row of ``FROM``."""
    return (
        *(run.model, run.preset, run.quantization, str(run.context or "")),
        f"{(run.memory or 0) / GIB:.0f}G",
        f"{run.download / 1e9:.1f}G" if run.download else "",
        f"{run.tokens_per_second:.1f} on {run.on}" if run.tokens_per_second else "",
    )


def _signer_of(found: Fetched) -> str:
    """The trusted signer of a manifest; empty where no signer is trusted.

    Raises ``UnvouchedError`` where none of the trusted ones signed it.
    """
    from builder.core.files import workspace
    from builder.publish.verdicts import trust_of

    chosen = user_settings()
    if not (chosen.cosign_key or chosen.trusted_keys):
        log("nobody vouches for this manifest: BUILDER_TRUSTED_KEYS names whom you trust")
        return ""
    chosen.require_directories()
    with workspace(chosen.cache_dir) as work:
        signer = trust_of(chosen, work).signer(found.text, found.signature)
    if not signer:
        raise UnvouchedError(
            "no trusted key signed this manifest",
            "it has another signature" if found.signature else "it has no signature",
            "BUILDER_TRUSTED_KEYS names the keys and identities that you trust",
        )
    return signer


def _require_presets(presets: Presets, model: str | None) -> None:
    """Raise ``UsageError`` where no preset is of the model that was asked for."""
    from builder.presets.choose import matching

    valid = presets.valid()
    if broken := len(presets.entries) - len(valid):
        log(f"{counted(broken, 'preset')} left out as invalid: see `builder recipe check`")
    if not matching(valid, model or ""):
        known = sorted({entry.preset.model.name for entry in valid})
        what = f"no preset is of a model {model}" if model else "there are no presets"
        raise UsageError(
            what,
            f"the models: {', '.join(known)}" if known else "",
            "another GGUF: `builder run RECIPE --model FILE`; tried without a card: `builder fit`",
        )


def _shown(machine: Machine) -> str:
    cards = [
        f"{each.name}, {sizes.card(each.memory) if each.memory else 'memory unknown'}"
        for each in machine.cards
    ]
    return " and ".join(cards) + (f", driver {machine.driver}" if machine.driver else "")


def _next_step(answer: Choice) -> str:
    from builder.presets.choose import Obstacle

    obstacles = {each.obstacle for each in answer.excluded} - {Obstacle.REFUSED}
    if Obstacle.CONTEXT in obstacles:
        return "ask for less --context"
    if obstacles == {Obstacle.IMAGE}:
        return "add the card's architecture to `arch` in [cuda] of a recipe, and build it"
    if obstacles == {Obstacle.DRIVER}:
        return "install a newer driver of NVIDIA's"
    return "`builder fit` tries other models and smaller contexts"


def _start(best: Sequence[Option], proposed: Sequence[Proposal], *, short: bool) -> str:
    """The command that starts the first row; empty where there is none.

    ``short``: a short name means the same preset, since all presets were asked for.
    """
    if not best:
        return proposed[0].command if proposed else ""
    context = f" --context {best[0].other_context}" if best[0].other_context else ""
    return f"{PROGRAM} run {best[0].short_name}{context}" if short else best[0].command


def _as_json(
    answer: Choice, proposed: Sequence[Proposal], unserved: Sequence[Unserved], start: str
) -> dict[str, Any]:
    """The answer, with the names that the site's ``index.json`` has for the same facts.

    ``cards`` (``name``, ``capability``, ``memory``), ``driver``, ``platform``, ``remarks``: the
    machine.  ``recommended``: the names of the recommended presets, a model each; ``command``:
    starts the first row of the table.  ``fits``: all presets that run (``presets.choose.Option``),
    the first model first; ``excluded``: the others (``Refusal``); ``proposals`` (``Proposal``) and
    ``unserved`` (``Unserved``): models without a recommended preset.  ``fits`` and ``proposals``
    have ``tokens_per_second`` and ``source``, too: this card's own number, receipt, published or
    computed; null and empty: not known.  Sizes are bytes, contexts tokens.
    """
    machine = answer.machine

    def with_speed(each: Option | Proposal) -> dict[str, Any]:
        own = {"tokens_per_second": each.own.tokens_per_second if each.own else None}
        return asdict(each) | own | {"source": each.own.source if each.own else ""}

    return {
        "cards": [
            {"name": card.name, "capability": str(card.capability), "memory": card.memory}
            for card in machine.cards
        ],
        "driver": machine.driver,
        "platform": machine.platform,
        "remarks": list(machine.remarks),
        "recommended": [each.preset for each in answer.recommended],
        "command": start,
        "fits": [with_speed(each) for each in answer.fits],
        "proposals": [with_speed(each) for each in proposed],
        "unserved": [asdict(each) for each in unserved],
        "excluded": [asdict(each) for each in answer.excluded],
    }


def _cells(each: Option | Proposal, why: str = "") -> tuple[str, ...]:
    """A row of ``COLUMNS``; memory: ``20 of 31G``, ``15+`` is the least that it takes."""
    least = f"{each.least / GIB:.0f}+" if each.least else "?"
    taken = f"{each.memory / GIB:.0f}" if each.memory else least
    own, speed = each.own, ""
    if own:
        computed, number = own.source == "computed", own.tokens_per_second
        speed = f"{float(f'{number:.2g}'):g}" if computed else f"{number:.1f}"
    return (
        *(each.short_name, each.preset, each.quantization, str(each.context or "")),
        f"{taken} of {each.room / GIB:.0f}G",
        f"{each.download / 1e9:.1f}G" if each.download else "",
        *(speed, own.source if own else "", each.command, why),
    )


def _print(
    answer: Choice,
    best: Sequence[Option],
    proposed: Sequence[Proposal],
    unserved: Sequence[Unserved],
    *,
    everything: bool,
    short: bool,
) -> None:
    """The table of a terminal: 80 columns are enough for it."""
    others = [each for each in answer.fits if everything and not each.recommended]
    rows = [_row(each.short_name if short else each.preset, each) for each in best]
    rows += [(), ("More presets:",)] if others else []
    rows += [_row(each.preset, each) for each in others]
    rows += [(), ("Proposed, not published:",)] if proposed else []
    rows += [_row(f"{n} {each.short_name}", each) for n, each in enumerate(proposed, 1)]
    line("")
    header = (f"{PROGRAM} run", *HEADER[: None if everything else -1])
    table(header, [row[: len(header)] for row in rows], drops=DROPS, right=HEADER[1:-1])
    figures = [each.own for each in (*best, *others)] + [each.own for each in proposed]
    used = {figure.source for figure in figures if figure}
    words = [text for source, text in LEGEND.items() if source in used]
    marks = ("? not known", "+ at least", "* composed here, not published")
    below = [text for text in marks if text[0] in str(rows)]
    line("\n" + "\n".join(", ".join(each) for each in (words, below) if each))
    paragraph("Not in the table", [f"{each.short_name}: {each.why}" for each in unserved])
    for obstacle in dict.fromkeys(each.obstacle for each in answer.excluded if everything):
        refused = [each for each in answer.excluded if each.obstacle == obstacle]
        paragraph(obstacle, [f"{each.preset}: {'; '.join(each.why)}" for each in refused])


def _row(name: str, each: Option | Proposal) -> tuple[str, ...]:
    """A row of ``HEADER``: ``~460 c*`` is computed, of a composed preset; ``245.7 on 5090-laptop``
    was published."""
    _, _, quantization, context, memory, size, speed, source, *_ = _cells(each)
    tokens = f"{each.context // 1024}K" if context and not each.context % 1024 else context
    rough = "~" if source == "computed" else ""
    figure, where = each.figure, ""
    if figure and figure.card:
        count = f"{figure.cards} x " if figure.cards > 1 else ""
        where = f"{figure.tokens_per_second:.1f} on {count}{figure.card}"
    mark = "*" if getattr(each, "composed", False) else ""
    number = f"{rough}{speed} {source[:1] or '?'}{mark}".lstrip()
    return name, quantization or "?", tokens or "?", memory, size or "?", number, where


def _print_tabs(
    answer: Choice,
    best: Sequence[Option],
    proposed: Sequence[Proposal],
    unserved: Sequence[Unserved],
    *,
    everything: bool,
    short: bool,  # noqa: ARG001 a pipe gets whole names
) -> None:
    """The table of a pipe, with tabs."""
    rows = [_cells(each) for each in best]
    rows += [_cells(each) for each in answer.fits if everything and not each.recommended]
    rows += [_cells(each, "proposed, not published") for each in proposed]
    none = [""] * (len(COLUMNS) - 3)
    rows += [(each.short_name, "", *none, each.why) for each in unserved]
    refused = answer.excluded if everything else ()
    rows += [(each.short_name, each.preset, *none, "; ".join(each.why)) for each in refused]
    table(COLUMNS, rows)


def _tell(
    best: Sequence[Option], proposed: Sequence[Proposal], unserved: Sequence[Unserved], start: str
) -> None:
    """The commands, whole, so that they can be copied, then the known problems of the presets."""
    if best:
        _say(f"\nStart the first:\n  {start}")
    for number, one in enumerate(proposed, start=1):
        host = f", ~{one.host_memory / GIB:.0f} GiB of host memory" if one.host_memory else ""
        _say(f"\n{number} {one.short_name}, by {one.recipe}{host}:\n  {one.get}\n  {one.command}")
    if command := next((lost.command for lost in unserved if lost.command), ""):
        _say(f"\nTry another file without a card:\n  {command}")
    for each in best:
        title = f"Known problems of {each.preset}"
        caveats = each.caveats[1:] if each.composed else each.caveats  # the table says the first
        if out().is_terminal:
            paragraph(title, caveats)
        elif caveats:
            log("\n  ".join((f"\n{title}", *caveats)))


def _say(text: str) -> None:
    """Print prose: on standard error where the table is data."""
    (line if out().is_terminal else log)(text)
