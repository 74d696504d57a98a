#include "kinfolk/kernels/isa.h"

#include <cstdlib>
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kinfolk::kernels {
namespace {

Isa choose() {
#if defined(__x86_64__)
  const char* asked = std::getenv("KINFOLK_ISA");
  const bool baseline = asked && std::strcmp(asked, "baseline") == 0;
  const bool avx2 = asked && std::strcmp(asked, "avx2") == 0;
  if (!baseline && !avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return Isa::avx512;
  }
  if (!baseline && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
  return Isa::baseline;
}

}  // namespace

Isa isa() {
  static const Isa chosen = choose();
  return chosen;
}

const char* isa_name() { return isa() == Isa::avx512 ? "avx512" : isa() == Isa::avx2 ? "avx2" : "baseline"; }

bool multiplies_bytes() {
#if defined(__x86_64__)
  static const bool can =
      isa() == Isa::avx512 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni");
  return can;
#else
  return false;
#endif
}

bool has_amx_bf16() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1) != 0;
#else
  return false;
#endif
}

}  // namespace kinfolk::kernels
