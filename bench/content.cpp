// Layers that meet by content beside dense causal attention: one branch of width 512 and 8 heads with its projections,
// one lane of random inputs, in turns, CPU time, one thread, float32.
//   bench_content [--seconds S] [LENGTH ...]     4096 and 16384 unless said
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdio>
#include <cstdlib>

#include "kinfolk/core/block_cache.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/eval/interleave.h"
#include "kinfolk/nn/family.h"

namespace {

using namespace kinfolk;

struct Layer {
  std::string name;
  std::shared_ptr<Branch> branch;
};

Layer make(const std::string& name, const std::string& options, int64_t length) {
  Context context;
  context.size.width = 512, context.size.heads = 8, context.size.context = length;
  context.like = at::TensorOptions().dtype(at::kFloat);
  context.generator = at::detail::createCPUGenerator(1);
  context.path = "bench";
  return {name, registry<Branch>().create(Spec(parse_toml(options, "bench")), context, "bench")};
}

void time_length(int64_t length, double seconds) {
  const std::vector<Layer> layers{
      make("attention, causal", "kind = \"attention\"", length),
      make("lsh, 4 rounds, sorted chunks of 64", "kind = \"lsh\"", length),
      make("lsh, 4 rounds, chunks of 64 a bucket", "kind = \"lsh\"\nchunks = \"bucket\"", length),
      make("lsh, 1 round, sorted chunks of 64", "kind = \"lsh\"\nrounds = 1", length),
      make("routing, sqrt(L) centroids", "kind = \"routing\"", length),
      make("routing, each token to its nearest", "kind = \"routing\"\nchoice = \"nearest\"", length)};
  at::manual_seed(1);
  const Tensor x = at::randn({1, length, 512});
  const Batch batch;
  for (const bool trains : {false, true}) {
    std::vector<std::function<void()>> runs;
    for (const Layer& layer : layers) {
      runs.push_back([&layer, &x, &batch, trains, length] {
        Pass pass{.batch = batch};
        pass.position = at::arange(length, at::kLong).unsqueeze(0);
        const at::AutoGradMode mode(trains);
        const Tensor in = x.detach().set_requires_grad(trains);
        const Tensor out = layer.branch->forward(in, pass, nullptr);
        if (!trains) return;
        std::vector<Tensor> by{in};
        for (const auto& p : layer.branch->parameters()) by.push_back(p);
        torch::autograd::grad({out.sum()}, by);
      });
    }
    Turns turns;
    turns.seconds = seconds;
    turns.once = 1e9;
    const Interleaved timed = interleave(runs, turns);
    for (size_t i = 0; i < layers.size(); ++i) {
      std::printf("%6lld %-7s %-38s %9.1f ms  %6.2fx dense\n", static_cast<long long>(length),
                  trains ? "both" : "forward", layers[i].name.c_str(), 1e3 * timed.time(i), timed.ratio(i, 0));
    }
  }
}

}  // namespace

int main(int count, char** words) {
  std::vector<int64_t> lengths;
  double seconds = 20;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--seconds" && i + 1 < count) {
      seconds = std::atof(words[++i]);
    } else if (const int64_t length = std::atoll(word.c_str()); length > 0) {
      lengths.push_back(length);
    } else {
      std::fprintf(stderr, "usage: bench_content [--seconds S] [LENGTH ...]\n");
      return 2;
    }
  }
  if (lengths.empty()) lengths = {4096, 16384};
  try {
    keep_large_blocks();
    at::set_num_threads(1);
    for (const int64_t length : lengths) time_length(length, seconds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
