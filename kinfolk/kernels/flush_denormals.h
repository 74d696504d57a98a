// Denormal numbers as zeros, for the time of a scope.
#pragma once
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kinfolk::kernels {

/// Products of strong decays pass through the denormal numbers, each of which costs an assist; they are 0 in here.
class FlushDenormals {
#if defined(__x86_64__)
 public:
  FlushDenormals() : kept_(_mm_getcsr()) { _mm_setcsr(kept_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(kept_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned kept_;
#endif
};

}  // namespace kinfolk::kernels
