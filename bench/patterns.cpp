// bench_patterns [length or pattern...]: patterns that are no interval of distances against the dense op at the same
// length, interleaved, in CPU time on one thread: 8 heads of width 64, forward, forward with backward, and a step of
// one query over all keys; as attend chooses, in tiles, and view by view. Beside it how many pairs the pattern shows,
// as a part of the causal ones: what a perfect kernel would need of the dense time.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "kinfolk/eval/interleave.h"
#include "kinfolk/ops/attend.h"
#include "kinfolk/pattern/views.h"

namespace {
using namespace kinfolk;

double timed(const std::function<void()>& f) {
  const double begin = cpu_seconds();
  f();
  return cpu_seconds() - begin;
}
struct Call {
  Call(const std::string& pattern, int64_t length, AttendPlan::By by) {
    const auto draw = [&] { return at::randn({1, 8, length, 64}).requires_grad_(true); };
    q = draw(), k = draw(), v = draw(), at = at::arange(length, at::kLong).unsqueeze(0);
    plan.pattern = parse_pattern(pattern);
    plan.by = by;
  }
  Tensor run() const { return attend({{q}}, q, at, {}, {{k, v, at, {}, {}, {}}}, {{{k}}}, plan).out; }
  void both() const {
    const Tensor out = run();
    torch::autograd::grad({out}, {q, k, v}, {at::ones_like(out)});
  }
  void step() const {  ///< the last query against all keys, as a cache has them
    const at::NoGradGuard guard;
    const int64_t last = q.size(2) - 1;
    attend({{q.narrow(2, last, 1)}}, q.narrow(2, last, 1), at.narrow(1, last, 1), {}, {{k, v, at, {}, {}, {}}}, {{{k}}},
           plan);
  }
  void forward() const {
    const at::NoGradGuard guard;
    run();
  }
  Tensor q, k, v, at;
  AttendPlan plan;
};

/// Visible pairs among 256 queries spread evenly, as a part of the causal ones.
double share(const Pattern& pattern, int64_t length) {
  const Tensor q = at::linspace(0, static_cast<double>(length - 1), 256).to(at::kLong).unsqueeze(1);
  return pattern.sees(q, at::arange(length, at::kLong).unsqueeze(0)).sum().item<double>() /
         (q + 1).sum().item<double>();
}

}  // namespace

int main(int count, char** words) {
  at::set_num_threads(1);
  std::vector<int64_t> lengths;
  std::vector<std::string> patterns;
  for (int n = 1; n < count; ++n) {
    if (std::atoll(words[n]) > 0) {
      lengths.push_back(std::atoll(words[n]));
    } else {
      patterns.emplace_back(words[n]);
    }
  }
  if (patterns.empty()) {
    patterns = {"causal & window(256)",
                "causal & (window(64) | stride(64))",
                "causal & (window(256) | stride(128))",
                "causal & (block_local(64, 0) | fixed(64, 8))",
                "causal & (block_local(128, 0) | fixed(128, 8))",
                "causal & stride(128)",
                "causal & (block_window(16, 1) | columns(16) | random(16, 2, 0))",
                "causal & (block_window(64, 1) | columns(64) | random(64, 3, 1))",
                "causal & block_local(256, 256)",
                "causal & (window(256) | columns(16))",
                "causal & dilated(256, 4)",
                "prefix(256) | causal & window(256)"};
  }
  if (lengths.empty()) lengths = {512, 2048, 4096, 4001};
  using By = AttendPlan::By;
  for (const int64_t length : lengths) {
    const int rounds = length > 8000 ? 1 : length > 1000 ? 5 : 15;
    const Call dense("causal", length, By::automatic);
    for (const auto& pattern : patterns) {
      std::printf("%6ld  %-64s pairs %.3f   of dense", length, pattern.c_str(), share(*parse_pattern(pattern), length));
      for (const auto& [by, name] :
           {std::pair{By::automatic, "automatic"}, {By::tiles, "tiles"}, {By::views, "views"}}) {
        const Call sparse(pattern, length, by);
        if (by != By::automatic && (sparse.plan.pattern->interval() || length > 8000)) continue;
        sparse.both(), dense.both();
        std::vector<double> forward, both, step;
        for (int n = 0; n < rounds; ++n) {
          const double a = timed([&] { sparse.forward(); }), b = timed([&] { dense.forward(); });
          const double c = timed([&] { sparse.both(); }), d = timed([&] { dense.both(); });
          forward.push_back(a / b), both.push_back(c / d);
        }
        for (int n = 0; n < 9; ++n) {
          const double a = timed([&] { sparse.step(); }), b = timed([&] { dense.step(); });
          step.push_back(a / b);
        }
        std::printf("   %s: forward %.3f, both %.3f, step %.2f", name, median(forward), median(both), median(step));
        std::fflush(stdout);
      }
      std::printf("\n");
    }
  }
  return 0;
}
