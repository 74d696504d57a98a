// What a large memory costs: training steps of the recipe memorizing, full memories carried, beside the same model
// whose one layer has Transformer-XL's memory like the others. Steps in turns, CPU time, fixed random tokens, float32.
//   bench_memorizing [--size small] [--memory 65536] [--lanes 8] [--seconds 60] [--threads 1] [--probes 8]
//   [--only exact]                           one of them alone, for a profile
//   bench_memorizing --run RUN --data TEXT     recall of the bucket search in a trained model's memory of that text
#include <ATen/Parallel.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "kinfolk/core/block_cache.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/eval/interleave.h"
#include "kinfolk/nn/memory/knn.h"
#include "kinfolk/nn/memory/knn_buckets.h"
#include "kinfolk/nn/mixers/attention.h"
#include "kinfolk/train/checkpoint.h"
#include "kinfolk/train/gradient.h"
#include "kinfolk/train/optim.h"

namespace {

using namespace kinfolk;
using Words = std::map<std::string, std::string>;

Value& memory_layer(Recipe& recipe) {
  Value& group = (*recipe.tree.find("layers")->as<Value::Array>())[1];
  return (*group.find("branches")->as<Value::Array>())[0];
}

/// The state of the one layer that has such a memory.
State* memory_state(State& state) {
  if (state.tensors.count("memory_k")) return &state;
  for (auto& [name, part] : state.parts)
    if (State* found = memory_state(part)) return found;
  return nullptr;
}

struct Bench {
  static constexpr int64_t kLength = 512;
  std::shared_ptr<Model> model;
  std::shared_ptr<Objective> objective;
  std::unique_ptr<AdamW> optimiser;
  Batch batch;
  std::vector<State> states;
  uint64_t steps = 0;

  Bench(const Recipe& recipe, Size size, int64_t lanes, int64_t filled) : objective(make_objective(recipe)) {
    size.context = kLength;
    model = Model::make(recipe, size);
    model->train();
    optimiser = std::make_unique<AdamW>(model->weights(), AdamW::Options());
    at::manual_seed(1);
    batch = {at::randint(256, {lanes, kLength}, at::kLong),
             {{"target", at::randint(256, {lanes, kLength}, at::kLong)}}};
    states.push_back(model->start(lanes));
    states[0].tensors.at("seen").fill_(2 * filled);  // a text that has been read for long
    if (State* own = memory_state(states[0])) fill(*own, filled);
  }

  /// A full memory: keys of length one in clumps, as those of tokens of a kind are.
  static void fill(State& state, int64_t filled) {
    Tensor& k = state.tensors.at("memory_k");
    const int64_t B = k.size(0), G = k.size(1), C = k.size(2), d = k.size(3);
    const Tensor clumps = at::randn({B, G, 512, d});
    const Tensor which = at::randint(512, {B, G, C, 1}, at::kLong).expand({B, G, C, d});
    k = clumps.gather(2, which) + 0.5 * at::randn({B, G, C, d});
    k = k / k.norm(2, -1, true);
    state.tensors.at("memory_v") = at::randn({B, G, C, d});
    state.tensors.at("begin").fill_(0);
    state.tensors.at("entered").fill_(2 * filled - 256);
    state.tensors.at("at").select(1, -1).fill_(2 * filled - 1);
    if (!state.tensors.count("code")) return;
    state.tensors.at("fitted").fill_(2 * filled - 256);
    Tensor &code = state.tensors.at("code"), &centre = state.tensors.at("centre");
    for (int64_t b = 0; b < B; ++b) {
      centre[b].copy_(fit_centres(k[b], centre.size(2)));
      code[b].copy_(nearest_bucket(k[b], centre[b]));
    }
  }

  void step() {
    const StepLoss loss =
        accumulate_gradient(*model, *objective, batch, 1, states, false, [&](int64_t) { return steps; });
    optimiser->step(1e-4, static_cast<double>(loss.count));
    optimiser->zero_grad();
    ++steps;
  }
};

int64_t whole(const Words& words, const std::string& key, int64_t standard) {
  const auto found = words.find(key);
  return found == words.end() ? standard : std::stoll(found->second);
}

int time_steps(const Words& words) {
  const auto named = words.find("--size");
  const Size size = load_size(named == words.end() ? "small" : named->second);
  const int64_t memory = whole(words, "--memory", 65536), lanes = whole(words, "--lanes", 8);
  Recipe exact = load_recipe("memorizing");
  override_recipe(exact, text("let.memory=", memory));
  Recipe buckets = exact, without = exact;
  memory_layer(buckets).find("memory")->set("search", Value("buckets"));
  memory_layer(buckets).find("memory")->set("probes", Value(whole(words, "--probes", 8)));
  const Value like_others =
      parse_toml("memory = { kind = \"segment\", segment = \"segment\", memory = \"local\" }", "here");
  memory_layer(without).set("memory", *like_others.find("memory"));
  std::vector<std::pair<std::string, std::unique_ptr<Bench>>> all;
  for (const auto& [name, recipe] :
       std::vector<std::pair<std::string, Recipe>>{{"without", without}, {"exact", exact}, {"buckets", buckets}}) {
    if (words.count("--only") && words.at("--only") != name) continue;
    all.emplace_back(name, std::make_unique<Bench>(recipe, size, lanes, memory));
  }
  std::vector<std::function<void()>> runs;
  for (auto& [name, bench] : all) runs.push_back([&bench = *bench] { bench.step(); });
  Turns turns;
  turns.seconds = static_cast<double>(whole(words, "--seconds", 60));
  turns.once = 1e9;
  const Interleaved timed = interleave(runs, turns);
  std::printf("memory of %lld tokens, %lld lanes of %lld tokens a step, %lld rounds\n", static_cast<long long>(memory),
              static_cast<long long>(lanes), static_cast<long long>(Bench::kLength),
              static_cast<long long>(timed.rounds()));
  for (size_t i = 0; i < all.size(); ++i) {
    std::printf("%-8s %8.3f s a step   %.2fx\n", all[i].first.c_str(), timed.time(i), timed.ratio(i, 0));
  }
  return 0;
}

int measure_recall(const Words& words) {
  const LoadedRun run = load_run(words.at("--run"));
  std::ifstream file(words.at("--data"), std::ios::binary);
  const std::string read((std::istreambuf_iterator<char>(file)), {});
  const int64_t memory = whole(words, "--memory", 65536), more = 4096;
  if (static_cast<int64_t>(read.size()) < memory + more) fail("[data] expected ", memory + more, " bytes and more");
  Recipe recipe = run.record.recipe;
  override_recipe(recipe, text("let.memory=", memory));
  const auto model = Model::make(recipe, run.record.size);
  {
    const at::NoGradGuard guard;
    const auto from = run.model->weights();
    auto to = model->weights();
    for (size_t i = 0; i < from.size(); ++i) {
      Tensor weight = to[i].second;
      weight.copy_(from[i].second);
    }
  }
  model->eval();
  State state = model->start(1);
  const auto feed = [&](int64_t start, int64_t length) {
    std::vector<int64_t> ids;
    for (int64_t i = start; i < start + length; ++i)
      ids.push_back(static_cast<unsigned char>(read[static_cast<size_t>(i)]));
    model->score({at::tensor(ids, at::kLong).unsqueeze(0), {}}, &state);
  };
  for (int64_t start = 0; start < memory + more; start += 1024) feed(start, 1024);
  // Queries and keys are alike in kind: the newest keys ask.
  const State& own = *memory_state(state);
  const Tensor k = own.tensors.at("memory_k");
  const int64_t C = k.size(2), newest = own.tensors.at("entered").item<int64_t>();
  const Tensor places = (at::arange(1024, at::kLong) + (newest - 1024)).remainder(C);
  const Tensor queries = k.index_select(2, places);
  const std::vector<SlotRange> seen{{newest % C, C - 1024}};  // all but the newest
  const Tensor exact = largest_products(queries, k, seen, 32);
  const int64_t K = std::llround(std::sqrt(static_cast<double>(C)));
  const Tensor centre = fit_centres(k[0], K);
  Buckets buckets{nearest_bucket(k[0], centre).unsqueeze(0), centre.unsqueeze(0), 1};
  std::printf("%lld keys, %lld buckets: recall of the 32 nearest, CPU time beside the exact search\n",
              static_cast<long long>(C - 1024), static_cast<long long>(K));
  for (const int64_t probes : {1, 2, 4, 8, 16, 32, 64}) {
    buckets.probes = probes;
    const Tensor found = largest_products(queries, k, seen, 32, &buckets);
    const double recall = found.unsqueeze(-1).eq(exact.unsqueeze(-2)).any(-1).to(at::kDouble).mean().item<double>();
    const Interleaved timed = interleave(
        {[&] { largest_products(queries, k, seen, 32); }, [&] { largest_products(queries, k, seen, 32, &buckets); }},
        {.seconds = 3});
    std::printf("%3lld probes   recall %.3f   %.2fx\n", static_cast<long long>(probes), recall, timed.ratio(1, 0));
  }
  return 0;
}

}  // namespace

int main(int count, char** given) {
  const std::set<std::string> known{"--size",   "--memory", "--lanes", "--seconds", "--threads",
                                    "--probes", "--only",   "--run",   "--data"};
  Words words;
  for (int i = 1; i + 1 < count; i += 2) words[given[i]] = given[i + 1];
  bool good = count % 2 == 1 && words.count("--run") == words.count("--data");
  for (const auto& [key, value] : words) good = good && known.count(key);
  if (!good) {
    std::fprintf(stderr,
                 "usage: bench_memorizing [--size S] [--memory N] [--lanes N] [--seconds S] [--threads N] "
                 "[--probes N] [--run RUN --data TEXT]\n");
    return 2;
  }
  try {
    keep_large_blocks();
    at::set_num_threads(static_cast<int>(whole(words, "--threads", 1)));
    return words.count("--run") ? measure_recall(words) : time_steps(words);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_memorizing: %s\n", error.what());
    return 1;
  }
}
