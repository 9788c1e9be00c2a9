// The instruction sets that this library is compiled for, fastest first. An index into this list chooses one.
#pragma once

#if defined(__x86_64__)
#define EYAS_FOR_EACH_ISA(DO) DO(avx512vnni) DO(avx512) DO(avx2) DO(base)
#else
#define EYAS_FOR_EACH_ISA(DO) DO(base)
#endif
