#include "kinfolk/train/settings.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

Recipe recipe_with(const std::string& toml) { return {"r", parse_toml(toml, "r.toml")}; }

TEST(TrainSettings, FlagsWinOverRecipeOverSize) {
  const Value of_size = parse_toml("lanes = 4\nlearning_rate = 0.5\nclip = 2", "s.toml");
  const Recipe recipe = recipe_with("[let]\nn = 64\n[train]\nlearning_rate = 0.25\nlength = 'n'\nseed = 7");
  Size size;
  size.dropout = 0.2;
  const auto s = resolve_settings(of_size, recipe, size, parse_toml("seed = 9", "flags"));
  EXPECT_EQ(s.lanes, 4);
  EXPECT_EQ(s.learning_rate, 0.25);
  EXPECT_EQ(s.clip, 2);
  EXPECT_EQ(s.length, 64);
  EXPECT_EQ(s.seed, 9);
  EXPECT_EQ(s.dropout, 0.2);
  EXPECT_EQ(s.tokens, 1'000'000);
  EXPECT_EQ(resolve_settings({}, recipe_with(""), size).length, size.context);
}

TEST(TrainSettings, OneBudget) {
  const Recipe recipe = recipe_with("[train]\ntokens = 500");
  const auto s = resolve_settings({}, recipe, {}, parse_toml("minutes = 2", "flags"));
  EXPECT_EQ(s.tokens, 0);
  EXPECT_EQ(s.minutes, 2);
  EXPECT_EQ(refusal([&] { resolve_settings({}, recipe, {}, parse_toml("minutes = 2\nwork = 1e9", "flags")); }),
            "flags:2:1: [train] expected one budget; found minutes and work");
}

TEST(TrainSettings, RefusesWithPlaceAndNearestKey) {
  EXPECT_NE(refusal([&] {
              resolve_settings({}, recipe_with("[train]\nlanse = 3"), {});
            }).find("r.toml:2:1: [train.lanse] expected a known key; found lanse (did you mean lanes?)"),
            std::string::npos);
  EXPECT_EQ(refusal([&] { resolve_settings({}, recipe_with("[train]\nlanes = 8\naccumulate = 3"), {}); }),
            "[train.accumulate] expected a divisor of lanes = 8; found 3");
  EXPECT_NE(refusal([&] { resolve_settings({}, recipe_with("[train]\nprecision = 'fp16'"), {}); }).find("float32"),
            std::string::npos);
  refusal([&] { resolve_settings({}, recipe_with("[train]\nlearning_rate = -1"), {}); });
}

TEST(TrainSettings, RoundTripAndDocumented) {
  TrainSettings s;
  s.work = 3e12;
  s.learning_rate = 0.1 + 0.2;
  const Value table = parse_toml(write_toml(write_options(s)), "back");
  EXPECT_EQ(write_toml(write_options(read_options<TrainSettings>(table, "train"))), write_toml(write_options(s)));
  for (const auto& field : list_fields<TrainSettings>()) EXPECT_FALSE(field.about.empty()) << field.key;
}

TEST(TrainSettings, WhatAResumedRunMayChange) {
  TrainSettings before, now;
  now.log_every = 3;
  now.tokens = 5;
  EXPECT_TRUE(fixed_differences(before, now).empty());
  now.lanes = 16;
  EXPECT_EQ(fixed_differences(before, now), std::vector<std::string>{"lanes (8 before, 16 now)"});
  for (const auto& key : changeable_settings()) EXPECT_NE(key, "lanes");
}

}  // namespace
}  // namespace kinfolk
