// What a decoder layer is given, shared by all instruction sets and mirrored field by field in kernels/layer.py.
#pragma once
#include <cstdint>

constexpr int64_t PARALLEL_FROM = 1 << 17;  // multiply-adds from which a second thread pays for its waking

constexpr int64_t PANEL = 16;  // outputs that are packed side by side
constexpr int64_t GROUP = 32;  // inputs that share a scale, where weights are integers
constexpr int64_t BYTES_8 = GROUP * PANEL + 2 * PANEL;  // of a group of a panel: weights, then scales
constexpr int64_t BYTES_4 = GROUP * PANEL / 2 + 4 * PANEL;  // and offsets

// How weights are kept: as they are, or as integers with a scale for each output and group.
enum Kind : int64_t { F32, BF16, INT8, INT4 };

struct Matrix {
    const void *packed;
    const float *bias;  // or null
    int64_t kind;
};

struct LayerArgs {
    Matrix qkv, o, gate_up, down;
    const float *input_norm, *mlp_norm, *q_norm, *k_norm;  // input_norm, q_norm, k_norm: or null
    int64_t hidden, input_width, heads, kv_heads, head_dim, inner, rotated, window;  // window 0: none
    float eps, scale;
};

// A flat ragged batch, kernels/rows.py: committed slots per request, and per row its own path in the batch.
struct BatchArgs {
    int64_t rows;
    const int64_t *request, *positions, *slots;
    const int64_t *tables, *table_start;  // slots of all requests; where each request's begin, and the end
    const int64_t *path, *path_start;     // rows on each row's path, itself last; where each row's begin, and the end
    const float *cos, *sin;               // [rows, rotated]
    float *cache;                         // [slots, 2 · kv heads, head size]
};
