"""Check on a simulated card: the image's server offloads its model, answers, and keeps within it.

The server runs its own CUDA code on libraries that stand in for CUDA's (``builder.simulator``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from builder.checks import model_folder, run, test_model
from builder.checks.device import DeviceTrial
from builder.checks.server import ServeSpec, launched, shared_folder
from builder.checks.subject import Context, on_a_card
from builder.checks.verdict import Check
from builder.core.errors import UsageError
from builder.presets import cards
from builder.presets.cards import Card
from builder.recipes.schema import Recipe
from simulator import gguf
from simulator.selection import Capability

CONTEXT = 2048  # tokens: a server may divide it among four requests at once
MARKS = {"libsimulator.so", run.PAGES}  # every library of the simulator is, or needs, one of them


def card_for(root: Path, recipe: Recipe, name: str | None) -> Card | None:
    """The card of that name; without one, the smallest card that runs the code.

    ``root`` is the farm.  Raises ``UsageError`` for an unknown name and for a card that does not
    run the code, ``RecipeError`` where a card's file is invalid.
    """
    wanted = {str(Capability.of_arch(arch)) for arch in recipe.cuda.arch}
    if name is not None:
        card = cards.load(root, name)
        if card.capability in wanted:
            return card
        raise UsageError(
            f"the {card.name} does not run the code of {recipe.name}",
            f"it has compute capability {card.capability}, the recipe asks for "
            f"{' and '.join(sorted(wanted))}",
            "name another card with --card; without it, builder chooses one that runs the code",
        )
    fitting = [card for card in cards.every(root).values() if card.capability in wanted]
    return min(fitting, key=lambda card: card.memory, default=None)


def check_absent(context: Context) -> Iterator[Check]:
    """No layer has a library of the simulator, not even a hidden one."""
    found = [
        file.path
        for layer in context.contents.layers
        for file in layer.files
        if file.elf is not None and MARKS & {file.elf.soname, *file.elf.needed}
    ]
    named = ", ".join(found) or "none"
    yield Check.of("leftovers", "no library of the simulated cards", "none", named, not found)


def check(context: Context) -> Iterator[Check]:
    """Start the server with all layers on the simulated card, send requests, and stop it.

    ``context.device`` gets its use of the card.
    """
    return on_a_card(_checks(context), "device", "a server on a simulated card", "starts")


def _checks(context: Context) -> Iterator[Check]:
    folder, card, image = context.folder, context.card, context.simulated
    work = shared_folder(context.work / "device")
    if folder is None:
        model, tokens = work / f"{test_model.NAME}.gguf", CONTEXT
        test_model.write(model)
        with model.open("rb") as stream:
            header = gguf.read(stream)
    else:
        model, tokens, header = work / model_folder.NAME, model_folder.CONTEXT, None
        model_folder.write(model)
    with image.on([card], header, work / "simulator") as simulation:
        compiles = folder is not None
        spec = ServeSpec(
            model, tokens, simulator=simulation.mounts, verbose=True, compiles=compiles
        )
        with launched(image.reference, image.serve, image.port, spec) as server:
            trial = DeviceTrial(server, image.serve, simulation, card, folder)
            yield from trial.checks()
            context.device = trial.use()
