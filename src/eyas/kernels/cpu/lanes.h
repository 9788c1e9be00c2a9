// What a row's own arithmetic is made of: dot products, exponentials, scratch memory.
#pragma once
#include <cmath>
#include <cstdlib>
#include <cstring>

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

typedef float quad __attribute__((vector_size(16), may_alias));

static inline float sum_lanes(vf v) {
    const quad *parts = reinterpret_cast<const quad *>(&v);
    quad sum = parts[0];
    for (int i = 1; i < W / 4; ++i) sum += parts[i];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
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

}  // namespace EYAS_ISA
