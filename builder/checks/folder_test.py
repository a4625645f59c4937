"""The numbers of a server that loads a model folder: a card that computes, against PyTorch's CPU.

The model is tiny and random.  The simulated card computes the kernels whose PTX is known: Triton's,
which are compiled when the server runs, and the ones that a wheel has as PTX; cuBLAS's products are
the card's own.  Operators of PyTorch itself, whose wheel has machine code alone, are done by
PyTorch's code for CPUs (``simulator/torch``), and are named with their share of the launches.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from builder.checks import serves, simulated
from builder.checks.device import UNUSED, refused
from builder.checks.server import (
    Continued,
    NotServingError,
    Server,
    ServeSpec,
    UnansweredError,
    continued_folder,
    described,
    difference,
    launched,
    shared_folder,
)
from builder.checks.subject import Context, InapplicableError
from builder.checks.verdict import Check
from builder.core.errors import UntriedError, listed
from builder.docker import containers
from builder.presets import made_models
from simulator.report import KernelUse, Report
from simulator.work import function_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

KIND = "numbers"
TOKENS = 16
PROMPT = "Numbers of a card and of a CPU are equal."
OTHER = "Another text is beside it."
NAMED = 6  # kernels, or operators, that a check names
BY_PROGRAM = "computed by the program"
"""The file of launches that the program did itself (simulator/card/launch.cpp)."""

# The model: Qwen3's two layers of ``folder/``, smaller, so that a card of one core computes it.

SIZES = {"hidden_size": 256, "intermediate_size": 512}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}
BLOCK = 128  # rows and columns of a block with one scale, as the FP8 models of Qwen and DeepSeek
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
LARGEST = 448.0  # of e4m3
SHOWN = 94  # the first tokens of the folder's vocabulary are ASCII's characters that are seen
SEED = 7


@dataclass(frozen=True, slots=True)
class FolderTrial:
    """A model, and how far the logarithms of its probabilities may differ."""

    name: str
    limit: float
    fp8: bool = False


TRIALS = (FolderTrial("Qwen3 BF16", 0.2), FolderTrial("Qwen3 FP8", 0.3, fp8=True))


def write_random_folder(folder: Path, *, fp8: bool = False) -> None:
    """Make the folder with random weights: BF16, or products' in FP8 with scales of blocks.

    As in ``made_models``, each token has two likely successors, and the layers decide.
    """
    serves.write_model_folder(folder)
    file = folder / "config.json"
    config = json.loads(file.read_text("utf-8")) | SIZES
    file.write_text(json.dumps(config | ({"quantization_config": FP8} if fp8 else {})), "utf-8")
    tensors: dict[str, tuple[str, Sequence[int], bytes]] = {}
    for name, shape in serves.shapes_of(config).items():
        values = _values(name, shape)
        if fp8 and "_proj" in name:
            scaled, scales = _in_blocks(values)
            tensors[name] = "F8_E4M3", shape, _e4m3(scaled)
            scale = scales.astype("<f4")
            tensors[f"{name}_scale_inv"] = "F32", scale.shape, scale.tobytes()
        else:
            tensors[name] = "BF16", shape, _bf16(values)
    serves.write_tensors(folder / serves.WEIGHTS, tensors)


def _normal(name: str, shape: Sequence[int]) -> Values:
    import numpy as np

    return np.random.default_rng([SEED, zlib.crc32(name.encode())]).standard_normal(shape)


def _values(name: str, shape: Sequence[int]) -> Values:
    import numpy as np

    values = _normal(name, shape)
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return (1 + values / 10) * math.sqrt(made_models.PEAKED)
    if "norm" in name:
        return 1 + values / 10
    if name == "lm_head.weight":
        width, seen = shape[1], _normal("model.embed_tokens.weight", shape)
        rows = np.zeros(shape)
        for which in ("successor", "other successor"):
            order = np.argsort(_normal(which, [SHOWN]))
            rows[np.roll(order, -1)] += made_models.LIKELY / width * seen[order]
        rows[:SHOWN] += made_models.VARIED / math.sqrt(width) * values[:SHOWN]
        return rows
    return values if "embed" in name else values / math.sqrt(shape[1])


def _in_blocks(values: Values) -> tuple[Values, Values]:
    import numpy as np

    rows, columns = (each // BLOCK for each in values.shape)
    blocks = values.reshape(rows, BLOCK, columns, BLOCK)
    scales = (np.abs(blocks).max((1, 3)) / LARGEST).astype(np.float32).astype(np.float64)
    return (blocks / scales[:, None, :, None]).reshape(values.shape), scales


def _e4m3(values: Values) -> bytes:
    """The nearest numbers of e4m3: a sign, four bits of exponent with bias 7, three of fraction."""
    import numpy as np

    codes = np.arange(127)  # the last code is no number
    exponent, fraction = codes >> 3, codes & 7
    normal = np.ldexp(1 + fraction / 8, exponent - 7)
    known = np.where(exponent > 0, normal, np.ldexp(fraction / 8, -6))
    found = np.searchsorted((known[1:] + known[:-1]) / 2, np.abs(values))
    return bytes((found | (values < 0) * 128).astype(np.uint8))


def _bf16(values: Values) -> bytes:
    import numpy as np

    bits = values.astype("<f4").view("<u4").astype(np.uint64)
    return bytes(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2"))


# The reference: Transformers' model on the CPU, with the PyTorch of the image.


class _Reference(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True, frozen=True)

    tokens: Annotated[list[int], Field(min_length=TOKENS, max_length=TOKENS)]
    logarithms: Annotated[list[list[float]], Field(min_length=TOKENS, max_length=TOKENS)]


def reference(image: str, folder: Path, seconds: float) -> Continued:
    """The continued prompt by the image's PyTorch on its CPU.  Raises ``UntriedError``."""
    volumes = {simulated.OF_TORCH: simulated.sources() / "torch", f"/model/{folder.name}": folder}
    env = {"HOME": "/tmp", "HF_HUB_OFFLINE": "1"}  # noqa: S108 - the container's
    words = [f"{simulated.OF_TORCH}/reference.py", f"/model/{folder.name}", str(TOKENS), PROMPT]
    options = containers.mount_options(volumes, env)
    done = containers.run(image, words, entrypoint="python3", timeout=seconds, extra=options)
    *_, last = ["", *done.output.splitlines()]
    try:
        found = _Reference.model_validate_json(last)
    except ValidationError as error:
        what = "PyTorch of the image does not continue the text on the CPU"
        raise UntriedError(what, done.output[-300:]) from error
    rows = (dict(enumerate(row)) for row in found.logarithms)
    return Continued("", tuple(found.tokens), tuple(rows))


# The checks.


def check(context: Context) -> Iterator[Check]:
    """The server's answers on a card that computes, against PyTorch on the CPU.

    Raises ``InapplicableError`` where it is not known how its kernels can be computed.
    """
    folder = context.folder
    if folder is None or not folder.numbers:
        raise InapplicableError(
            "not known: most of its kernels have no PTX that a card can compute"
        )
    work = shared_folder(context.work / "server-numbers")
    for trial in TRIALS:
        yield from _trial(context, trial, shared_folder(work / trial.name.replace(" ", "-")))


def _trial(context: Context, trial: FolderTrial, work: Path) -> Iterator[Check]:
    image, folder = context.simulated, context.folder
    if folder is None:
        return
    model = work / serves.FOLDER_NAME
    write_random_folder(model, fp8=trial.fp8)
    seconds = float(image.serve.seconds)
    wanted = reference(image.reference, model, seconds)
    serve = image.serve.model_copy(
        update={
            "arguments": [*image.serve.arguments, *folder.numbers],
            "env": {**image.serve.env, **folder.numbers_env},
        }
    )
    subject = f"{trial.name}: card and CPU"
    with image.on_torch([context.card], work / "simulator") as simulation:
        spec = ServeSpec(model, serves.FOLDER_CONTEXT, simulator=simulation.mounts, compiles=True)
        with launched(image.reference, serve, image.port, spec) as server:
            try:
                server.wait(seconds)
                answers = _answers(server, seconds)
            except (NotServingError, UnansweredError) as error:
                answers, why = {}, server.explained(error)
            report = simulation.settled()
    if not answers:
        faults = refused(report)[:NAMED] if report else []
        expected, text = f"{TOKENS} tokens with probabilities", "; ".join([*faults, why])
        lacks = report is not None and report.lacks_only
        state = Check.skipped(KIND, subject, expected, text)
        yield state if lacks else Check.of(KIND, subject, expected, text, False)
        return
    yield check_share(f"{trial.name}: kernels", report)
    before = wanted
    for name, found in answers.items():
        compared = difference(before, found)
        text = described(compared, TOKENS, trial.limit)
        expected = f"the same text, logarithms of probabilities within {trial.limit:g}"
        known = len(compared.distances) == min(compared.equal + 1, TOKENS)
        good = known and compared.within(trial.limit)
        yield Check.of(KIND, f"{trial.name}: {name}", expected, text, good)
        before = answers["card and CPU"]


def _answers(server: Server, seconds: float) -> Mapping[str, Continued]:
    """By check, the prompt continued: alone, again with the cache, and beside another one."""
    alone = continued_folder(server, PROMPT, TOKENS, seconds)
    again = continued_folder(server, PROMPT, TOKENS, seconds)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(continued_folder, server, PROMPT, TOKENS, seconds)
        pool.submit(continued_folder, server, OTHER, TOKENS, seconds).result()
        beside = first.result()
    return {
        "card and CPU": alone,
        "after a reuse of the cache": again,
        "beside another prompt": beside,
    }


def check_share(subject: str, report: Report | None) -> Check:
    """No launch had a fault; how many were computed, and what did the others."""
    expected = "no launch without PTX but PyTorch's own operators, no fault"
    if report is None:
        return Check.of(KIND, subject, expected, UNUSED, False)
    others = [each for each in report.launches if each.file == BY_PROGRAM]
    left = sum(each.count for each in others)
    found = f"{report.computed} of {report.launched} launches computed"
    found += f" ({report.computed / max(report.launched, 1):.1%}), of "
    found += f"{len(report.kernels) - len(others)} kernels"
    products = sum(count for name, count in report.called.items() if _is_product(name))
    found += f"; {products} products of cuBLAS" if products else ""
    if others:
        found += f"; by PyTorch's code for CPUs: {left} ({_named(others)})"
    if report.violations:
        found = f"{found}; {'; '.join(refused(report)[:NAMED])}"
    if report.lacks_only:
        return Check.skipped(KIND, subject, expected, found)
    passed = report.computed > 0 and report.computed + left == report.launched
    return Check.of(KIND, subject, expected, found, passed and not report.violations)


def _is_product(function: str) -> bool:
    return function.startswith("cublas") and ("emm" in function or "Matmul" in function)


def _named(others: Sequence[KernelUse]) -> str:
    most = sorted(others, key=lambda each: -each.count)
    names: dict[str, Any] = dict.fromkeys(f"{function_of(each.kernel)}" for each in most)
    return listed([*names], NAMED, ", ")
