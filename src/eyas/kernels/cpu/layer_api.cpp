// The plain C interface to decoder layers, loaded by ctypes.
#include "layer_args.h"

using Layer = void (*)(const LayerArgs &, const BatchArgs &, float *, const float *, int);
#define EYAS_DECLARE(isa)                                                       \
    namespace isa {                                                             \
    void layer(const LayerArgs &, const BatchArgs &, float *, const float *, int); \
    }
EYAS_DECLARE(base)
#if defined(__x86_64__)
EYAS_DECLARE(avx2)
EYAS_DECLARE(avx512)
#endif

static Layer choose() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return avx512::layer;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2::layer;
#endif
    return base::layer;
}

static const Layer chosen = choose();

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

void eyas_layer(const LayerArgs *layer, const BatchArgs *batch, float *x, const float *input, int threads) {
    chosen(*layer, *batch, x, input, threads);
}
}
