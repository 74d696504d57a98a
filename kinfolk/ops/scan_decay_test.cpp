#include "kinfolk/ops/scan_decay.h"

#include <gtest/gtest.h>

#include "kinfolk/reference/linear.h"
#include "kinfolk/reference/scan_checks.h"

namespace kinfolk {
namespace {
using reference::Tensors;

const std::vector<int64_t> kChunks{1, 7, 16, 64, 1000};

DecayScan random_scan(int64_t B, int64_t H, int64_t L, int64_t K, int64_t V, bool normalise, at::ScalarType type) {
  at::manual_seed(3);
  const at::TensorOptions as = at::TensorOptions().dtype(at::kDouble);
  DecayScan s{at::randn({B, H, L, K}, as), at::randn({B, H, L, K}, as), at::randn({B, H, L, V}, as)};
  s.state = at::randn({B, H, K, V}, as);
  s.scale = 0.5;
  s.normalise = normalise;
  if (normalise) {
    s.q = reference::feature(s.q, "elu1"), s.k = reference::feature(s.k, "elu1");
    s.sum = at::rand({B, H, K}, as) + 1;
  }
  for (Tensor* t : {&s.q, &s.k, &s.v, &s.state, &s.sum})
    if (t->defined()) *t = t->to(type);
  return s;
}

// Outputs of all parts of `s` cut at the ends of `pieces`, the state handed on.
DecayScanned in_pieces(const DecayScan& s, const std::vector<int64_t>& pieces, int64_t chunk) {
  DecayScan part = s;
  DecayScanned done;
  Tensors out;
  int64_t from = 0;
  for (int64_t n : pieces) {
    part.q = s.q.narrow(2, from, n), part.k = s.k.narrow(2, from, n), part.v = s.v.narrow(2, from, n);
    if (s.lanes.valid.defined()) part.lanes.valid = s.lanes.valid.narrow(1, from, n);
    if (s.lanes.first.defined()) part.lanes.first = s.lanes.first.narrow(1, from, n);
    done = chunk > 0 ? scan_decay(part, chunk) : scan_decay_steps(part);
    out.push_back(done.out);
    part.state = done.state, part.sum = done.sum;
    from += n;
  }
  done.out = at::cat(out, 2);
  return done;
}

Tensors inputs_of(const DecayScan& s) {
  Tensors in{s.q, s.k, s.v, s.state};
  if (s.normalise) in.push_back(s.sum);
  return in;
}
Tensors outputs_of(const DecayScanned& s) {
  return s.sum.defined() ? Tensors{s.out, s.state, s.sum} : Tensors{s.out, s.state};
}
DecayScan with(DecayScan s, const Tensors& in) {
  s.q = in[0], s.k = in[1], s.v = in[2], s.state = in[3];
  if (s.normalise) s.sum = in[4];
  return s;
}

// Values and gradients of f and g agree.
void expect_same(const DecayScan& s, const std::function<DecayScanned(const DecayScan&)>& f,
                 const std::function<DecayScanned(const DecayScan&)>& g, double tolerance, const std::string& what) {
  const Tensors a = reference::leaves(inputs_of(s)), b = reference::leaves(inputs_of(s));
  const Tensors fa = outputs_of(f(with(s, a))), gb = outputs_of(g(with(s, b)));
  for (size_t i = 0; i < fa.size(); i++) reference::expect_near(fa[i], gb[i], tolerance, what + " output");
  const Tensors cot = reference::cotangents(fa);
  const Tensors da = reference::gradients(fa, cot, a), db = reference::gradients(gb, cot, b);
  for (size_t i = 0; i < da.size(); i++) {
    reference::expect_near(da[i], db[i], tolerance, what + " gradient " + std::to_string(i));
  }
}

TEST(ScanDecay, GoldenLinearAttention) {
  for (const auto& one : golden::cases("recurrent/linear_attention")) {
    const bool normalise = one.config.at("normalise").get<bool>();
    const std::string phi = one.config.at("feature").get<std::string>();
    const Tensor k = one.at("in.k"), v = one.at("in.v");
    const auto scale = one.config.at("scale");
    std::vector<std::string> in{"in.q", "in.k", "in.v", "in.initial_state", "in.initial_z"}, out{"o", "final_state"};
    if (normalise) out.push_back("final_z");
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const bool cut : {false, true}) {
        for (int64_t chunk : {0, 1, 7, 16, 64, 1000}) {
          const auto f = [&](const Tensors& t) {
            DecayScan s{reference::feature(t[0], phi), reference::feature(t[1], phi), t[2], t[3], t[4]};
            s.scale = scale.is_string() ? 1 / std::sqrt(static_cast<double>(k.size(3))) : scale.get<double>();
            s.normalise = normalise;
            if (normalise) s.eps = one.config.at("eps").get<double>();
            const auto pieces = cut ? reference::pieces(one, k.size(2)) : std::vector<int64_t>{k.size(2)};
            const DecayScanned done = in_pieces(s, pieces, chunk);
            return outputs_of(done);
          };
          reference::expect_golden(one, in, out, f, type, "chunk " + std::to_string(chunk));
        }
      }
    }
    // The loops of the article, too.
    const auto loop = [&](const Tensors& t) {
      const Tensor state = t[3].defined() ? t[3] : at::zeros({k.size(0), k.size(1), k.size(3), v.size(3)}, k.options());
      const Tensor sum = t[4].defined() ? t[4] : at::zeros({k.size(0), k.size(1), k.size(3)}, k.options());
      const double a = scale.is_string() ? 1 / std::sqrt(static_cast<double>(k.size(3))) : scale.get<double>();
      const auto ran = reference::linear_attention(t[0], t[1], t[2], state, sum, phi, normalise, a, 1e-6);
      return normalise ? Tensors{ran.out, ran.state, ran.sum} : Tensors{ran.out, ran.state};
    };
    reference::expect_golden(one, in, out, loop, at::kDouble, "reference");
  }
}

TEST(ScanDecay, StateAfterEachPieceIsTheGoldenOne) {
  int checked = 0;
  for (const auto& one : golden::cases("recurrent/linear_attention")) {
    if (!one.config.contains("pieces")) continue;
    const std::string phi = one.config.at("feature").get<std::string>();
    DecayScan s{reference::feature(one.at("in.q"), phi), reference::feature(one.at("in.k"), phi), one.at("in.v"),
                one.at("in.initial_state")};
    s.normalise = one.config.at("normalise").get<bool>();
    if (s.normalise) s.sum = one.at("in.initial_z");
    const Tensors full = inputs_of(s);
    int64_t from = 0;
    for (int64_t n : reference::pieces(one, 0)) {
      s.q = full[0].narrow(2, from, n), s.k = full[1].narrow(2, from, n), s.v = full[2].narrow(2, from, n);
      const DecayScanned done = scan_decay(s, 16);
      s.state = done.state, s.sum = done.sum;
      from += n;
      const std::string after = "_after_" + std::to_string(from);
      if (!one.has("out.final_state" + after)) continue;
      golden::expect_close(done.state, one.at("out.final_state" + after), one, after);
      if (s.normalise) golden::expect_close(done.sum, one.at("out.final_z" + after), one, after);
      checked++;
    }
  }
  EXPECT_GT(checked, 0);
}

TEST(ScanDecay, ChunksAgreeWithStepsWithGapsAndBorders) {
  for (const bool normalise : {false, true}) {
    for (const bool gaps : {false, true}) {
      for (const bool documents : {false, true}) {
        DecayScan s = random_scan(3, 2, 67, 5, 4, normalise, at::kDouble);
        if (gaps) s.lanes.valid = at::rand({3, 67}) > 0.3;
        if (documents) s.lanes.first = at::rand({3, 67}) > 0.9;
        for (int64_t chunk : kChunks) {
          expect_same(
              s, [&](const DecayScan& x) { return scan_decay(x, chunk); }, scan_decay_steps, 1e-10,
              text("normalise ", normalise, " gaps ", gaps, " documents ", documents, " chunk ", chunk));
        }
      }
    }
  }
}

// The kernel against the plain path, at every kind of chunk and at lengths that no chunk divides.
TEST(ScanDecay, FusedAgreesWithPlain) {
  ASSERT_EQ(why_not_fused_decay(32, 48, at::kFloat), "");
  for (const bool normalise : {false, true}) {
    for (int64_t length : {1, 5, 15, 16, 17, 64, 100, 257}) {
      for (int64_t chunk : {1, 16, 31, 48, 64, 1000}) {
        DecayScan s = random_scan(2, 3, length, 32, 48, normalise, at::kFloat);
        s.lanes.valid = at::rand({2, length}) > 0.2;
        expect_same(
            s, [&](const DecayScan& x) { return scan_decay(x, chunk); },
            [](DecayScan x) {
              x.plain = true;
              return scan_decay(x, 16);
            },
            2e-5, text("normalise ", normalise, " length ", length, " chunk ", chunk));
      }
    }
  }
}

TEST(ScanDecay, SaysWhyItIsNotFused) {
  EXPECT_NE(why_not_fused_decay(32, 32, at::kDouble).find("float32"), std::string::npos);
  EXPECT_EQ(why_not_fused_decay(24, 32, at::kFloat), "");  // widened with channels that hold nothing
}

TEST(ScanDecay, EverySplitGivesTheSame) {
  DecayScan s = random_scan(2, 2, 130, 3, 2, true, at::kDouble);
  s.lanes.valid = at::rand({2, 130}) > 0.2;
  s.lanes.first = at::rand({2, 130}) > 0.95;
  for (int64_t split = 1; split < 130; split++) {
    expect_same(
        s,
        [&](const DecayScan& x) {
          return in_pieces(x, {split, 130 - split}, 64);
        },
        [](const DecayScan& x) { return scan_decay(x, 64); }, 1e-10, text("split ", split));
  }
}

TEST(ScanDecay, AnyLengthHasTheSameStateLayout) {
  for (const bool normalise : {false, true}) {
    for (int64_t length : {0, 1, 2, 63, 64, 65}) {
      const DecayScan s = random_scan(1, 2, length, 3, 4, normalise, at::kFloat);
      const DecayScanned a = scan_decay(s, 64), b = scan_decay_steps(s);
      EXPECT_EQ(a.state.sizes(), (std::vector<int64_t>{1, 2, 3, 4}));
      EXPECT_EQ(a.out.sizes(), (std::vector<int64_t>{1, 2, length, 4}));
      reference::expect_near(a.out, b.out, 1e-5, "out");
      reference::expect_near(a.state, b.state, 1e-5, "state");
    }
  }
}

TEST(ScanDecay, InvalidTokensMayHoldAnything) {
  DecayScan s = random_scan(2, 2, 20, 3, 4, true, at::kDouble);
  s.lanes.valid = at::ones({2, 20}, at::kBool);
  s.lanes.valid.narrow(1, 8, 3).fill_(false);
  const DecayScanned want = scan_decay(s, 7);
  for (const Tensor& t : {s.q, s.k, s.v}) t.narrow(2, 8, 3).fill_(NAN);
  const Tensors in = reference::leaves(inputs_of(s));
  const DecayScanned got = scan_decay(with(s, in), 7);
  reference::expect_near(got.out, want.out, 0, "out");
  reference::expect_near(got.state, want.state, 0, "state");
  EXPECT_EQ(got.out.narrow(2, 8, 3).abs().max().item<double>(), 0);
  for (const Tensor& g : reference::gradients({got.out}, {at::ones_like(got.out)}, in)) {
    EXPECT_TRUE(g.isfinite().all().item<bool>());
  }
}

TEST(ScanDecay, GradientsMatchFiniteDifferences) {
  for (const bool normalise : {false, true}) {
    DecayScan s = random_scan(2, 1, 6, 2, 3, normalise, at::kDouble);
    s.lanes.valid = at::ones({2, 6}, at::kBool);
    s.lanes.valid[1][2].fill_(false);
    s.lanes.first = at::zeros({2, 6}, at::kBool);
    s.lanes.first[0][3].fill_(true);
    reference::expect_gradients([&](const Tensors& in) { return outputs_of(scan_decay(with(s, in), 4)); }, inputs_of(s),
                                text("normalise ", normalise));
  }
}

TEST(ScanDecay, FloatStaysCloseOverFourThousandSteps) {
  DecayScan s = random_scan(1, 2, 4096, 16, 16, true, at::kFloat);
  DecayScan wide = s;
  for (Tensor* t : {&wide.q, &wide.k, &wide.v, &wide.state, &wide.sum}) *t = t->to(at::kDouble);
  const DecayScanned got = scan_decay(s, 64), want = scan_decay_steps(wide);
  const auto off = [](const Tensor& a, const Tensor& b) {
    return ((a.to(at::kDouble) - b).abs().max() / b.abs().max()).item<double>();
  };
  EXPECT_LE(off(got.out, want.out), 1e-4);
  EXPECT_LE(off(got.state, want.state), 1e-4);
}

TEST(ScanDecay, StrongValuesStayFinite) {
  DecayScan s = random_scan(1, 1, 100, 4, 4, true, at::kFloat);
  s.k = reference::feature(at::full_like(s.k, -200.0), "elu1");  // exp(-200) is 0 in float32: the sum vanishes
  s.q = reference::feature(at::full_like(s.q, -200.0), "elu1");
  s.state = at::zeros_like(s.state), s.sum = at::zeros_like(s.sum);
  EXPECT_TRUE(scan_decay(s, 16).out.isfinite().all().item<bool>());
  s.k = at::full_like(s.k, 1e8), s.q = at::full_like(s.q, 1e8);
  EXPECT_TRUE(scan_decay(s, 16).out.isfinite().all().item<bool>());
}

TEST(ScanDecay, RefusesShapesThatDoNotFit) {
  DecayScan s = random_scan(1, 1, 4, 3, 2, false, at::kFloat);
  s.v = s.v.narrow(2, 0, 3);
  EXPECT_THROW(scan_decay(s, 64), Error);
  s = random_scan(1, 1, 4, 3, 2, true, at::kFloat);
  s.eps = 0;
  EXPECT_THROW(scan_decay(s, 64), Error);
  s.eps = 1e-6;
  EXPECT_THROW(scan_decay(s, 0), Error);
}

}  // namespace
}  // namespace kinfolk
