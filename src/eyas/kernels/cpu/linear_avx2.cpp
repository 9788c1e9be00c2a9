#define EYAS_ISA avx2
#define EYAS_WIDTH 8
#define EYAS_ROWS 6
#include "layer.h"
