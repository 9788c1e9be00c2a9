#define EYAS_ISA avx512
#define EYAS_WIDTH 16
#define EYAS_ROWS 12
#include "layer.h"
