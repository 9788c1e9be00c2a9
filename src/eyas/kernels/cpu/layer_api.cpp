// The plain C interface to decoder layers, loaded by ctypes.
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

void eyas_layer(int64_t isa, const LayerArgs *layer, const BatchArgs *batch, float *x, const float *input,
                int threads) {
    layers[isa](*layer, *batch, x, input, threads);
}
}
