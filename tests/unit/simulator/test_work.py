"""The paths of an engine's work, by names of kernels that real images have."""

from __future__ import annotations

import re
import tomllib
from typing import get_args

import pytest

from simulator.work import FILE, Work, WorkPath, by_work, paths_taken

MMVF = "_Z13mul_mat_vec_fIffLi1ELi32ELb0ELb0EEvPKT_PKfPKi31ggml_cuda_mm_fusion_args_devicePfi5uint3"
MARLIN = "_ZN6marlin6MarlinIN3c108BFloat16EEEvv"
TURBOMIND = "void turbomind::attention_kernel<turbomind::AttentionUniversal<turbomind::attention::"
BLOCKS = "64, 128, 4, __nv_bfloat16, turbomind::block::Layout<L> >(char**)"
STORE = "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, "


@pytest.mark.parametrize(
    ("kernel", "work", "path"),
    [
        (MMVF, "products", "MMVF"),
        (MARLIN, "products", "Marlin"),
        ("void mul_mat_q<(ggml_type)8, 128, true>(char const*)", "products", "MMQ"),
        ("quantize_mmq_mxfp4(float const*)", "products", "FP4 tensor cores (mxfp4)"),
        ("void mul_mat_tq3_1s_multi<4>(void const*)", "products", "TurboQuant (tq3_1s)"),
        ("nvjet_sm120_tst_mma_128x64", "products", "cuBLAS"),
        ("void cutlass::device_kernel<cutlass::gemm::X>(X)", "products", "CUTLASS"),
        (
            "void cutlass::device_kernel<flash::FwdSm90>(P)",
            "attention",
            "FlashAttention 3",
        ),
        ("void flash::flash_fwd_splitkv_kernel<T>(P)", "attention", "FlashAttention 2"),
        ("kernel_unified_attention_2d", "attention", "Triton"),
        ("void flash_attn_ext_vec<128, 1>(char const*)", "attention", "vec"),
        ("void k_set_rows_turbo3_tail<int>(float const*)", "KV cache", "turbo3"),
        ("void k_set_rows_turbo3_tcq<int>(float const*)", "KV cache", "turbo3_tcq"),
        ("void k_set_rows<float, long, __half>(float const*)", "KV cache", "unquantized"),
        (f"{STORE}(vllm::Fp8KVCacheDataType)0>(int*)", "KV cache", "pages"),
        (f"{STORE}(vllm::Fp8KVCacheDataType)1>(int*)", "KV cache", "pages of FP8"),
        (
            f"{TURBOMIND}Impl<turbomind::attention::MMA_SIMT, T>>>(P)",
            "attention",
            "TurboMind (MMA_SIMT)",
        ),
        (f"void turbomind::ProcessKV_v2<__nv_bfloat16, {BLOCKS}", "KV cache", "blocks"),
        (
            f"void turbomind::ProcessKV_v2<turbomind::uint4_t, {BLOCKS}",
            "KV cache",
            "blocks of 4 bits",
        ),
        (f"void turbomind::ProcessKV_v2<unsigned char, {BLOCKS}", "KV cache", "blocks of 8 bits"),
        ("_paged_kv_update_rows_kernel", "KV cache", "pages"),
        ("void sglang::store_kvcache_kernel<1024l>(int*)", "KV cache", "rows of tokens"),
        ("_paged_attn_prefill_kernel", "attention", "Triton"),
        ("kernel_cutlass_kernel_flashinfernorm_0", "other", "compiled by CuTe DSL"),
        ("triton_poi_fused_add_3", "other", "compiled by torch"),
    ],
)
def test_a_kernel_has_one_path(kernel: str, work: str, path: str) -> None:
    (found,) = paths_taken([(kernel, "sm_120a", 3)], {})
    assert (found.work, found.path, found.launches, found.compiled) == (work, path, 3, False)


@pytest.mark.parametrize(
    "kernel",
    ["void mul_mat_q_stream_k_fixup<8>(int)", "flash_attn_combine_results", "rms_norm_f32", "_ZX"],
)
def test_a_kernel_that_no_choice_shows_in_has_none(kernel: str) -> None:
    assert paths_taken([(kernel, "sm_120a", 3)], {}) == ()


def test_launches_and_calls_are_counted_by_path_and_the_drivers_compiles_are_marked() -> None:
    launches = [
        ("void flash::flash_fwd_kernel<A>(P)", "compute_80", 2),
        ("void flash::flash_fwd_kernel<B>(P)", "sm_120", 5),
        ("void mul_mat_q<8>(int)", "sm_120a", 1),
    ]
    calls = {"cublasGemmEx": 4, "cublasLtMatmul": 3, "cublasCreate_v2": 9, "cudaMalloc": 9}
    found = paths_taken(launches, calls)
    assert found == (
        WorkPath("attention", "FlashAttention 2", 7, compiled=True),
        WorkPath("products", "cuBLAS", 7),
        WorkPath("products", "MMQ", 1),
    )
    assert {work: [each.text for each in of_work] for work, of_work in by_work(found).items()} == {
        "attention": ["FlashAttention 2, compiled by the driver"],
        "products": ["cuBLAS", "MMQ"],
    }


def test_every_entry_of_the_table_has_a_pattern() -> None:
    for entry in tomllib.loads(FILE.read_text())["entry"]:
        (field,) = {*entry} - {"work", "path"}
        assert field in ("kernel", "call")
        assert entry["work"] in get_args(Work)
        assert re.compile(entry[field]).groups >= entry["path"].count("\\")
