// What a decoder layer is given, shared by all instruction sets and mirrored field by field in kernels/layer.py.
#pragma once
#include <cstdint>

constexpr int64_t PARALLEL_FROM = 1 << 17;  // multiply-adds from which a second thread pays for its waking

struct Matrix {
    const void *packed;
    const float *bias;  // or null
};

struct LayerArgs {
    Matrix qkv, o, gate_up, down;
    const float *input_norm, *mlp_norm, *q_norm, *k_norm;  // input_norm, q_norm, k_norm: or null
    int64_t hidden, input_width, heads, kv_heads, head_dim, inner, rotated, window;  // window 0: none
    float eps, scale;
    int64_t bf16;
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
