// Selective scan: the kernel beside the same scan in torch operators, and time by length; after a check of one against
// the other.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <ctime>

#include "kinfolk/ops/scan_selective.h"

namespace {
using at::Tensor;

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Timed {
  double forward = 1e9, both = 1e9;
};

kinfolk::SelectiveScan scan_of(int64_t L, int64_t E, int64_t N) {
  at::manual_seed(1);
  const Tensor wide = at::randn({1, L, 2 * E});
  return {at::randn({1, L, E}), at::randn({1, L, E}) - 2, -at::rand({E, N}) * 4, at::randn({1, L, N}),
          at::randn({1, L, N}), at::randn({E}),           wide.narrow(2, E, E),  at::randn({E})};
}

Timed measure(Timed best, kinfolk::SelectiveScan s, bool plain, int64_t chunk) {
  s.plain = plain;
  {
    at::NoGradGuard guard;
    const double start = cpu_seconds();
    kinfolk::scan_selective(s, chunk);
    best.forward = std::min(best.forward, cpu_seconds() - start);
  }
  for (Tensor* t : {&s.x, &s.delta, &s.a, &s.b, &s.c, &s.skip, &s.z, &s.bias}) *t = t->detach().requires_grad_(true);
  const double start = cpu_seconds();
  const Tensor out = kinfolk::scan_selective(s, chunk).out;
  out.backward(at::ones_like(out));
  best.both = std::min(best.both, cpu_seconds() - start);
  return best;
}
}  // namespace

int main(int argc, char**) {
  at::set_num_threads(argc > 1 ? 2 : 1);
  for (const int64_t L : {2048, 2047}) {
    const auto s = scan_of(L, 1024, 16);
    kinfolk::SelectiveScan steps = s;
    steps.plain = true;
    const double off =
        (kinfolk::scan_selective(s, 64).out - kinfolk::scan_selective(steps, 64).out).abs().max().item<double>();
    Timed fused, plain;
    for (int i = 0; i < 3; i++) {
      for (int j = 0; j < 5; j++) fused = measure(fused, s, false, 64);
      plain = measure(plain, s, true, 16);
    }
    std::printf(
        "L=%ld E=1024 N=16, CPU ms forward / both: kernel %.1f / %.1f, torch operators %.1f / %.1f; off by %.1e\n",
        static_cast<long>(L), 1e3 * fused.forward, 1e3 * fused.both, 1e3 * plain.forward, 1e3 * plain.both, off);
  }
  Timed by_length[3];
  const int64_t lengths[3] = {4096, 16384, 131072};
  for (int i = 0; i < 3; i++) {
    for (int l = 0; l < 3; l++) by_length[l] = measure(by_length[l], scan_of(lengths[l], 256, 16), false, 64);
  }
  for (int l = 0; l < 3; l++) {
    std::printf("L=%ld E=256 N=16, CPU ns a token forward / both: %.1f / %.1f\n", static_cast<long>(lengths[l]),
                1e9 * by_length[l].forward / static_cast<double>(lengths[l]),
                1e9 * by_length[l].both / static_cast<double>(lengths[l]));
  }
}
