// Compiles KINFOLK_BODY, the file of a kernel's loops, once for each instruction set, in the namespaces baseline, avx2
// and avx512 of the namespace that includes this. No include guard.
#ifndef KINFOLK_INLINE
#define KINFOLK_INLINE static inline __attribute__((always_inline))
#define KINFOLK_NOINLINE __attribute__((noinline)) static
#ifdef __clang__
#define KINFOLK_UNROLL _Pragma("unroll")
#else
#define KINFOLK_UNROLL _Pragma("GCC unroll 16")
#endif
#endif

namespace baseline {
#define KINFOLK_LANES 4
#define KINFOLK_COLUMNS 2
#include "kinfolk/kernels/tile_body.h"
//
#include KINFOLK_BODY
#undef KINFOLK_LANES
#undef KINFOLK_COLUMNS
}  // namespace baseline

#if defined(__x86_64__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace avx2 {
#define KINFOLK_LANES 8
#define KINFOLK_COLUMNS 2
#include "kinfolk/kernels/tile_body.h"
//
#include KINFOLK_BODY
#undef KINFOLK_LANES
#undef KINFOLK_COLUMNS
}  // namespace avx2
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl,avx512dq,avx2,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512dq,avx2,fma")
#endif
namespace avx512 {
#define KINFOLK_LANES 16
#define KINFOLK_COLUMNS 4
#include "kinfolk/kernels/tile_body.h"
//
#include KINFOLK_BODY
#undef KINFOLK_LANES
#undef KINFOLK_COLUMNS
}  // namespace avx512
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
#undef KINFOLK_BODY
