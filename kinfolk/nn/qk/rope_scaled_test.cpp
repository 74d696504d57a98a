// RoPE with other frequencies: position interpolation, NTK, mixed base, YaRN.
#include "kinfolk/nn/qk/longrope.h"
#include "kinfolk/nn/qk/rope_mixed_base.h"
#include "kinfolk/nn/qk/rope_ntk.h"
#include "kinfolk/nn/qk/rope_pi.h"
#include "kinfolk/nn/qk/yarn.h"
#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

std::string number(double x) { return write_toml_value(Value(x)); }

const Rotation& rotation_of(const Attention& branch) { return std::dynamic_pointer_cast<Turn>(branch.qk[0])->rotation; }

/// Runs a row whose cases are one step each; `more` gives the step's options beside base, layout, rotary and factor.
void expect_row(const std::string& row, const std::string& kind,
                const std::function<std::string(const nlohmann::json&)>& more) {
  for (const auto& one : golden::cases("attention/" + row)) {
    const auto& c = one.config;
    const auto branch = core_branch(
        one, text("qk = [{ kind = \"", kind, "\", base = ", number(c.at("base").get<double>()), ", layout = \"",
                  c.at("layout").get<std::string>(), "\", rotary = ", c.at("rot_dim").get<int64_t>(),
                  ", factor = ", number(c.at("scale").get<double>()), more(c), " }]"));
    const int64_t start = c.at("start");
    const Tensor q = one.at("in.q"), k = one.at("in.k");
    const Tensor k_at = (at::arange(k.size(2), at::kLong) + start).repeat({k.size(0), 1});
    const Tensor q_at = k_at.narrow(1, k.size(2) - q.size(2), q.size(2));
    golden::expect_close(branch->qk[0]->queries({q}, q_at)[0].q, one.at("out.q"), one, "out.q");
    golden::expect_close(branch->qk[0]->keys({k}, k_at)[0].k, one.at("out.k"), one, "out.k");
    golden::expect_close(at::tensor(rotation_of(*branch).frequency, real()), one.at("out.inv_freq"), one, "inv_freq");
    expect_core(one, *branch, start);
  }
}

TEST(RopePi, Golden) {
  expect_row("rope_pi", "rope_pi", [](const auto&) { return ""; });
}
TEST(RopeNtk, Golden) {
  expect_row("rope_ntk", "rope_ntk", [](const auto&) { return ""; });
}
TEST(RopeNtk, GoldenOfTheFixedForm) {
  expect_row("rope_ntk_fixed", "rope_ntk", [](const auto&) { return ", form = \"fixed\""; });
}
TEST(RopeMixedBase, Golden) {
  expect_row("rope_mixed_base", "rope_mixed_base",
             [](const auto& c) { return ", b = " + number(c.at("b").template get<double>()); });
}
TEST(Yarn, Golden) {
  expect_row("yarn", "yarn", [](const auto& c) {
    return text(", alpha = ", number(c.at("alpha").template get<double>()),
                ", beta = ", number(c.at("beta").template get<double>()), ", ramp = \"",
                c.at("ramp").template get<std::string>(),
                "\", trained = ", c.at("train_length").template get<int64_t>());
  });
}

std::vector<double> frequencies(const std::string& step, int64_t width = 16) {
  return rotation_of(*make_attention("qk = [" + step + "]", width, 1)).frequency;
}

TEST(RopeMixedBase, LiesBetweenInterpolationAndTheFixedForm) {
  const auto pi = frequencies("{ kind = \"rope_pi\", factor = 8 }"),
             fixed = frequencies("{ kind = \"rope_ntk\", form = \"fixed\", factor = 8 }"),
             zero = frequencies("{ kind = \"rope_mixed_base\", factor = 8, b = 0 }"),
             one = frequencies("{ kind = \"rope_mixed_base\", factor = 8, b = 1 }"),
             between = frequencies("{ kind = \"rope_mixed_base\", factor = 8 }");
  for (size_t t = 0; t < pi.size(); ++t) {
    EXPECT_NEAR(zero[t], pi[t], 1e-14 * pi[t]);
    EXPECT_NEAR(one[t], fixed[t], 1e-14 * fixed[t]);
    EXPECT_LE(between[t], fixed[t] * (1 + 1e-14));
    EXPECT_GE(between[t], pi[t] * (1 - 1e-14));
  }
}

TEST(RopeKin, AFactorOfOneIsRope) {
  const auto rope = frequencies("\"rope\"");
  for (const std::string step :
       {"{ kind = \"rope_pi\", factor = 1 }", "{ kind = \"rope_ntk\", factor = 1 }",
        "{ kind = \"rope_ntk\", form = \"fixed\", factor = 1 }", "{ kind = \"rope_mixed_base\", factor = 1 }",
        "{ kind = \"yarn\", factor = 1 }", "{ kind = \"yarn\", factor = 1, ramp = \"code\" }"}) {
    const auto got = frequencies(step);
    for (size_t t = 0; t < rope.size(); ++t) EXPECT_NEAR(got[t], rope[t], 1e-14) << step;
  }
  EXPECT_EQ(frequencies("{ kind = \"rope_ntk\", factor = 8 }", 2), std::vector<double>{1}) << "one pair alone";
}

// llm-compressor and vLLM disagree about rounding: both rules, with numbers of a published model.
TEST(Yarn, BoundsOfTheRampRoundedAndExact) {
  const auto exact = yarn_bounds(1, 32, 150000, 32, 4096, false), rounded = yarn_bounds(1, 32, 150000, 32, 4096, true);
  EXPECT_NEAR(exact.first, 8.09, 0.01);
  EXPECT_NEAR(exact.second, 17.40, 0.01);
  EXPECT_EQ(rounded, (std::pair<double, double>(8, 18)));
  const auto with = [](const std::string& ramp) {
    return frequencies("{ kind = \"yarn\", base = 150000, trained = 4096, factor = 32, ramp = \"" + ramp + "\" }", 64);
  };
  EXPECT_NE(with("code"), with("code_unrounded"));
  EXPECT_NE(with("code"), with("paper"));
  EXPECT_EQ(with("code")[8], rope_frequencies(150000, 64)[8]);
  EXPECT_NEAR(with("code")[18], rope_frequencies(150000, 64)[18] / 32, 1e-18);
}

TEST(Yarn, TrainedIsTheContextUnlessGiven) {
  EXPECT_EQ(frequencies("{ kind = \"yarn\" }"), frequencies("{ kind = \"yarn\", trained = 512 }"));
  EXPECT_NE(frequencies("{ kind = \"yarn\" }"), frequencies("{ kind = \"yarn\", trained = 64 }"));
  EXPECT_THROW(make_attention("qk = [{ kind = \"yarn\", alpha = 4, beta = 4 }]", 8, 1), Error);
}

/// A score as seen by one query alone: the keys' cached form, the step, the pattern.
Tensor last_row(Attention& branch, const Sequence& s, int64_t length) {
  return run(branch, {s.x.narrow(1, 0, length)}, {length}).narrow(1, length - 1, 1);
}

// The scale depends on the position of the query: every query sees all keys as the plain form of its scale does.
TEST(RopeNtkDynamic, EveryQueryIsTheFixedScaleOfItsPosition) {
  const Sequence s{normal({2, 40, 8}, 3)};
  const auto dynamic = make_attention("qk = [{ kind = \"rope_ntk_dynamic\", trained = 8, factor = 2 }]", 8, 1);
  const Tensor all = run(*dynamic, s, {40});
  const std::vector<std::pair<int64_t, double>> scales{{1, 1},  {8, 1},  {9, 3},   {16, 3},
                                                       {17, 7}, {32, 7}, {33, 15}, {40, 15}};
  for (const auto& [n, scale] : scales) {
    const auto fixed = make_attention(text("qk = [{ kind = \"rope_ntk\", factor = ", number(scale), " }]"), 8, 1);
    EXPECT_LE(distance(last_row(*fixed, s, n), all.narrow(1, n - 1, 1)), 1e-12) << n;
  }
}

TEST(RopeNtkDynamic, CachedEqualsRecomputed) {
  const auto branch = make_attention("qk = [{ kind = \"rope_ntk_dynamic\", trained = 16 }]", 8, 2);
  EXPECT_FALSE(branch->keys_final());
  const Sequence s{normal({1, 40, 8}, 5)};
  const Outcome whole = run_with_gradients(*branch, s, {40});
  expect_same(run_with_gradients(*branch, s, {15, 1, 1, 23}), whole, "pieces across the trained length");
  expect_same(run_with_gradients(*branch, s, std::vector<int64_t>(40, 1)), whole, "token by token");
}

// Lanes that stand in different stages, in one call.
TEST(RopeNtkDynamic, LanesAtDifferentLengths) {
  const auto branch = make_attention("qk = [{ kind = \"rope_ntk_dynamic\", trained = 4 }]", 8, 1);
  const Tensor valid = at::ones({2, 12}, at::kBool);
  valid[1].narrow(0, 0, 7).fill_(false);
  const Sequence s{normal({2, 12, 8}, 5), valid};
  const Tensor together = run(*branch, s, {12});
  const Tensor alone = run(*branch, {s.x.narrow(0, 1, 1).narrow(1, 7, 5)}, {5});
  EXPECT_LE(distance(together[1].narrow(0, 7, 5), alone[0]), 1e-12);
}

TEST(LongRope, LongFactorsFromTheFirstPositionBeyondTheTrained) {
  const Sequence s{normal({1, 14, 8}, 3)};
  const std::string shorts = "short_factor = [1, 1.1, 1.2, 1.3]", longs = "long_factor = [1, 2, 3, 4]";
  const auto branch =
      make_attention("qk = [{ kind = \"longrope\", trained = 8, factor = 1, " + shorts + ", " + longs + " }]", 8, 1);
  const Tensor all = run(*branch, s, {14});
  expect_same(run_with_gradients(*branch, s, {7, 1, 1, 5}), run_with_gradients(*branch, s, {14}), "pieces");
  for (const int64_t n : {8, 9, 14}) {
    const auto one = make_attention(
        text("qk = [{ kind = \"longrope\", trained = ", n <= 8 ? 100 : 1, ", factor = 1, ", shorts, ", ", longs, " }]"),
        8, 1);
    if (n <= 8) EXPECT_LE(distance(last_row(*one, s, n), all.narrow(1, n - 1, 1)), 1e-12) << n;
    if (n > 8) EXPECT_LE(distance(last_row(*one, s, n), all.narrow(1, n - 1, 1)), 1e-12) << n;
  }
  try {
    make_attention("qk = [{ kind = \"longrope\", short_factor = [1, 2] }]", 8, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[attention.qk[0].short_factor] expected a factor for each of 4 pairs; found 2");
  }
}

TEST(RopeKin, TwoStepsWhoseKeysDependOnTheQueryAreRefused) {
  EXPECT_THROW(make_attention("qk = [\"xpos\", \"rope_ntk_dynamic\"]", 8, 1), Error);
}

// Positions around the trained length and its multiple are all alike: there is no table that could end.
TEST(RopeKin, NoTableEnds) {
  for (const std::string step :
       {"\"rope_pi\"", "\"rope_ntk\"", "{ kind = \"rope_ntk_dynamic\", trained = 16 }", "\"rope_mixed_base\"",
        "{ kind = \"yarn\", trained = 16 }", "{ kind = \"longrope\", trained = 16 }", "\"xpos\""}) {
    const auto branch = make_attention("qk = [" + step + "]", 8, 1);
    const Tensor at = at::tensor(std::vector<int64_t>{15, 16, 63, 64, 1000000, INT64_MAX / 4}, at::kLong).unsqueeze(0);
    const Tensor q = normal({1, 1, 6, 8}, 3);
    EXPECT_TRUE(branch->qk[0]->queries({q}, at)[0].q.isfinite().all().item<bool>()) << step;
    const Tensor stage = branch->qk[0]->stage(at);
    const int64_t last = stage.defined() ? stage.max().item<int64_t>() : 0;
    EXPECT_TRUE(branch->qk[0]->keys_for({q}, at, last)[0].k.isfinite().all().item<bool>()) << step;
  }
}

// Phases are made in double whatever the model's type: neighbours stay apart however far the text is.
TEST(RopeKin, PhasesOfLowPrecisionModelsTellNeighboursApart) {
  const auto half = at::TensorOptions().dtype(at::kBFloat16);
  for (const std::string step : {"\"rope_pi\"", "\"rope_ntk\"", "\"rope_ntk_dynamic\"", "\"rope_mixed_base\"",
                                 "\"yarn\"", "\"longrope\"", "\"xpos\""}) {
    const auto branch = make_attention("qk = [" + step + "]", 16, 1, half);
    const auto precise = make_attention("qk = [" + step + "]", 16, 1);
    for (const int64_t position : {257, 4095, 100000}) {
      const Tensor at = at::tensor({position, position + 1}, at::kLong).unsqueeze(0);
      const Tensor k = at::ones({1, 1, 2, 16}, half);
      const int64_t stage = position / 20000;  // of xpos; the last one of the others
      const Tensor turned = branch->qk[0]->keys_for({k}, at, stage)[0].k;
      EXPECT_EQ(turned.scalar_type(), at::kBFloat16);
      const Tensor want = precise->qk[0]->keys_for({k.to(at::kDouble)}, at, stage)[0].k;
      EXPECT_LE(distance(turned.to(at::kDouble) / want.abs().max(), want / want.abs().max()), 0.005) << step;
      EXPECT_GT(distance(turned.select(2, 0), turned.select(2, 1)), 0.1) << step << " " << position;
    }
  }
}

}  // namespace
}  // namespace kinfolk
