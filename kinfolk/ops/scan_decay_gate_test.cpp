// scan_decay with every kind of gate: forms, pieces, gaps, borders, extreme decays, gradients, the kernel.
#include <gtest/gtest.h>

#include "kinfolk/ops/scan_decay.h"
#include "kinfolk/reference/decay.h"
#include "kinfolk/reference/scan_checks.h"

namespace kinfolk {
namespace {
using reference::Tensors;

enum class Kind { none, head, token, channel, value, both };
constexpr Kind kKinds[] = {Kind::none, Kind::head, Kind::token, Kind::channel, Kind::value, Kind::both};

DecayScan random_scan(Kind kind, int64_t B, int64_t H, int64_t L, int64_t K, int64_t V, bool log, bool before) {
  at::manual_seed(5);
  const at::TensorOptions as = at::kDouble;
  DecayScan s{at::randn({B, H, L, K}, as), at::randn({B, H, L, K}, as), at::randn({B, H, L, V}, as)};
  s.state = at::randn({B, H, K, V}, as);
  s.scale = 0.5;
  s.before = before;
  if (before) s.bonus = at::randn({H, K}, as);
  s.gate.log = log;
  const auto decay = [&](at::IntArrayRef sizes) {
    const Tensor a = at::rand(sizes, as) * 0.9 + 0.1;
    return log ? a.log() : a;
  };
  if (kind == Kind::head) s.gate.key = decay({H});
  if (kind == Kind::token) s.gate.key = decay({B, H, L});
  if (kind == Kind::channel || kind == Kind::both) s.gate.key = decay({B, H, L, K});
  if (kind == Kind::value || kind == Kind::both) s.gate.value = decay({B, H, L, V});
  return s;
}

std::vector<Tensor*> parts(DecayScan& s) {
  std::vector<Tensor*> all;
  for (Tensor* t : {&s.q, &s.k, &s.v, &s.state, &s.bonus, &s.gate.key, &s.gate.value})
    if (t->defined()) all.push_back(t);
  return all;
}
Tensors inputs_of(DecayScan s) {
  Tensors in;
  for (Tensor* t : parts(s)) in.push_back(*t);
  return in;
}
DecayScan with(DecayScan s, const Tensors& in) {
  const auto places = parts(s);
  for (size_t i = 0; i < in.size(); i++) *places[i] = in[i];
  return s;
}
DecayScan as_type(DecayScan s, at::ScalarType type) {
  for (Tensor* t : parts(s)) *t = t->to(type);
  return s;
}

DecayScan piece(const DecayScan& s, int64_t from, int64_t n) {
  DecayScan part = s;
  for (Tensor* t : {&part.q, &part.k, &part.v, &part.gate.key, &part.gate.value})
    if (t->defined() && t->dim() > 1) *t = t->narrow(2, from, n);
  for (Tensor* t : {&part.lanes.valid, &part.lanes.first})
    if (t->defined()) *t = t->narrow(1, from, n);
  return part;
}
Scanned in_pieces(const DecayScan& s, const std::vector<int64_t>& pieces, int64_t chunk) {
  Tensors out;
  Tensor state = s.state;
  int64_t from = 0;
  for (int64_t n : pieces) {
    DecayScan part = piece(s, from, n);
    part.state = state;
    const DecayScanned done = chunk > 0 ? scan_decay(part, chunk) : scan_decay_steps(part);
    out.push_back(done.out), state = done.state;
    from += n;
  }
  return {at::cat(out, 2), state};
}

using Scan = std::function<Scanned(const DecayScan&)>;
Scan chunked(int64_t chunk) {
  return [chunk](const DecayScan& s) { return scan_decay(s, chunk); };
}
Scanned plain(DecayScan s) {
  s.plain = true;
  return scan_decay(s, 16);
}
Scanned steps(const DecayScan& s) { return scan_decay_steps(s); }

Tensors values_and_gradients(const DecayScan& s, const Scan& run) {
  const Tensors in = reference::leaves(inputs_of(s));
  const Scanned done = run(with(s, in));
  Tensors all{done.out, done.state};
  for (const Tensor& g : reference::gradients(all, reference::cotangents(all), in)) all.push_back(g);
  return all;
}
void expect_all(const Tensors& got, const Tensors& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); i++) reference::expect_near(got[i], want[i], tolerance, text(what, " tensor ", i));
}
void mark(DecayScan& s, bool gaps, bool documents) {
  const int64_t B = s.q.size(0), L = s.q.size(2);
  if (gaps) s.lanes.valid = at::rand({B, L}) > 0.25;
  if (documents) s.lanes.first = at::rand({B, L}) > 0.9;
}

TEST(DecayGates, ChunksAgreeWithStepsWithGapsAndBorders) {
  for (const Kind kind : kKinds) {
    for (const bool before : {false, true}) {
      for (const int marks : {0, 1, 2, 3}) {
        DecayScan s = random_scan(kind, 2, 2, 37, 3, 4, marks % 2 == 0, before);
        mark(s, marks & 1, marks & 2);
        const Tensors want = values_and_gradients(s, steps);
        for (const int64_t chunk : {1, 7, 16, 1000}) {
          expect_all(values_and_gradients(s, chunked(chunk)), want, 1e-10,
                     text("kind ", static_cast<int>(kind), " before ", before, " marks ", marks, " chunk ", chunk));
        }
      }
    }
  }
}

// The kernel against the plain path: widths and lengths that nothing divides, too.
TEST(DecayGates, FusedAgreesWithPlain) {
  for (const Kind kind : kKinds) {
    for (const bool before : {false, true}) {
      for (const int64_t length : {1, 5, 16, 17, 64, 100, 257}) {
        for (const int64_t chunk : {1, 31, 48, 64, 1000}) {
          if ((kind == Kind::value || kind == Kind::both) && chunk != 31) continue;  // token by token in any case
          DecayScan s = as_type(
              random_scan(kind, 2, 2, length, length == 17 ? 5 : 32, length == 100 ? 7 : 48, true, before), at::kFloat);
          mark(s, length > 60, chunk != 64);
          expect_all(values_and_gradients(s, chunked(chunk)), values_and_gradients(s, plain), 3e-5,
                     text("kind ", static_cast<int>(kind), " before ", before, " length ", length, " chunk ", chunk));
        }
      }
    }
  }
}

TEST(DecayGates, EverySplitGivesTheSame) {
  for (const Kind kind : kKinds) {
    for (const bool before : {false, true}) {
      DecayScan s = random_scan(kind, 2, 1, 130, 3, 2, true, before);
      mark(s, true, true);
      {
        const at::NoGradGuard guard;
        const DecayScan narrow = as_type(s, at::kFloat);
        const Scanned want = scan_decay(s, 64), want_float = scan_decay(narrow, 64);
        for (int64_t split = 1; split < 130; split++) {
          const auto got = in_pieces(s, {split, 130 - split}, 64), fused = in_pieces(narrow, {split, 130 - split}, 64);
          reference::expect_near(got.out, want.out, 1e-10, text("out, split ", split));
          reference::expect_near(got.state, want.state, 1e-10, text("state, split ", split));
          reference::expect_near(fused.out, want_float.out, 1e-5, text("fused out, split ", split));
          reference::expect_near(fused.state, want_float.state, 1e-5, text("fused state, split ", split));
        }
      }
      const Tensors whole = values_and_gradients(s, chunked(64));
      for (const std::vector<int64_t>& cut : {std::vector<int64_t>{1, 129}, {64, 66}, {1, 7, 64, 58}}) {
        expect_all(values_and_gradients(s, [&](const DecayScan& x) { return in_pieces(x, cut, 64); }), whole, 1e-10,
                   "pieces");
      }
    }
  }
}

// Log decays of -50 on some channels, 0 on others, exact zeros and ones, signs: finite and equal to the steps.
TEST(DecayGates, ExtremeDecaysAreThoseOfTheSteps) {
  for (const Kind kind : {Kind::head, Kind::token, Kind::channel, Kind::value, Kind::both}) {
    for (const int sort : {0, 1, 2, 3}) {
      DecayScan s = random_scan(kind, 1, 2, 130, 16, 16, false, false);
      for (Tensor* g : {&s.gate.key, &s.gate.value}) {
        if (!g->defined()) continue;
        const Tensor pick = at::rand(g->sizes(), at::kDouble);
        if (sort == 0) s.gate.log = true, *g = (pick > 0.5).to(at::kDouble) * -50;
        if (sort == 1) s.gate.log = true, *g = pick * -60;  // mean -30
        if (sort == 2) *g = (pick > 0.5).to(at::kDouble);
        if (sort == 3) s.gate.log = true, *g = at::where(pick > 0.7, at::full_like(pick, -INFINITY), pick * -1e-3);
      }
      const Tensors want = values_and_gradients(s, steps);
      expect_all(values_and_gradients(s, chunked(64)), want, 1e-10, text("double, sort ", sort));
      const DecayScan narrow = as_type(s, at::kFloat);
      for (const auto& run : {chunked(64), Scan(plain), Scan(steps)}) {
        expect_all(values_and_gradients(narrow, run), want, 2e-5, text("float, sort ", sort));
      }
    }
  }
}

TEST(DecayGates, GradientsMatchFiniteDifferences) {
  for (const Kind kind : kKinds) {
    for (const bool log : {false, true}) {
      for (const bool before : {false, true}) {
        DecayScan s = random_scan(kind, 2, 1, 5, 2, 3, log, before);
        s.lanes.valid = at::ones({2, 5}, at::kBool), s.lanes.first = at::zeros({2, 5}, at::kBool);
        s.lanes.valid[1][2].fill_(false), s.lanes.first[0][3].fill_(true);
        reference::expect_gradients(
            [&](const Tensors& in) {
              const Scanned done = scan_decay(with(s, in), 3);
              return Tensors{done.out, done.state};
            },
            inputs_of(s), text("kind ", static_cast<int>(kind), " log ", log, " before ", before));
      }
    }
  }
}

TEST(DecayGates, TheSumOfWeightsDecaysToo) {
  DecayScan s = random_scan(Kind::channel, 2, 2, 40, 16, 3, true, false);
  s.normalise = true, s.q = s.q.abs(), s.k = s.k.abs(), s.sum = at::rand({2, 2, 16}, at::kDouble);
  const DecayScanned got = scan_decay(s, 16), want = scan_decay_steps(s);
  reference::expect_near(got.out, want.out, 1e-12, "out");
  reference::expect_near(got.sum, want.sum, 1e-12, "sum");
  Tensor z = s.sum;
  for (int64_t t = 0; t < 40; t++) z = s.gate.key.select(2, t).exp() * z + s.k.select(2, t);
  reference::expect_near(want.sum, z, 1e-12, "sum by hand");
}

TEST(DecayGates, InvalidTokensMayHoldAnything) {
  for (const Kind kind : kKinds) {
    for (const bool log : {false, true}) {
      for (const auto type : {at::kDouble, at::kFloat}) {
        DecayScan s = as_type(random_scan(kind, 2, 2, 20, 16, 16, log, true), type);
        s.lanes.valid = at::ones({2, 20}, at::kBool);
        s.lanes.valid.narrow(1, 8, 3).fill_(false);
        const Tensors want = values_and_gradients(s, chunked(7));
        for (Tensor* t : {&s.q, &s.k, &s.v, &s.gate.key, &s.gate.value})
          if (t->defined() && t->dim() > 1) t->narrow(2, 8, 3).fill_(NAN);
        expect_all(values_and_gradients(s, chunked(7)), want, 0, "filled");
        EXPECT_EQ(scan_decay(s, 7).out.narrow(2, 8, 3).abs().max().item<double>(), 0);
      }
    }
  }
}

// Transposed heads, every second row, expanded and offset views give what their copies give.
TEST(DecayGates, AnyMemoryLayout) {
  const DecayScan s = as_type(random_scan(Kind::channel, 2, 3, 33, 16, 16, true, false), at::kFloat);
  const Tensors want = values_and_gradients(s, chunked(16));
  const std::vector<std::function<Tensor(const Tensor&)>> layouts{
      [](const Tensor& t) { return t.transpose(1, 2).contiguous().transpose(1, 2); },
      [](const Tensor& t) {
        return at::stack({t, t}, 3).flatten(2, 3).slice(2, 0, c10::nullopt, 2);
      },
      [](const Tensor& t) {
        return at::cat({t, t}, 3).narrow(3, t.size(3), t.size(3));
      }};
  for (const auto& layout : layouts) {
    expect_all(values_and_gradients(s,
                                    [&](DecayScan x) {
                                      for (Tensor* t : {&x.q, &x.k, &x.v, &x.gate.key}) *t = layout(*t);
                                      return scan_decay(x, 16);
                                    }),
               want, 0, "layout");
  }
  DecayScan wide = s;
  wide.gate.key = s.gate.key.narrow(2, 0, 1).expand_as(s.gate.key);
  DecayScan copied = wide;
  copied.gate.key = wide.gate.key.contiguous();
  EXPECT_TRUE(scan_decay(wide, 16).out.equal(scan_decay(copied, 16).out));
}

TEST(DecayGates, BfloatIsFloatInside) {
  for (const Kind kind : {Kind::token, Kind::channel, Kind::both}) {
    DecayScan s = as_type(random_scan(kind, 1, 2, 200, 16, 16, true, false), at::kBFloat16);
    DecayScan wide = as_type(s, at::kFloat);
    const DecayScanned got = scan_decay(s, 64), want = scan_decay(wide, 64);
    EXPECT_EQ(got.out.scalar_type(), at::kBFloat16);
    EXPECT_EQ(got.state.scalar_type(), at::kFloat);
    EXPECT_TRUE(got.state.equal(want.state));
    EXPECT_TRUE(got.out.equal(want.out.to(at::kBFloat16)));
  }
}

// Against the steps in double, beside a float32 loop: at most 4 times its error.
TEST(DecayGates, FloatIsAsCloseAsALoopOfSteps) {
  for (const Kind kind : {Kind::token, Kind::channel, Kind::value, Kind::both}) {
    for (const double strength : {0.01, 1.0, 30.0}) {
      DecayScan s = random_scan(kind, 1, 2, 1024, 16, 16, true, false);
      for (Tensor* g : {&s.gate.key, &s.gate.value})
        if (g->defined()) *g = at::rand(g->sizes(), at::kDouble) * (-2 * strength);
      const DecayScan narrow = as_type(s, at::kFloat);
      s = as_type(narrow, at::kDouble);
      const Tensors exact = values_and_gradients(s, steps), loop = values_and_gradients(narrow, steps),
                    got = values_and_gradients(narrow, chunked(64));
      for (size_t i = 0; i < exact.size(); i++) {
        const auto off = [&](const Tensor& t) {
          return ((t.to(at::kDouble) - exact[i]).abs().max() / exact[i].abs().max()).item<double>();
        };
        EXPECT_LE(off(got[i]), std::max(4 * off(loop[i]), 1e-6)) << "strength " << strength << " tensor " << i;
      }
    }
  }
}

// One decay of a token beside those of value channels, which the kernel folds together.
TEST(DecayGates, ATokensDecayOnTopOfThoseOfValues) {
  for (const int64_t H : {1, 3}) {
    DecayScan s = random_scan(Kind::value, 2, H, 45, 5, 20, true, false);
    s.gate.key = at::rand({2, H, 45}, at::kDouble).log();
    mark(s, true, true);
    expect_all(values_and_gradients(as_type(s, at::kFloat), chunked(64)), values_and_gradients(s, steps), 1e-5,
               text(H, " heads"));
  }
}

// Where nothing wants a gradient, steps run in the kernel too: every gate, widths that no vector divides, gaps,
// borders.
TEST(DecayGates, StepsInTheKernelAgreeWithTheFormula) {
  const at::NoGradGuard guard;
  for (const Kind kind : kKinds) {
    for (const bool before : {false, true}) {
      for (const int64_t width : {1, 3, 16, 39, 64}) {
        for (const bool marks : {false, true}) {
          DecayScan s = random_scan(kind, 2, 2, 21, width == 16 ? 1 : 7, width, true, before);
          mark(s, marks, marks && !before);
          const DecayScanned want = scan_decay_steps(s), got = scan_decay_steps(as_type(s, at::kFloat));
          const std::string what = text("kind ", static_cast<int>(kind), " before ", before, " width ", width);
          reference::expect_near(got.out, want.out, 1e-5, what + " out");
          reference::expect_near(got.state, want.state, 1e-5, what + " state");
        }
      }
    }
  }
  DecayScan s = random_scan(Kind::channel, 2, 2, 21, 6, 5, true, false);
  s.normalise = true, s.q = s.q.abs(), s.k = s.k.abs(), s.sum = at::rand({2, 2, 6}, at::kDouble);
  mark(s, true, true);
  const DecayScanned want = scan_decay_steps(s);
  DecayScan narrow = as_type(s, at::kFloat);
  narrow.sum = s.sum.to(at::kFloat);
  const DecayScanned got = scan_decay_steps(narrow);
  reference::expect_near(got.out, want.out, 1e-5, "normalised");
  reference::expect_near(got.sum, want.sum, 1e-5, "sum");
}

// A step writes into a state that is given up to it, and into no other.
TEST(DecayGates, AStepReusesTheStateWhenItMay) {
  const at::NoGradGuard guard;
  DecayScan s = as_type(random_scan(Kind::token, 2, 2, 1, 16, 16, true, false), at::kFloat);
  const Tensor kept = s.state.clone();
  const DecayScanned apart = scan_decay_steps(s);
  EXPECT_TRUE(s.state.equal(kept));
  EXPECT_NE(apart.state.data_ptr(), s.state.data_ptr());
  s.reuse = true;
  const DecayScanned onto = scan_decay_steps(s);
  EXPECT_EQ(onto.state.data_ptr(), s.state.data_ptr());
  EXPECT_TRUE(onto.state.equal(apart.state));
  EXPECT_TRUE(onto.out.equal(apart.out));
}

TEST(DecayGates, RefusesWhatDoesNotFit) {
  const auto fault = [](const std::function<void(DecayScan&)>& change) {
    DecayScan s = random_scan(Kind::token, 1, 2, 4, 3, 2, true, false);
    change(s);
    try {
      scan_decay(s, 16);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("nothing");
  };
  EXPECT_NE(fault([](DecayScan& s) {
              s.gate.key = at::rand({1, 2, 3});
            }).find("[scan_decay.gate.key]"),
            std::string::npos);
  EXPECT_NE(fault([](DecayScan& s) {
              s.gate.value = at::rand({1, 2, 4});
            }).find("[scan_decay.gate.value]"),
            std::string::npos);
  EXPECT_NE(fault([](DecayScan& s) { s.bonus = at::rand({2, 3}); }).find("[scan_decay.bonus]"), std::string::npos);
  EXPECT_NE(fault([](DecayScan& s) {
              s.normalise = true, s.gate.value = at::rand({1, 2, 4, 2});
            }).find("[scan_decay.normalise]"),
            std::string::npos);
}

}  // namespace
}  // namespace kinfolk
