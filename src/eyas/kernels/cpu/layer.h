// A decoder layer over M rows of several requests: norms, projections, rotary, attention over cache slots, MLP.
//
// Every row is computed by itself, in an order that depends on the row alone: its dot products, its softmax over keys
// in logical order (committed positions, then its own path in the batch), its sums. So its bits do not depend on what
// else is in the batch, on chunking, on slots or on threads.
#include "attention.h"
#include "grouped.h"

namespace EYAS_ISA {

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

// y[M, N] = x[M, K] · wᵀ + bias.
void linear(const float *x, int64_t M, int64_t K, const Matrix &w, float *y, int64_t N, int threads) {
    const int64_t count = (N + PANEL - 1) / PANEL;
    const bool integers = w.kind == INT8 || w.kind == INT4;
    const Rounded rounded = integers ? round_rows(x, M, K) : Rounded{};
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; ++t) {
        const int64_t first = count * t / threads, last = count * (t + 1) / threads;
        switch (w.kind) {
            case F32: panels(x, M, K, static_cast<const float *>(w.packed), w.bias, y, N, first, last); break;
            case BF16: panels(x, M, K, static_cast<const uint16_t *>(w.packed), w.bias, y, N, first, last); break;
            case INT8: grouped<false>(rounded, M, w, y, N, first, last); break;
            case INT4: grouped<true>(rounded, M, w, y, N, first, last); break;
        }
    }
}

static void linear_of(const float *x, int64_t M, int64_t K, const Matrix &w, float *y, int64_t N, int threads) {
    linear(x, M, K, w, y, N, M * N * K < PARALLEL_FROM ? 1 : threads);
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
    linear_of(input, M, L.input_width, L.qkv, qkv, width, threads);
    project_and_store(L, B, qkv);
    const int64_t items = M * L.kv_heads, fold = L.heads / L.kv_heads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && items > 1)
    for (int64_t i = 0; i < items; ++i) {
        const int64_t r = i / L.kv_heads, g = i % L.kv_heads;
        attend(L, B, r, g, qkv + r * width + g * fold * D, mixed + (r * L.heads + g * fold) * D);
    }
    linear_of(mixed, M, L.heads * D, L.o, delta, H, threads);
    add(x, delta, M * H);
    for (int64_t r = 0; r < M; ++r) rms_norm(x + r * H, L.mlp_norm, L.eps, H, normed + r * H);
    linear_of(normed, M, H, L.gate_up, inner, 2 * I, threads);
    gate(inner, M, I);
    linear_of(inner, M, I, L.down, delta, H, threads);
    add(x, delta, M * H);
}

}  // namespace EYAS_ISA
