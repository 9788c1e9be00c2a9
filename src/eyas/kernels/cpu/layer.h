// A decoder layer over M rows of several requests: norms, projections, rotary, attention over cache slots, MLP.
//
// Every row is computed by itself, in an order that depends on the row alone: its dot products, its softmax over keys
// in logical order (committed positions, then its own path in the batch), its sums. So its bits do not depend on what
// else is in the batch, on chunking, on slots or on threads.
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "layer_args.h"
#include "linear.h"

namespace EYAS_ISA {

typedef int32_t vi __attribute__((vector_size(4 * W), aligned(4)));

// Scratch memory that grows and is kept. No std::vector: its inline functions would be compiled once per instruction
// set under one name, and the linker would keep any one of them.
template <class T>
struct Scratch {
    T *data = nullptr;
    int64_t room = 0;
    T *need(int64_t n) {
        if (n > room) {
            std::free(data);
            data = static_cast<T *>(std::malloc(sizeof(T) * n));
            if (!data) std::abort();
            room = n;
        }
        return data;
    }
};

static inline float sum_lanes(vf v) {
    float total = 0;
    for (int i = 0; i < W; ++i) total += v[i];
    return total;
}

static inline float dot(const float *a, const float *b, int64_t n) {
    vf sum = {};
    int64_t i = 0;
    for (; i + W <= n; i += W) sum += load(a + i) * load(b + i);
    float total = sum_lanes(sum);
    for (; i < n; ++i) total += a[i] * b[i];
    return total;
}

// e^x for lanes within about ±87, relative error 2e-7 (range reduction, then a polynomial as in Cephes' expf).
static inline vf exp_lanes(vf x) {
    const vf low = (vf){} - 87.0f, high = (vf){} + 88.0f;
    x = x < low ? low : x;
    x = x > high ? high : x;
    vf rounded = x * 1.44269504f + 12582912.0f;
    vf n = rounded - 12582912.0f;
    x = x - n * 0.693359375f - n * -2.12194440e-4f;
    vf y = x * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * x + 8.3334519073e-3f;
    y = y * x + 4.1665795894e-2f;
    y = y * x + 1.6666665459e-1f;
    y = y * x + 5.0000001201e-1f;
    y = y * x * x + x + 1.0f;
    vi power = (__builtin_convertvector(n, vi) + 127) << 23;
    return y * reinterpret_cast<vf &>(power);
}

// NaN compares false above and passes through; anything else takes the same steps in every lane.
static inline void exp_all(float *x, int64_t n, float shift) {
    int64_t i = 0;
    for (; i + W <= n; i += W) *reinterpret_cast<vf *>(x + i) = exp_lanes(load(x + i) - shift);
    if (i < n) {
        float tail[W] = {};
        std::memcpy(tail, x + i, sizeof(float) * (n - i));
        vf done = exp_lanes(load(tail) - shift);
        std::memcpy(x + i, &done, sizeof(float) * (n - i));
    }
}

static void rms_norm(const float *x, const float *weight, float eps, int64_t n, float *y) {
    const float scale = 1.0f / std::sqrt(dot(x, x, n) / static_cast<float>(n) + eps);
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * scale * weight[i];
}

static void rotate(float *x, const float *cos, const float *sin, int64_t size) {
    const int64_t half = size / 2;
    for (int64_t i = 0; i < half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i + half] + a * sin[i + half];
    }
}

static void linear(const float *x, int64_t M, int64_t K, const Matrix &w, float *y, int64_t N, bool bf16, int threads) {
    const int64_t count = (N + PANEL - 1) / PANEL;
    if (M * N * K < PARALLEL_FROM) threads = 1;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; ++t) {
        const int64_t first = count * t / threads, last = count * (t + 1) / threads;
        if (bf16)
            panels_bf16(x, M, K, w.packed, w.bias, y, N, first, last);
        else
            panels_f32(x, M, K, w.packed, w.bias, y, N, first, last);
    }
}

// Queries of one key head for one row: softmax(q · k · scale) · v over the row's keys, in logical order.
static void attend(const LayerArgs &L, const BatchArgs &B, int64_t r, int64_t group, const float *q, float *out) {
    static thread_local Scratch<float> score_memory;
    static thread_local Scratch<const float *> key_memory;
    const int64_t D = L.head_dim, fold = L.heads / L.kv_heads, request = B.request[r];
    const int64_t begin = B.table_start[request], committed = B.table_start[request + 1] - begin;
    const int64_t own = B.path_start[r + 1] - B.path_start[r];
    const int64_t position = B.positions[r];
    int64_t skip = L.window > 0 ? position - L.window + 1 : 0;  // committed positions that the window has left
    skip = skip < 0 ? 0 : skip > committed ? committed : skip;
    const float **keys = key_memory.need(committed + own);
    float *score = score_memory.need(committed + own);
    int64_t n = 0;
    const int64_t stride = 2 * L.kv_heads * D;
    for (int64_t t = skip; t < committed; ++t) keys[n++] = B.cache + B.tables[begin + t] * stride + group * D;
    for (int64_t i = 0; i < own; ++i) {
        const int64_t row = B.path[B.path_start[r] + i];
        if (L.window > 0 && position - B.positions[row] >= L.window) continue;
        keys[n++] = B.cache + B.slots[row] * stride + group * D;
    }
    for (int64_t f = 0; f < fold; ++f) {
        const float *query = q + f * D;
        float *result = out + f * D;
        float best = -INFINITY;
        for (int64_t i = 0; i < n; ++i) {
            score[i] = dot(query, keys[i], D) * L.scale;
            best = score[i] > best ? score[i] : best;
        }
        exp_all(score, n, best);
        float total = 0;
        for (int64_t i = 0; i < n; ++i) total += score[i];
        std::memset(result, 0, sizeof(float) * D);
        for (int64_t i = 0; i < n; ++i) {
            const float *value = keys[i] + L.kv_heads * D;
            const float p = score[i];
            for (int64_t d = 0; d < D; ++d) result[d] += p * value[d];
        }
        const float inverse = 1.0f / total;
        for (int64_t d = 0; d < D; ++d) result[d] *= inverse;
    }
}

static void project_and_store(const LayerArgs &L, const BatchArgs &B, float *qkv) {
    const int64_t D = L.head_dim, heads = L.heads, kv = L.kv_heads, width = (heads + 2 * kv) * D;
    for (int64_t r = 0; r < B.rows; ++r) {
        float *row = qkv + r * width;
        for (int64_t h = 0; h < heads + kv; ++h) {
            const float *norm = h < heads ? L.q_norm : L.k_norm;
            if (norm) rms_norm(row + h * D, norm, L.eps, D, row + h * D);
            rotate(row + h * D, B.cos + r * L.rotated, B.sin + r * L.rotated, L.rotated);
        }
        std::memcpy(B.cache + B.slots[r] * 2 * kv * D, row + heads * D, sizeof(float) * 2 * kv * D);
    }
}

// silu(gate) · up, in place: row r's product lies where rows before it have been read already.
static void gate(float *gate_up, int64_t rows, int64_t inner) {
    static thread_local Scratch<float> memory;
    float *e = memory.need(inner);
    for (int64_t r = 0; r < rows; ++r) {
        const float *g = gate_up + r * 2 * inner, *u = g + inner;
        float *to = gate_up + r * inner;
        for (int64_t i = 0; i < inner; ++i) e[i] = -g[i];
        exp_all(e, inner, 0.0f);
        for (int64_t i = 0; i < inner; ++i) to[i] = g[i] / (1.0f + e[i]) * u[i];
    }
}

static void add(float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

// x[M, H] becomes the layer's output. `input` [M, input width] is what attention reads, or null: norm(x).
void layer(const LayerArgs &L, const BatchArgs &B, float *x, const float *input, int threads) {
    const int64_t M = B.rows, H = L.hidden, D = L.head_dim, width = (L.heads + 2 * L.kv_heads) * D, I = L.inner;
    static thread_local Scratch<float> memory;
    float *normed = memory.need(M * (2 * H + width + L.heads * D + 2 * I));
    float *delta = normed + M * H, *qkv = delta + M * H, *mixed = qkv + M * width, *inner = mixed + M * L.heads * D;
    if (!input) {
        for (int64_t r = 0; r < M; ++r) rms_norm(x + r * H, L.input_norm, L.eps, H, normed + r * H);
        input = normed;
    }
    linear(input, M, L.input_width, L.qkv, qkv, width, L.bf16, threads);
    project_and_store(L, B, qkv);
    const int64_t items = M * L.kv_heads, fold = L.heads / L.kv_heads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && items > 1)
    for (int64_t i = 0; i < items; ++i) {
        const int64_t r = i / L.kv_heads, g = i % L.kv_heads;
        attend(L, B, r, g, qkv + r * width + g * fold * D, mixed + (r * L.heads + g * fold) * D);
    }
    linear(mixed, M, L.heads * D, L.o, delta, H, L.bf16, threads);
    add(x, delta, M * H);
    for (int64_t r = 0; r < M; ++r) rms_norm(x + r * H, L.mlp_norm, L.eps, H, normed + r * H);
    linear(normed, M, H, L.gate_up, inner, 2 * I, L.bf16, threads);
    gate(inner, M, I);
    linear(inner, M, I, L.down, delta, H, L.bf16, threads);
    add(x, delta, M * H);
}

}  // namespace EYAS_ISA
