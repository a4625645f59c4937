"""builder: the image farm for sm_120 inference engines.

The packages, in the order of the data:

recipes    TOML files become models: the format, the catalog, lock files, edits
families   how an engine, or a base, is made: one module a family
plan       every input of a recipe resolved; the Dockerfile, the key
sources    the inputs fetched and verified; the build context laid out
patches    diffs and scripts applied to that tree, exactly
images     the context built into an image of the engine, the bases first; their names
kernels    every kernel of an image: registers, spills, size; two images compared
contents   an image read without running it: files, ELF files, texts, device code
compare    two images, directories or files: files, ELF sections, device code by kernel
servers    how an engine's server is started and asked; the test model
models     GGUF headers, near or far; files with holes for the weights, of any file or by shape
simulator  cards that answer without a GPU; the server of an image on them
numbers    what kernels compute, compared with ggml's CPU code: the cases, and their trial
compilers  which nvcc compiles quantization kernels right: tables, computed without a GPU
presets    published runs: model, options, card, figures
exports    a service of a preset as docker run, compose, ...
smoke      the image checked against its recipe: the verdict
bench      speed, run by run
records    the record of a build; JUnit and Markdown
pipeline   from a plan to a record: built, checked, named; ``pipeline.build.build`` is the story
sbom       the bill of materials and the provenance
publish    which image of a registry counts; push, tags and their history, prune
upstream   the newest of upstream; pins, patches and locks moved to it
nightly    channels that follow upstream;  bisect finds the commit that broke an engine
fit        how much context of a model fits on a card;  choose finds the presets that run on one
receipts   runs of published images on cards, checked before they are taken
launch     a preset run on this machine, or written down for another one
site       all of that as static pages: presets by card, images, published speeds, nights
ci         the matrix of a workflow;  host prepares a machine
reproduce  images built again without caches, and compared with the originals
cli        the only place that prints and exits
tools      docker, git, registries, the web, Python packages: nothing of recipes
"""

__version__ = "0.1.0"
