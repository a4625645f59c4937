"""The numbers of a server that loads a model folder: a card that computes, against PyTorch's CPU.

The model is tiny and random.  The simulated card computes the kernels whose PTX is known: Triton's,
which are compiled when the server runs, and the ones that a wheel has as PTX; cuBLAS's products are
the card's own.  Operators of PyTorch itself, whose wheel has machine code alone, are done by
PyTorch's code for CPUs (``simulator/torch``), and are named with their share of the launches.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from builder.checks import logit_test, serves, simulated
from builder.checks import server as serving
from builder.checks.device import UNUSED, refused
from builder.checks.logit_test import KIND, PROMPT, TOKENS
from builder.checks.server import Continued, shared_folder
from builder.checks.simulated import SimulatedServer
from builder.checks.subject import Context, InapplicableError, on_a_card
from builder.checks.verdict import Check, CheckState
from builder.core.errors import UntriedError, listed
from builder.docker import containers
from builder.presets import made_models
from builder.presets.cards import Card
from builder.presets.made_models import generator
from simulator.report import Report

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

SHOWN_OUTPUT = 300  # characters of a failed reference
COMPUTED, CUBLAS, LEFT = "launches computed", "products of cuBLAS", "launches not computed"
BY_TORCH = "operators by PyTorch's code for CPUs"
WHO = (COMPUTED, CUBLAS, LEFT, BY_TORCH)
PRODUCT = re.compile(r"cublas.*([Gg]emm|Matmul$)")
BY_PROGRAM = "computed by the program"
"""The file of launches that the program did itself (simulator/card/launch.cpp)."""

# The model: Qwen3's two layers of ``folder/``, smaller, so that a card of one core computes it.

SIZES = {"hidden_size": 256, "intermediate_size": 512}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}
BLOCK = 128  # rows and columns of a block with one scale, as FP8 models of Qwen and DeepSeek have
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
DEVIATION = 104.0  # of e4m3's numbers, each as often, with these scales
SHOWN = 94  # the first tokens of the folder's vocabulary are ASCII's characters that are seen
SEED = 7


# How far logarithms may differ from the reference, which has single precision.  vLLM 0.20.2 is at
# most 0.06 from it in BF16, and 0.4 in FP8, where a last bit of BF16 turns the rounding of an
# input: a limit is about twice that.
LIMITS = {"BF16": 0.15, "FP8": 0.8}


def write_random_folder(folder: Path, *, fp8: bool = False) -> None:
    """Make the folder with random weights: BF16, or for most products FP8 with scales of blocks.

    As in ``made_models``, each token has two likely successors, and the layers decide.
    """
    import numpy as np

    serves.write_model_folder(folder)
    file = folder / "config.json"
    config = json.loads(file.read_text("utf-8")) | SIZES
    file.write_text(json.dumps(config | ({"quantization_config": FP8} if fp8 else {})), "utf-8")
    tensors: dict[str, tuple[str, Sequence[int], bytes]] = {}
    for name, shape in serves.shapes_of(config).items():
        if fp8 and "_proj" in name:
            source, blocks = generator(SEED, name), [each // BLOCK for each in shape]
            codes = source.integers(0, 127, shape) | source.integers(0, 2, shape) << 7
            scales = source.uniform(0.5, 1.5, blocks) / DEVIATION / math.sqrt(shape[1])
            tensors[name] = "F8_E4M3", shape, codes.astype(np.uint8).tobytes()
            tensors[f"{name}_scale_inv"] = "F32", blocks, scales.astype("<f4").tobytes()
        else:
            bits = _values(name, shape).astype("<f4").view("<u4") + np.uint32(0x8000)  # rounds
            tensors[name] = "BF16", shape, (bits >> 16).astype("<u2").tobytes()
    serves.write_weights(folder / serves.WEIGHTS, tensors)


def _values(name: str, shape: Sequence[int]) -> Values:
    values = generator(SEED, name).standard_normal(shape)
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return (1 + values / 10) * math.sqrt(made_models.PEAKED)
    if "norm" in name:
        return 1 + values / 10
    if name == "lm_head.weight":
        seen = _values("model.embed_tokens.weight", shape)
        return made_models.output_of(seen, range(SHOWN), values, SEED)
    return values if "embed" in name else values / math.sqrt(shape[1])


def reference(image: str, folder: Path, seconds: float) -> Continued:
    """The continued prompt by Transformers' model, with the PyTorch of the image on the CPU.

    Raises ``UntriedError``.
    """
    volumes = {simulated.OF_TORCH: simulated.sources() / "torch", "/model": folder}
    # Beside the program is what PyTorch loads on a card.
    env = {"HOME": "/tmp", "HF_HUB_OFFLINE": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # noqa: S108
    options = containers.mount_options(volumes, env)
    words = [f"{simulated.OF_TORCH}/reference.py", "/model", str(TOKENS), PROMPT]
    done = containers.run(image, words, entrypoint="python3", timeout=seconds, extra=options)
    try:
        return serving.Completion.model_validate_json(
            done.output.strip().rpartition("\n")[2]
        ).continued
    except ValidationError as error:
        what = "PyTorch of the image does not continue the text on the CPU"
        raise UntriedError(what, done.output[-SHOWN_OUTPUT:]) from error


def check(context: Context) -> Iterator[Check]:
    """The server's answers on a card that computes, against answers of the CPU."""
    return on_a_card(_checks(context), KIND, "the server", "the numbers of its CPU")


def _checks(context: Context) -> Iterator[Check]:
    work, rules = shared_folder(context.work / "server-numbers"), context.rules
    own = (
        _of_folder(context, work) if context.folder else logit_test.numbers_of(context).checks(work)
    )
    for found in own:
        if found.state is CheckState.FAILED and rules.accepts(KIND, found.subject):
            offender = (found.subject, found.found)
            yield rules.check(KIND, found.subject, found.expected, [offender])
        else:
            yield found


def _of_folder(context: Context, work: Path) -> Iterator[Check]:
    if not (context.folder and context.folder.numbers):
        raise InapplicableError("most of its kernels have no PTX that a card could compute")
    for kind in LIMITS:
        yield from _of_weights(kind, context.simulated, context.card, shared_folder(work / kind))


def _of_weights(kind: str, image: SimulatedServer, card: Card, work: Path) -> Iterator[Check]:
    model, seconds, name = work / serves.FOLDER_NAME, float(image.serve.seconds), f"Qwen3 {kind}"
    write_random_folder(model, fp8=kind == "FP8")
    expected = reference(image.reference, model, seconds)
    with image.on_torch([card], work / "simulator") as simulation:
        options = image.folder.numbers if image.folder else ()
        mounts, context = simulation.mounts, serves.FOLDER_CONTEXT
        spec = serving.ServeSpec(model, context, extra=options, simulator=mounts, compiles=True)
        with serving.launched(image.reference, image.serve, image.port, spec) as server:
            answers: Sequence[Continued] = ()
            started, why = None, ""
            try:
                server.wait(seconds)
                started = simulation.settled()
                ask = partial(serving.continued_folder, server, seconds=seconds)
                answers = logit_test.three_answers(ask, ask)  # it uses its cache unasked
            except (serving.NotServingError, serving.UnansweredError) as error:
                why = server.explained(error)
            report = simulation.settled()
    yield check_share(f"{name}: kernels", started, report, why)
    for subject, found in zip(logit_test.THREE, answers, strict=False):
        yield logit_test.check_continued(f"{name}: {subject}", expected, found, LIMITS[kind])
        expected = answers[0]


def check_share(
    subject: str, started: Report | None, report: Report | None, why: str = ""
) -> Check:
    """No launch had a fault; and who did the launches and products after ``started``.

    ``started`` is None where the server did not start.  ``why`` says why there is no answer; empty:
    there is one.
    """
    expected = "no fault, and no launch without PTX but PyTorch's operators"
    if report is None:
        return Check.of(KIND, subject, expected, "; ".join(filter(None, (UNUSED, why))), False)
    done, by = _done(report) - _done(started), Counter[str]()
    for (who, _), count in done.items():
        by[who] += count
    shares = ", ".join(f"{who} {by[who]} ({by[who] / by.total():.0%})" for who in WHO if by[who])
    if operators := [name for (who, name), _ in done.most_common() if who == BY_TORCH]:
        shares += f": {listed(operators, logit_test.NAMED, ', ')}"
    found = "; ".join(filter(None, (shares, *refused(report)[: logit_test.NAMED], why)))
    # A version may know other options than the check's, and its users start it without them: the
    # check "device" does, too.
    refused_options = started is None and why and not report.violations
    if refused_options or report.lacks_only:
        return Check.skipped(KIND, subject, expected, found)
    passed = by[COMPUTED] > 0 and not by[LEFT] and not report.violations and not why
    return Check.of(KIND, subject, expected, found, passed)


def _done(report: Report | None) -> Counter[tuple[str, str]]:
    """Launches, and products of cuBLAS, by who did them and their name."""
    found = Counter[tuple[str, str]]()
    for each in report.launches if report else ():
        left = BY_TORCH if each.file == BY_PROGRAM else LEFT
        found[COMPUTED, each.kernel] += each.computed
        found[left, each.kernel] += each.count - each.computed
    for name, count in report.called.items() if report else ():
        found[CUBLAS, name] += count * (PRODUCT.match(name) is not None)
    return found
