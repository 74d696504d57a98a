#include "kinfolk/ops/affine.h"

#include <gtest/gtest.h>

namespace kinfolk {
namespace {

using Call = std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)>;

/// y and the gradients of x, weight and bias.
std::vector<Tensor> run(const Call& call, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& g) {
  std::vector<Tensor> leaves;
  for (const Tensor& t : {x, weight, bias}) leaves.push_back(t.defined() ? t.detach().requires_grad_() : t);
  const Tensor y = call(leaves[0], leaves[1], leaves[2]);
  (y * g.to(y.scalar_type())).sum().backward();
  std::vector<Tensor> out{y.detach()};
  for (const Tensor& leaf : leaves)
    if (leaf.defined()) out.push_back(leaf.grad());
  return out;
}

TEST(Affine, OnednnEqualsDoublePrecision) {
  at::manual_seed(2);
  for (const int64_t rows : {16, 33, 130})
    for (const auto& [in, out] : {std::pair<int64_t, int64_t>{1, 7}, {24, 40}, {384, 5}})
      for (const bool with_bias : {true, false})
        for (const int layout : {0, 1, 2}) {
          Tensor x = at::randn({2, rows, in}), weight = at::randn({out, in});
          if (layout == 2) x = at::randn({2, rows, in + 5}).narrow(2, 3, in);  // columns of a larger tensor
          if (layout == 1) x = at::randn({rows, 2, in}).transpose(0, 1), weight = at::randn({in, out}).t();
          const Tensor bias = with_bias ? at::randn({out}) : Tensor(), g = at::randn({2, rows, out});
          ASSERT_TRUE(affine_by_onednn(x, weight, true));
          const auto wide = [](const Tensor& t) { return t.defined() ? t.to(at::kDouble) : t; };
          const auto plain = [](const Tensor& a, const Tensor& w, const Tensor& b) {
            return at::linear(a, w, b.defined() ? std::optional<Tensor>(b) : std::nullopt);
          };
          const auto want = run(plain, wide(x), wide(weight), wide(bias), g);
          const auto found = run(affine_onednn, x, weight, bias, g);
          ASSERT_EQ(found.size(), want.size());
          for (size_t i = 0; i < want.size(); ++i) {
            EXPECT_TRUE(at::allclose(found[i].to(at::kDouble), want[i], 1e-4, 1e-4)) << i << " " << rows << " " << in;
          }
        }
}

TEST(Affine, OtherProductsStayWithTorch) {
  const Tensor weight = at::randn({4, 3});
  EXPECT_FALSE(affine_by_onednn(at::randn({15, 3}), weight, true));
  EXPECT_FALSE(affine_by_onednn(at::randn({3}), weight, true));
  EXPECT_FALSE(affine_by_onednn(at::randn({0, 3}), weight, true));
  EXPECT_FALSE(affine_by_onednn(at::randn({20, 3}, at::kDouble), weight.to(at::kDouble), true));
  EXPECT_EQ(affine(at::randn({0, 3}), weight).sizes(), (std::vector<int64_t>{0, 4}));
  EXPECT_THROW(affine(at::randn({20, 5}), weight), c10::Error);
}

TEST(Affine, RepeatsBitForBitAndInEveryRow) {
  const Tensor x = at::randn({64, 24}), weight = at::randn({8, 24});
  EXPECT_TRUE(affine(x, weight).equal(affine(x, weight)));
  EXPECT_TRUE(at::allclose(affine(x, weight).narrow(0, 20, 3), affine(x.narrow(0, 20, 3), weight), 1e-5, 1e-5));
}

}  // namespace
}  // namespace kinfolk
