// Small-row linear layers: y[M, N] = x[M, K] · wᵀ + bias, w packed in panels of 16 outputs.
//
// A panel holds its 16 outputs side by side for each input k, so that the weights stream from memory once for all M
// rows. Every output is the sum, in order, of chains of multiply-adds over the inputs in order: a row's bits do not depend on M, on its
// neighbours or on the number of threads.
//
// This file is compiled once per instruction set; W is the vector width in floats, MR the rows of one tile.
#include <cstdint>

namespace EYAS_ISA {

constexpr int PANEL = 16;
constexpr int W = EYAS_WIDTH;
constexpr int P = PANEL / W;
constexpr int MR = EYAS_ROWS;
constexpr int64_t CHAIN = 96;  // inputs summed before they join the total: shorter chains round less
typedef float vf __attribute__((vector_size(4 * W), aligned(4)));
typedef uint16_t vh __attribute__((vector_size(2 * W), aligned(2)));
typedef uint32_t vu __attribute__((vector_size(4 * W), aligned(4)));

static inline vf load(const float *p) { return *reinterpret_cast<const vf *>(p); }

static inline vf load(const uint16_t *p) {  // bf16: the upper half of a float
    vu wide = __builtin_convertvector(*reinterpret_cast<const vh *>(p), vu) << 16;
    return reinterpret_cast<vf &>(wide);
}

template <int M, class T>
static inline void tile(const float *x, int64_t K, const T *panel, const float *bias, float *y, int64_t N, int valid) {
    vf total[M][P] = {};
    for (int64_t begin = 0; begin < K; begin += CHAIN) {
        const int64_t end = begin + CHAIN < K ? begin + CHAIN : K;
        vf sum[M][P] = {};
        for (int64_t k = begin; k < end; ++k) {
            vf w[P];
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) w[p] = load(panel + k * PANEL + p * W);
#pragma GCC unroll 16
            for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
                for (int p = 0; p < P; ++p) sum[m][p] += x[m * K + k] * w[p];
        }
        for (int m = 0; m < M; ++m)
            for (int p = 0; p < P; ++p) total[m][p] += sum[m][p];
    }
    for (int m = 0; m < M; ++m) {
        float out[PANEL];
        for (int p = 0; p < P; ++p) *reinterpret_cast<vf *>(out + p * W) = total[m][p];
        for (int n = 0; n < valid; ++n) y[m * N + n] = bias ? out[n] + bias[n] : out[n];
    }
}

template <int M, class T>
static inline void rest(int rows, const float *x, int64_t K, const T *panel, const float *bias, float *y, int64_t N,
                        int valid) {
    if constexpr (M > 0) {
        if (rows == M) return tile<M>(x, K, panel, bias, y, N, valid);
        rest<M - 1>(rows, x, K, panel, bias, y, N, valid);
    }
}

template <class T>
static void panels(const float *x, int64_t M, int64_t K, const T *packed, const float *bias, float *y, int64_t N,
                   int64_t first, int64_t last) {
    for (int64_t j = first; j < last; ++j) {
        const T *panel = packed + j * PANEL * K;
        const float *b = bias ? bias + j * PANEL : nullptr;
        const int valid = N - j * PANEL < PANEL ? static_cast<int>(N - j * PANEL) : PANEL;
        int64_t m = 0;
        for (; m + MR <= M; m += MR) tile<MR>(x + m * K, K, panel, b, y + m * N + j * PANEL, N, valid);
        rest<MR - 1>(static_cast<int>(M - m), x + m * K, K, panel, b, y + m * N + j * PANEL, N, valid);
    }
}

void panels_f32(const float *x, int64_t M, int64_t K, const void *packed, const float *bias, float *y, int64_t N,
                int64_t first, int64_t last) {
    panels(x, M, K, static_cast<const float *>(packed), bias, y, N, first, last);
}

void panels_bf16(const float *x, int64_t M, int64_t K, const void *packed, const float *bias, float *y, int64_t N,
                 int64_t first, int64_t last) {
    panels(x, M, K, static_cast<const uint16_t *>(packed), bias, y, N, first, last);
}

}  // namespace EYAS_ISA
