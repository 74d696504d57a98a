#include "kinfolk/kernels/scan_delta.h"

#include <cstdlib>
#include <cstring>

// The bodies are compiled once for each instruction set, all of them in this file, and chosen when first called.
#define KINFOLK_INLINE static inline __attribute__((always_inline))
#define KINFOLK_NOINLINE __attribute__((noinline)) static
#ifdef __clang__
#define KINFOLK_UNROLL _Pragma("unroll")
#else
#define KINFOLK_UNROLL _Pragma("GCC unroll 16")
#endif

namespace kinfolk::kernels {

namespace baseline {
#define KINFOLK_LANES 4
#define KINFOLK_COLUMNS 2
#include "kinfolk/kernels/tile_body.h"
//
#include "kinfolk/kernels/scan_delta_body.h"
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
#include "kinfolk/kernels/scan_delta_body.h"
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
#include "kinfolk/kernels/scan_delta_body.h"
#undef KINFOLK_LANES
#undef KINFOLK_COLUMNS
}  // namespace avx512
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

namespace {

struct Table {
  const char* name;
  void (*forward)(const DeltaSizes&, const DeltaForward&, float*);
  void (*backward)(const DeltaSizes&, const DeltaBackward&, float*);
};

Table choose() {
#if defined(__x86_64__)
  const char* asked = std::getenv("KINFOLK_ISA");
  const bool baseline_only = asked && std::strcmp(asked, "baseline") == 0;
  const bool no_avx512 = asked && std::strcmp(asked, "avx2") == 0;
  if (!baseline_only && !no_avx512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return {"avx512", avx512::forward, avx512::backward};
  }
  if (!baseline_only && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {"avx2", avx2::forward, avx2::backward};
  }
#endif
  return {"baseline", baseline::forward, baseline::backward};
}

const Table& table() {
  static const Table chosen = choose();
  return chosen;
}

}  // namespace

bool scan_delta_fits(const DeltaSizes& z) { return z.size % 16 == 0 && z.keys % 16 == 0 && z.values % 16 == 0; }

int64_t scan_delta_scratch(const DeltaSizes& z) {
  return z.size * z.keys + 3 * z.size * z.values + 2 * z.keys * z.values + 5 * z.size * z.size;
}

void scan_delta_forward(const DeltaSizes& sizes, const DeltaForward& head, float* scratch) {
  table().forward(sizes, head, scratch);
}

void scan_delta_backward(const DeltaSizes& sizes, const DeltaBackward& head, float* scratch) {
  table().backward(sizes, head, scratch);
}

const char* scan_delta_isa() { return table().name; }

}  // namespace kinfolk::kernels
