// bench_attend: attend against ATen's attention, interleaved, in CPU time on one thread.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/attention.h"
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

/// Seconds of a product of 1024 x 1024 matrices.
double product_seconds() {
  static const Tensor a = at::randn({1024, 1024}), b = at::randn({1024, 1024});
  static Tensor c = at::mm(a, b);
  return timed([&] { at::mm_out(c, a, b); });
}

/// A B M A B M ...: the median of both times, of their ratio, and, where floating-point operations are given, of our
/// rate and of its part of what at::mm reaches.
void compare(const std::string& what, int rounds, const std::function<void()>& ours,
             const std::function<void()>& theirs, double flops = 0) {
  ours(), theirs(), product_seconds();
  std::vector<double> a, b, ratio, product;
  for (int round = 0; round < rounds; ++round) {
    a.push_back(timed(ours)), b.push_back(timed(theirs)), product.push_back(product_seconds());
    ratio.push_back(b.back() / a.back());
  }
  std::printf("%-50s attend %9.2f ms   other %9.2f ms   ratio %5.2f", what.c_str(), 1e3 * median(a), 1e3 * median(b),
              median(ratio));
  if (flops > 0) {
    const double rate = flops / median(a) / 1e9, mm = 2.0 * 1024 * 1024 * 1024 / median(product) / 1e9;
    std::printf("   %4.0f GFLOP/s, %.2f of mm (%.0f)", rate, rate / mm, mm);
  }
  std::printf("\n");
  std::fflush(stdout);
}

/// Pairs of a causal window, of 8 heads.
double pairs(int64_t length, int64_t window) {
  double sum = 0;
  for (int64_t i = 0; i < length; ++i) sum += static_cast<double>(std::min(i + 1, window));
  return 8 * sum;
}
constexpr double kForward = 4 * 64, kBoth = 14 * 64;  ///< operations a pair, recomputed scores included

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
  void backward(const Tensor& out, const std::vector<Tensor>& more = {}) const {
    std::vector<Tensor> leaves = {q, k, v};
    leaves.insert(leaves.end(), more.begin(), more.end());
    torch::autograd::grad({out}, leaves, {at::ones_like(out)});
  }
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

/// (q + v) . r_(i-j), as in Transformer-XL.
struct Relative : ScoreStep {
  explicit Relative(int64_t length)
      : v(at::randn({8, 64}).requires_grad_(true)), r(at::randn({8, length, 64}).requires_grad_(true)) {}
  Tensor apply(const Tile&, const std::vector<Tensor>&) override { fail("the fused path is measured"); }
  std::optional<QueryTable> by_query(const Tensor& q_raw, int64_t nearest, int64_t farthest) override {
    return QueryTable{q_raw + v.unsqueeze(1), r.narrow(1, nearest, farthest - nearest + 1), 0.125};
  }
  Tensor v, r;
};

/// An attention branch of 8 heads of 64 on inputs 8 wide, so that its projections cost next to nothing.
std::shared_ptr<Attention> branch(const std::string& qk) {
  Context context;
  context.size.width = context.size.heads = 8;
  context.like = at::TensorOptions().dtype(at::kFloat);
  context.path = "attention";
  Value table = parse_toml("head_width = 64\nqk = [" + qk + "]", "options");
  table.set("kind", "attention");
  return std::dynamic_pointer_cast<Attention>(registry<Branch>().create(Spec(table), context, "attention"));
}

/// Rotation and attention of a whole sequence.
struct Rotated {
  Rotated(const std::string& qk, const Call& call) : made(branch(qk)), call(call) {}
  Tensor ours() const { return made->look(call.q, call.q_at, {}, {{call.k, call.v, call.at, {}, {}, {}}}).out; }
  std::shared_ptr<Attention> made;
  const Call& call;
};

/// The next token after `tokens`, over and over.
struct Step {
  Step(const std::string& qk, int64_t tokens) : made(branch(qk)), state(made->start(1, x.options())) {
    const at::NoGradGuard guard;
    for (int64_t from = 0; from < tokens; from += 1024) next(at::randn({1, 1024, 8}), from, state);
    at = tokens;
  }
  void next(const Tensor& x, int64_t from, State& state) const {
    const Batch batch;
    Pass pass{.batch = batch};
    pass.position = at::arange(from, from + x.size(1), at::kLong).unsqueeze(0);
    made->forward(x, pass, &state);
  }
  void steps(int count) const {
    for (int n = 0; n < count; ++n) {
      State own = state;
      next(x, at, own);
    }
  }
  Tensor x = at::randn({1, 1, 8});
  std::shared_ptr<Attention> made;
  State state;
  int64_t at = 0;
};

/// What ReRoPE costs beside RoPE: the ratio is its time over that of RoPE.
void bench_rerope() {
  for (const int64_t length : {4096, 16384})
    for (const int64_t window : {256, 512}) {
      const int rounds = length > 8000 ? 3 : 9;
      const Call call("causal", length, length, true);
      const Rotated rope("\"rope\"", call), rerope(text("{ kind = \"rerope\", window = ", window, " }"), call);
      {
        const at::NoGradGuard guard;
        compare(
            text("RoPE forward ", length, ", other: ReRoPE ", window), rounds, [&] { rope.ours(); },
            [&] { rerope.ours(); });
      }
      compare(
          text("RoPE fwd + bwd ", length, ", other: ReRoPE ", window), rounds, [&] { call.backward(rope.ours()); },
          [&] { call.backward(rerope.ours()); });
    }
  const at::NoGradGuard guard;
  for (const int64_t tokens : {1024, 16384, 65536}) {
    const Step rope("\"rope\"", tokens), rerope("{ kind = \"rerope\", window = 256 }", tokens);
    const int steps = tokens > 20000 ? 5 : 50;
    compare(
        text(steps, " RoPE steps after ", tokens, ", other: ReRoPE 256"), 9, [&] { rope.steps(steps); },
        [&] { rerope.steps(steps); });
  }
}

}  // namespace

int main(int count, char** words) {
  at::set_num_threads(1);
  at::manual_seed(1);
  if (count > 1 && std::string(words[1]) == "rerope") return bench_rerope(), 0;
  const bool long_ones = count > 1 && std::string(words[1]) == "long";
  for (const int64_t length : long_ones ? std::vector<int64_t>{16384} : std::vector<int64_t>{1024, 1056, 4096, 4001}) {
    const int rounds = length > 8000 ? 1 : length > 2000 ? 5 : 15;
    Call call("causal", length, length, true);
    {
      const at::NoGradGuard guard;
      compare(
          text("causal forward ", length), rounds, [&] { call.ours(); }, [&] { call.theirs(); },
          kForward * pairs(length, length));
    }
    compare(
        text("causal forward + backward ", length), rounds, [&] { call.backward(call.ours()); },
        [&] { call.backward(call.theirs()); }, kBoth * pairs(length, length));
  }
  for (const int64_t length : {2048, 4096}) {
    Call call("causal", length, length, true), bare("causal", length, length, true);
    Slopes slopes;
    call.plan.score = {&slopes};
    const Tensor distance = call.at.view({-1, 1}) - call.at.view({1, -1});
    const Tensor mask = (-0.1 * distance.abs())
                            .to(at::kFloat)
                            .masked_fill(distance.lt(0), -INFINITY)
                            .expand({1, 8, -1, -1})
                            .contiguous();
    {
      const at::NoGradGuard guard;
      compare(
          text("ALiBi forward ", length, ", other: a mask"), 3, [&] { call.ours(); }, [&] { call.theirs(mask); },
          kForward * pairs(length, length));
      compare(
          text("ALiBi forward ", length, ", other: attend without"), 5, [&] { call.ours(); }, [&] { bare.ours(); });
    }
    compare(
        text("ALiBi forward + backward ", length, ", other: a mask"), 3, [&] { call.backward(call.ours()); },
        [&] { call.backward(call.theirs(mask)); }, kBoth * pairs(length, length));
    compare(
        text("ALiBi forward + backward ", length, ", other: attend without"), 5, [&] { call.backward(call.ours()); },
        [&] { bare.backward(bare.ours()); });
  }
  for (const int64_t length : {1024, 4096}) {
    Call call("causal", length, length, true), bare("causal", length, length, true);
    Relative relative(length);
    call.plan.score = {&relative};
    {
      const at::NoGradGuard guard;
      compare(
          text("XL forward ", length, ", other: attend without"), 5, [&] { call.ours(); }, [&] { bare.ours(); });
      compare(
          text("XL forward ", length, ", other: causal SDPA"), 5, [&] { call.ours(); }, [&] { bare.theirs(); });
    }
    compare(
        text("XL forward + backward ", length, ", other: attend without"), 5,
        [&] {
          call.backward(call.ours(), {relative.v, relative.r});
        },
        [&] { bare.backward(bare.ours()); });
    compare(
        text("XL forward + backward ", length, ", other: causal SDPA"), 5,
        [&] {
          call.backward(call.ours(), {relative.v, relative.r});
        },
        [&] { bare.backward(bare.theirs()); });
  }
  {
    Call window("causal & window(512)", 8192, 8192, true);
    const Tensor distance = window.at.view({-1, 1}) - window.at.view({1, -1});
    const Tensor mask = distance.ge(0).logical_and(distance.lt(512)).view({1, 1, 8192, 8192});
    {
      const at::NoGradGuard guard;
      compare(
          "window 512 at 8192 forward, other: a mask", 3, [&] { window.ours(); }, [&] { window.theirs(mask); },
          kForward * pairs(8192, 512));
    }
    compare(
        "window 512 at 8192 fwd + bwd, other: a mask", 1, [&] { window.backward(window.ours()); },
        [&] { window.backward(window.theirs(mask)); }, kBoth * pairs(8192, 512));
    Call twice("causal & window(512)", 32768, 32768, true);
    compare(
        "window 512 fwd + bwd at 8192, other: at 32768", 3, [&] { window.backward(window.ours()); },
        [&] { twice.backward(twice.ours()); });
  }
  bench_rerope();
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
  return 0;
}
