// What every processor of the platform can do: SSE2 on x86-64, NEON on ARM64.
#define EYAS_ISA base
#define EYAS_WIDTH 4
#define EYAS_ROWS 2
#include "layer.h"
