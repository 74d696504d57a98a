#include "kinfolk/ops/relu_attend.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/pattern/pattern.h"

namespace kinfolk {
namespace {

TEST(ReluAttend, EqualsTheWholeMatrix) {
  at::manual_seed(1);
  const auto draw = [](at::IntArrayRef sizes) {
    return at::randn(sizes, at::TensorOptions().dtype(at::kDouble)).set_requires_grad(true);
  };
  for (const char* words : {"causal", "full", "causal & window(3)", "causal & (window(9) | stride(4))"})
    for (const auto& [length, keys] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 9}, {150, 600}, {600, 600}})
      for (const bool gaps : {false, true}) {
        const auto pattern = parse_pattern(words);
        const Tensor q = draw({2, 1, length, 4}), k = draw({2, 1, keys, 4}), v = draw({2, 1, keys, 6});
        Tensor k_at = at::arange(keys, at::kLong).repeat({2, 1}), q_at = k_at.narrow(1, keys - length, length).clone();
        Tensor k_document, q_document;
        if (gaps) {
          k_at.masked_fill_(at::rand({2, keys}).lt(0.2), -1), q_at.masked_fill_(at::rand({2, length}).lt(0.2), -1);
          k_document = k_at.gt(keys / 2).to(at::kLong), q_document = q_at.gt(keys / 2).to(at::kLong);
        }
        const auto read = relu_attend(q, q_at, q_document, {k, v, k_at, k_document, {}, {}}, pattern, 0.3);
        const Tensor i = q_at.unsqueeze(1).unsqueeze(3), j = k_at.unsqueeze(1).unsqueeze(2);
        Tensor seen = pattern->sees(i, j).logical_and(i.ge(0)).logical_and(j.ge(0));
        if (gaps)
          seen = seen.logical_and(q_document.unsqueeze(1).unsqueeze(3).eq(k_document.unsqueeze(1).unsqueeze(2)));
        const Tensor want =
            at::matmul((at::matmul(q, k.transpose(2, 3)) * 0.3).relu().square() * seen.to(at::kDouble), v);
        const Tensor g = at::randn_like(want);
        const auto got = torch::autograd::grad({read.out}, {q, k, v}, {g});
        const auto expected = torch::autograd::grad({want}, {q, k, v}, {g});
        EXPECT_LE((read.out - want).abs().max().item<double>(), 1e-10) << words << " " << length;
        EXPECT_TRUE(read.count.eq(seen.sum(-1)).all().item<bool>()) << words << " " << length;
        for (size_t n = 0; n < 3; ++n)
          EXPECT_LE((got[n] - expected[n]).abs().max().item<double>(), 1e-10) << words << " " << length << " " << n;
      }
}

TEST(ReluAttend, RefusesWhatItCannotRead) {
  const Tensor q = at::randn({1, 1, 3, 4}), at = at::arange(3, at::kLong).unsqueeze(0);
  EXPECT_THROW(relu_attend(q, at, {}, {at::randn({1, 1, 3, 5}), q, at, {}, {}, {}}, parse_pattern("causal"), 1), Error);
  EXPECT_THROW(relu_attend(q, at, {}, {q, q, at, {}, at, {}}, parse_pattern("causal"), 1), Error);
}

}  // namespace
}  // namespace kinfolk
