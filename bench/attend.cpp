// bench_attend: attend against ATen's attention, interleaved, in CPU time on one thread.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>

#include "kinfolk/ops/attend.h"
#include "kinfolk/pattern/pattern.h"

namespace {
using namespace kinfolk;

double seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
double timed(const std::function<void()>& f) {
  const double begin = seconds();
  f();
  return seconds() - begin;
}
double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

/// A B A B ...: the median of both times and of their ratio.
void compare(const std::string& what, int rounds, const std::function<void()>& ours,
             const std::function<void()>& theirs) {
  ours(), theirs();
  std::vector<double> a, b, ratio;
  for (int round = 0; round < rounds; ++round) {
    a.push_back(timed(ours)), b.push_back(timed(theirs));
    ratio.push_back(b.back() / a.back());
  }
  std::printf("%-46s attend %9.2f ms   other %9.2f ms   ratio %.2f\n", what.c_str(), 1e3 * median(a), 1e3 * median(b),
              median(ratio));
}

struct Call {
  Call(const std::string& pattern, int64_t length, int64_t keys_length, bool gradients) {
    const auto draw = [&](int64_t n) { return at::randn({1, 8, n, 64}).requires_grad_(gradients); };
    q = draw(length), k = draw(keys_length), v = draw(keys_length);
    at = at::arange(keys_length, at::kLong).unsqueeze(0);
    q_at = at.narrow(1, keys_length - length, length);
    plan.pattern = parse_pattern(pattern);
  }
  Tensor ours() const { return attend({{q}}, q, q_at, {}, {{k, v, at, {}, {}, {}}}, {{{k}}}, plan).out; }
  Tensor theirs(const std::optional<Tensor>& mask = {}) const {
    return at::scaled_dot_product_attention(q, k, v, mask, 0.0, !mask);
  }
  void backward(const Tensor& out) const { torch::autograd::grad({out}, {q, k, v}, {at::ones_like(out)}); }
  Tensor q, k, v, at, q_at;
  AttendPlan plan;
};

struct Slopes : ScoreStep {
  Tensor apply(const Tile& tile, const std::vector<Tensor>&) override {
    return tile.scores - 0.1 * tile.distance.abs();
  }
  std::optional<DistanceTable> by_distance(const Tensor& like, int64_t nearest, int64_t farthest) override {
    return DistanceTable{-0.1 * at::arange(nearest, farthest + 1, like.options()).abs().expand({8, -1}), nearest};
  }
};

}  // namespace

int main() {
  at::set_num_threads(1);
  at::manual_seed(1);
  for (const int64_t length : {1024, 1056, 4096}) {
    const int rounds = length > 2000 ? 5 : 11;
    Call call("causal", length, length, true);
    {
      const at::NoGradGuard guard;
      compare(
          "causal forward " + std::to_string(length), rounds, [&] { call.ours(); }, [&] { call.theirs(); });
    }
    compare(
        "causal forward + backward " + std::to_string(length), rounds, [&] { call.backward(call.ours()); },
        [&] { call.backward(call.theirs()); });
  }
  {
    Call call("causal", 4096, 4096, true);
    Slopes slopes;
    call.plan.score = {&slopes};
    const Tensor distance = call.at.view({-1, 1}) - call.at.view({1, -1});
    const Tensor mask = (-0.1 * distance.abs())
                            .to(at::kFloat)
                            .masked_fill(distance.lt(0), -INFINITY)
                            .expand({1, 8, -1, -1})
                            .contiguous();
    compare(
        "ALiBi 4096 forward + backward, other: mask", 3, [&] { call.backward(call.ours()); },
        [&] { call.backward(call.theirs(mask)); });
  }
  {
    const at::NoGradGuard guard;
    Call window("causal & window(512)", 8192, 8192, false), behind("causal", 4096, 4096, false);
    compare(
        "window 512 at 8192 forward, other: dense causal", 3, [&] { window.ours(); }, [&] { window.theirs(); });
    Call plain("causal", 2048, 2048, false);
    plain.plan.plain = true;
    compare(
        "tiled plain causal 2048 forward", 3, [&] { plain.ours(); }, [&] { plain.theirs(); });
  }
  {
    Call window("causal & window(512)", 8192, 8192, true), dense("causal", 8192, 8192, true);
    compare(
        "window 512 at 8192 fwd + bwd, other: dense", 1, [&] { window.backward(window.ours()); },
        [&] { dense.backward(dense.theirs()); });
    Call plain("causal", 2048, 2048, true);
    plain.plan.plain = true;
    compare(
        "tiled plain causal 2048 fwd + bwd", 3, [&] { plain.backward(plain.ours()); },
        [&] { plain.backward(plain.theirs()); });
  }
  const at::NoGradGuard guard;
  for (const auto& [pattern, keys] :
       std::vector<std::pair<std::string, int64_t>>{{"causal", 512}, {"causal & window(256)", 512}, {"causal", 4096}}) {
    Call step(pattern, 1, keys, false);
    compare(
        "1000 steps over " + std::to_string(keys) + " keys, " + pattern, 5,
        [&] {
          for (int n = 0; n < 1000; ++n) step.ours();
        },
        [&] {
          for (int n = 0; n < 1000; ++n) at::scaled_dot_product_attention(step.q, step.k, step.v);
        });
  }
  {  // two bands, as ReRoPE has: the tiled plain path
    Call step("causal", 1, 512, false);
    const auto both = [&] {
      attend({{step.q, 0, INT64_MIN, 256}, {step.q, 0, 256, INT64_MAX}}, step.q, step.q_at, {},
             {{step.k, step.v, step.at, {}, {}, {}}}, {{{step.k}, {step.k}}}, step.plan);
    };
    compare(
        "1000 steps over 512 keys, two bands", 5,
        [&] {
          for (int n = 0; n < 1000; ++n) both();
        },
        [&] {
          for (int n = 0; n < 1000; ++n) at::scaled_dot_product_attention(step.q, step.k, step.v);
        });
  }
  return 0;
}
