// Time and memory of one training step by the length of its one sequence, with gradient checkpointing and chunked
// feed-forward: forward, backward and AdamW, float32, random tokens.
//   bench_long_step [RECIPE[:KEY=VALUE...]...] [--short N] [--long N] [--steps N] [--width N] [--depth N] [--heads N]
//                   [--vocabulary N] [--chunk N] [--whole] [--no-checkpointing] [--tensors] [--malloc]
// Each length runs in a process of its own; the two take turns. Printed are CPU seconds of a step (median), their
// ratio, and the growth of the resident memory: its peak less what was resident before the model was made, parameters,
// gradients and the optimiser's moments included; and the tensors alone, at their peak, as the allocator counts them.
// --whole: feed-forwards without chunks. --tensors: which sizes the longer step holds at its peak. --malloc: without
// core/block_cache. `blockwise` has blocks of 1024 tokens here at each length (its number of blocks follows the
// length).
#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

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
  int64_t shorter = 8192, longer = 16384, steps = 2, width = 512, depth = 6, heads = 8, vocabulary = 256, chunk = 1024;
  bool whole = false, checkpointing = true, tensors = false, by_malloc = false;
};

/// What the allocator of tensors has handed out on this thread, and the most of it at once.
class Ledger : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* pointer, int64_t bytes, size_t, size_t, c10::Device) override {
    if (bytes > 0) {
      live_[pointer] = bytes;
      held_ += bytes;
      if (held_ <= peak_) return;
      peak_ = held_;
      if (peak_ < noted_ + noted_ / 100) return;
      noted_ = peak_;
      at_peak_.clear();
      for (const auto& [place, size] : live_) ++at_peak_[size];
    } else if (const auto found = live_.find(pointer); found != live_.end()) {
      held_ -= found->second;
      live_.erase(found);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }
  /// The sizes that make up most of it, each with its count.
  std::string sizes() const {
    std::vector<std::pair<int64_t, int64_t>> rows(at_peak_.begin(), at_peak_.end());
    std::sort(rows.begin(), rows.end(),
              [](const auto& a, const auto& b) { return a.first * a.second > b.first * b.second; });
    std::string out;
    for (size_t i = 0; i < std::min<size_t>(rows.size(), 12); ++i) {
      const auto [size, count] = rows[i];
      char line[96];
      std::snprintf(line, sizeof line, "  %9.3f MiB = %lld x %.3f\n", static_cast<double>(size * count) / kMiB,
                    static_cast<long long>(count), static_cast<double>(size) / kMiB);
      out += line;
    }
    return out;
  }

 private:
  std::unordered_map<void*, int64_t> live_;
  std::map<int64_t, int64_t> at_peak_;
  int64_t held_ = 0, peak_ = 0, noted_ = 0;
};

/// Every feed-forward of the recipe inside a `chunked`.
void wrap_feeds(Recipe& recipe, int64_t chunk) {
  for (Value& group : *recipe.tree.find("layers")->as<Value::Array>())
    for (Value& branch : *group.find("branches")->as<Value::Array>()) {
      const std::string kind = Spec(branch).kind();
      if (kind != "mlp" && kind != "glu" && kind != "separable") continue;
      Value outer{Value::Table{}}, feed = branch;
      outer.set("kind", "chunked");
      for (const char* key : {"norm", "norm_kind", "residual"})
        if (const Value* own = branch.find(key)) outer.set(key, *own), feed.erase(key);
      outer.set("feed", feed);
      outer.set("chunk", chunk);
      branch = outer;
    }
}

Recipe recipe_of(const std::string& member, const Flags& flags, int64_t length) {
  std::vector<std::string> parts{""};
  for (const char c : member) c == ':' ? parts.push_back("") : parts.back().push_back(c);
  Recipe recipe = load_recipe(parts[0]);
  if (parts[0] == "blockwise") override_recipe(recipe, text("let.blocks=", std::max<int64_t>(1, length / 1024)));
  for (size_t i = 1; i < parts.size(); ++i) override_recipe(recipe, parts[i]);
  if (!flags.whole) wrap_feeds(recipe, flags.chunk);
  return recipe;
}

/// What a line of the report needs; written by the child.
struct Answer {
  double seconds = 0, growth = 0, held = 0, fixed = 0, loss = 0;
};

/// A step for each byte that is read, until there are no more.
int serve(const std::string& member, const Flags& flags, int64_t length, int in, int out) {
  at::set_num_threads(1);
  if (!flags.by_malloc) keep_large_blocks();
  at::zeros({1}).add_(1);  // the library is loaded and warm
  const auto before = static_cast<double>(resident_bytes());
  const auto ledger = std::make_shared<Ledger>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, ledger);
  const Recipe recipe = recipe_of(member, flags, length);
  Size size;
  size.depth = flags.depth, size.width = flags.width, size.heads = flags.heads, size.feed = 4 * flags.width;
  size.vocabulary = flags.vocabulary, size.context = length;
  const auto model = Model::make(recipe, size);
  model->train();
  model->checkpointing = flags.checkpointing;
  const auto objective = make_objective(recipe);
  AdamW optimiser(model->weights(), AdamW::Options());
  at::manual_seed(1);
  const auto tokens = [&] { return at::randint(flags.vocabulary, {1, length}, at::kLong); };
  const Batch batch{tokens(), {{"target", tokens()}}};
  std::vector<State> states;
  if (model->traits().carries) states.push_back(model->start(1));
  char byte = 0;
  for (uint64_t step = 0; read(in, &byte, 1) == 1; ++step) {
    Answer answer;
    const double begin = cpu_seconds();
    const StepLoss loss =
        accumulate_gradient(*model, *objective, batch, 1, states, false, [&](int64_t) { return step; });
    optimiser.step(1e-4, static_cast<double>(loss.count));
    optimiser.zero_grad();
    answer.seconds = cpu_seconds() - begin;
    answer.growth = static_cast<double>(peak_resident_bytes()) - before;
    answer.held = static_cast<double>(ledger->peak());
    answer.fixed = 4.0 * 4 * static_cast<double>(model->parameter_count());
    answer.loss = loss.sum / static_cast<double>(loss.count);
    if (write(out, &answer, sizeof answer) != sizeof answer) return 1;
  }
  if (flags.tensors && length == flags.longer) std::fputs(ledger->sizes().c_str(), stderr);
  return 0;
}

void report(const std::string& member, const Flags& flags) {
  const auto serving = [&](int64_t length) {
    return [=, &member, &flags](int in, int out) { return serve(member, flags, length, in, out); };
  };
  const Worker<Answer> shorter(serving(flags.shorter)), longer(serving(flags.longer));
  std::vector<double> a, b, ratios;
  Answer last_a, last_b;
  for (int64_t step = 0; step < flags.steps; ++step) {
    last_a = shorter.step(), last_b = longer.step();
    a.push_back(last_a.seconds), b.push_back(last_b.seconds), ratios.push_back(b.back() / a.back());
  }
  std::printf("%-24s %8.2f %8.2f %6.2f %10.0f %10.0f %10.0f %10.0f %8.0f\n", member.c_str(), median(a), median(b),
              median(ratios), last_a.growth / kMiB, last_b.growth / kMiB, last_a.held / kMiB, last_b.held / kMiB,
              last_b.fixed / kMiB);
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** words) {
  Flags flags;
  const std::map<std::string, int64_t*> numbers = {{"--short", &flags.shorter}, {"--long", &flags.longer},
                                                   {"--steps", &flags.steps},   {"--width", &flags.width},
                                                   {"--depth", &flags.depth},   {"--heads", &flags.heads},
                                                   {"--chunk", &flags.chunk},   {"--vocabulary", &flags.vocabulary}};
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto number = numbers.find(word);
    if (number != numbers.end() && i + 1 < count && std::atoll(words[i + 1]) > 0) {
      *number->second = std::atoll(words[++i]);
    } else if (word == "--whole") {
      flags.whole = true;
    } else if (word == "--no-checkpointing") {
      flags.checkpointing = false;
    } else if (word == "--malloc") {
      flags.by_malloc = true;
    } else if (word == "--tensors") {
      flags.tensors = true;
    } else if (word.rfind("--", 0) != 0) {
      flags.members.push_back(word);
    } else {
      std::fprintf(stderr,
                   "usage: bench_long_step [RECIPE[:KEY=VALUE...]...] [--short N] [--long N] [--steps N] [--width N]\n"
                   "       [--depth N] [--heads N] [--vocabulary N] [--chunk N] [--whole] [--no-checkpointing] "
                   "[--tensors] [--malloc]\n");
      return 2;
    }
  }
  if (flags.members.empty()) flags.members = {"window", "block_local", "blockwise", "rope"};
  std::printf("%lld layers of width %lld, %lld heads, vocabulary %lld; %s, feed-forwards %s; one thread\n",
              static_cast<long long>(flags.depth), static_cast<long long>(flags.width),
              static_cast<long long>(flags.heads), static_cast<long long>(flags.vocabulary),
              flags.checkpointing ? "checkpointing" : "no checkpointing",
              flags.whole ? "whole" : text("in chunks of ", flags.chunk).c_str());
  const std::string a = text(flags.shorter), b = text(flags.longer);
  std::printf("%-24s %8s %8s %6s %10s %10s %10s %10s %8s\n", "", "seconds", "", "", "MiB grown", "", "tensors", "", "");
  std::printf("%-24s %8s %8s %6s %10s %10s %10s %10s %8s\n", "", a.c_str(), b.c_str(), "ratio", a.c_str(), b.c_str(),
              a.c_str(), b.c_str(), "fixed*");
  std::fflush(stdout);
  try {
    for (const auto& member : flags.members) report(member, flags);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::printf("* MiB of parameters, gradients and moments, at either length\n");
  return 0;
}
