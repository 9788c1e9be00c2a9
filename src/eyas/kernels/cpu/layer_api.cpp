// The plain C interface to decoder layers, loaded by ctypes.
#include <cstring>

#include "isa.h"
#include "layer_args.h"

using Layer = void(const LayerArgs &, const BatchArgs &, float *, const float *, int);
#define EYAS_DECLARE(isa) \
    namespace isa {       \
    Layer layer;          \
    }
EYAS_FOR_EACH_ISA(EYAS_DECLARE)

#define EYAS_ENTRY(isa) isa::layer,
static Layer *const layers[] = {EYAS_FOR_EACH_ISA(EYAS_ENTRY)};

extern "C" {

// The rows on each row's own path, itself last. `start` [rows + 1] is filled; with `path`, its rows too.
void eyas_paths(const int64_t *parent, int64_t rows, int64_t *start, int64_t *path) {
    start[0] = 0;
    for (int64_t r = 0; r < rows; ++r) {
        int64_t depth = 0;
        for (int64_t i = r; i >= 0; i = parent[i]) ++depth;
        start[r + 1] = start[r] + depth;
        if (path)
            for (int64_t i = r, at = start[r + 1]; i >= 0; i = parent[i]) path[--at] = i;
    }
}

// Layers one after the other, in place. `caches`: each layer's own. `taps`: where the state before layer i goes, and
// after the last one, or null; its rows lie `tap_stride` floats apart.
void eyas_layers(int64_t isa, const LayerArgs *const *args, int64_t count, const BatchArgs *batch, float *const *caches,
                 float *x, float *const *taps, int64_t tap_stride, int threads) {
    BatchArgs own = *batch;
    for (int64_t i = 0; i <= count; ++i) {
        const int64_t H = args[i < count ? i : 0]->hidden;
        for (int64_t r = 0; taps[i] && r < own.rows; ++r)
            std::memcpy(taps[i] + r * tap_stride, x + r * H, sizeof(float) * H);
        if (i == count) break;
        own.cache = caches[i];
        layers[isa](*args[i], own, x, nullptr, threads);
    }
}

void eyas_layer(int64_t isa, const LayerArgs *layer, const BatchArgs *batch, float *x, const float *input,
                int threads) {
    layers[isa](*layer, *batch, x, input, threads);
}
}
