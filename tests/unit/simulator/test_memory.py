from __future__ import annotations

import pytest

from simulator import report
from simulator import report as frames
from simulator import report as memory
from simulator.report import MIB, Use

# Mangled names of llama.cpp's functions, innermost first.
ALLOCATE = "/opt/engine/bin/libggml-base.so+0x1 ggml_backend_buft_alloc_buffer"
WEIGHTS = [
    "/opt/engine/bin/libggml-cuda.so+0x7",
    ALLOCATE,
    "/opt/engine/bin/libllama.so+0x2 _ZN11llama_model12load_tensorsER18llama_model_loader",
    "/opt/engine/bin/libllama.so+0x3 llama_model_load_from_file",
]
CACHE = [
    ALLOCATE,
    "/l.so+0x2 _ZN14llama_kv_cacheC1ERK11llama_model9ggml_typeS3_bbb",
    "/l.so+0x3 _ZNK11llama_model13create_memoryERK19llama_memory_paramsR13llama_cparams",
    "/l.so+0x4 _ZN13llama_contextC1ERK11llama_model20llama_context_params",
]
SCRATCH = [ALLOCATE, "/b.so+0x2 ggml_gallocr_reserve_n", "/b.so+0x2 ggml_backend_sched_reserve"]
POOL = ["/c.so+0x1 _ZN18ggml_cuda_pool_leg5allocEmPm", "/c.so+0x1 _ZL27ggml_backend_cuda_graph"]
PROJECTOR = [ALLOCATE, "/m.so+0x1 _ZN17clip_model_loader12load_tensorsER8clip_ctx"]
# All that a drafter takes is its own: weights, cache, and what it computes with.
DRAFTER = ["/c.so+0x1 _ZN30common_speculative_init_resultC1Ev", "/s.so+0x1 main"]
DRAFTING = ["/c.so+0x1 _ZN36common_speculative_impl_draft_dflash7processERK12common_batch"]


def named(stack: list[str]) -> list[frames.Frame]:
    found = report.Report(version=1, stacks=(tuple(stack),))
    return frames.named(found)[0]


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        (WEIGHTS, "weights"),
        (CACHE, "KV cache"),
        (SCRATCH, "compute"),
        (POOL, "compute"),
        (PROJECTOR, "projector"),
        ([ALLOCATE, "/l.so+0x2 llama_init_from_model"], "KV cache"),
        ([*SCRATCH, "/l.so+0x2 llama_init_from_model"], "compute"),
        ([*SCRATCH, "/m.so+0x1 _ZN17clip_model_loader6warmupER8clip_ctx"], "projector"),
        ([*WEIGHTS, *DRAFTER], "drafter"),
        ([*CACHE, *DRAFTER], "drafter"),
        ([*POOL, *DRAFTING], "drafter"),
        (["/opt/engine/lib/libhello-cuda.so+0x1 _ZN5hello4cuda12make_backendEv"], "other"),
    ],
)
def test_what_memory_is_for_follows_from_who_asks_for_it(stack: list[str], kind: str) -> None:
    assert memory.kind_of(named(stack)) == kind


def allocation(stack: int, at_peak: int, live: int = 0) -> report.Allocation:
    return report.Allocation(
        stack=stack,
        card=0,
        function="cudaMalloc",
        count=1,
        live=live,
        at_peak=at_peak,
        largest=at_peak,
    )


def test_the_memory_of_a_report_by_kind() -> None:
    found = report.Report(
        version=1,
        cards=(report.CardUse(name="", memory=100, context=0, used=10, peak=15),),
        stacks=(tuple(WEIGHTS), tuple(CACHE)),
        allocations=(allocation(0, 5), allocation(1, 7, 6), allocation(0, 3, 1)),
    )
    kinds = memory.by_kind(found, frames.named(found))
    assert kinds == {"weights": Use(8, 1, 2), "KV cache": Use(7, 6, 1)}


LOG = """
load_tensors:   CPU_Mapped model buffer size =   682.03 MiB
load_tensors:        CUDA0 model buffer size = 10038.14 MiB
llama_kv_cache:      CUDA0 KV buffer size =  6400.00 MiB
llama_memory_recurrent:      CUDA0 RS buffer size =   149.62 MiB
llama_context:      CUDA0 compute buffer size =   212.02 MiB
llama_context:  CUDA_Host compute buffer size =    18.02 MiB
"""


ESTIMATE = """
load_tensors:        CUDA0 model buffer size =     0.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =     0.00 MiB
sched_reserve:      CUDA0 compute buffer size =   212.02 MiB
sched_reserve:      CUDA1 compute buffer size =    10.00 MiB
"""


@pytest.mark.parametrize(("log", "compute"), [(LOG, 212.02), (ESTIMATE + LOG, 222.02)])
def test_the_log_of_an_engine_states_the_buffers_on_the_card(log: str, compute: float) -> None:
    found = {kind: round(size / MIB, 2) for kind, size in memory.logged(log).items()}
    assert found == {"weights": 10038.14, "KV cache": 6549.62, "compute": compute}


@pytest.mark.parametrize(
    ("kind", "at_peak", "wrong"),
    [
        ("weights", 100.5, []),
        ("weights", 99, ["weights: 99 MiB, its log states 100 MiB"]),
        ("weights", 110, ["weights: 110 MiB, its log states 100 MiB"]),
        ("compute", 110, []),
        ("compute", 99, ["compute: 99 MiB, its log states 100 MiB"]),
    ],
)
def test_what_is_counted_and_what_the_log_states(
    kind: memory.Kind, at_peak: float, wrong: list[str]
) -> None:
    found = {kind: Use(int(at_peak * MIB), 0, 1)}
    assert memory.disagreements(found, {kind: 100 * MIB}) == wrong
    drafter: Use = Use(10 * MIB, 0, 1)  # the log states its buffers with the model's
    more = memory.disagreements({**found, "drafter": drafter}, {kind: 110 * MIB})
    assert bool(more) == (at_peak == 99)
