// Padding, whatever it holds and wherever it lies, moves no valid token and no gradient.
#pragma once
#include <torch/csrc/autograd/autograd.h>

#include "tests/support/attention.h"

namespace kinfolk::testing {

/// x [1, L, D] alone, and among padding before and behind it that holds zeros, large numbers or none.
inline void expect_padding_moves_nothing(Branch& branch, const Tensor& x) {
  const int64_t length = x.size(1);
  std::vector<Tensor> by;
  for (const auto& p : branch.parameters()) by.push_back(p);
  const auto through = [&](const Sequence& s, int64_t left) {
    const Tensor all = run(branch, s, {s.x.size(1)}), out = all.slice(1, left, left + length);
    const Tensor outside = at::cat({all.slice(1, 0, left), all.slice(1, left + length)}, 1);
    EXPECT_EQ(outside.abs().sum().item<double>(), 0) << "rows of padding are zero";
    auto results = torch::autograd::grad({(out * normal(out.sizes(), 99)).sum()}, by);
    results.push_back(out.detach());
    return results;
  };
  const auto alone = through({x}, 0);
  for (const auto& [left, right] : {std::pair{0, 30}, {43, 0}, {5, 6}}) {
    for (const double junk : {0.0, 1e3, std::nan("")}) {
      Sequence s{at::constant_pad_nd(x, {0, 0, left, right}, junk)};
      s.valid = at::zeros({1, length + left + right}, at::kBool);
      s.valid.slice(1, left, left + length).fill_(true);
      const auto padded = through(s, left);
      for (size_t n = 0; n < alone.size(); ++n) {
        EXPECT_LE(distance(padded[n], alone[n]), 1e-11)
            << left << " before, " << right << " behind, " << junk << ": " << n;
      }
    }
  }
}

}  // namespace kinfolk::testing
