// What follows, until byte_products_end.h, is compiled for machines that multiply bytes 64 at a time. No include guard.
#ifdef __clang__
#define KINFOLK_UNROLL _Pragma("unroll")
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,avx2,fma"))), \
                             apply_to = function)
#else
#define KINFOLK_UNROLL _Pragma("GCC unroll 16")
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,avx2,fma")
#endif
