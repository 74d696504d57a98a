// Training on images: whole ones, nothing carried between them, bits per pixel, and a resumed run that is bit-equal.
#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/train/training_testing.h"

namespace kinfolk {
namespace {

using namespace testing_runs;

/// 4 x 4 images of 5 levels: a bright column on dark ground, at a place and of a height that vary.
Corpus small_images() {
  Corpus corpus;
  corpus.path = "columns";
  corpus.images = {4, 4, 5};
  int64_t begin = 0;
  for (Text* text : {&corpus.train, &corpus.valid}) {
    for (int64_t i = 0; i < 40; ++i)
      for (int64_t pixel = 0; pixel < 16; ++pixel) {
        const bool bright = pixel % 4 == (i + begin) % 4 && pixel / 4 >= i % 3;
        text->bytes.push_back(static_cast<uint8_t>(bright ? 3 + i % 2 : 0));
      }
    for (int64_t i = 0; i < 40; ++i) text->documents.push_back({"", i * 16, (i + 1) * 16});
    begin = 1;
  }
  return corpus;
}

Recipe image_recipe(const std::string& name) {
  Recipe recipe = load_recipe(name);
  if (name.rfind("image", 0) != 0) return recipe;
  override_recipe(recipe, "let.rows=4");
  override_recipe(recipe, "let.columns=4");
  if (name == "image_2d") override_recipe(recipe, "let.height=2"), override_recipe(recipe, "let.width=2");
  if (name == "image_1d") override_recipe(recipe, "let.block=4"), override_recipe(recipe, "let.memory=6");
  return recipe;
}

TrainResult train_images(const std::string& name, const TrainSettings& settings, const std::string& out,
                         TrainHooks hooks = {}) {
  hooks.quiet = true;
  return train(image_recipe(name), small_size(), settings, small_images(), out, hooks);
}

void expect_same_weights(const TrainResult& a, const TrainResult& b) {
  const auto x = a.model->weights(), y = b.model->weights();
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(x[i].second.equal(y[i].second)) << x[i].first;
}

class TrainsImages : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Members, TrainsImages,
                         testing::Values("image_1d", "image_2d", "rope", "gpt", "deltanet", "transformer_xl"),
                         [](const auto& info) { return info.param; });

TEST_P(TrainsImages, AResumedRunIsBitEqual) {
  const Folder folder("images_" + GetParam());
  const TrainSettings settings = small_settings(7);
  const TrainResult whole = train_images(GetParam(), settings, folder / "whole");
  EXPECT_TRUE(whole.finished);
  EXPECT_EQ(whole.record.point.step, 7);
  EXPECT_EQ(whole.record.size.vocabulary, 6);
  EXPECT_EQ(whole.record.size.context, 16);
  train_images(GetParam(), settings, folder / "parts", stop_at(3));
  TrainHooks on;
  on.resume = true;
  const TrainResult parts = train_images(GetParam(), settings, folder / "parts", on);
  expect_same_weights(whole, parts);
  EXPECT_EQ(whole.record.point.best_bits, parts.record.point.best_bits);
  const LoadedRun loaded = load_run(folder / "whole");
  EXPECT_EQ(loaded.record.images, (ImageForm{4, 4, 5}));
}

TEST(TrainImages, LearnsBitsPerPixel) {
  const Folder folder("images_learn");
  TrainSettings settings = small_settings(60);
  settings.tokens += 3;  // less than a step: left out
  const TrainResult result = train_images("image_1d", settings, folder / "run");
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.record.point.tokens, 60 * 64);
  ASSERT_FALSE(result.validations.empty());
  EXPECT_TRUE(result.validations.back().pixels);
  EXPECT_LT(result.validations.back().bits, 0.5 * result.validations.front().bits);
  std::ifstream log(folder / "run/log.jsonl");
  const std::string lines{std::istreambuf_iterator<char>(log), {}};
  EXPECT_NE(lines.find("\"bpd\""), std::string::npos);
  EXPECT_EQ(lines.find("\"bpb\""), std::string::npos);
}

TEST(TrainImages, RefusesAnotherFormOrLength) {
  const Folder folder("images_refused");
  const auto words = [&](const Recipe& recipe, const TrainSettings& settings) -> std::string {
    try {
      TrainHooks hooks;
      hooks.quiet = true;
      train(recipe, small_size(), settings, small_images(), folder / "run", hooks);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_NE(words(load_recipe("image_1d"), small_settings()).find("--set let.rows=4"), std::string::npos);
  TrainSettings longer = small_settings();
  longer.length = 32;
  EXPECT_NE(words(image_recipe("image_1d"), longer).find("[train.length] expected 16"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

}  // namespace
}  // namespace kinfolk
