// The plain C interface to linear layers, loaded by ctypes. Threads are torch's own OpenMP pool.
#include <cstdint>
#include <cstring>

#include "isa.h"

using Panels = void(const float *, int64_t, int64_t, const void *, const float *, float *, int64_t, int64_t, int64_t);
#define EYAS_DECLARE(isa) \
    namespace isa {       \
    Panels panels_f32, panels_bf16; \
    }
EYAS_FOR_EACH_ISA(EYAS_DECLARE)

namespace {

constexpr int64_t PANEL = 16;

struct Kernels {
    const char *name;
    Panels *f32, *bf16;
};

#define EYAS_ENTRY(isa) {#isa, isa::panels_f32, isa::panels_bf16},
constexpr Kernels kernels[] = {EYAS_FOR_EACH_ISA(EYAS_ENTRY)};

bool machine_has(const char *isa) {
#if defined(__x86_64__)
    if (!std::strcmp(isa, "avx512")) return __builtin_cpu_supports("avx512f");
    if (!std::strcmp(isa, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return !std::strcmp(isa, "base");
}

template <class T>
void pack(const T *w, int64_t N, int64_t K, T *packed) {
    for (int64_t n = 0; n < N; ++n)
        for (int64_t k = 0; k < K; ++k) packed[(n / PANEL * K + k) * PANEL + n % PANEL] = w[n * K + k];
}

void run(Panels *panels, const float *x, int64_t M, int64_t K, const void *packed, const float *bias, float *y,
         int64_t N, int threads) {
    const int64_t count = (N + PANEL - 1) / PANEL;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; ++t)
        panels(x, M, K, packed, bias, y, N, count * t / threads, count * (t + 1) / threads);
}

}  // namespace

extern "C" {

// What the library was compiled from (build.py); another interface than the caller's would corrupt memory.
const char *eyas_sources() { return EYAS_SOURCES; }

// The name of the index-th instruction set, fastest first, or null beyond the last; and whether this machine has it.
const char *eyas_isa(int64_t index) {
    const int64_t count = sizeof(kernels) / sizeof(kernels[0]);
    return index < count ? kernels[index].name : nullptr;
}
int eyas_machine_has(int64_t isa) { return machine_has(kernels[isa].name); }

// Elements of the packed form of w[N, K]; the caller zeroes them, so that the last panel's padding is 0.
int64_t eyas_packed_size(int64_t N, int64_t K) { return (N + PANEL - 1) / PANEL * PANEL * K; }

void eyas_pack_32(const uint32_t *w, int64_t N, int64_t K, uint32_t *packed) { pack(w, N, K, packed); }
void eyas_pack_16(const uint16_t *w, int64_t N, int64_t K, uint16_t *packed) { pack(w, N, K, packed); }

void eyas_linear_f32(int64_t isa, const float *x, int64_t M, int64_t K, const void *packed, const float *bias,
                     float *y, int64_t N, int threads) {
    run(kernels[isa].f32, x, M, K, packed, bias, y, N, threads);
}

void eyas_linear_bf16(int64_t isa, const float *x, int64_t M, int64_t K, const void *packed, const float *bias,
                      float *y, int64_t N, int threads) {
    run(kernels[isa].bf16, x, M, K, packed, bias, y, N, threads);
}
}
