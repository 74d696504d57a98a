#include "kinfolk/ops/short_conv.h"

#include <gtest/gtest.h>

#include "kinfolk/reference/linear.h"
#include "kinfolk/reference/scan_checks.h"

namespace kinfolk {
namespace {
using reference::Tensors;

ShortConv random_conv(int64_t B, int64_t L, int64_t D, int64_t W) {
  at::manual_seed(11);
  const at::TensorOptions as = at::TensorOptions().dtype(at::kDouble);
  ShortConv c{at::randn({B, L, D}, as), at::randn({D, W}, as), at::randn({D}, as), at::randn({B, D, W - 1}, as), true};
  return c;
}
Tensors inputs_of(const ShortConv& c) { return {c.x, c.weight, c.bias, c.state}; }
ShortConv with(ShortConv c, const Tensors& in) {
  c.x = in[0], c.weight = in[1], c.bias = in[2], c.state = in[3];
  return c;
}

ShortConved in_pieces(const ShortConv& c, const std::vector<int64_t>& pieces) {
  ShortConv part = c;
  ShortConved done;
  Tensors out;
  int64_t from = 0;
  for (int64_t n : pieces) {
    part.x = c.x.narrow(1, from, n);
    if (c.lanes.valid.defined()) part.lanes.valid = c.lanes.valid.narrow(1, from, n);
    if (c.lanes.first.defined()) part.lanes.first = c.lanes.first.narrow(1, from, n);
    done = short_conv(part);
    out.push_back(done.out);
    part.state = done.state;
    from += n;
  }
  return {at::cat(out, 1), done.state};
}

TEST(ShortConvolution, Golden) {
  for (const auto& one : golden::cases("recurrent/short_conv")) {
    const Tensor x = one.at("in.x"), w = one.at("param.weight");
    const bool silu = one.config.at("activation").get<std::string>() == "silu";
    const std::vector<std::string> in{"in.x", "param.weight", "param.bias", "in.initial_state"},
        out{"y", "final_state"};
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const bool cut : {false, true}) {
        const auto f = [&](const Tensors& t) {
          const ShortConved done = in_pieces({t[0], t[1], t[2], t[3], silu},
                                             cut ? reference::pieces(one, x.size(1)) : std::vector<int64_t>{x.size(1)});
          return Tensors{done.out, done.state};
        };
        reference::expect_golden(one, in, out, f, type, cut ? "pieces" : "whole");
      }
    }
    const auto loop = [&](const Tensors& t) {
      const Tensor past = t[3].defined() ? t[3] : at::zeros({x.size(0), x.size(2), w.size(1) - 1}, x.options());
      const auto ran = reference::short_conv(t[0], t[1], t[2], past, silu);
      return Tensors{ran.out, ran.state};
    };
    reference::expect_golden(one, in, out, loop, at::kDouble, "reference");
  }
}

// Gaps and borders: each lane, with its gaps cut out and from its last border on, is a plain sequence.
TEST(ShortConvolution, GapsAreCrossedAndBordersAreNot) {
  for (int64_t W : {1, 2, 4}) {
    ShortConv c = random_conv(4, 40, 3, W);
    c.lanes.valid = at::rand({4, 40}) > 0.4;
    c.lanes.valid[3].fill_(false);
    c.lanes.first = at::rand({4, 40}) > 0.85;
    const ShortConved got = short_conv(c);
    for (int64_t b = 0; b < 4; b++) {
      Tensor past = c.state.narrow(0, b, 1);
      for (int64_t t = 0; t < 40; t++) {
        const Tensor y = got.out[b][t];
        if (!c.lanes.valid[b][t].item<bool>()) {
          EXPECT_EQ(y.abs().max().item<double>(), 0);
          continue;
        }
        if (c.lanes.first[b][t].item<bool>()) past = at::zeros_like(past);
        const auto one = reference::short_conv(c.x.narrow(0, b, 1).narrow(1, t, 1), c.weight, c.bias, past, true);
        reference::expect_near(y, one.out[0][0], 1e-12, text("W ", W, " lane ", b, " token ", t));
        past = one.state;
      }
      reference::expect_near(got.state[b], past[0], 1e-12, text("state of lane ", b));
    }
  }
}

// The kernel at lengths below, at and beyond the taps, at channels that no vector divides, on rows that lie apart.
TEST(ShortConvolution, FusedAgreesWithPlain) {
  for (const auto& [B, L, D, W] : std::vector<std::array<int64_t, 4>>{
           {2, 1, 3, 4}, {1, 2, 16, 4}, {2, 3, 17, 4}, {2, 50, 64, 4}, {1, 33, 200, 3}, {2, 7, 5, 1}, {1, 9, 21, 9}}) {
    for (const bool silu : {false, true}) {
      const ShortConv wide = random_conv(B, L, D, W);
      const auto run = [&](bool plain) {
        ShortConv c = wide;
        c.silu = silu, c.plain = plain;
        Tensors in;
        for (const Tensor& t : inputs_of(c)) in.push_back(reference::leaf(t.to(plain ? at::kDouble : at::kFloat)));
        ShortConv given = with(c, in);
        if (!plain) given.x = at::cat({in[0], in[0]}, 2).narrow(2, 0, c.x.size(2));
        const ShortConved done = short_conv(given);
        Tensors out{done.out, done.state}, cot;
        for (const Tensor& t : reference::cotangents(out)) cot.push_back(t);
        const Tensors slopes = reference::gradients(out, cot, in);
        out.insert(out.end(), slopes.begin(), slopes.end());
        return out;
      };
      const Tensors got = run(false), want = run(true);
      for (size_t i = 0; i < got.size(); i++) {
        reference::expect_near(got[i], want[i], 1e-5, text("L ", L, " D ", D, " W ", W, " tensor ", i));
      }
    }
  }
}

TEST(ShortConvolution, EverySplitGivesTheSame) {
  ShortConv c = random_conv(2, 30, 3, 4);
  c.lanes.valid = at::rand({2, 30}) > 0.3;
  c.lanes.first = at::rand({2, 30}) > 0.9;
  const Tensors a = reference::leaves(inputs_of(c));
  const ShortConved whole = short_conv(with(c, a));
  const Tensors cot = reference::cotangents({whole.out, whole.state});
  const Tensors want = reference::gradients({whole.out, whole.state}, cot, a);
  for (int64_t split = 1; split < 30; split++) {
    const Tensors b = reference::leaves(inputs_of(c));
    const ShortConved cut = in_pieces(with(c, b), {split, 30 - split});
    reference::expect_near(cut.out, whole.out, 1e-12, "out");
    reference::expect_near(cut.state, whole.state, 1e-12, "state");
    const Tensors got = reference::gradients({cut.out, cut.state}, cot, b);
    for (size_t i = 0; i < got.size(); i++) reference::expect_near(got[i], want[i], 1e-11, text("gradient ", i));
  }
}

TEST(ShortConvolution, GradientsMatchFiniteDifferences) {
  ShortConv c = random_conv(2, 6, 2, 3);
  c.lanes.valid = at::ones({2, 6}, at::kBool);
  c.lanes.valid[1][2].fill_(false);
  c.lanes.first = at::zeros({2, 6}, at::kBool);
  c.lanes.first[0][3].fill_(true);
  const auto f = [&](const Tensors& in) {
    const ShortConved done = short_conv(with(c, in));
    return Tensors{done.out, done.state};
  };
  reference::expect_gradients(f, inputs_of(c), "short_conv");
}

}  // namespace
}  // namespace kinfolk
