// The plain C interface to linear layers, loaded by ctypes. Threads are torch's own OpenMP pool.
#include <cstdint>
#include <cstring>

#include "isa.h"
#include "packing.h"

using Linear = void(const float *, int64_t, int64_t, const Matrix &, float *, int64_t, int);
#define EYAS_DECLARE(isa) \
    namespace isa {       \
    Linear linear;        \
    }
EYAS_FOR_EACH_ISA(EYAS_DECLARE)

namespace {

struct Kernels {
    const char *name;
    Linear *linear;
};

#define EYAS_ENTRY(isa) {#isa, isa::linear},
constexpr Kernels kernels[] = {EYAS_FOR_EACH_ISA(EYAS_ENTRY)};

bool machine_has(const char *isa) {
#if defined(__x86_64__)
    if (!std::strcmp(isa, "avx512vnni"))
        return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl");
    if (!std::strcmp(isa, "avx512")) return __builtin_cpu_supports("avx512f");
    if (!std::strcmp(isa, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return !std::strcmp(isa, "base");
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

// Bytes of the packed form of w[N, K]; the caller zeroes them, so that padding is 0.
int64_t eyas_packed_bytes(int64_t kind, int64_t N, int64_t K) {
    const int64_t panels = (N + PANEL - 1) / PANEL, groups = (K + GROUP - 1) / GROUP;
    if (kind == INT8 || kind == INT4) return panels * groups * (kind == INT4 ? BYTES_4 : BYTES_8);
    return panels * PANEL * K * (kind == F32 ? 4 : 2);
}

// Pack w[N, K], bf16 for BF16 and else fp32. 0: it cannot be kept so (not finite; or 4 bits would lose something).
int eyas_pack(int64_t kind, const void *w, int64_t N, int64_t K, void *packed) {
    switch (kind) {
        case F32: pack(static_cast<const uint32_t *>(w), N, K, static_cast<uint32_t *>(packed)); return 1;
        case BF16: pack(static_cast<const uint16_t *>(w), N, K, static_cast<uint16_t *>(packed)); return 1;
        default: return pack_groups(static_cast<const float *>(w), N, K, static_cast<uint8_t *>(packed), kind == INT4);
    }
}

void eyas_linear(int64_t isa, const float *x, int64_t M, int64_t K, const Matrix *w, float *y, int64_t N, int threads) {
    kernels[isa].linear(x, M, K, *w, y, N, threads);
}
}
