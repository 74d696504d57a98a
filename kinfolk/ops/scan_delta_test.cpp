#include "kinfolk/ops/scan_delta.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "kinfolk/reference/linear.h"
#include "kinfolk/reference/scan_checks.h"

namespace kinfolk {
namespace {
using reference::Tensors;

Tensor unit(const Tensor& x) { return x / x.norm(2, -1, true); }

DeltaScan random_scan(int64_t B, int64_t H, int64_t L, int64_t K, int64_t V, at::ScalarType type = at::kDouble) {
  at::manual_seed(5);
  const at::TensorOptions as = at::TensorOptions().dtype(at::kDouble);
  DeltaScan s{at::randn({B, H, L, K}, as), unit(at::randn({B, H, L, K}, as)), at::randn({B, H, L, V}, as),
              2 * at::rand({B, H, L}, as), at::randn({B, H, K, V}, as),       0.5};
  for (Tensor* t : {&s.q, &s.k, &s.v, &s.beta, &s.state}) *t = t->to(type);
  return s;
}

Tensors inputs_of(const DeltaScan& s) {
  Tensors all{s.q, s.k, s.v, s.beta, s.state};
  if (s.log_decay.defined()) all.push_back(s.log_decay);
  return all;
}
DeltaScan with(DeltaScan s, const Tensors& in) {
  s.q = in[0], s.k = in[1], s.v = in[2], s.beta = in[3], s.state = in[4];
  if (s.log_decay.defined()) s.log_decay = in[5];
  return s;
}

// chunk 0: step by step.
Scanned in_pieces(const DeltaScan& s, const std::vector<int64_t>& pieces, int64_t chunk) {
  DeltaScan part = s;
  Scanned done;
  Tensors out;
  int64_t from = 0;
  for (int64_t n : pieces) {
    part.q = s.q.narrow(2, from, n), part.k = s.k.narrow(2, from, n), part.v = s.v.narrow(2, from, n);
    part.beta = s.beta.narrow(2, from, n);
    if (s.log_decay.defined()) part.log_decay = s.log_decay.narrow(2, from, n);
    if (s.lanes.valid.defined()) part.lanes.valid = s.lanes.valid.narrow(1, from, n);
    if (s.lanes.first.defined()) part.lanes.first = s.lanes.first.narrow(1, from, n);
    done = chunk > 0 ? scan_delta(part, chunk) : scan_delta_steps(part);
    out.push_back(done.out);
    part.state = done.state;
    from += n;
  }
  return {at::cat(out, 2), done.state};
}

void expect_same(const DeltaScan& s, const std::function<Scanned(const DeltaScan&)>& f,
                 const std::function<Scanned(const DeltaScan&)>& g, double tolerance, const std::string& what) {
  const Tensors a = reference::leaves(inputs_of(s)), b = reference::leaves(inputs_of(s));
  const Scanned fa = f(with(s, a)), gb = g(with(s, b));
  reference::expect_near(fa.out, gb.out, tolerance, what + " out");
  reference::expect_near(fa.state, gb.state, tolerance, what + " state");
  const Tensors cot = reference::cotangents({fa.out, fa.state});
  const Tensors da = reference::gradients({fa.out, fa.state}, cot, a),
                db = reference::gradients({gb.out, gb.state}, cot, b);
  for (size_t i = 0; i < da.size(); i++) {
    reference::expect_near(da[i], db[i], tolerance, what + " gradient " + std::to_string(i));
  }
}

TEST(ScanDelta, GoldenDeltanet) {
  for (const auto& one : golden::cases("recurrent/deltanet")) {
    const Tensor k = one.at("in.k"), v = one.at("in.v");
    const auto config = one.config.at("scale");
    const double scale = config.is_string() ? 1 / std::sqrt(static_cast<double>(k.size(3))) : config.get<double>();
    const bool norm = one.config.value("qk_l2norm", false);
    const double eps = one.config.value("l2_eps", 0.0);
    const auto key = [&](const Tensor& x) { return norm ? x / (x.square().sum(-1, true) + eps).sqrt() : x; };
    const std::vector<std::string> in{"in.q", "in.k", "in.v", "in.beta", "in.initial_state"}, out{"o", "final_state"};
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const bool cut : {false, true}) {
        for (int64_t chunk : {0, 1, 7, 16, 64, 1000}) {
          const auto f = [&](const Tensors& t) {
            const DeltaScan s{key(t[0]), key(t[1]), t[2], t[3], t[4], scale};
            const auto pieces = cut ? reference::pieces(one, k.size(2)) : std::vector<int64_t>{k.size(2)};
            const Scanned done = in_pieces(s, pieces, chunk);
            return Tensors{done.out, done.state};
          };
          reference::expect_golden(one, in, out, f, type, "chunk " + std::to_string(chunk));
        }
      }
    }
    const auto loop = [&](const Tensors& t) {
      const Tensor state = t[4].defined() ? t[4] : at::zeros({k.size(0), k.size(1), k.size(3), v.size(3)}, k.options());
      const auto ran = reference::delta_rule(key(t[0]), key(t[1]), t[2], t[3], state, scale);
      return Tensors{ran.out, ran.state};
    };
    reference::expect_golden(one, in, out, loop, at::kDouble, "reference");
  }
}

TEST(ScanDelta, StateAfterEachPieceIsTheGoldenOne) {
  int checked = 0;
  for (const auto& one : golden::cases("recurrent/deltanet")) {
    if (!one.config.contains("pieces")) continue;
    const double eps = one.config.at("l2_eps").get<double>();
    const auto key = [&](const Tensor& x) { return x / (x.square().sum(-1, true) + eps).sqrt(); };
    DeltaScan s{key(one.at("in.q")), key(one.at("in.k")), one.at("in.v"), one.at("in.beta"),
                one.at("in.initial_state")};
    const Tensors full = inputs_of(s);
    int64_t from = 0;
    for (int64_t n : reference::pieces(one, 0)) {
      s.q = full[0].narrow(2, from, n), s.k = full[1].narrow(2, from, n), s.v = full[2].narrow(2, from, n);
      s.beta = full[3].narrow(2, from, n);
      s.state = scan_delta(s, 16).state;
      from += n;
      const std::string after = "out.final_state_after_" + std::to_string(from);
      if (!one.has(after)) continue;
      golden::expect_close(s.state, one.at(after), one, after);
      checked++;
    }
  }
  EXPECT_GT(checked, 0);
}

TEST(ScanDelta, ChunksAgreeWithStepsWithGapsAndBorders) {
  for (const bool gaps : {false, true}) {
    for (const bool documents : {false, true}) {
      DeltaScan s = random_scan(3, 2, 67, 5, 4);
      if (gaps) s.lanes.valid = at::rand({3, 67}) > 0.3;
      if (documents) s.lanes.first = at::rand({3, 67}) > 0.9;
      for (int64_t chunk : {1, 7, 16, 17, 33, 64, 1000}) {
        expect_same(
            s, [&](const DeltaScan& x) { return scan_delta(x, chunk); }, scan_delta_steps, 1e-10,
            text("gaps ", gaps, " documents ", documents, " chunk ", chunk));
      }
    }
  }
}

TEST(ScanDelta, FloatAgreesWithDouble) {
  for (int64_t d : {16, 32, 40, 64, 80}) {
    for (const int marks : {0, 1, 2}) {
      DeltaScan s = random_scan(2, 2, 150, d, 32, at::kFloat), wide = random_scan(2, 2, 150, d, 32);
      if (marks > 0) s.lanes.valid = wide.lanes.valid = at::rand({2, 150}) > 0.3;
      if (marks > 1) {
        s.lanes.first = wide.lanes.first = at::rand({2, 150}) > 0.97;
      }
      const Tensors a = reference::leaves(inputs_of(s)), b = reference::leaves(inputs_of(wide));
      const Scanned f = scan_delta(with(s, a), 64), w = scan_delta_steps(with(wide, b));
      reference::expect_near(f.out, w.out, 2e-5, "out");
      reference::expect_near(f.state, w.state, 2e-5, "state");
      const Tensors cot = reference::cotangents({w.out, w.state});
      const Tensors da = reference::gradients({f.out, f.state}, {cot[0].to(at::kFloat), cot[1].to(at::kFloat)}, a),
                    db = reference::gradients({w.out, w.state}, cot, b);
      for (size_t i = 0; i < da.size(); i++) reference::expect_near(da[i], db[i], 5e-5, text("gradient ", i, " d ", d));
    }
  }
}

// The kernel against the plain path, at every kind of chunk and at lengths that no chunk divides.
TEST(ScanDelta, FusedAgreesWithPlain) {
  ASSERT_EQ(why_not_fused_delta(32, 48, at::kFloat), "");
  for (int64_t length : {1, 5, 15, 16, 17, 64, 100, 257}) {
    for (int64_t chunk : {1, 16, 31, 48, 64, 1000}) {
      DeltaScan s = random_scan(2, 3, length, 32, 48, at::kFloat);
      s.lanes.valid = at::rand({2, length}) > 0.2;
      expect_same(
          s, [&](const DeltaScan& x) { return scan_delta(x, chunk); },
          [](DeltaScan x) {
            x.plain = true;
            return scan_delta(x, 16);
          },
          2e-5, text("length ", length, " chunk ", chunk));
    }
  }
}

TEST(ScanDelta, AutocastDoesNotNarrowTheState) {
  for (const bool plain : {false, true}) {
    DeltaScan s = random_scan(1, 2, 100, 16, 16, at::kFloat);
    s.plain = plain;
    const Tensors a = reference::leaves(inputs_of(s)), b = reference::leaves(inputs_of(s));
    const Scanned want = scan_delta(with(s, b), 32);
    const Tensors cot = reference::cotangents({want.out, want.state});
    const Tensors slopes = reference::gradients({want.out, want.state}, cot, b);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const Scanned got = scan_delta(with(s, a), 32), steps = scan_delta_steps(s);
    const Tensors gradients = reference::gradients({got.out, got.state}, cot, a);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(got.state.scalar_type(), at::kFloat);
    reference::expect_near(got.out, want.out, 0, "out");
    reference::expect_near(steps.out, want.out, 2e-5, "steps");
    for (size_t i = 0; i < gradients.size(); i++) reference::expect_near(gradients[i], slopes[i], 0, "gradient");
  }
}

TEST(ScanDelta, SaysWhyItIsNotFused) {
  EXPECT_NE(why_not_fused_delta(32, 32, at::kDouble).find("float32"), std::string::npos);
  EXPECT_NE(why_not_fused_delta(24, 32, at::kFloat).find("24"), std::string::npos);
}

TEST(ScanDelta, EverySplitGivesTheSame) {
  DeltaScan s = random_scan(2, 2, 130, 3, 2);
  s.lanes.valid = at::rand({2, 130}) > 0.2;
  s.lanes.first = at::rand({2, 130}) > 0.95;
  for (int64_t split = 1; split < 130; split++) {
    expect_same(
        s,
        [&](const DeltaScan& x) {
          return in_pieces(x, {split, 130 - split}, 64);
        },
        [](const DeltaScan& x) { return scan_delta(x, 64); }, 1e-10, text("split ", split));
  }
}

TEST(ScanDelta, AnyLengthHasTheSameStateLayout) {
  for (int64_t length : {0, 1, 2, 63, 64, 65}) {
    const DeltaScan s = random_scan(1, 2, length, 3, 4, at::kFloat);
    const Scanned a = scan_delta(s, 64), b = scan_delta_steps(s);
    EXPECT_EQ(a.state.sizes(), (std::vector<int64_t>{1, 2, 3, 4}));
    EXPECT_EQ(a.out.sizes(), (std::vector<int64_t>{1, 2, length, 4}));
    reference::expect_near(a.out, b.out, 1e-5, "out");
    reference::expect_near(a.state, b.state, 1e-5, "state");
  }
}

TEST(ScanDelta, InvalidTokensMayHoldAnything) {
  DeltaScan s = random_scan(2, 2, 20, 3, 4);
  s.lanes.valid = at::ones({2, 20}, at::kBool);
  s.lanes.valid.narrow(1, 8, 3).fill_(false);
  const Scanned want = scan_delta(s, 7);
  for (const Tensor& t : {s.q, s.k, s.v, s.beta}) t.narrow(2, 8, 3).fill_(NAN);
  const Tensors in = reference::leaves(inputs_of(s));
  const Scanned got = scan_delta(with(s, in), 7);
  reference::expect_near(got.out, want.out, 0, "out");
  reference::expect_near(got.state, want.state, 0, "state");
  EXPECT_EQ(got.out.narrow(2, 8, 3).abs().max().item<double>(), 0);
  for (const Tensor& g : reference::gradients({got.out}, {at::ones_like(got.out)}, in)) {
    EXPECT_TRUE(g.isfinite().all().item<bool>());
  }
}

TEST(ScanDelta, GradientsMatchFiniteDifferences) {
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

TEST(ScanDelta, FloatStaysCloseOverFourThousandSteps) {
  const DeltaScan s = random_scan(1, 2, 4096, 16, 16, at::kFloat), wide = random_scan(1, 2, 4096, 16, 16);
  const Scanned got = scan_delta(s, 64), want = scan_delta_steps(wide);
  const auto off = [](const Tensor& a, const Tensor& b) {
    return ((a.to(at::kDouble) - b).abs().max() / b.abs().max()).item<double>();
  };
  EXPECT_LE(off(got.out, want.out), 1e-4);
  EXPECT_LE(off(got.state, want.state), 1e-4);
}

TEST(ScanDelta, ReflectionsOfOneKeyStayFinite) {
  // beta = 2 with one key over and over: (I + M)^-1 alternates in sign and must not be built from powers of M.
  for (const bool plain : {false, true}) {
    DeltaScan s = random_scan(1, 1, 1000, 16, 16, at::kFloat);
    s.plain = plain;
    s.k = unit(at::ones_like(s.k));
    s.beta = at::full_like(s.beta, 2.0);
    s.v = s.v * 1e6;
    const Tensors in = reference::leaves(inputs_of(s));
    const Scanned got = scan_delta(with(s, in), 64), want = scan_delta_steps(s);
    EXPECT_LE(((got.out - want.out).abs().max() / want.out.abs().max()).item<double>(), 1e-3);
    for (const Tensor& g : reference::gradients({got.out}, {at::ones_like(got.out)}, in)) {
      EXPECT_TRUE(g.isfinite().all().item<bool>());
    }
  }
}

TEST(ScanDelta, RefusesShapesThatDoNotFit) {
  DeltaScan s = random_scan(1, 1, 4, 3, 2, at::kFloat);
  s.beta = s.beta.narrow(2, 0, 3);
  EXPECT_THROW(scan_delta(s, 64), Error);
}

TEST(ScanDelta, RefusesSecondDerivatives) {
  const DeltaScan s = random_scan(1, 1, 4, 3, 2);
  const Tensors in = reference::leaves(inputs_of(s));
  const Tensor out = scan_delta(with(s, in), 2).out.sum();
  EXPECT_THROW(torch::autograd::grad({out}, {in[0]}, {}, true, true), std::exception);
}

}  // namespace
}  // namespace kinfolk
