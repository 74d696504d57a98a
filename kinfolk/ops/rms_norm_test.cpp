#include "kinfolk/ops/rms_norm.h"

#include <gtest/gtest.h>

namespace kinfolk {
namespace {

double apart(const Tensor& a, const Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST(RmsNorm, EqualsTorchWithItsGradients) {
  for (const auto type : {at::kDouble, at::kFloat})
    for (const int64_t rows : {1, 3, 512, 513, 1300})
      for (const bool weighted : {true, false}) {
        const auto options = at::TensorOptions().dtype(type);
        const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(rows));
        const Tensor x = at::randn({2, rows, 6}, generator, options).transpose(0, 1);  // not contiguous
        const Tensor weight = weighted ? at::randn({6}, generator, options) : Tensor();
        const Tensor cotangent = at::randn({rows, 2, 6}, generator, options);
        const auto run = [&](bool mine) {
          const Tensor leaf = x.detach().set_requires_grad(true);
          const Tensor w = weighted ? weight.detach().clone().set_requires_grad(true) : Tensor();
          const Tensor y = mine ? rms_norm(leaf, w, 1e-5)
                                : at::rms_norm(leaf, {6}, weighted ? std::optional(w) : std::nullopt, 1e-5);
          (y * cotangent).sum().backward();
          return std::vector<Tensor>{y.detach(), leaf.grad(), weighted ? w.grad() : at::zeros({1}, options)};
        };
        const auto got = run(true), want = run(false);
        for (size_t i = 0; i < got.size(); ++i) {
          const double bound = (type == at::kDouble ? 1e-12 : 2e-5) * std::max(1.0, want[i].abs().max().item<double>());
          EXPECT_LE(apart(got[i], want[i]), bound) << type << " " << rows << " " << weighted << " " << i;
        }
      }
}

TEST(RmsNorm, ZerosNothingAndOtherTypes) {
  const Tensor zero = at::zeros({2, 4}, at::kDouble).set_requires_grad(true);
  rms_norm(zero, {}, 1e-5).sum().backward();
  EXPECT_TRUE(zero.grad().isfinite().all().item<bool>());
  EXPECT_EQ(rms_norm(at::zeros({2, 0, 4}), at::ones({4}), 1e-5).sizes(), at::IntArrayRef({2, 0, 4}));
  EXPECT_EQ(rms_norm(at::ones({2, 4}, at::kBFloat16), {}, 1e-5).scalar_type(), at::kBFloat16);
  // A gain alone that learns.
  const Tensor weight = at::ones({4}, at::kDouble).set_requires_grad(true);
  rms_norm(at::full({3, 4}, 2.0, at::kDouble), weight, 0).sum().backward();
  EXPECT_LE(apart(weight.grad(), at::full({4}, 3.0, at::kDouble)), 1e-12);
}

}  // namespace
}  // namespace kinfolk
