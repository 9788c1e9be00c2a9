// The plain C interface, loaded by ctypes. Picks the instruction set at run time; threads are torch's own OpenMP pool.
#include <cstdint>
#include <cstring>

using Panels = void (*)(const float *, int64_t, int64_t, const void *, const float *, float *, int64_t, int64_t,
                        int64_t);
#define EYAS_DECLARE(isa)                                                                                         \
    namespace isa {                                                                                               \
    void panels_f32(const float *, int64_t, int64_t, const void *, const float *, float *, int64_t, int64_t,      \
                    int64_t);                                                                                     \
    void panels_bf16(const float *, int64_t, int64_t, const void *, const float *, float *, int64_t, int64_t,     \
                     int64_t);                                                                                    \
    }
EYAS_DECLARE(base)
#if defined(__x86_64__)
EYAS_DECLARE(avx2)
EYAS_DECLARE(avx512)
#endif

namespace {

constexpr int64_t PANEL = 16;

struct Kernels {
    const char *name;
    Panels f32, bf16;
};

Kernels choose() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return {"avx512", avx512::panels_f32, avx512::panels_bf16};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return {"avx2", avx2::panels_f32, avx2::panels_bf16};
#endif
    return {"base", base::panels_f32, base::panels_bf16};
}

const Kernels kernels = choose();

template <class T>
void pack(const T *w, int64_t N, int64_t K, T *packed) {
    for (int64_t n = 0; n < N; ++n)
        for (int64_t k = 0; k < K; ++k) packed[(n / PANEL * K + k) * PANEL + n % PANEL] = w[n * K + k];
}

void run(Panels panels, const float *x, int64_t M, int64_t K, const void *packed, const float *bias, float *y,
         int64_t N, int threads) {
    const int64_t count = (N + PANEL - 1) / PANEL;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; ++t)
        panels(x, M, K, packed, bias, y, N, count * t / threads, count * (t + 1) / threads);
}

}  // namespace

extern "C" {

const char *eyas_isa() { return kernels.name; }

// Elements of the packed form of w[N, K]; the caller zeroes them, so that the last panel's padding is 0.
int64_t eyas_packed_size(int64_t N, int64_t K) { return (N + PANEL - 1) / PANEL * PANEL * K; }

void eyas_pack_32(const uint32_t *w, int64_t N, int64_t K, uint32_t *packed) { pack(w, N, K, packed); }
void eyas_pack_16(const uint16_t *w, int64_t N, int64_t K, uint16_t *packed) { pack(w, N, K, packed); }

void eyas_linear_f32(const float *x, int64_t M, int64_t K, const void *packed, const float *bias, float *y, int64_t N,
                     int threads) {
    run(kernels.f32, x, M, K, packed, bias, y, N, threads);
}

void eyas_linear_bf16(const float *x, int64_t M, int64_t K, const void *packed, const float *bias, float *y, int64_t N,
                      int threads) {
    run(kernels.bf16, x, M, K, packed, bias, y, N, threads);
}
}
