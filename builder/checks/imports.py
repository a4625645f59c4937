"""Check: Python imports the server's modules, without a card and without a network.

vLLM 0.33.0 takes 17 s and 1.1 GiB for it on two cores, vLLM 0.20.2 11 s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from builder.checks.contract import NO_GPU, engine_of
from builder.checks.programs import followed
from builder.checks.subject import DRIVER_STUB, Context, excerpt
from builder.checks.verdict import Check
from builder.docker import containers
from builder.docker.containers import copy_out
from builder.engines.families import ENGINES

KIND = "imports"
TIMEOUT = 600.0  # seconds
DONE = "builder: imported "
RUNS = 4  # the program itself runs when it is imported, as an unguarded __main__ does
ENDS = "it ends with status "
UNKNOWN = 3  # the package has no server where the family knows it
KILLED = 137  # 128 + SIGKILL: the kernel's, where memory is short
# The user's caches are where it may write; nothing is asked of the Hub.
OPTIONS = ("--read-only=false", NO_GPU, "--env=HOME=/tmp", "--env=HF_HUB_OFFLINE=1")
# The errors of modules that ask for the card, or load the driver, when they are imported.
NO_CARD = re.compile(
    r"lib(?:cuda|nvidia-ml|nvcuvid)\.so|no NVIDIA driver|No CUDA GPUs|NVIDIA driver on your system"
    r"|no CUDA-capable device|CUDA driver|CUDA_ERROR|infer device type|NVMLError",
    re.IGNORECASE,
)
CODE = """
import importlib, importlib.util, os, runpy, sys, traceback
module, file, *modules = sys.argv[1:]
sys.argv[1:] = []
def exists(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        if error.name and (name + ".").startswith(error.name + "."):
            return False
        raise
ends = ""
def start(function, *arguments, **options):
    global ends
    try:
        function(*arguments, **options)
    except SystemExit as error:
        if isinstance(error.__context__, ImportError):
            raise
        ends = "it ends with status %s when it is imported without its arguments" % error.code
try:
    if not module:
        sys.path[:] = filter(None, sys.path)  # scripts are not given the working directory
    if file:
        sys.path.insert(0, os.path.dirname(os.path.realpath(file)))
        start(runpy.run_path, file, run_name="imported")
    if module:
        importlib.import_module(module)
        if exists(module + ".__main__"):
            start(importlib.import_module, module + ".__main__")
    known = [name for name in modules if exists(name)]
    if modules and not known:
        print("none of these modules exists: " + ", ".join(modules), flush=True)
        os._exit(1 if any(exists(".".join(name.split(".")[:2])) for name in modules) else 3)
    for name in known:
        importlib.import_module(name)
    if ends:
        print("\\n" + ends, flush=True)
        os._exit(4)
    print("\\nbuilder: imported " + " ".join(filter(None, [file, module, *known])), flush=True)
    os._exit(0)
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
"""


def check(context: Context) -> Iterator[Check]:
    """Import what the entrypoint starts with Python, and the modules of the family's server."""
    start = followed(engine_of(context.contents), context.contents)
    modules = ENGINES[context.recipe.family].modules
    if not (start.module or start.file or modules) or start.fault:
        return
    what = " ".join(filter(None, [start.file, start.module, *modules]))
    program, *options = start.python or ("python3",)
    arguments = [*options, "-c", CODE, start.module, start.file, *modules]
    path = start.file or f"/{(start.module or modules[0]).replace('.', '/')}.py"
    printed = ""
    for extra in _tries(context):
        done = containers.run(
            context.subject.reference,
            arguments,
            entrypoint=program,
            timeout=TIMEOUT,
            extra=[*OPTIONS, *extra],
        )
        printed = done.output.strip()
        if done.status == 0 and DONE in printed:
            yield Check.of(KIND, what, "can be imported", printed.rpartition(DONE)[2], True)
            return
        if done.status == KILLED:
            yield Check.untried(KIND, what, "can be imported", "it was killed: too little memory?")
            return
        if done.status == RUNS:
            why = next(line for line in printed.splitlines() if line.startswith(ENDS))
            yield Check.skipped(KIND, what, "can be imported", why)
            return
        if done.status == UNKNOWN and not start.python:
            yield Check.skipped(KIND, what, "can be imported", _error(printed))
            return
        if not NO_CARD.search(_error(printed)):
            found = f"exit status {done.status}: {excerpt(_error(printed))}"
            yield context.rules.check(KIND, what, "can be imported", [(path, found)])
            return
    why = f"it cannot be imported without a card: {excerpt(_error(printed))}"
    yield Check.skipped(KIND, what, "can be imported", why)


def _tries(context: Context) -> Iterator[list[str]]:
    yield []
    if context.subject.devel is not None:
        stub = context.work / "imports-libcuda.so.1"
        copy_out(context.subject.devel, DRIVER_STUB, stub)
        folder = "/run/driver"
        found = context.contents.environment.get("LD_LIBRARY_PATH", "")
        yield [
            f"--volume={stub}:{folder}/libcuda.so.1:ro",
            f"--env=LD_LIBRARY_PATH={':'.join(filter(None, [folder, found]))}",
        ]


def _error(printed: str) -> str:
    return printed.rpartition("\n  ")[2].partition("\n")[2] or printed[-2000:]
