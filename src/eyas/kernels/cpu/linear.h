// Small-row linear layers: y[M, N] = x[M, K] · wᵀ + bias, w packed in panels of 16 outputs.
//
// A panel holds its 16 outputs side by side for each input k, so that the weights stream from memory once for all M
// rows. It is worked off in slabs of CHAIN inputs that stay in the first cache while all rows pass over them; meanwhile
// a later slab is fetched, or memory would idle while the rows are computed. An output is the sum, in order, of one chain
// of multiply-adds a slab: a row's bits do not depend on M, on its neighbours or on the number of threads.
//
// This file is compiled once per instruction set; W is the vector width in floats, MR the rows of one tile.
#pragma once
#include <cstdint>

#include "layer_args.h"

namespace EYAS_ISA {

constexpr int W = EYAS_WIDTH;
constexpr int P = PANEL / W;
constexpr int MR = EYAS_ROWS;
constexpr int PAIR = P == 1 ? 2 : 1;  // panels that one tile takes: an input that was fetched serves both
constexpr int64_t CHAIN = 96;  // inputs summed before they join the total: shorter chains round less
constexpr int64_t AHEAD = 2;   // slabs from the one at work to the one that is fetched
constexpr int64_t BLOCK = 48;  // rows that share one pass over the weights
typedef float vf __attribute__((vector_size(4 * W), aligned(4)));
typedef uint16_t vh __attribute__((vector_size(2 * W), aligned(2)));
typedef uint32_t vu __attribute__((vector_size(4 * W), aligned(4)));

static inline vf load(const float *p) { return *reinterpret_cast<const vf *>(p); }

static inline vf load(const uint16_t *p) {  // bf16: the upper half of a float
    vu wide = __builtin_convertvector(*reinterpret_cast<const vh *>(p), vu) << 16;
    return reinterpret_cast<vf &>(wide);
}

struct Fetch {
    const char *at;
    int64_t step;  // bytes for each input
    int64_t far;   // bytes to the next panel
};

// Adds the products of one slab (`depth` inputs of Q panels, `far` weights apart) to total[Q][BLOCK][PANEL].
template <int M, int Q, class T>
static inline void tile(const float *x, int64_t K, const T *slab, int64_t far, int64_t depth, float *total,
                        Fetch fetch) {
    vf sum[M][Q * P] = {};
    for (int64_t k = 0; k < depth; ++k) {
#pragma GCC unroll 2
        for (int q = 0; q < Q; ++q) __builtin_prefetch(fetch.at + q * fetch.far);
        fetch.at += fetch.step;
        vf w[Q * P];
#pragma GCC unroll 4
        for (int v = 0; v < Q * P; ++v) w[v] = load(slab + v / P * far + k * PANEL + v % P * W);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
            for (int v = 0; v < Q * P; ++v) sum[m][v] += x[m * K + k] * w[v];
    }
    for (int m = 0; m < M; ++m)
        for (int v = 0; v < Q * P; ++v)
            *reinterpret_cast<vf *>(total + (v / P * BLOCK + m) * PANEL + v % P * W) += sum[m][v];
}

template <int M, int Q, class T>
static inline void tile_of(int64_t rows, const float *x, int64_t K, const T *slab, int64_t far, int64_t depth,
                           float *total, Fetch fetch) {
    if constexpr (M > 0) {
        if (rows == M) return tile<M, Q>(x, K, slab, far, depth, total, fetch);
        tile_of<M - 1, Q>(rows, x, K, slab, far, depth, total, fetch);
    }
}

// All rows over one slab, in tiles as even as can be: a tile of one row alone would wait for its own sums.
template <int Q, class T>
static inline void over_slab(const float *x, int64_t rows, int64_t K, const T *slab, int64_t far, int64_t depth,
                             float *total, Fetch fetch) {
    const int64_t tiles = (rows + MR - 1) / MR;
    fetch.step /= tiles;
    for (int64_t t = 0; t < tiles; ++t) {
        const int64_t m = rows * t / tiles, count = rows * (t + 1) / tiles - m;
        tile_of<MR, Q>(count, x + m * K, K, slab, far, depth, total + m * PANEL, fetch);
        fetch.at += fetch.step * depth;
    }
}

// total[Q][BLOCK][PANEL] of Q panels, one after the other from `panel` on.
template <int Q, class T>
static inline void over_panels(const float *x, int64_t rows, int64_t K, const T *panel, float *total) {
    for (int q = 0; q < Q; ++q)
        for (int64_t i = 0; i < rows * PANEL; ++i) total[q * BLOCK * PANEL + i] = 0;
    const int64_t size = PANEL * sizeof(T);
    for (int64_t k = 0; k < K; k += CHAIN) {
        const int64_t depth = K - k < CHAIN ? K - k : CHAIN;
        const T *slab = panel + k * PANEL;
        const Fetch fetch = {reinterpret_cast<const char *>(slab + AHEAD * CHAIN * PANEL), size, K * size};
        if (sizeof(T) == sizeof(float) || rows <= MR) {
            over_slab<Q>(x + k, rows, K, slab, K * PANEL, depth, total, fetch);
        } else {
            float wide[Q * CHAIN * PANEL];  // widened once for all tiles
            for (int q = 0; q < Q; ++q)
                for (int64_t i = 0; i < depth * PANEL; i += W)
                    *reinterpret_cast<vf *>(wide + q * CHAIN * PANEL + i) = load(slab + q * K * PANEL + i);
            over_slab<Q>(x + k, rows, K, wide, CHAIN * PANEL, depth, total, fetch);
        }
    }
}

template <class T>
static void panels(const float *x, int64_t M, int64_t K, const T *packed, const float *bias, float *y, int64_t N,
                   int64_t first, int64_t last) {
    float total[PAIR * BLOCK * PANEL];
    for (int64_t m = 0; m < M; m += BLOCK) {
        const int64_t rows = M - m < BLOCK ? M - m : BLOCK;
        for (int64_t j = first; j < last;) {
            // Few rows wait for memory, which two panels at once hinder.
            const int64_t count = rows <= MR || last - j < PAIR ? 1 : PAIR;
            if (count == PAIR)
                over_panels<PAIR>(x + m * K, rows, K, packed + j * PANEL * K, total);
            else
                over_panels<1>(x + m * K, rows, K, packed + j * PANEL * K, total);
            for (int64_t q = 0; q < count; ++q, ++j) {
                const int64_t begin = j * PANEL, valid = N - begin < PANEL ? N - begin : PANEL;
                for (int64_t i = 0; i < rows; ++i) {
                    float *out = y + (m + i) * N + begin;
                    const float *sum = total + (q * BLOCK + i) * PANEL;
                    for (int64_t n = 0; n < valid; ++n) out[n] = bias ? sum[n] + bias[begin + n] : sum[n];
                }
            }
        }
    }
}

}  // namespace EYAS_ISA
