// A small run for the tests of training.
#pragma once
#include <unistd.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "kinfolk/train/trainer.h"

namespace kinfolk::testing_runs {

/// Words in an order that a small model can learn, with some noise of its own.
inline Corpus small_corpus(int64_t size = 6000) {
  const char* words[] = {"ash ", "birch ", "cedar ", "elm ", "fir ", "\n"};
  Corpus corpus;
  corpus.path = "words";
  uint64_t draw = 5;
  for (Text* text : {&corpus.train, &corpus.valid}) {
    while (text->size() < size) {
      draw = draw * 6364136223846793005u + 1442695040888963407u;
      const std::string word = words[(draw >> 33) % 6];
      text->bytes.insert(text->bytes.end(), word.begin(), word.end());
    }
    text->documents = {{"words", 0, text->size()}};
  }
  return corpus;
}

inline Size small_size() {
  Size size;
  size.depth = 2;
  size.width = 16;
  size.heads = 2;
  size.feed = 32;
  size.context = 16;
  return size;
}

inline Recipe small_recipe(const std::string& name) {
  Recipe recipe = load_recipe(name);
  if (name == "transformer_xl") {
    override_recipe(recipe, "let.segment=10");  // neither divides the length nor is divided by it
    override_recipe(recipe, "let.memory=7");
  }
  return recipe;
}

/// `steps` steps of 4 lanes x 16 tokens, a row each, validation after the fourth and the last.
inline TrainSettings small_settings(int64_t steps = 6) {
  TrainSettings s;
  s.lanes = 4;
  s.length = 16;
  s.tokens = steps * s.lanes * s.length;
  s.learning_rate = 1e-2;
  s.dropout = 0;
  s.log_every = 1;
  s.eval_every = 4;
  s.eval_tokens = 256;
  s.save_every = 0;
  s.events = false;
  return s;
}

/// A folder that goes away. The name is the same in a child process of a death test.
class Folder {
 public:
  explicit Folder(const std::string& name) {
    const char* owner = std::getenv("KINFOLK_TEST_OWNER");
    path_ =
        std::filesystem::temp_directory_path() / ("kinfolk_" + name + "_" + (owner ? owner : std::to_string(getpid())));
    mine_ = owner == nullptr;
    if (mine_) setenv("KINFOLK_TEST_OWNER", std::to_string(getpid()).c_str(), 1);
    if (mine_) std::filesystem::remove_all(path_);
  }
  ~Folder() {
    if (!mine_) return;
    std::filesystem::remove_all(path_);
    unsetenv("KINFOLK_TEST_OWNER");
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
  bool mine_ = false;
};

inline TrainResult run(const std::string& recipe, const TrainSettings& settings, const std::string& out,
                       TrainHooks hooks = {}, const Corpus& corpus = small_corpus()) {
  hooks.quiet = true;
  return train(small_recipe(recipe), small_size(), settings, corpus, out, hooks);
}

inline TrainHooks stop_at(int64_t step, bool resume = false) {
  TrainHooks hooks;
  hooks.resume = resume;
  hooks.on_step = [step](int64_t now) { return now == step; };
  return hooks;
}

}  // namespace kinfolk::testing_runs
