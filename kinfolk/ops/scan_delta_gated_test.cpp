// The delta rule with a decay: the same laws as without, at decays from none to all.
#include <gtest/gtest.h>

#include "kinfolk/ops/scan_delta.h"
#include "kinfolk/reference/linear.h"
#include "kinfolk/reference/scan_checks.h"

namespace kinfolk {
namespace {
using reference::Tensors;

DeltaScan random_scan(int64_t B, int64_t H, int64_t L, int64_t K, int64_t V, double strength = 0.3) {
  at::manual_seed(6);
  const at::TensorOptions as = at::TensorOptions().dtype(at::kDouble);
  const Tensor k = at::randn({B, H, L, K}, as);
  DeltaScan s{at::randn({B, H, L, K}, as), k / k.norm(2, -1, true),     at::randn({B, H, L, V}, as),
              2 * at::rand({B, H, L}, as), at::randn({B, H, K, V}, as), 0.5};
  s.log_decay = -strength * at::rand({B, H, L}, as);
  return s;
}
Tensors inputs_of(const DeltaScan& s) { return {s.q, s.k, s.v, s.beta, s.state, s.log_decay}; }
DeltaScan with(DeltaScan s, const Tensors& in) {
  s.q = in[0], s.k = in[1], s.v = in[2], s.beta = in[3], s.state = in[4], s.log_decay = in[5];
  return s;
}
DeltaScan narrowed(const DeltaScan& s) {
  Tensors less;
  for (const Tensor& t : inputs_of(s)) less.push_back(t.to(at::kFloat));
  return with(s, less);
}

// chunk 0: step by step.
Scanned in_pieces(const DeltaScan& s, const std::vector<int64_t>& pieces, int64_t chunk) {
  DeltaScan part = s;
  Scanned done;
  Tensors out;
  int64_t from = 0;
  for (int64_t n : pieces) {
    const auto cut = [&](const Tensor& t, int64_t axis) { return t.defined() ? t.narrow(axis, from, n) : t; };
    part.q = cut(s.q, 2), part.k = cut(s.k, 2), part.v = cut(s.v, 2), part.beta = cut(s.beta, 2);
    part.log_decay = cut(s.log_decay, 2);
    part.lanes = {cut(s.lanes.valid, 1), cut(s.lanes.first, 1)};
    done = chunk > 0 ? scan_delta(part, chunk) : scan_delta_steps(part);
    out.push_back(done.out);
    part.state = done.state;
    from += n;
  }
  return {at::cat(out, 2), done.state};
}

void expect_same(const DeltaScan& s, const DeltaScan& t, const std::function<Scanned(const DeltaScan&)>& f,
                 const std::function<Scanned(const DeltaScan&)>& g, double tolerance, const std::string& what) {
  const Tensors a = reference::leaves(inputs_of(s)), b = reference::leaves(inputs_of(t));
  const Scanned fa = f(with(s, a)), gb = g(with(t, b));
  reference::expect_near(fa.out, gb.out, tolerance, what + " out");
  reference::expect_near(fa.state, gb.state, tolerance, what + " state");
  const Tensors cot = reference::cotangents({gb.out, gb.state});
  const auto as = fa.state.scalar_type();
  const Tensors da = reference::gradients({fa.out, fa.state}, {cot[0].to(as), cot[1].to(as)}, a),
                db = reference::gradients({gb.out, gb.state}, cot, b);
  for (size_t i = 0; i < da.size(); i++) reference::expect_near(da[i], db[i], tolerance, text(what, " gradient ", i));
}

TEST(ScanGatedDelta, Golden) {
  for (const auto& one : golden::cases("recurrent/gated_deltanet")) {
    const Tensor k = one.at("in.k");
    const double scale = 1 / std::sqrt(static_cast<double>(k.size(3)));
    ASSERT_EQ(one.config.at("scale").get<std::string>(), "rsqrt");
    const bool norm = one.config.value("qk_l2norm", false);
    const double eps = one.config.value("l2_eps", 0.0);
    const auto key = [&](const Tensor& x) { return norm ? x / (x.square().sum(-1, true) + eps).sqrt() : x; };
    const std::vector<std::string> in{"in.q", "in.k", "in.v", "in.beta", "in.initial_state", "in.log_decay"},
        out{"o", "final_state"};
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const bool cut : {false, true}) {
        for (int64_t chunk : {0, 1, 7, 16, 64, 1000}) {
          const auto f = [&](const Tensors& t) {
            DeltaScan s{key(t[0]), key(t[1]), t[2], t[3], t[4], scale};
            s.log_decay = t[5];
            const auto pieces = cut ? reference::pieces(one, k.size(2)) : std::vector<int64_t>{k.size(2)};
            const Scanned done = in_pieces(s, pieces, chunk);
            return Tensors{done.out, done.state};
          };
          reference::expect_golden(one, in, out, f, type, "chunk " + std::to_string(chunk));
        }
      }
    }
    const auto loop = [&](const Tensors& t) {
      const auto ran = reference::gated_delta_rule(key(t[0]), key(t[1]), t[2], t[3], t[5], t[4], scale);
      return Tensors{ran.out, ran.state};
    };
    reference::expect_golden(one, in, out, loop, at::kDouble, "reference");
  }
}

TEST(ScanGatedDelta, ChunksAgreeWithStepsWithGapsAndBorders) {
  for (const int marks : {0, 1, 2, 3}) {
    DeltaScan s = random_scan(3, 2, 67, 5, 4);
    if (marks & 1) s.lanes.valid = at::rand({3, 67}) > 0.3;
    if (marks & 2) s.lanes.first = at::rand({3, 67}) > 0.9;
    for (int64_t chunk : {1, 7, 16, 33, 1000}) {
      expect_same(
          s, s, [&](const DeltaScan& x) { return scan_delta(x, chunk); }, scan_delta_steps, 1e-10,
          text("marks ", marks, " chunk ", chunk));
    }
  }
}

TEST(ScanGatedDelta, FusedAgreesWithStepsInDouble) {
  for (const double strength : {0.0, 0.3, 3.0, 100.0}) {
    for (int64_t length : {1, 16, 17, 100, 257}) {
      for (int64_t chunk : {16, 48, 64}) {
        DeltaScan wide = random_scan(2, 3, length, 32, 48, strength);
        wide.lanes.valid = at::rand({2, length}) > 0.2;
        expect_same(
            narrowed(wide), wide, [&](const DeltaScan& x) { return scan_delta(x, chunk); }, scan_delta_steps, 3e-5,
            text("strength ", strength, " length ", length, " chunk ", chunk));
      }
    }
  }
}

// -50 a step in some heads, 0 in others, and some tokens that forget everything.
TEST(ScanGatedDelta, StrongDecayIsFiniteAndRight) {
  for (const bool plain : {false, true}) {
    for (const double all : {-1e4, -std::numeric_limits<double>::infinity()}) {
      DeltaScan wide = random_scan(1, 4, 130, 16, 16);
      wide.log_decay.select(1, 0).fill_(-50);
      wide.log_decay.select(1, 1).fill_(0);
      wide.log_decay.select(1, 2).fill_(0).slice(1, 3, 130, 9).fill_(all);
      wide.plain = plain;
      expect_same(
          narrowed(wide), wide, [](const DeltaScan& x) { return scan_delta(x, 64); }, scan_delta_steps, 3e-5,
          text("plain ", plain, " all ", all));
      expect_same(
          wide, wide, [](const DeltaScan& x) { return scan_delta(x, 64); }, scan_delta_steps, 1e-10, "double");
    }
  }
}

TEST(ScanGatedDelta, NoDecayIsTheDeltaRule) {
  DeltaScan s = narrowed(random_scan(2, 2, 100, 16, 16)), without = s;
  s.log_decay.zero_();
  without.log_decay = Tensor();
  const Scanned got = scan_delta(s, 32), want = scan_delta(without, 32);
  reference::expect_near(got.out, want.out, 1e-6, "out");
  reference::expect_near(got.state, want.state, 1e-6, "state");
}

TEST(ScanGatedDelta, EverySplitGivesTheSame) {
  DeltaScan s = random_scan(2, 2, 130, 3, 2);
  s.lanes.valid = at::rand({2, 130}) > 0.2;
  s.lanes.first = at::rand({2, 130}) > 0.95;
  for (int64_t split = 1; split < 130; split++) {
    expect_same(
        s, s,
        [&](const DeltaScan& x) {
          return in_pieces(x, {split, 130 - split}, 64);
        },
        [](const DeltaScan& x) { return scan_delta(x, 64); }, 1e-10, text("split ", split));
  }
}

TEST(ScanGatedDelta, GradientsMatchFiniteDifferences) {
  for (const bool channels : {false, true}) {
    DeltaScan s = random_scan(2, 1, 6, 2, 3);
    if (channels) s.beta = at::rand({2, 1, 6, 3}, s.q.options());
    s.lanes.valid = at::ones({2, 6}, at::kBool);
    s.lanes.valid[1][2].fill_(false);
    s.lanes.first = at::zeros({2, 6}, at::kBool);
    s.lanes.first[0][3].fill_(true);
    const auto f = [&](const Tensors& in) {
      const Scanned done = scan_delta(with(s, in), 4);
      return Tensors{done.out, done.state};
    };
    reference::expect_gradients(f, inputs_of(s), text("beta per channel ", channels));
  }
}

TEST(ScanGatedDelta, InvalidTokensMayHoldAnything) {
  for (const int64_t d : {3, 16}) {
    DeltaScan s = random_scan(2, 2, 20, d, d);
    if (d == 16) s = narrowed(s);
    s.lanes.valid = at::ones({2, 20}, at::kBool);
    s.lanes.valid.narrow(1, 8, 3).fill_(false);
    const Scanned want = scan_delta(s, 7);
    for (const Tensor& t : {s.q, s.k, s.v, s.beta, s.log_decay}) t.narrow(2, 8, 3).fill_(NAN);
    const Tensors in = reference::leaves(inputs_of(s));
    const Scanned got = scan_delta(with(s, in), 7);
    reference::expect_near(got.out, want.out, 0, "out");
    reference::expect_near(got.state, want.state, 0, "state");
    for (const Tensor& g : reference::gradients({got.out}, {at::ones_like(got.out)}, in)) {
      EXPECT_TRUE(g.isfinite().all().item<bool>());
    }
  }
}

TEST(ScanGatedDelta, RefusesADecayOfAnotherShape) {
  DeltaScan s = random_scan(1, 2, 8, 2, 2);
  s.log_decay = s.log_decay.unsqueeze(-1);
  EXPECT_THROW(scan_delta(s, 4), Error);
}

}  // namespace
}  // namespace kinfolk
