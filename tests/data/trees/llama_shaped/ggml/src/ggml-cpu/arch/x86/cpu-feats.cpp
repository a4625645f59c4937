// How good the code of this library is for the CPU; 0: the CPU cannot run it.
extern "C" int ggml_backend_score() {
#ifdef GGML_AVX2
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 64 : 0;
#else
    return 1;
#endif
}
