#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "tests/support/attend_problem.h"

namespace kinfolk {
namespace {

TEST(Join, IsSoftmaxOverTheUnion) {
  at::manual_seed(20);
  for (const bool plain : {true, false}) {
    Problem both;
    both.length = 33, both.pattern = "causal & window(40)";
    both.make();
    both.q_at = (at::arange(33, at::kLong) + 20).expand({2, 33});
    both.add_keys(at::arange(60, at::kLong).expand({2, 60}));
    Problem left = both, right = both;
    left.keys.pop_back(), left.bands.pop_back();
    right.keys.erase(right.keys.begin()), right.bands.erase(right.bands.begin());
    for (auto& leaf : both.leaves()) leaf.requires_grad_(true);
    const Read want = both.run(plain), got = join(left.run(plain), right.run(plain));
    EXPECT_LE(difference(got.out, want.out), 1e-13);
    EXPECT_LE(difference(got.lse, want.lse), 1e-13);
    const Tensor d_out = at::randn_like(want.out), d_lse = at::randn_like(want.lse);
    const auto a = torch::autograd::grad({want.out, want.lse}, both.leaves(), {d_out, d_lse});
    const auto b = torch::autograd::grad({got.out, got.lse}, both.leaves(), {d_out, d_lse});
    for (size_t n = 0; n < a.size(); ++n) EXPECT_LE(difference(b[n], a[n]), 1e-12) << n;
  }
}

TEST(Join, RowsThatSawNothing) {
  const auto read = [](double out, double lse) {
    Read r{at::full({1, 1, 1, 2}, out, at::kDouble), at::full({1, 1, 1}, lse, at::kDouble)};
    r.out.requires_grad_(true), r.lse.requires_grad_(true);
    return r;
  };
  const Read none = read(0, -INFINITY), some = read(3, 1000), other = read(5, 1000);
  for (const auto& [a, b, out, lse] :
       std::vector<std::tuple<Read, Read, double, double>>{{none, some, 3, 1000},
                                                           {some, none, 3, 1000},
                                                           {none, none, 0, -INFINITY},
                                                           {some, other, 4, 1000 + std::log(2.0)}}) {
    const Read got = join(a, b);
    EXPECT_DOUBLE_EQ(got.out[0][0][0][0].item<double>(), out);
    EXPECT_DOUBLE_EQ(got.lse.item<double>(), lse);
    for (const auto& g :
         torch::autograd::grad({got.out.sum() + got.lse.sum()}, {a.out, a.lse, b.out, b.lse}, {}, true, false, true))
      if (g.defined()) EXPECT_TRUE(g.isfinite().all().item<bool>());
  }
  EXPECT_THROW(join(some, {at::zeros({1, 1, 2, 2}), at::zeros({1, 1, 2})}), Error);
}

}  // namespace
}  // namespace kinfolk
