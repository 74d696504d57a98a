#include "kinfolk/ops/scan_selective.h"

#include <gtest/gtest.h>

#include "kinfolk/reference/scan_checks.h"
#include "kinfolk/reference/selective.h"

namespace kinfolk {
namespace {
using reference::Tensors;

SelectiveScan random_scan(int64_t B, int64_t L, int64_t E, int64_t N, at::ScalarType type = at::kDouble) {
  at::manual_seed(5);
  const at::TensorOptions as = at::TensorOptions().dtype(at::kDouble);
  SelectiveScan s{at::randn({B, L, E}, as), at::randn({B, L, E}, as) - 1, -at::rand({E, N}, as) * 4,
                  at::randn({B, L, N}, as), at::randn({B, L, N}, as),     at::randn({E}, as),
                  at::randn({B, L, E}, as), at::randn({E}, as) * 0.1,     at::randn({B, E, N}, as)};
  for (Tensor* t : {&s.x, &s.delta, &s.a, &s.b, &s.c, &s.skip, &s.z, &s.bias, &s.state}) *t = t->to(type);
  return s;
}
Tensors inputs_of(const SelectiveScan& s) { return {s.x, s.delta, s.a, s.b, s.c, s.skip, s.z, s.bias, s.state}; }
SelectiveScan with(SelectiveScan s, const Tensors& in) {
  s.x = in[0], s.delta = in[1], s.a = in[2], s.b = in[3], s.c = in[4], s.skip = in[5], s.z = in[6], s.bias = in[7];
  s.state = in[8];
  return s;
}

// chunk 0: step by step.
SelectiveScanned in_pieces(const SelectiveScan& s, const std::vector<int64_t>& pieces, int64_t chunk) {
  SelectiveScan part = s;
  SelectiveScanned done;
  Tensors out;
  int64_t from = 0;
  for (int64_t n : pieces) {
    const auto cut = [&](const Tensor& t) { return t.defined() ? t.narrow(1, from, n) : t; };
    part.x = cut(s.x), part.delta = cut(s.delta), part.b = cut(s.b), part.c = cut(s.c), part.z = cut(s.z);
    part.lanes = {cut(s.lanes.valid), cut(s.lanes.first)};
    done = chunk > 0 ? scan_selective(part, chunk) : scan_selective_steps(part);
    out.push_back(done.out);
    part.state = done.state;
    from += n;
  }
  return {at::cat(out, 1), done.state};
}

using Run = std::function<SelectiveScanned(const SelectiveScan&)>;
void expect_same(const SelectiveScan& s, const SelectiveScan& t, const Run& f, const Run& g, double tolerance,
                 const std::string& what) {
  const Tensors a = reference::leaves(inputs_of(s)), b = reference::leaves(inputs_of(t));
  const SelectiveScanned fa = f(with(s, a)), gb = g(with(t, b));
  reference::expect_near(fa.out, gb.out, tolerance, what + " out");
  reference::expect_near(fa.state, gb.state, tolerance, what + " state");
  const Tensors cot = reference::cotangents({gb.out, gb.state});
  const auto as = fa.out.scalar_type();
  const Tensors da = reference::gradients({fa.out, fa.state}, {cot[0].to(as), cot[1].to(fa.state.scalar_type())}, a),
                db = reference::gradients({gb.out, gb.state}, cot, b);
  for (size_t i = 0; i < da.size(); i++) reference::expect_near(da[i], db[i], tolerance, text(what, " gradient ", i));
}

TEST(ScanSelective, Golden) {
  for (const auto& one : golden::cases("recurrent/mamba_scan")) {
    const std::vector<std::string> in{"in.x", "in.delta",         "param.A",         "in.B", "in.C", "param.D",
                                      "in.z", "param.delta_bias", "in.initial_state"},
        out{"y", "final_state"};
    const bool softplus = one.config.at("delta_softplus").get<bool>();
    const bool zoh = one.config.at("discretisation").get<std::string>() == "zoh";
    const int64_t L = one.at("in.x").size(1);
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const bool cut : {false, true}) {
        for (const bool plain : {false, true}) {
          for (int64_t chunk : {0, 1, 7, 16, 64, 1000}) {
            const auto f = [&](const Tensors& t) {
              SelectiveScan s{t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], softplus, zoh};
              s.plain = plain;
              const SelectiveScanned done =
                  in_pieces(s, cut ? reference::pieces(one, L) : std::vector<int64_t>{L}, chunk);
              return Tensors{done.out, done.state};
            };
            reference::expect_golden(one, in, out, f, type, text("chunk ", chunk, " plain ", plain));
          }
        }
      }
    }
    const auto loop = [&](const Tensors& t) {
      const Tensor raw = t[7].defined() ? t[1] + t[7] : t[1];
      const Tensor h = t[8].defined() ? t[8] : at::zeros({t[0].size(0), t[0].size(2), t[2].size(1)}, t[0].options());
      const auto ran =
          reference::selective_scan(t[0], softplus ? at::softplus(raw) : raw, t[2], t[3], t[4], t[5], t[6], h, zoh);
      return Tensors{ran.y, ran.h};
    };
    reference::expect_golden(one, in, out, loop, at::kDouble, "reference");
  }
}

TEST(ScanSelective, StateAfterEachPieceIsTheGoldenOne) {
  int checked = 0;
  for (const auto& one : golden::cases("recurrent/mamba_scan")) {
    if (!one.config.contains("pieces")) continue;
    std::vector<int64_t> some;
    int64_t from = 0;
    for (int64_t n : reference::pieces(one, 0)) {
      from += n;
      some.push_back(n);
      const std::string after = "out.final_state_after_" + std::to_string(from);
      if (!one.has(after)) continue;
      for (const auto type : {at::kFloat, at::kDouble}) {
        const auto to = [&](const char* name) { return one.at(name).to(type); };
        const SelectiveScan s{
            to("in.x"), to("in.delta"),         to("param.A"),         to("in.B"), to("in.C"), to("param.D"),
            to("in.z"), to("param.delta_bias"), to("in.initial_state")};
        golden::expect_close(in_pieces(s, some, 16).state, one.at(after), one, after);
      }
      checked++;
    }
  }
  EXPECT_GT(checked, 0);
}

TEST(ScanSelective, ChunksAgreeWithStepsWithGapsAndBorders) {
  for (const bool zoh : {false, true}) {
    for (const int marks : {0, 1, 2, 3}) {
      SelectiveScan s = random_scan(3, 67, 5, 3);
      s.zoh = zoh;
      if (marks & 1) s.lanes.valid = at::rand({3, 67}) > 0.3;
      if (marks & 2) s.lanes.first = at::rand({3, 67}) > 0.9;
      for (int64_t chunk : {1, 7, 64, 1000}) {
        expect_same(
            s, s, [&](const SelectiveScan& x) { return scan_selective(x, chunk); }, scan_selective_steps, 1e-10,
            text("zoh ", zoh, " marks ", marks, " chunk ", chunk));
      }
    }
  }
}

// The kernel at lengths that no chunk divides, at channels and states that no vector divides.
TEST(ScanSelective, FusedAgreesWithStepsInDouble) {
  for (const bool zoh : {false, true}) {
    for (const int marks : {0, 1, 2, 3}) {
      for (const auto& [L, E, N] : std::vector<std::array<int64_t, 3>>{
               {1, 16, 16}, {2, 32, 1}, {31, 16, 4}, {32, 48, 5}, {33, 16, 16}, {100, 21, 13}, {257, 32, 16}}) {
        SelectiveScan wide = random_scan(2, L, E, N);
        wide.zoh = zoh;
        if (marks & 1) wide.lanes.valid = at::rand({2, L}) > 0.3;
        if (marks & 2) wide.lanes.first = at::rand({2, L}) > 0.9;
        SelectiveScan narrow = wide;
        const Tensors in = inputs_of(wide);
        Tensors less;
        for (const Tensor& t : in) less.push_back(t.to(at::kFloat));
        expect_same(
            with(narrow, less), wide, [](const SelectiveScan& x) { return scan_selective(x, 64); },
            scan_selective_steps, 3e-5, text("zoh ", zoh, " marks ", marks, " L ", L, " E ", E, " N ", N));
      }
    }
  }
}

TEST(ScanSelective, PartsMayBeLeftOut) {
  SelectiveScan s = random_scan(2, 40, 16, 4, at::kFloat);
  s.skip = s.z = s.bias = s.state = Tensor();
  SelectiveScan full = s;
  full.skip = full.bias = at::zeros({16});
  full.state = at::zeros({2, 16, 4});
  for (const bool softplus : {false, true}) {
    s.softplus = full.softplus = softplus;
    if (!softplus) s.delta = full.delta = s.delta.abs();
    const SelectiveScanned got = scan_selective(s, 16), want = scan_selective_steps(full);
    reference::expect_near(got.out, want.out, 1e-5, "out");
    reference::expect_near(got.state, want.state, 1e-5, "state");
  }
}

TEST(ScanSelective, EverySplitGivesTheSame) {
  SelectiveScan s = random_scan(2, 130, 3, 2);
  s.lanes.valid = at::rand({2, 130}) > 0.2;
  s.lanes.first = at::rand({2, 130}) > 0.95;
  for (int64_t split = 1; split < 130; split++) {
    expect_same(
        s, s,
        [&](const SelectiveScan& x) {
          return in_pieces(x, {split, 130 - split}, 64);
        },
        [](const SelectiveScan& x) { return scan_selective(x, 64); }, 1e-10, text("split ", split));
  }
}

TEST(ScanSelective, GradientsMatchFiniteDifferences) {
  for (const bool zoh : {false, true}) {
    SelectiveScan s = random_scan(2, 5, 2, 2);
    s.zoh = zoh;
    s.lanes.valid = at::ones({2, 5}, at::kBool);
    s.lanes.valid[1][2].fill_(false);
    s.lanes.first = at::zeros({2, 5}, at::kBool);
    s.lanes.first[0][3].fill_(true);
    const auto f = [&](const Tensors& in) {
      const SelectiveScanned done = scan_selective(with(s, in), 2);
      return Tensors{done.out, done.state};
    };
    reference::expect_gradients(f, inputs_of(s), text("zoh ", zoh));
  }
}

// A = 0 and nearly so: u = d B x, and its slope by A is d^2 B x / 2.
TEST(ScanSelective, HoldsWithoutDecay) {
  for (const double a : {0.0, -1e-30, -1e-12, -1e-5, -1e-2, -0.2}) {
    SelectiveScan wide = random_scan(1, 40, 16, 4);
    wide.zoh = true;
    wide.a = at::full_like(wide.a, a);
    SelectiveScan narrow = wide;
    Tensors less;
    for (const Tensor& t : inputs_of(wide)) less.push_back(t.to(at::kFloat));
    expect_same(
        with(narrow, less), wide, [](const SelectiveScan& x) { return scan_selective(x, 64); }, scan_selective_steps,
        3e-5, text("A ", a));
    expect_same(
        wide, wide, [](const SelectiveScan& x) { return scan_selective(x, 7); }, scan_selective_steps, 1e-10,
        text("A ", a, " in double"));
  }
}

TEST(ScanSelective, StrongDecayIsFiniteAndRight) {
  for (const bool zoh : {false, true}) {
    SelectiveScan wide = random_scan(2, 130, 16, 4);
    wide.zoh = zoh;
    wide.a = at::where(at::rand({16, 4}, wide.a.options()) > 0.5, at::full_like(wide.a, -1e4), at::zeros_like(wide.a));
    wide.delta.narrow(1, 60, 5).fill_(50);    // softplus of it is 50
    wide.delta.narrow(1, 80, 5).fill_(-200);  // and of this 0
    Tensors less;
    for (const Tensor& t : inputs_of(wide)) less.push_back(t.to(at::kFloat));
    SelectiveScan narrow = wide;
    expect_same(
        with(narrow, less), wide, [](const SelectiveScan& x) { return scan_selective(x, 64); }, scan_selective_steps,
        3e-5, text("zoh ", zoh));
  }
}

TEST(ScanSelective, SmallStepsKeepTheirDigits) {
  // softplus(-12) = 6e-6: its slope must not be 1 - exp(-d).
  SelectiveScan wide = random_scan(1, 50, 16, 4);
  wide.delta = at::full_like(wide.delta, -12.0);
  SelectiveScan narrow = wide;
  Tensors less;
  for (const Tensor& t : inputs_of(wide)) less.push_back(t.to(at::kFloat));
  const Tensors a = reference::leaves(less), b = reference::leaves(inputs_of(wide));
  const Tensors da = reference::gradients({scan_selective(with(narrow, a), 64).out.sum()}, {at::ones({})}, a),
                db = reference::gradients({scan_selective_steps(with(wide, b)).out.sum()}, {at::ones({}, at::kDouble)},
                                          b);
  EXPECT_LE(((da[1].to(at::kDouble) - db[1]).abs().max() / db[1].abs().max()).item<double>(), 1e-5);
}

TEST(ScanSelective, InvalidTokensMayHoldAnything) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    SelectiveScan s = random_scan(2, 20, 16, 4, type);
    s.lanes.valid = at::ones({2, 20}, at::kBool);
    s.lanes.valid.narrow(1, 8, 3).fill_(false);
    const SelectiveScanned want = scan_selective(s, 7);
    for (const Tensor& t : {s.x, s.delta, s.b, s.c, s.z}) t.narrow(1, 8, 3).fill_(NAN);
    const Tensors in = reference::leaves(inputs_of(s));
    const SelectiveScanned got = scan_selective(with(s, in), 7);
    reference::expect_near(got.out, want.out, 0, "out");
    reference::expect_near(got.state, want.state, 0, "state");
    EXPECT_EQ(got.out.narrow(1, 8, 3).abs().max().item<double>(), 0);
    for (const Tensor& g : reference::gradients({got.out}, {at::ones_like(got.out)}, in)) {
      EXPECT_TRUE(g.isfinite().all().item<bool>());
    }
  }
}

// Views of one projection, a transposed sequence, an expanded gate.
TEST(ScanSelective, LayoutsDoNotMatter) {
  const SelectiveScan s = random_scan(2, 40, 16, 4, at::kFloat);
  SelectiveScan views = s;
  const Tensor wide = at::cat({s.b, s.x, s.c, s.z}, -1);
  views.b = wide.narrow(-1, 0, 4), views.x = wide.narrow(-1, 4, 16), views.c = wide.narrow(-1, 20, 4);
  views.z = wide.narrow(-1, 24, 16);
  views.delta = s.delta.transpose(0, 1).contiguous().transpose(0, 1);
  views.a = s.a.t().contiguous().t();
  views.state = s.state.transpose(1, 2).contiguous().transpose(1, 2);
  const SelectiveScanned want = scan_selective(s, 16), got = scan_selective(views, 16);
  reference::expect_near(got.out, want.out, 0, "out");
  reference::expect_near(got.state, want.state, 0, "state");
  SelectiveScan same = s;
  same.z = s.z.narrow(1, 0, 1).expand({2, 40, 16});
  same.x = s.x.transpose(1, 2).contiguous().transpose(1, 2);
  SelectiveScan copy = same;
  copy.z = same.z.contiguous(), copy.x = same.x.contiguous();
  reference::expect_near(scan_selective(same, 16).out, scan_selective(copy, 16).out, 0, "expanded");
}

TEST(ScanSelective, HalfPrecisionIsComputedInFloat) {
  const SelectiveScan s = random_scan(2, 40, 16, 4, at::kFloat);
  SelectiveScan half = s;
  for (Tensor* t : {&half.x, &half.delta, &half.b, &half.c, &half.z}) *t = t->to(at::kBFloat16);
  SelectiveScan rounded = half;
  for (Tensor* t : {&rounded.x, &rounded.delta, &rounded.b, &rounded.c, &rounded.z}) *t = t->to(at::kFloat);
  const SelectiveScanned got = scan_selective(half, 16), want = scan_selective(rounded, 16);
  EXPECT_EQ(got.out.scalar_type(), at::kBFloat16);
  EXPECT_EQ(got.state.scalar_type(), at::kFloat);
  reference::expect_near(got.out, want.out.to(at::kBFloat16), 0, "out");
  reference::expect_near(got.state, want.state, 0, "state");
}

TEST(ScanSelective, AnyLengthHasTheSameStateLayout) {
  for (int64_t length : {0, 1, 2, 63, 64, 65}) {
    const SelectiveScan s = random_scan(1, length, 16, 4, at::kFloat);
    const SelectiveScanned a = scan_selective(s, 64), b = scan_selective_steps(s);
    EXPECT_EQ(a.state.sizes(), (std::vector<int64_t>{1, 16, 4}));
    EXPECT_EQ(a.out.sizes(), (std::vector<int64_t>{1, length, 16}));
    reference::expect_near(a.out, b.out, 1e-5, "out");
    reference::expect_near(a.state, b.state, 1e-5, "state");
  }
}

TEST(ScanSelective, FloatStaysCloseOverFourThousandSteps) {
  const SelectiveScan s = random_scan(1, 4096, 16, 16, at::kFloat), wide = random_scan(1, 4096, 16, 16);
  const SelectiveScanned got = scan_selective(s, 64), want = scan_selective(wide, 64);
  const auto off = [](const Tensor& a, const Tensor& b) {
    return ((a.to(at::kDouble) - b).abs().max() / b.abs().max()).item<double>();
  };
  EXPECT_LE(off(got.out, want.out), 1e-5);
  EXPECT_LE(off(got.state, want.state), 1e-5);
}

TEST(ScanSelective, RefusesWhatDoesNotFit) {
  SelectiveScan s = random_scan(1, 4, 3, 2, at::kFloat);
  s.b = s.b.narrow(1, 0, 3);
  EXPECT_THROW(scan_selective(s, 64), Error);
}

TEST(ScanSelective, RefusesSecondDerivatives) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const SelectiveScan s = random_scan(1, 4, 3, 2, type);
    const Tensors in = reference::leaves(inputs_of(s));
    const Tensor out = scan_selective(with(s, in), 2).out.sum();
    EXPECT_THROW(torch::autograd::grad({out}, {in[0]}, {}, true, true), std::exception);
  }
}

}  // namespace
}  // namespace kinfolk
