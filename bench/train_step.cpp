// Training step of the recipe gpt: forward, backward and AdamW on fixed random tokens, float32.
//   bench_train_step [--seconds S] [--threads N]     6 x 384, 6 heads, batch 8 x 512, vocabulary 256
//   bench_train_step --serve                                   a step for every line on stdin, answered by its CPU and
//                                                              wall seconds: what tools/bench_train_step interleaves
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstring>
#include <iostream>

#include "kinfolk/core/errors.h"
#include "kinfolk/eval/interleave.h"
#include "kinfolk/train/gradient.h"
#include "kinfolk/train/optim.h"

namespace {

using namespace kinfolk;

struct Bench {
  static constexpr int64_t kLanes = 8, kLength = 512;
  Recipe recipe = load_recipe("gpt");
  std::shared_ptr<Model> model;
  std::shared_ptr<Objective> objective = make_objective(recipe);
  std::unique_ptr<AdamW> optimiser;
  Batch batch;
  std::vector<State> none;
  int64_t steps = 0;
  double gradient_seconds = 0, optimiser_seconds = 0;

  Bench() {
    Size size;
    size.depth = 6;
    size.width = 384;
    size.heads = 6;
    size.feed = 4 * 384;
    size.context = kLength;
    model = Model::make(recipe, size);
    model->train();
    optimiser = std::make_unique<AdamW>(model->weights(), AdamW::Options());
    at::manual_seed(1);
    batch = {at::randint(256, {kLanes, kLength}, at::kLong),
             {{"target", at::randint(256, {kLanes, kLength}, at::kLong)}}};
  }

  void step() {
    const double begin = wall_seconds();
    const StepLoss loss = accumulate_gradient(*model, *objective, batch, 1, none, false,
                                              [&](int64_t) { return static_cast<uint64_t>(steps); });
    const double middle = wall_seconds();
    optimiser->step(1e-4, static_cast<double>(loss.count));
    optimiser->zero_grad();
    ++steps;
    gradient_seconds += middle - begin;
    optimiser_seconds += wall_seconds() - middle;
  }
};

}  // namespace

int main(int count, char** words) {
  double seconds = 20;
  bool serve = false;
  for (int i = 1; i < count; ++i) {
    if (!std::strcmp(words[i], "--serve")) {
      serve = true;
    } else if (!std::strcmp(words[i], "--seconds") && i + 1 < count) {
      seconds = std::atof(words[++i]);
    } else if (!std::strcmp(words[i], "--threads") && i + 1 < count) {
      at::set_num_threads(std::max(1, std::atoi(words[++i])));
    } else {
      std::fprintf(stderr, "usage: bench_train_step [--seconds S] [--threads N] [--serve]\n");
      return 2;
    }
  }
  try {
    Bench bench;
    if (serve) {
      for (std::string line; std::getline(std::cin, line);) {
        const double c = cpu_seconds(), w = wall_seconds();
        bench.step();
        std::printf("%.6f %.6f\n", cpu_seconds() - c, wall_seconds() - w);
        std::fflush(stdout);
      }
      return 0;
    }
    bench.step();  // allocations and threads
    std::vector<double> each;
    bench.gradient_seconds = bench.optimiser_seconds = 0;
    const double begin = wall_seconds();
    while (each.empty() || wall_seconds() - begin < seconds) {
      const double w = wall_seconds();
      bench.step();
      each.push_back(wall_seconds() - w);
    }
    std::sort(each.begin(), each.end());
    const auto n = static_cast<double>(each.size());
    std::printf(
        "{\"bench\": \"train_step\", \"recipe\": \"gpt\", \"parameters\": %lld, \"threads\": %d, \"steps\": %zu, "
        "\"tokens_per_second\": %.1f, \"gradient_ms\": %.1f, \"optimiser_ms\": %.2f}\n",
        static_cast<long long>(bench.model->parameter_count()), at::get_num_threads(), each.size(),
        Bench::kLanes * Bench::kLength / each[each.size() / 2], bench.gradient_seconds / n * 1e3,
        bench.optimiser_seconds / n * 1e3);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
