// Attention of one row over its own keys, in logical order: committed positions, then its path in the batch.
#pragma once
#include "lanes.h"
#include "layer_args.h"

namespace EYAS_ISA {

constexpr int64_t KEYS_AHEAD = 8;  // keys from the one at work to the one that is fetched
constexpr int64_t LINE = 64;       // bytes

static inline void fetch(const float *from, int64_t count) {
    for (int64_t byte = 0; byte < count * 4; byte += LINE) __builtin_prefetch(reinterpret_cast<const char *>(from) + byte);
}

// out[V · W] = Σ p[i] · values[i], summed in the order of i, in registers.
template <int V>
static inline void mix(const float *p, const float *const *values, int64_t offset, int64_t n, float *out) {
    vf sum[V] = {};
    for (int64_t i = 0; i < n; ++i) {
        const float *value = values[i] + offset;
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[v] += p[i] * load(value + v * W);
    }
    for (int v = 0; v < V; ++v) *reinterpret_cast<vf *>(out + v * W) = sum[v];
}

static inline void mix_all(const float *p, const float *const *values, int64_t offset, int64_t n, float *out,
                           int64_t size) {
    int64_t d = 0;
    for (; d + 8 * W <= size; d += 8 * W) mix<8>(p, values, offset + d, n, out + d);
    for (; d + W <= size; d += W) mix<1>(p, values, offset + d, n, out + d);
    for (; d < size; ++d) {
        float sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += p[i] * values[i][offset + d];
        out[d] = sum;
    }
}

// Where the keys of one key head lie that one row sees, in logical order; returns how many.
static inline int64_t visible_keys(const LayerArgs &L, const BatchArgs &B, int64_t r, int64_t group,
                                   Scratch<const float *> &memory) {
    const int64_t request = B.request[r], position = B.positions[r], stride = 2 * L.kv_heads * L.head_dim;
    const int64_t begin = B.table_start[request], committed = B.table_start[request + 1] - begin;
    const float *head = B.cache + group * L.head_dim;
    int64_t skip = L.window > 0 ? position - L.window + 1 : 0;  // committed positions that the window has left
    skip = skip < 0 ? 0 : skip > committed ? committed : skip;
    const float **keys = memory.need(committed + B.path_start[r + 1] - B.path_start[r]);
    int64_t n = 0;
    for (int64_t t = skip; t < committed; ++t) keys[n++] = head + B.tables[begin + t] * stride;
    for (int64_t i = B.path_start[r]; i < B.path_start[r + 1]; ++i) {
        const int64_t row = B.path[i];
        if (L.window > 0 && position - B.positions[row] >= L.window) continue;
        keys[n++] = head + B.slots[row] * stride;
    }
    return n;
}

// Queries of one key head for one row: softmax(q · k · scale) · v over the row's keys. A key is fetched once for all
// query heads that share it.
static void attend(const LayerArgs &L, const BatchArgs &B, int64_t r, int64_t group, const float *q, float *out) {
    static thread_local Scratch<float> score_memory;
    static thread_local Scratch<const float *> key_memory;
    const int64_t D = L.head_dim, fold = L.heads / L.kv_heads, n = visible_keys(L, B, r, group, key_memory);
    const int64_t values = L.kv_heads * D;  // from a key to its value
    const float *const *keys = key_memory.data;
    float *scores = score_memory.need(fold * n);
    for (int64_t i = 0; i < n; ++i) {
        if (i + KEYS_AHEAD < n) {
            fetch(keys[i + KEYS_AHEAD], D);
            fetch(keys[i + KEYS_AHEAD] + values, D);
        }
        for (int64_t f = 0; f < fold; ++f) scores[f * n + i] = dot(q + f * D, keys[i], D) * L.scale;
    }
    for (int64_t f = 0; f < fold; ++f) {
        float *score = scores + f * n, *result = out + f * D;
        float best = -INFINITY, total = 0;
        for (int64_t i = 0; i < n; ++i) best = score[i] > best ? score[i] : best;
        exp_all(score, n, best);
        for (int64_t i = 0; i < n; ++i) total += score[i];
        mix_all(score, keys, values, n, result, D);
        const float inverse = 1.0f / total;
        for (int64_t d = 0; d < D; ++d) result[d] *= inverse;
    }
}

}  // namespace EYAS_ISA
