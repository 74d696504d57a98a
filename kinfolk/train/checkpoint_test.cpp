#include "kinfolk/train/checkpoint.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/safetensors.h"
#include "kinfolk/train/training_testing.h"

namespace kinfolk {
namespace {

using namespace testing_runs;

RunRecord record_for(const Recipe& recipe) {
  RunRecord record;
  record.recipe = recipe;
  record.size = small_size();
  record.settings = small_settings();
  record.point.step = 7;
  record.point.seconds = 0.1 + 0.2;
  record.data = "caf\u00e9";
  return record;
}

class CheckpointFile : public testing::Test {
 protected:
  void save(const std::string& member = "rope") {
    recipe_ = small_recipe(member);
    model_ = Model::make(recipe_, small_size(), 3);
    save_checkpoint(path_, *model_, nullptr, {}, record_for(recipe_));
  }
  void rewrite(const std::function<void(TensorFile&)>& change) {
    TensorFile file = read_tensors(path_);
    change(file);
    write_tensors(path_, file);
  }
  std::string failure() {
    try {
      load_run(path_);
    } catch (const Error& error) {
      const std::string said = error.what();
      EXPECT_EQ(dynamic_cast<const UsageError*>(&error), nullptr) << said;
      EXPECT_EQ(said.find('\n'), std::string::npos) << said;
      EXPECT_EQ(said.find("[checkpoint] " + path_ + ": expected "), 0u) << said;
      return said;
    }
    ADD_FAILURE() << "it was loaded";
    return "";
  }
  Folder folder_{"checkpoint"};
  std::string path_ = (std::filesystem::create_directories(folder_.path()), folder_ / "a.safetensors");
  Recipe recipe_;
  std::shared_ptr<Model> model_;
};

TEST_F(CheckpointFile, GivesTheSameScores) {
  save();
  const LoadedRun run = load_run(path_);
  EXPECT_EQ(run.record.point.step, 7);
  EXPECT_EQ(run.record.point.seconds, 0.1 + 0.2);
  EXPECT_EQ(run.record.holds, "weights");
  EXPECT_EQ(run.record.data, "caf\u00e9");
  EXPECT_FALSE(run.model->is_training());
  const Batch batch{at::arange(20).view({2, 10}), {}};
  EXPECT_TRUE(run.model->score(batch).equal(model_->score(batch)));
  EXPECT_THROW(load_training(path_, 0), Error);
}

TEST_F(CheckpointFile, TestOverridesAreThoseOfTheRecipe) {
  save("hwfa_rerope");
  const Batch batch{at::arange(120).view({1, 120}), {}};
  const Recipe test = at_test(recipe_);
  EXPECT_EQ(write_toml(load_run(path_, true).model->recipe().tree), write_toml(test.tree));
  EXPECT_EQ(write_toml(load_run(path_).model->recipe().tree), write_toml(recipe_.tree));
}

TEST_F(CheckpointFile, CutShort) {
  save();
  const auto size = std::filesystem::file_size(path_);
  for (const auto keep : {size - 1, size / 2, size_t{9}, size_t{3}, size_t{0}}) {
    save();
    std::filesystem::resize_file(path_, keep);
    failure();
  }
}

TEST_F(CheckpointFile, Foreign) {
  std::ofstream(path_) << "not a checkpoint at all, but long enough to hold eight bytes";
  failure();
  write_tensors(path_, {{{"x", at::zeros({2})}}, {{"format", "pt"}}});
  EXPECT_NE(failure().find("expected a checkpoint of format kinfolk-1; found format pt"), std::string::npos);
  write_tensors(path_, {{{"x", at::zeros({2})}}, {}});
  EXPECT_NE(failure().find("found a safetensors file of another program"), std::string::npos);
  save();
  rewrite([](TensorFile& file) { file.metadata["format"] = "kinfolk-2"; });
  EXPECT_NE(failure().find("expected format kinfolk-1; found format kinfolk-2"), std::string::npos);
}

TEST_F(CheckpointFile, TensorsAreNamed) {
  save();
  const std::string name = model_->weights()[1].first;
  rewrite([&](TensorFile& file) { file.tensors.erase("model." + name); });
  EXPECT_NE(failure().find("expected the tensor model." + name), std::string::npos);
  save();
  rewrite([&](TensorFile& file) { file.tensors["model." + name] = at::zeros({3, 2}); });
  EXPECT_NE(failure().find("found one of shape [3, 2]"), std::string::npos);
  save();
  rewrite([&](TensorFile& file) { file.tensors["model.extra"] = at::zeros({3, 2}); });
  EXPECT_NE(failure().find("found model.extra"), std::string::npos);
}

TEST_F(CheckpointFile, MetadataIsChecked) {
  for (const char* key : {"recipe", "size", "settings", "point", "data"}) {
    save();
    rewrite([&](TensorFile& file) { file.metadata.erase(key); });
    EXPECT_NE(failure().find(std::string("its metadata to hold ") + key), std::string::npos);
  }
  for (const char* key : {"recipe", "size", "point"}) {
    save();
    rewrite([&](TensorFile& file) { file.metadata[key] = "x = = 1"; });
    failure();
    rewrite([&](TensorFile& file) { file.metadata[key] = "surprise = 1"; });
    failure();
  }
}

TEST_F(CheckpointFile, PathsThatHoldNoRun) {
  path_ = folder_ / "none";
  EXPECT_NE(failure().find("expected a run folder or a checkpoint file; found nothing there"), std::string::npos);
  path_ = folder_.path();
  EXPECT_NE(failure().find("expected a run folder with checkpoints/last.safetensors"), std::string::npos);
}

}  // namespace
}  // namespace kinfolk
