// Weights as the kernels read them: panels of 16 outputs (linear.h, grouped.h).
#pragma once
#include <cmath>
#include <cstring>

#include "layer_args.h"

namespace {

template <class T>
void pack(const T *w, int64_t N, int64_t K, T *packed) {
    for (int64_t n = 0; n < N; ++n)
        for (int64_t k = 0; k < K; ++k) packed[(n / PANEL * K + k) * PANEL + n % PANEL] = w[n * K + k];
}

float of_half(uint16_t half) {
    const uint32_t shifted = (half & 0x7fffu) << 13, sign = (half & 0x8000u) << 16;
    float size;
    std::memcpy(&size, &shifted, sizeof(size));
    size *= 5192296858534827628530496329220096.0f;
    return sign ? -size : size;
}

// The half next to x: towards zero.
uint16_t half_below(float x) {
    const float small = std::fabs(x) * 1.925929944387236e-34f;
    uint32_t bits;
    std::memcpy(&bits, &small, sizeof(bits));
    const uint16_t half = static_cast<uint16_t>(bits >> 13 > 0x7bff ? 0x7bff : bits >> 13);
    return half | (x < 0 ? 0x8000 : 0);
}

// The half next to x ≥ 0: away from zero.
uint16_t half_above(float x) {
    const uint16_t below = half_below(x);
    return of_half(below) < x ? below + 1 : below;
}

uint16_t nearest_half(float x) {
    const uint16_t below = half_below(x), above = below + 1;
    return std::fabs(x - of_half(below)) <= std::fabs(of_half(above) - x) ? below : above;
}

// One group of one output, as it lies in a panel.
struct Place {
    uint8_t *bytes;  // of the group
    int64_t n;       // of the panel's outputs

    uint8_t &value(int64_t i, int64_t step) const { return bytes[(step * PANEL + n) * 4 + i % 4]; }
    void half(int64_t after, uint16_t bits) const { std::memcpy(bytes + after + 2 * n, &bits, 2); }
};

// Rounded to 8 bits; false where a weight is no finite number, or too large for a scale.
bool pack_8(const float *w, int64_t count, Place to) {
    float most = 0;
    for (int64_t i = 0; i < count; ++i) {
        if (!(std::fabs(w[i]) <= 65504.0f * 127.0f)) return false;
        most = std::fmax(most, std::fabs(w[i]));
    }
    const uint16_t scale = half_above(most / 127.0f);
    const float step = of_half(scale);
    for (int64_t i = 0; i < count; ++i) {
        const float value = step > 0 ? std::nearbyint(w[i] / step) : 0.0f;
        to.value(i, i / 4) = static_cast<uint8_t>(static_cast<int8_t>(value > 127 ? 127 : value < -127 ? -127 : value));
    }
    to.half(GROUP * PANEL, scale);
    return true;
}

// As 4 bits, if nothing is lost: each weight is offset + scale · (0 … 15), to the bit.
bool pack_4(const float *w, int64_t count, Place to) {
    float least = w[0], most = w[0];
    for (int64_t i = 0; i < count; ++i) {
        if (!(std::fabs(w[i]) <= 65504.0f)) return false;
        least = std::fmin(least, w[i]), most = std::fmax(most, w[i]);
    }
    const uint16_t offset = nearest_half(least);
    for (int top = 15; top > 0; --top) {
        const uint16_t scale = nearest_half((most - least) / static_cast<float>(top));
        const float step = of_half(scale), from = of_half(offset);
        int64_t right = 0;
        for (; right < count; ++right) {
            const float value = step > 0 ? std::nearbyint((w[right] - from) / step) : 0.0f;
            if (!(value >= 0 && value <= 15 && static_cast<float>(step * value) + from == w[right])) break;
            uint8_t &byte = to.value(right, right / 8);
            const uint8_t half = static_cast<uint8_t>(value);
            byte = right / 4 % 2 ? (byte & 15) | half << 4 : (byte & 0xf0) | half;
        }
        if (right < count) continue;
        to.half(GROUP * PANEL / 2, scale);
        to.half(GROUP * PANEL / 2 + 2 * PANEL, offset);
        return true;
    }
    return false;
}

bool pack_groups(const float *w, int64_t N, int64_t K, uint8_t *packed, bool four) {
    const int64_t groups = (K + GROUP - 1) / GROUP, bytes = four ? BYTES_4 : BYTES_8;
    for (int64_t n = 0; n < N; ++n)
        for (int64_t g = 0; g < groups; ++g) {
            const int64_t count = K - g * GROUP < GROUP ? K - g * GROUP : GROUP;
            const Place place = {packed + (n / PANEL * groups + g) * bytes, n % PANEL};
            const float *from = w + n * K + g * GROUP;
            if (!(four ? pack_4(from, count, place) : pack_8(from, count, place))) return false;
        }
    return true;
}

}  // namespace
