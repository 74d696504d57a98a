#include "kinfolk/eval/sampler.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

Tensor scores() { return at::tensor({0.5, 0.2, 0.15, 0.1, 0.05}, at::kDouble).log(); }

std::vector<double> frequencies(const SamplerOptions& options, const std::vector<int64_t>& recent = {},
                                int draws = 20000) {
  Sampler sampler(options);
  std::vector<double> share(5, 0);
  for (int i = 0; i < draws; ++i) share[static_cast<size_t>(sampler.draw(scores(), recent).token)] += 1.0 / draws;
  return share;
}

TEST(Sampler, DrawsByProbability) {
  SamplerOptions options;
  options.temperature = 1;
  const auto share = frequencies(options);
  const double expected[] = {0.5, 0.2, 0.15, 0.1, 0.05};
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(share[i], expected[i], 0.015);
}

TEST(Sampler, ZeroTemperatureTakesTheMostLikely) {
  SamplerOptions options;
  options.temperature = 0;
  Sampler sampler(options);
  const auto draw = sampler.draw(scores() + 7.0, {});
  EXPECT_EQ(draw.token, 0);
  EXPECT_NEAR(draw.log_probability, std::log(0.5), 1e-12);
}

TEST(Sampler, LimitsKeepWhatTheySay) {
  SamplerOptions options;
  options.temperature = 1;
  options.top_k = 2;
  auto share = frequencies(options);
  EXPECT_NEAR(share[0], 0.5 / 0.7, 0.015);
  EXPECT_EQ(share[2] + share[3] + share[4], 0);
  options.top_k = 0;
  options.top_p = 0.6;
  share = frequencies(options);
  EXPECT_GT(share[1], 0);
  EXPECT_EQ(share[2], 0);
  options.top_p = 1;
  options.min_p = 0.25;  // 0.15 / 0.5 = 0.3 stays, 0.1 / 0.5 = 0.2 goes
  share = frequencies(options);
  EXPECT_GT(share[2], 0);
  EXPECT_EQ(share[3], 0);
}

TEST(Sampler, RepetitionMakesRecentTokensRarer) {
  SamplerOptions options;
  options.temperature = 1;
  options.repetition = 2;
  const auto share = frequencies(options, {0});
  EXPECT_NEAR(share[0], 0.25 / 0.75, 0.015);  // 0.5^2 of 0.5^2 + the rest
}

TEST(Sampler, SameSeedSameDraws) {
  SamplerOptions options;
  Sampler a(options), b(options);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(a.draw(scores(), {}).token, b.draw(scores(), {}).token);
}

TEST(Sampler, RefusesNonsense) {
  SamplerOptions options;
  options.top_p = 0;
  EXPECT_THROW(Sampler{options}, UsageError);
  options = {};
  options.temperature = -1;
  EXPECT_THROW(Sampler{options}, UsageError);
}

}  // namespace
}  // namespace kinfolk
