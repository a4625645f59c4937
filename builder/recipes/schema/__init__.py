"""The recipe format, as pydantic models."""

from builder.recipes.schema.base import (
    BasePython as BasePython,
    BaseRecipe as BaseRecipe,
    Published as Published,
    Root as Root,
    Stage as Stage,
    Wheel as Wheel,
    json_schema as json_schema,
)
from builder.recipes.schema.fields import (
    PATTERNS as PATTERNS,
    checked_ref as checked_ref,
    checked_url as checked_url,
)
from builder.recipes.schema.patches import (
    PATCHES as PATCHES,
    Add as Add,
    AddPatch as AddPatch,
    Distribution as Distribution,
    FilePatch as FilePatch,
    Patch as Patch,
    Pick as Pick,
    PickPatch as PickPatch,
    PullPatch as PullPatch,
    Script as Script,
    ScriptPatch as ScriptPatch,
)
from builder.recipes.schema.probes import (
    PROBES as PROBES,
    Accept as Accept,
    Budget as Budget,
    FileProbe as FileProbe,
    LibraryProbe as LibraryProbe,
    OptionProbe as OptionProbe,
    Probe as Probe,
    PythonProbe as PythonProbe,
    RunProbe as RunProbe,
    Serve as Serve,
    pattern_names as pattern_names,
)
from builder.recipes.schema.recipe import (
    Artifact as Artifact,
    Cmake as Cmake,
    Cuda as Cuda,
    Layout as Layout,
    Overlay as Overlay,
    Python as Python,
    Recipe as Recipe,
    RecipeImage as RecipeImage,
    Start as Start,
)
from builder.recipes.schema.sources import (
    SOURCES as SOURCES,
    GitSource as GitSource,
    InstalledSource as InstalledSource,
    PathSource as PathSource,
    PypiSource as PypiSource,
    Source as Source,
    Track as Track,
)
