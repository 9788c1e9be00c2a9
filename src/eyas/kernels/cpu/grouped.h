// Linear layers over weights of 8 or 4 bits: y[M, N] = x[M, K] · wᵀ + bias.
//
// Inputs are taken in groups of 32. Weights have a scale for each output and group; activations are rounded to 8 bits
// with a scale for each row and group. Sums inside a group are exact integers; groups are added in order, as floats. So
// an output's bits depend on its own row alone: not on M, on neighbours, on tiles or on threads.
//
// A panel of 16 outputs lies group by group, and within a group four inputs of all outputs at a time:
//   8 bits: [8 steps][16 outputs][4 inputs], then 16 scales
//   4 bits: [4 pairs of steps][16 outputs][4 inputs], a pair's first step in the low half of each byte, then 16 scales
//           and 16 offsets: a weight is scale · (0 … 15) + offset, as in GGUF's Q4_1
// Scales and offsets are halves (IEEE binary16), kept as their bits.
#pragma once
#if defined(__AVX2__)  // which AVX-512 implies
#include <immintrin.h>
#endif
#include "lanes.h"

namespace EYAS_ISA {

constexpr int STEPS = GROUP / 4;
constexpr int64_t GROUPS_AHEAD = 6;  // groups from the one at work to the one that is fetched
#if defined(__AVX512VNNI__)
constexpr int GROUP_ROWS = 12;  // rows of one tile
#else
constexpr int GROUP_ROWS = 4;
#endif

// Activations of some rows, rounded: values [rows][groups · 32], and for each group Σ values, its scale, and both's
// product.
struct Rounded {
    const int8_t *values;
    const int32_t *total;
    const float *scale, *sum;
    int64_t groups;

    Rounded from(int64_t row) const {
        const int64_t at = row * groups;
        return {values + at * GROUP, total + at, scale + at, sum + at, groups};
    }
};

// To the nearest integer, ties to even, of the exact product: the lowest bits of such a sum hold it.
static inline int32_t nearest(float x, float factor) {
#if defined(__FMA__) || defined(__aarch64__)
    const float shifted = x * factor + 12582912.0f;
    int32_t bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    return bits - 0x4b400000;
#else
    return static_cast<int32_t>(std::nearbyint(static_cast<double>(x) * factor));
#endif
}

// One row. A group that holds NaN or infinity gets the scale NaN, and with it all outputs of the row.
static void round_row(const float *x, int64_t K, int64_t groups, int8_t *values, int32_t *totals, float *scale,
                      float *sum) {
    for (int64_t g = 0; g < groups; ++g) {
        float part[GROUP] = {}, most = 0, wrong = 0;
        const int64_t count = K - g * GROUP < GROUP ? K - g * GROUP : GROUP;
        std::memcpy(part, x + g * GROUP, sizeof(float) * count);
        for (int i = 0; i < GROUP; ++i) {
            const float size = std::fabs(part[i]);
            most = size > most ? size : most;
            wrong += part[i] - part[i];
        }
        const float step = most / 127.0f, factor = step > 0 && wrong == 0 ? 1.0f / step : 0.0f;
        int32_t total = 0;
        for (int i = 0; i < GROUP; ++i) {
            int32_t value = nearest(wrong == 0 ? part[i] : 0.0f, factor);
            value = value > 127 ? 127 : value < -127 ? -127 : value;
            values[g * GROUP + i] = static_cast<int8_t>(value);
            total += value;
        }
        totals[g] = total;
        scale[g] = step + wrong;
        sum[g] = scale[g] * static_cast<float>(total);
    }
}

// All rows, in memory of this thread that the next call takes again.
static Rounded round_rows(const float *x, int64_t M, int64_t K) {
    static thread_local Scratch<int8_t> value_memory;
    static thread_local Scratch<int32_t> total_memory;
    static thread_local Scratch<float> scale_memory;
    const int64_t groups = (K + GROUP - 1) / GROUP;
    int8_t *values = value_memory.need(M * groups * GROUP);
    int32_t *totals = total_memory.need(M * groups);
    float *scale = scale_memory.need(2 * M * groups), *sum = scale + M * groups;
    for (int64_t m = 0; m < M; ++m) {
        const int64_t at = m * groups;
        round_row(x + m * K, K, groups, values + at * GROUP, totals + at, scale + at, sum + at);
    }
    return {values, totals, scale, sum, groups};
}

#if defined(__AVX512VNNI__)
// One instruction multiplies four inputs of all 16 outputs, unsigned by signed bytes, and adds them in 32 bits.
static inline __m512i add_four(__m512i sum, __m512i weights, const int8_t *x) {
    int32_t bits;
    std::memcpy(&bits, x, sizeof(bits));
    return _mm512_dpbusd_epi32(sum, weights, _mm512_set1_epi32(bits));
}

static inline __m512 halves_at(const uint16_t *bits) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(bits)));
}

template <int M>
static inline void group_8(const Rounded &x, int64_t g, const uint8_t *w, float *total) {
    const int64_t stride = x.groups * GROUP;
    const int8_t *from = x.values + g * GROUP;
    const __m512i flip = _mm512_set1_epi8(-128);
    __m512i sum[M];  // weights are taken 128 too large
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) sum[m] = _mm512_set1_epi32(-128 * x.total[m * x.groups + g]);
#pragma GCC unroll 1
    for (int s = 0; s < STEPS; ++s) {
        __builtin_prefetch(w + GROUPS_AHEAD * BYTES_8 + s * 64);
        const __m512i weights = _mm512_xor_si512(_mm512_loadu_si512(w + s * 64), flip);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) sum[m] = add_four(sum[m], weights, from + m * stride + 4 * s);
    }
    const __m512 scale = halves_at(reinterpret_cast<const uint16_t *>(w + GROUP * PANEL));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
        const __m512 own = _mm512_mul_ps(scale, _mm512_set1_ps(x.scale[m * x.groups + g]));
        float *to = total + m * PANEL;
        _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[m]), own, _mm512_loadu_ps(to)));
    }
}

template <int M>
static inline void group_4(const Rounded &x, int64_t g, const uint8_t *w, float *total) {
    const int64_t stride = x.groups * GROUP;
    const int8_t *from = x.values + g * GROUP;
    const __m512i low = _mm512_set1_epi8(15);
    __m512i sum[M] = {};
#pragma GCC unroll 1
    for (int s = 0; s < STEPS; s += 2) {
        __builtin_prefetch(w + GROUPS_AHEAD * BYTES_4 + s * 32);
        const __m512i both = _mm512_loadu_si512(w + s * 32);
        const __m512i first = _mm512_and_si512(both, low), second = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
            sum[m] = add_four(sum[m], first, from + m * stride + 4 * s);
            sum[m] = add_four(sum[m], second, from + m * stride + 4 * s + 4);
        }
    }
    const uint16_t *bits = reinterpret_cast<const uint16_t *>(w + GROUP * PANEL / 2);
    const __m512 scale = halves_at(bits), offset = halves_at(bits + PANEL);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
        const __m512 own = _mm512_mul_ps(scale, _mm512_set1_ps(x.scale[m * x.groups + g]));
        const __m512 all = _mm512_set1_ps(x.sum[m * x.groups + g]);
        float *to = total + m * PANEL;
        const __m512 joined = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[m]), own, _mm512_loadu_ps(to));
        _mm512_storeu_ps(to, _mm512_fmadd_ps(offset, all, joined));
    }
}
#else
static inline vf from_halves(const uint16_t *bits) {
    const vu wide = __builtin_convertvector(*reinterpret_cast<const vh *>(bits), vu);
    const vu shifted = (wide & 0x7fffu) << 13, sign = (wide & 0x8000u) << 16;
    // The exponent's bias is put right by a product with 2^112, which is exact for subnormal halves too.
    const vf size = reinterpret_cast<const vf &>(shifted) * 5192296858534827628530496329220096.0f;
    const vu all = reinterpret_cast<const vu &>(size) | sign;
    return reinterpret_cast<const vf &>(all);
}

// total[PANEL] of one row += the group's sums, as floats, times their scales, and what the offsets make.
static inline void join(const vf *sums, const uint16_t *scale, const uint16_t *offset, float own, float all, float *total) {
    for (int p = 0; p < P; ++p) {
        vf &to = *reinterpret_cast<vf *>(total + p * W);
        to += sums[p] * (from_halves(scale + p * W) * own);
        if (offset) to += from_halves(offset + p * W) * all;
    }
}

#if defined(__AVX2__)
static inline __m256i bytes_at(const uint8_t *p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }

// A row's own four inputs, beside every output's weights.
static inline __m256i four_of(const int8_t *x) {
    int32_t bits;
    std::memcpy(&bits, x, sizeof(bits));
    return _mm256_set1_epi32(bits);
}

static inline void join(__m256i a, __m256i b, const uint16_t *scale, const uint16_t *offset, float own, float all,
                        float *total) {
    vf sums[P];
    int32_t *lanes = reinterpret_cast<int32_t *>(sums);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(lanes), a);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(lanes + 8), b);
    for (int p = 0; p < P; ++p) sums[p] = __builtin_convertvector(reinterpret_cast<vi &>(sums[p]), vf);
    join(sums, scale, offset, own, all, total);
}

template <int M>
static inline void group_8(const Rounded &x, int64_t g, const uint8_t *w, float *total) {
    const __m256i ones = _mm256_set1_epi16(1);
    const int64_t stride = x.groups * GROUP;
    const int8_t *from = x.values + g * GROUP;
    __m256i sum[M][2] = {};
#pragma GCC unroll 1
    for (int s = 0; s < STEPS; ++s) {
        __builtin_prefetch(w + GROUPS_AHEAD * BYTES_8 + s * 64);
        const __m256i a = bytes_at(w + s * 64), b = bytes_at(w + s * 64 + 32);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            // |x| times the weights with x's sign: two such products fit 16 bits.
            const __m256i four = four_of(from + m * stride + 4 * s), size = _mm256_abs_epi8(four);
            const __m256i pa = _mm256_maddubs_epi16(size, _mm256_sign_epi8(a, four));
            const __m256i pb = _mm256_maddubs_epi16(size, _mm256_sign_epi8(b, four));
            sum[m][0] = _mm256_add_epi32(sum[m][0], _mm256_madd_epi16(pa, ones));
            sum[m][1] = _mm256_add_epi32(sum[m][1], _mm256_madd_epi16(pb, ones));
        }
    }
    const uint16_t *scale = reinterpret_cast<const uint16_t *>(w + GROUP * PANEL);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
        join(sum[m][0], sum[m][1], scale, nullptr, x.scale[m * x.groups + g], 0, total + m * PANEL);
}

template <int M>
static inline void group_4(const Rounded &x, int64_t g, const uint8_t *w, float *total) {
    const __m256i ones = _mm256_set1_epi16(1), low = _mm256_set1_epi8(15);
    const int64_t stride = x.groups * GROUP;
    const int8_t *from = x.values + g * GROUP;
    __m256i sum[M][2] = {};  // 16 bits hold a whole group: 32 · 15 · 127 over two lanes
#pragma GCC unroll 1
    for (int s = 0; s < STEPS; s += 2) {
        __builtin_prefetch(w + GROUPS_AHEAD * BYTES_4 + s * 32);
        const __m256i a = bytes_at(w + s * 32), b = bytes_at(w + s * 32 + 32);
        const __m256i a0 = _mm256_and_si256(a, low), a1 = _mm256_and_si256(_mm256_srli_epi16(a, 4), low);
        const __m256i b0 = _mm256_and_si256(b, low), b1 = _mm256_and_si256(_mm256_srli_epi16(b, 4), low);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            const __m256i x0 = four_of(from + m * stride + 4 * s), x1 = four_of(from + m * stride + 4 * s + 4);
            sum[m][0] = _mm256_add_epi16(sum[m][0], _mm256_maddubs_epi16(a0, x0));
            sum[m][1] = _mm256_add_epi16(sum[m][1], _mm256_maddubs_epi16(b0, x0));
            sum[m][0] = _mm256_add_epi16(sum[m][0], _mm256_maddubs_epi16(a1, x1));
            sum[m][1] = _mm256_add_epi16(sum[m][1], _mm256_maddubs_epi16(b1, x1));
        }
    }
    const uint16_t *scale = reinterpret_cast<const uint16_t *>(w + GROUP * PANEL / 2);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
        const __m256i a = _mm256_madd_epi16(sum[m][0], ones), b = _mm256_madd_epi16(sum[m][1], ones);
        join(a, b, scale, scale + PANEL, x.scale[m * x.groups + g], x.sum[m * x.groups + g], total + m * PANEL);
    }
}
#else
template <int M, bool FOUR>
static inline void group_plain(const Rounded &x, int64_t g, const uint8_t *w, float *total) {
    const uint16_t *scale = reinterpret_cast<const uint16_t *>(w + GROUP * PANEL / (FOUR ? 2 : 1));
    for (int m = 0; m < M; ++m) {
        const int8_t *values = x.values + (m * x.groups + g) * GROUP;
        vf sums[P];
        for (int n = 0; n < PANEL; ++n) {
            int32_t sum = 0;
            for (int s = 0; s < STEPS; ++s)
                for (int i = 0; i < 4; ++i) {
                    const uint8_t byte = w[((FOUR ? s / 2 : s) * PANEL + n) * 4 + i];
                    const int32_t weight = !FOUR ? static_cast<int8_t>(byte) : s % 2 ? byte >> 4 : byte & 15;
                    sum += weight * values[4 * s + i];
                }
            sums[n / W][n % W] = static_cast<float>(sum);
        }
        join(sums, scale, FOUR ? scale + PANEL : nullptr, x.scale[m * x.groups + g], x.sum[m * x.groups + g],
             total + m * PANEL);
    }
}

template <int M>
static inline void group_8(const Rounded &x, int64_t g, const uint8_t *w, float *total) {
    group_plain<M, false>(x, g, w, total);
}

template <int M>
static inline void group_4(const Rounded &x, int64_t g, const uint8_t *w, float *total) {
    group_plain<M, true>(x, g, w, total);
}
#endif  // AVX2
#endif  // AVX-512 VNNI

template <int M, bool FOUR>
static inline void group_of(int64_t rows, const Rounded &x, int64_t g, const uint8_t *w, float *total) {
    if constexpr (M > 0) {
        if (rows < M) return group_of<M - 1, FOUR>(rows, x, g, w, total);
        if constexpr (FOUR)
            group_4<M>(x, g, w, total);
        else
            group_8<M>(x, g, w, total);
    }
}

template <bool FOUR>
static void grouped(const Rounded &x, int64_t M, const Matrix &matrix, float *y, int64_t N, int64_t first, int64_t last) {
    constexpr int64_t bytes = FOUR ? BYTES_4 : BYTES_8;
    const float *bias = matrix.bias;
    float total[BLOCK * PANEL];
    for (int64_t block = 0; block < M; block += BLOCK) {
        const int64_t rows = M - block < BLOCK ? M - block : BLOCK, tiles = (rows + GROUP_ROWS - 1) / GROUP_ROWS;
        for (int64_t j = first; j < last; ++j) {
            const uint8_t *panel = static_cast<const uint8_t *>(matrix.packed) + j * x.groups * bytes;
            for (int64_t i = 0; i < rows * PANEL; ++i) total[i] = 0;
            for (int64_t g = 0; g < x.groups; ++g)
                for (int64_t t = 0; t < tiles; ++t) {
                    const int64_t m = rows * t / tiles, count = rows * (t + 1) / tiles - m;
                    group_of<GROUP_ROWS, FOUR>(count, x.from(block + m), g, panel + g * bytes, total + m * PANEL);
                }
            const int64_t begin = j * PANEL, valid = N - begin < PANEL ? N - begin : PANEL;
            for (int64_t i = 0; i < rows; ++i)
                for (int64_t n = 0; n < valid; ++n) {
                    const float sum = total[i * PANEL + n];
                    y[(block + i) * N + begin + n] = bias ? sum + bias[begin + n] : sum;
                }
        }
    }
}

}  // namespace EYAS_ISA
