"""The server of an image on simulated cards."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from builder.checks import build, config, run
from builder.checks.run import STAND_INS, Simulation
from builder.core.log import Log
from builder.engines.families import ENGINES, complete
from builder.engines.family import FolderServer
from builder.image.contents import Contents
from builder.presets.cards import Card, Compute
from builder.recipes.catalog import Catalog
from builder.recipes.probes import Serve
from builder.recipes.schema import Recipe
from simulator.gguf import Header
from simulator.ledger import code_table

SIMULATED = "linux/amd64"
"""The platform whose programs the simulator's libraries are for."""


@dataclass(frozen=True)
class SimulatedServer:
    """The server of an image of the engine.

    Its ``contents`` were read with the device code of the cards.
    """

    reference: str
    contents: Contents
    serve: Serve
    port: int
    devel: str
    """The base's image to compile in: the simulator's libraries are compiled there."""
    cache: Path
    log: Log
    folder: FolderServer | None = None
    """How it loads a model folder; None: the model is a file."""

    def on(
        self,
        cards: Sequence[Card],
        model: Header | None,
        work: Path,
        ptx: Path | None = None,
        *,
        races: bool = False,
        outputs: bool = False,
    ) -> AbstractContextManager[Simulation]:
        """The files and settings by which one container runs on cards, and its reports.

        ``model`` is served, None: no model is.  With ``ptx``, a directory with the PTX of the
        image's machine code, kernels are computed; without, they are counted.  ``races``: a
        race is a fault of its kernel; looking for it makes kernels slow.  ``outputs``:
        the report has a checksum of the values that each launch stored.  Raises ``UntriedError``
        where the device code of a file could not be read, and like ``build.libraries``.
        """
        return run.simulation(
            build.libraries(self.cache, self.devel, self.log, computes=ptx is not None),
            config.files(
                cards,
                model,
                self._code,
                Compute(run.PTX, races, outputs) if ptx else None,
                samples=self.folder is None or self.folder.samples,
            ),
            work,
            search_path=self._search_path,
            preload=self._preload,
            ptx=ptx,
        )

    @cached_property
    def _code(self) -> str:
        """The code table, which has megabytes."""
        return code_table({each.path: each.fat_binaries for each in self.contents.libraries()})

    @property
    def _search_path(self) -> str:
        """LD_LIBRARY_PATH without the simulator; empty if it is not set."""
        return {**self.contents.environment, **self.serve.env}.get("LD_LIBRARY_PATH", "")

    @property
    def _preload(self) -> bool:
        """Whether a file looks for the runtime in its DT_RPATH, before LD_LIBRARY_PATH."""
        return any(
            parsed.rpath and not parsed.runpath and set(parsed.needed) & set(STAND_INS)
            for _, parsed in self.contents.elves()
        )


def why_never(catalog: Catalog, recipe: Recipe) -> str:
    """Why no image of a recipe is ever tried on a simulated card; empty: one for some platform is.

    Raises ``RecipeError`` where one of its bases is broken.
    """
    extends = any(catalog.base(name).recipe.published for name in catalog.chain(recipe.base))
    server_of = ENGINES[recipe.family].server_of
    on_platforms = [(complete(recipe.on(platform)), platform) for platform in recipe.platform]
    reasons = [
        why_not(each, server_of(each), platform, extends=extends) for each, platform in on_platforms
    ]
    return "" if "" in reasons else reasons[0]


def why_not(recipe: Recipe, serve: Serve | None, platform: str, *, extends: bool) -> str:
    """Why an image of a recipe is not tried on a simulated card, whatever it contains; or empty.

    ``serve`` is how its server would be started; ``extends``: the image extends a published one.
    """
    if serve is None or recipe.image.port is None:
        return "the recipe does not say how its server starts ([serve])"
    if serve.no_device is not None:
        return serve.no_device
    if extends:
        return "the image extends another one, with a CUDA of its own"
    return "" if platform == SIMULATED else f"there are simulated cards for {SIMULATED} only"
