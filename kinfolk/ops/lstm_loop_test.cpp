#include "kinfolk/ops/lstm_loop.h"

#include <gtest/gtest.h>

#include "kinfolk/reference/recurrent.h"
#include "kinfolk/reference/scan_checks.h"

namespace kinfolk {
namespace {
using reference::Tensors;

LstmLoop random_run(int64_t B, int64_t L, int64_t I, int64_t N) {
  at::manual_seed(2);
  const at::TensorOptions as = at::TensorOptions().dtype(at::kDouble);
  return {at::randn({B, L, I}, as), at::randn({4 * N, I}, as), at::randn({4 * N, N}, as), at::randn({4 * N}, as),
          at::randn({4 * N}, as),   at::randn({B, N}, as),     at::randn({B, N}, as),     {}};
}
Tensors inputs_of(const LstmLoop& r) { return {r.x, r.weight_ih, r.weight_hh, r.bias_ih, r.bias_hh, r.hidden, r.cell}; }
LstmLoop with(LstmLoop r, const Tensors& in) {
  r.x = in[0], r.weight_ih = in[1], r.weight_hh = in[2], r.bias_ih = in[3], r.bias_hh = in[4], r.hidden = in[5];
  r.cell = in[6];
  return r;
}
Tensors outputs_of(const LstmLooped& r) { return {r.out, r.hidden, r.cell}; }

LstmLooped in_pieces(const LstmLoop& r, const std::vector<int64_t>& pieces) {
  LstmLoop part = r;
  LstmLooped done;
  Tensors out;
  int64_t from = 0;
  for (int64_t n : pieces) {
    part.x = r.x.narrow(1, from, n);
    if (r.lanes.valid.defined()) part.lanes.valid = r.lanes.valid.narrow(1, from, n);
    if (r.lanes.first.defined()) part.lanes.first = r.lanes.first.narrow(1, from, n);
    done = lstm_loop(part);
    out.push_back(done.out);
    part.hidden = done.hidden, part.cell = done.cell;
    from += n;
  }
  done.out = at::cat(out, 1);
  return done;
}

TEST(LstmLoopOp, Golden) {
  for (const auto& one : golden::cases("recurrent/lstm")) {
    const std::vector<std::string> in{"in.x", "param.w_ih", "param.w_hh", "param.b_ih", "param.b_hh", "in.h0", "in.c0"},
        out{"y", "h_last", "c_last"};
    const int64_t length = one.at("in.x").size(1);
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const bool cut : {false, true}) {
        const auto f = [&](const Tensors& t) {
          return outputs_of(in_pieces({t[0], t[1], t[2], t[3], t[4], t[5], t[6], {}},
                                      cut ? reference::pieces(one, length) : std::vector<int64_t>{length}));
        };
        reference::expect_golden(one, in, out, f, type, cut ? "pieces" : "whole");
      }
    }
    const auto loop = [](const Tensors& t) {
      const auto ran = reference::lstm(t[0], t[5], t[6], t[1], t[2], t[3], t[4]);
      return Tensors{ran.y, ran.h, ran.c};
    };
    reference::expect_golden(one, in, out, loop, at::kDouble, "reference");
  }
}

TEST(LstmLoopOp, GoldenOfTheOtherCells) {
  const std::vector<std::string> in{"in.x", "in.h0", "param.w_ih", "param.w_hh", "param.b_ih", "param.b_hh"},
      out{"y", "h_last"};
  for (const auto& one : golden::cases("recurrent/rnn_tanh")) {
    const auto f = [](const Tensors& t) {
      const auto ran = reference::rnn_tanh(t[0], t[1], t[2], t[3], t[4], t[5]);
      return Tensors{ran.y, ran.h};
    };
    reference::expect_golden(one, in, out, f, at::kDouble, "rnn_tanh");
  }
  for (const auto& one : golden::cases("recurrent/gru")) {
    const bool before = one.config.value("variant", "after") == "before";
    const auto f = [&](const Tensors& t) {
      const auto ran = reference::gru(t[0], t[1], t[2], t[3], t[4], t[5], before);
      return Tensors{ran.y, ran.h};
    };
    reference::expect_golden(one, in, out, f, at::kDouble, "gru");
  }
  for (const auto& one : golden::cases("recurrent/rnn_general")) {
    const auto f = [](const Tensors& t) {
      const auto ran = reference::rnn_general(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]);
      return Tensors{ran.y, ran.h};
    };
    reference::expect_golden(
        one, {"in.x", "in.h0", "param.w_a", "param.b_a", "param.w_b", "param.b_b", "param.w_c", "param.b_c"}, out, f,
        at::kDouble, "rnn_general");
  }
}

// Gaps and borders, token by token through the reference.
TEST(LstmLoopOp, GapsAreCrossedAndBordersReset) {
  LstmLoop r = random_run(3, 20, 2, 3);
  r.lanes.valid = at::rand({3, 20}) > 0.4;
  r.lanes.first = at::rand({3, 20}) > 0.8;
  const LstmLooped got = lstm_loop(r);
  for (int64_t b = 0; b < 3; b++) {
    Tensor h = r.hidden.narrow(0, b, 1), c = r.cell.narrow(0, b, 1);
    for (int64_t t = 0; t < 20; t++) {
      if (!r.lanes.valid[b][t].item<bool>()) {
        EXPECT_EQ(got.out[b][t].abs().max().item<double>(), 0);
        continue;
      }
      if (r.lanes.first[b][t].item<bool>()) h = at::zeros_like(h), c = at::zeros_like(c);
      const auto one =
          reference::lstm(r.x.narrow(0, b, 1).narrow(1, t, 1), h, c, r.weight_ih, r.weight_hh, r.bias_ih, r.bias_hh);
      h = one.h, c = one.c;
      reference::expect_near(got.out[b][t], h[0], 1e-12, text("lane ", b, " token ", t));
    }
    reference::expect_near(got.hidden[b], h[0], 1e-12, "hidden");
    reference::expect_near(got.cell[b], c[0], 1e-12, "cell");
  }
}

TEST(LstmLoopOp, GradientsMatchFiniteDifferences) {
  LstmLoop r = random_run(2, 5, 2, 2);
  for (const bool lanes : {false, true}) {
    if (lanes) {
      r.lanes.valid = at::ones({2, 5}, at::kBool);
      r.lanes.valid[1][2].fill_(false);
      r.lanes.first = at::zeros({2, 5}, at::kBool);
      r.lanes.first[0][3].fill_(true);
      r.lanes.first[1][2].fill_(true);  // at an invalid token: no border
    }
    reference::expect_gradients([&](const Tensors& in) { return outputs_of(lstm_loop(with(r, in))); }, inputs_of(r),
                                text("lanes ", lanes));
  }
}

// In float32 a sequence without gaps and borders is computed by another library than one whose tokens are all valid.
TEST(LstmLoopOp, BothWaysOfFloatAgreeWithDouble) {
  for (const int64_t N : {5, 32}) {
    const LstmLoop wide = random_run(3, 40, 7, N);
    Tensors scaled = inputs_of(wide);
    for (size_t i = 1; i < 3; i++) scaled[i] = scaled[i] * 0.3;
    Tensors exact = reference::leaves(scaled);
    const Tensors want = outputs_of(lstm_loop(with(wide, exact)));
    const Tensors cot = reference::cotangents(want), slopes = reference::gradients(want, cot, exact);
    for (const bool marked : {false, true}) {
      LstmLoop narrow = wide;
      if (marked) narrow.lanes.valid = at::ones({3, 40}, at::kBool);
      Tensors in, cot32;
      for (const Tensor& t : scaled) in.push_back(reference::leaf(t.to(at::kFloat)));
      for (const Tensor& t : cot) cot32.push_back(t.to(at::kFloat));
      const Tensors got = outputs_of(lstm_loop(with(narrow, in)));
      for (size_t i = 0; i < got.size(); i++) reference::expect_near(got[i], want[i], 1e-5, text("output ", i));
      const Tensors grads = reference::gradients(got, cot32, in);
      for (size_t i = 0; i < in.size(); i++) {
        reference::expect_near(grads[i], slopes[i], 1e-5, text("gradient ", i, " marked ", marked, " N ", N));
      }
    }
  }
}

TEST(LstmLoopOp, StrongValuesStayFinite) {
  LstmLoop r = random_run(2, 50, 3, 4);
  for (Tensor* t : {&r.x, &r.weight_ih, &r.weight_hh}) *t = (*t * 1e4).to(at::kFloat);
  for (Tensor* t : {&r.bias_ih, &r.bias_hh, &r.hidden, &r.cell}) *t = t->to(at::kFloat);
  const Tensors in = reference::leaves(inputs_of(r));
  const Tensors out = outputs_of(lstm_loop(with(r, in)));
  for (const Tensor& t : out) EXPECT_TRUE(t.isfinite().all().item<bool>());
  for (const Tensor& g : reference::gradients(out, reference::cotangents(out), in)) {
    EXPECT_TRUE(g.isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace kinfolk
