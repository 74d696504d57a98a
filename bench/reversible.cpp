// Memory of one training step by the number of layers: reversible layers, gradient checkpointing, and neither.
//   bench_reversible [RECIPE...] [--few N] [--many N] [--length N] [--lanes N] [--width N] [--heads N] [--steps N]
//   [--only]
// Forward, backward and AdamW in float32 on random tokens, one thread, each way and depth in a process of its own; the
// two depths take turns. Printed is the peak above parameters, gradients and the optimiser's two moments: of what the
// allocator of tensors handed out, and of the resident memory above that before the model was made; how many layers
// more cost, as ratios; and CPU seconds of a step with many layers over those of `once` (median, in turns).
#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <unistd.h>

#include <cstdio>

#include "bench/worker.h"
#include "kinfolk/core/block_cache.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/core/memory.h"
#include "kinfolk/eval/interleave.h"
#include "kinfolk/train/gradient.h"
#include "kinfolk/train/optim.h"

namespace {

using namespace kinfolk;

constexpr double kMiB = 1 << 20;

struct Flags {
  std::vector<std::string> members;
  int64_t few = 4, many = 24, length = 1024, lanes = 1, width = 256, heads = 4, steps = 3;
  bool only = false;
};

/// What the allocator of tensors has handed out on this thread, and the most of it at once.
class Ledger : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    peak_ = std::max(peak_, held_ += bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }
  void reset() { peak_ = held_; }

 private:
  int64_t held_ = 0, peak_ = 0;
};

enum class Way { once, checkpointing, reversible };
constexpr const char* kWays[] = {"once", "once, checkpointing", "reversible"};

/// Bytes are above those of parameters, gradients and moments.
struct Answer {
  double seconds = 0, tensors = 0, resident = 0;
};

/// A step for each byte that is read, until there are no more.
int serve(const std::string& member, Way way, int64_t depth, const Flags& flags, int in, int out) {
  at::set_num_threads(1);
  keep_large_blocks();
  at::zeros({1}).add_(1);  // the library is loaded and warm
  const auto before = static_cast<double>(resident_bytes());
  const auto ledger = std::make_shared<Ledger>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, ledger);
  Recipe recipe = load_recipe(member);
  if (way == Way::reversible) recipe.tree.set("depth", parse_toml("kind = \"reversible\"", "bench"));
  Size size;
  size.depth = depth, size.width = flags.width, size.heads = flags.heads, size.feed = 4 * flags.width;
  size.context = flags.length;
  const auto model = Model::make(recipe, size);
  model->train();
  model->checkpointing = way == Way::checkpointing;
  const auto objective = make_objective(recipe);
  AdamW optimiser(model->weights(), AdamW::Options());
  at::manual_seed(1);
  const auto tokens = [&] { return at::randint(size.vocabulary, {flags.lanes, flags.length}, at::kLong); };
  const Batch batch{tokens(), {{"target", tokens()}}};
  std::vector<State> states;
  if (model->traits().carries) states.push_back(model->start(flags.lanes));
  char byte = 0;
  for (uint64_t step = 0; read(in, &byte, 1) == 1; ++step) {
    Answer answer;
    const double begin = cpu_seconds(), fixed = 4.0 * 4 * static_cast<double>(model->parameter_count());
    const StepLoss loss =
        accumulate_gradient(*model, *objective, batch, 1, states, false, [&](int64_t) { return step; });
    optimiser.step(1e-4, static_cast<double>(loss.count));
    for (const auto& [name, weight] : model->weights()) weight.mutable_grad().zero_();  // they stay where they are
    answer.seconds = cpu_seconds() - begin;
    answer.tensors = static_cast<double>(ledger->peak()) - fixed;
    answer.resident = static_cast<double>(peak_resident_bytes()) - before - fixed;
    ledger->reset();
    if (write(out, &answer, sizeof answer) != sizeof answer) return 1;
  }
  return 0;
}

void report(const std::string& member, const Flags& flags) {
  std::vector<Way> ways;
  if (!flags.only) ways = {Way::once, Way::checkpointing};
  ways.push_back(Way::reversible);
  const auto worker = [&](Way way, int64_t depth) {
    return std::make_unique<Worker<Answer>>(
        [=, &member, &flags](int in, int out) { return serve(member, way, depth, flags, in, out); });
  };
  std::vector<std::unique_ptr<Worker<Answer>>> few, many;
  for (const Way way : ways) few.push_back(worker(way, flags.few)), many.push_back(worker(way, flags.many));
  std::vector<std::vector<double>> ratios(ways.size());
  std::vector<Answer> a(ways.size()), b(ways.size());
  for (int64_t step = 0; step < flags.steps; ++step) {
    for (size_t w = 0; w < ways.size(); ++w) {
      a[w] = few[w]->step(), b[w] = many[w]->step();
      ratios[w].push_back(b[w].seconds / b[0].seconds);
    }
  }
  for (size_t w = 0; w < ways.size(); ++w) {
    std::printf("%-16s %-20s %9.1f %9.1f %7.2f %9.1f %9.1f %7.2f %8.2f\n", member.c_str(),
                kWays[static_cast<size_t>(ways[w])], a[w].tensors / kMiB, b[w].tensors / kMiB,
                b[w].tensors / a[w].tensors, a[w].resident / kMiB, b[w].resident / kMiB, b[w].resident / a[w].resident,
                median(ratios[w]));
  }
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** words) {
  Flags flags;
  const std::map<std::string, int64_t*> numbers = {
      {"--few", &flags.few},     {"--many", &flags.many},   {"--length", &flags.length}, {"--lanes", &flags.lanes},
      {"--width", &flags.width}, {"--heads", &flags.heads}, {"--steps", &flags.steps}};
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto number = numbers.find(word);
    if (number != numbers.end() && i + 1 < count && std::atoll(words[i + 1]) > 0) {
      *number->second = std::atoll(words[++i]);
    } else if (word == "--only") {
      flags.only = true;
    } else if (word.rfind("--", 0) != 0) {
      flags.members.push_back(word);
    } else {
      std::fprintf(stderr,
                   "usage: bench_reversible [RECIPE...] [--few N] [--many N] [--length N] [--lanes N] [--width N] "
                   "[--heads N] [--steps N] [--only]\n");
      return 2;
    }
  }
  if (flags.members.empty()) flags.members = {"rope"};
  const std::string a = text(flags.few), b = text(flags.many);
  std::printf("layers of width %lld, %lld heads, %lld x %lld tokens; MiB above parameters, gradients and moments\n",
              static_cast<long long>(flags.width), static_cast<long long>(flags.heads),
              static_cast<long long>(flags.lanes), static_cast<long long>(flags.length));
  std::printf("%-16s %-20s %19s %7s %19s %7s %8s\n", "", "", "tensors, layers:", "", "resident, layers:", "", "");
  std::printf("%-16s %-20s %9s %9s %7s %9s %9s %7s %8s\n", "", "", a.c_str(), b.c_str(), "ratio", a.c_str(), b.c_str(),
              "ratio", "time");
  std::fflush(stdout);
  try {
    for (const auto& member : flags.members) report(member, flags);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
