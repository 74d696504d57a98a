#include "kinfolk/nn/feed/separable.h"

#include <gtest/gtest.h>

namespace kinfolk {
namespace {

struct Bench {
  explicit Bench(const Separable::Options& options) {
    Context context;
    context.size.width = 4, context.size.feed = 6;
    context.like = at::TensorOptions().dtype(at::kDouble);
    context.generator = at::detail::createCPUGenerator(7);
    branch = std::make_shared<Separable>(options, context);
    branch->eval();
  }
  Tensor run(const Tensor& x, State* state = nullptr, const Tensor& valid = {}, const Tensor& first = {}) {
    const Batch batch;
    Pass pass{batch};
    pass.valid = valid, pass.first = first;
    return branch->forward(x, pass, state);
  }
  std::shared_ptr<Separable> branch;
};

Separable::Options kernels(int64_t first, int64_t second) {
  Separable::Options options;
  options.kernel = first, options.second_kernel = second;
  return options;
}

TEST(Separable, EqualsTheLoops) {
  for (const int64_t second : {1, 5}) {
    Bench bench(kernels(3, second));
    const auto p = bench.branch->named_parameters();
    const Tensor x = at::randn({1, 9, 4}, at::kDouble);
    const auto separable = [&](const Tensor& in, const Tensor* filter, const std::string& product) {  // [L, C]
      Tensor out = at::zeros({in.size(0), p[product + ".weight"].size(0)}, at::kDouble);
      for (int64_t t = 0; t < in.size(0); ++t) {
        Tensor sum = at::zeros({in.size(1)}, at::kDouble);
        const int64_t taps = filter ? filter->size(1) : 1;
        for (int64_t j = 0; j < taps && j <= t; ++j) {
          sum += filter ? filter->select(1, taps - 1 - j) * in[t - j] : in[t];
        }
        out[t] = p[product + ".weight"].mv(sum) + p[product + ".bias"];
      }
      return out;
    };
    at::NoGradGuard guard;
    const Tensor hidden = separable(x[0], &p["first"], "in").clamp_min(0);
    const Tensor want = separable(hidden, second > 1 ? &p["second"] : nullptr, "out");
    EXPECT_LT((bench.run(x)[0] - want).abs().max().item<double>(), 1e-13) << second;
  }
}

TEST(Separable, PiecesEqualTheWholeWithGapsAndDocuments) {
  Bench bench(kernels(3, 5));
  const Tensor x = at::randn({2, 11, 4}, at::kDouble);
  Tensor valid = at::ones({2, 11}, at::kBool), first = at::zeros({2, 11}, at::kBool);
  valid[0].slice(0, 3, 6).fill_(false);
  valid[1].slice(0, 0, 2).fill_(false);
  first[1][6].fill_(true);
  const Tensor whole = bench.run(x, nullptr, valid, first);
  for (int64_t cut = 1; cut < 11; ++cut) {
    State state = bench.branch->start(2, x.options());
    std::vector<Tensor> parts;
    for (const auto& [from, to] : {std::pair<int64_t, int64_t>{0, cut}, {cut, 11}}) {
      parts.push_back(bench.run(x.slice(1, from, to), &state, valid.slice(1, from, to), first.slice(1, from, to)));
    }
    EXPECT_LT((at::cat(parts, 1) - whole).abs().max().item<double>(), 1e-13) << cut;
  }
  const Tensor alone = bench.run(x[1].slice(0, 6).unsqueeze(0));
  EXPECT_LT((whole[1].slice(0, 6) - alone[0]).abs().max().item<double>(), 1e-13);
  EXPECT_EQ(whole.masked_select(valid.logical_not().unsqueeze(-1)).abs().sum().item<double>(), 0);
}

}  // namespace
}  // namespace kinfolk
