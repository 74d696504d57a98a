// How a member is trained: one struct, its fields listed once, filled from sizes, recipe and flags.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kinfolk/core/options.h"
#include "kinfolk/nn/recipe.h"

namespace kinfolk {

struct TrainSettings {
  int64_t lanes = 8;
  int64_t length = 0;
  int64_t accumulate = 1;
  int64_t tokens = 0;
  double minutes = 0;
  double work = 0;
  double learning_rate = 1e-3;
  double floor = 0.1;
  double warmup = 0.03;
  std::string schedule = "cosine";
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double clip = 1.0;
  int64_t bad_steps = 10;
  std::string precision = "float32";
  double dropout = -1;
  bool checkpointing = false;
  bool documents = false;
  int64_t carry = 4096;
  int64_t seed = 1;
  int64_t log_every = 10;
  int64_t eval_every = 200;
  int64_t eval_tokens = 65536;
  int64_t save_every = 500;
  int64_t keep = 0;
  bool events = true;

  template <class V>
  void fields(V&& visit) {
    visit("lanes", lanes, "sequences of a step, side by side", at_least(1));
    visit("length", length, "tokens of each sequence; 0: the context of the size", at_least(0));
    visit("accumulate", accumulate, "parts that the lanes of a step are computed in; must divide them", at_least(1));
    visit("tokens", tokens, "budget in tokens; 0: none. Of tokens, minutes and work one may be given", at_least(0));
    visit("minutes", minutes, "budget in minutes of training steps (validation and saving not counted)", at_least(0));
    visit("work", work, "budget in FLOP, forward and backward, recomputation excluded", at_least(0));
    visit("learning_rate", learning_rate, "highest learning rate", at_least(0));
    visit("floor", floor, "lowest learning rate, as a share of the highest", between(0, 1));
    visit("warmup", warmup, "share of the budget over which the learning rate rises", between(0, 1));
    visit("schedule", schedule, "learning rate after the warm-up", one_of({"cosine", "linear", "constant"}));
    visit("weight_decay", weight_decay, "decay of weight matrices (AdamW)", at_least(0));
    visit("beta1", beta1, "decay of the first moment", between(0, 0.9999999));
    visit("beta2", beta2, "decay of the second moment", between(0, 0.9999999));
    visit("epsilon", epsilon, "added to the root of the second moment", at_least(0));
    visit("clip", clip, "largest norm of the whole gradient; 0: no limit", at_least(0));
    visit("bad_steps", bad_steps, "steps in a row with a gradient that is not finite, skipped, before the run ends",
          at_least(1));
    visit("precision", precision, "float32, or bf16: products in bfloat16, weights, sums and losses in float32",
          one_of({"float32", "bf16"}));
    visit("dropout", dropout, "share of activations dropped; -1: that of the size", between(-1, 0.95));
    visit("checkpointing", checkpointing, "recompute each layer in backward: less memory, more time");
    visit("documents", documents, "no sight and no state across the border of two files");
    visit("carry", carry,
          "tokens after which a carried state starts anew, lane after lane in turn, so that both the beginning of a "
          "text and "
          "what comes late are learned; 0: never",
          at_least(0));
    visit("seed", seed, "of initial weights and of every random draw", at_least(0));
    visit("log_every", log_every, "steps between two lines", at_least(1));
    visit("eval_every", eval_every, "steps between two validations; 0: at the start and the end only", at_least(0));
    visit("eval_tokens", eval_tokens, "tokens of a validation, at most", at_least(1));
    visit("save_every", save_every, "steps between two checkpoints; 0: at the end only", at_least(0));
    visit("keep", keep, "numbered checkpoints that are kept besides last and best", at_least(0));
    visit("events", events, "write TensorBoard events");
  }
};

/// Standard values < the [train] table of the size < that of the recipe < flags (a table with the same keys). A budget
/// given at a higher level replaces one of another kind below; two at one level are refused. With none it is a million
/// tokens. `length` 0 becomes the context of the size, `dropout` -1 its dropout. Throws UsageError with the place.
TrainSettings resolve_settings(const Value& of_size, const Recipe& recipe, const Size& size, const Value& flags = {});

/// Refuses settings that cannot work together.
void check_settings(const TrainSettings& settings);

/// Keys whose values differ between two runs although a resumed run must keep them.
std::vector<std::string> fixed_differences(const TrainSettings& before, const TrainSettings& now);
/// Keys that a resumed run may change, for messages.
std::vector<std::string> changeable_settings();

}  // namespace kinfolk
