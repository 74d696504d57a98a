// Whether a member's time a token depends on the length: two lengths read (and trained) in turns, CPU time, one lane of
// random tokens, without a carried state.
//   bench_lengths RECIPE [SHORT LONG]     size tiny; 4096 and 32768 tokens unless said
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>

#include "kinfolk/core/block_cache.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/eval/interleave.h"
#include "kinfolk/train/gradient.h"

namespace {

using namespace kinfolk;

void time_lengths(const std::string& name, const std::vector<int64_t>& lengths) {
  const Recipe recipe = load_recipe(name);
  const auto model = Model::make(recipe, load_size("tiny"));
  const auto objective = make_objective(recipe);
  at::manual_seed(1);
  for (const bool trains : {false, true}) {
    std::vector<std::function<void()>> runs;
    for (const int64_t length : lengths) {
      const Batch batch{at::randint(256, {1, length}, at::kLong),
                        {{"target", at::randint(256, {1, length}, at::kLong)}}};
      runs.push_back([=, &model, &objective] {
        if (!trains) {
          model->score({batch.tokens, {}});
          return;
        }
        std::vector<State> none;
        accumulate_gradient(*model, *objective, batch, 1, none, false, [](int64_t) { return uint64_t{1}; });
        for (const auto& [key, weight] : model->weights()) Tensor(weight).mutable_grad().reset();
      });
    }
    Turns turns;
    turns.seconds = 20;
    turns.once = 1e9;
    const Interleaved timed = interleave(runs, turns);
    std::vector<double> each;
    for (size_t i = 0; i < lengths.size(); ++i) {
      each.push_back(timed.time(i) / static_cast<double>(lengths[i]));
      std::printf("%s %-5s %7lld tokens  %8.2f us a token  %.2fx\n", name.c_str(), trains ? "train" : "read",
                  static_cast<long long>(lengths[i]), 1e6 * each.back(), each.back() / each.front());
    }
  }
}

}  // namespace

int main(int count, char** words) {
  if (count != 2 && count != 4) {
    std::fprintf(stderr, "usage: bench_lengths RECIPE [SHORT LONG]\n");
    return 2;
  }
  try {
    keep_large_blocks();
    at::set_num_threads(1);
    time_lengths(words[1], {count == 4 ? std::atoll(words[2]) : 4096, count == 4 ? std::atoll(words[3]) : 32768});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_lengths: %s\n", error.what());
    return 1;
  }
}
