#define EYAS_ISA avx512vnni
#define EYAS_WIDTH 16
#define EYAS_ROWS 12
#include "layer.h"
