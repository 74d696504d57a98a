// Delta rule against causal attention: time of forward and of forward + backward, after a check of the two forms.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <ctime>

#include "kinfolk/ops/scan_decay.h"
#include "kinfolk/ops/scan_delta.h"

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

template <class Run>
void measure(Timed& best, const std::vector<Tensor>& inputs, Run&& run) {
  {
    at::NoGradGuard guard;
    const double start = cpu_seconds();
    run();
    best.forward = std::min(best.forward, cpu_seconds() - start);
  }
  for (const Tensor& t : inputs) t.mutable_grad() = Tensor();
  const double start = cpu_seconds();
  const Tensor out = run();
  out.backward(at::ones_like(out));
  best.both = std::min(best.both, cpu_seconds() - start);
}

void compare(int64_t B, int64_t H, int64_t L, int64_t d, int repeats) {
  at::manual_seed(1);
  const auto random = [&](int64_t last) { return at::randn({B, H, L, last}); };
  Tensor q = random(d), k = random(d), v = random(d);
  k = k / k.norm(2, -1, true);
  Tensor beta = at::rand({B, H, L});
  const std::vector<Tensor> inputs{q, k, v, beta};
  for (const Tensor& t : inputs) t.set_requires_grad(true);
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  const kinfolk::DeltaScan delta{q, k, v, beta, {}, scale, {}};
  const kinfolk::DecayScan decay{q, k, v, {}, {}, scale};
  const double off =
      (kinfolk::scan_delta(delta, 64).out - kinfolk::scan_delta_steps(delta).out).abs().max().item<double>();
  Timed attention, chunk32, chunk64, linear;
  for (int i = 0; i < repeats; i++) {
    measure(attention, inputs, [&] { return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true); });
    measure(chunk32, inputs, [&] { return kinfolk::scan_delta(delta, 32).out; });
    measure(chunk64, inputs, [&] { return kinfolk::scan_delta(delta, 64).out; });
    measure(linear, inputs, [&] { return kinfolk::scan_decay(decay, 64).out; });
  }
  std::printf(
      "B=%ld H=%ld L=%ld d=%ld, CPU ms forward / both: attention %.1f / %.1f, delta C=32 %.1f / %.1f, "
      "delta C=64 %.1f / %.1f, linear %.1f / %.1f; chunks off steps by %.1e\n",
      B, H, L, d, 1e3 * attention.forward, 1e3 * attention.both, 1e3 * chunk32.forward, 1e3 * chunk32.both,
      1e3 * chunk64.forward, 1e3 * chunk64.both, 1e3 * linear.forward, 1e3 * linear.both, off);
}
}  // namespace

int main(int argc, char**) {
  at::set_num_threads(argc > 1 ? 2 : 1);
  compare(8, 4, 256, 32, 10);
  compare(8, 4, 512, 32, 10);
  compare(1, 8, 4096, 64, 4);
}
