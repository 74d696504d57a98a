#include "kinfolk/nn/qk/rerope.h"

#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

/// log_n stands before or after the rotation: it only scales queries.
void expect_row(const std::string& row, const std::string& kind) {
  for (const auto& one : golden::cases("attention/" + row)) {
    std::string step = text("{ kind = \"", kind, "\", window = ", one.config.at("window").get<int64_t>());
    if (kind == "leaky_rerope") step += text(", k = ", std::to_string(one.config.at("k").get<double>()));
    step += " }";
    const std::string pattern = one.config.at("causal").get<bool>() ? "causal" : "full";
    std::vector<std::string> orders{step};
    if (one.config.at("logn").get<bool>()) {
      const std::string scale =
          text("{ kind = \"log_n\", clip = true, trained = ", one.config.at("train_length").get<int64_t>(), " }");
      orders = {step + ", " + scale, scale + ", " + step};
    }
    for (const auto& order : orders)
      expect_core(one, *core_branch(one, text("pattern = \"", pattern, "\"\nqk = [", order, "]")));
  }
}

TEST(Rerope, Golden) { expect_row("rerope", "rerope"); }
TEST(LeakyRerope, Golden) { expect_row("leaky_rerope", "leaky_rerope"); }
TEST(LeakyRerope, GoldenOfTheInverse) { expect_row("inverse_leaky_rerope", "leaky_rerope"); }

TEST(Rerope, IsRopeWithinTheWindow) {
  const Sequence s{normal({1, 10, 8}, 3)};
  const Tensor rope = run(*make_attention("qk = [\"rope\"]", 8, 2), s, {10});
  const auto wide = make_attention("qk = [{ kind = \"rerope\", window = 9 }]", 8, 2);
  const auto narrow = make_attention("qk = [{ kind = \"rerope\", window = 8 }]", 8, 2);
  EXPECT_LE(distance(run(*wide, s, {10}), rope), 1e-12);
  EXPECT_GT(distance(run(*narrow, s, {10}), rope), 1e-4);
  EXPECT_FALSE(narrow->keys_final());
}

TEST(Rerope, FarKeysStandAtTheWindow) {
  const auto branch = make_attention("qk = [{ kind = \"rerope\", window = 4 }]", 8, 1);
  const Tensor q = normal({1, 1, 1, 8}, 1), k = normal({1, 1, 1, 8}, 2);
  const auto score = [&](int64_t i, int64_t j) {
    const Tensor at = at::full({1, 1}, i, at::kLong), key_at = at::full({1, 1}, j, at::kLong);
    return branch->look(q, at, {}, {Keys{k, k, key_at, {}, {}, {}}}).lse.item<double>();
  };
  EXPECT_NEAR(score(5, 1), score(4, 0), 1e-12);
  EXPECT_NEAR(score(100, 1), score(4, 0), 1e-12);
  EXPECT_NEAR(score(12, 9), score(3, 0), 1e-12);
  EXPECT_GT(std::abs(score(3, 0) - score(4, 0)), 1e-4);
}

}  // namespace
}  // namespace kinfolk
