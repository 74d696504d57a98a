#include "kinfolk/eval/throughput.h"

#include <chrono>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/memory.h"

namespace kinfolk {
namespace {

double seconds(const std::function<void()>& body) {
  const auto began = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

void train_once(Model& model, const Tensor& tokens) {
  const Batch batch{tokens, {}};
  State state = model.traits().carries ? model.start(1) : State();
  Pass pass{batch};
  if (model.traits().carries) pass.state = &state;
  std::map<std::string, Tensor> losses;
  pass.losses = &losses;
  model.forward(pass).to(at::kFloat).log_softmax(-1).select(-1, 0).mean().backward();
  for (auto& parameter : model.parameters()) parameter.mutable_grad() = Tensor();
}

State read_once(Model& model, const Tensor& tokens, int64_t chunk) {
  State state = model.start(1);
  for (int64_t at = 0; at < tokens.size(1); at += chunk) {
    const Batch batch{tokens.narrow(1, at, std::min(chunk, tokens.size(1) - at)), {}};
    model.score(batch, &state);
  }
  return state;
}

}  // namespace

std::vector<Throughput> measure(Model& model, const std::vector<int64_t>& lengths, int64_t chunk, bool training) {
  std::vector<Throughput> out;
  const int64_t last = model.traits().context;
  for (const int64_t length : lengths) {
    if (length < 1) refuse("[bench.lengths] expected lengths of at least 1; found ", length);
    if (last > 0 && length + kDecodeSteps > last) continue;
    Throughput t;
    t.length = length;
    const Tensor tokens = at::randint(model.size().vocabulary, {1, length}, at::kLong);
    const double n = static_cast<double>(length);
    if (training) {
      model.train();
      train_once(model, tokens.narrow(1, 0, std::min<int64_t>(length, 64)));  // warm
      reset_peak();
      const int64_t before = resident_bytes();
      t.train = n / seconds([&] { train_once(model, tokens); });
      t.train_peak = std::max<int64_t>(0, peak_resident_bytes() - before);
    }
    model.eval();
    at::NoGradGuard no_grad;
    reset_peak();
    const int64_t before = resident_bytes();
    State state;
    t.read = n / seconds([&] { state = read_once(model, tokens, chunk); });
    t.read_peak = std::max<int64_t>(0, peak_resident_bytes() - before);
    t.state_bytes = state.bytes();
    const Batch one{tokens.narrow(1, 0, 1), {}};
    model.score(one, &state);
    constexpr int steps = kDecodeSteps - 2;
    t.decode = steps / seconds([&] {
                 for (int i = 0; i < steps; ++i) model.score(one, &state);
               });
    out.push_back(t);
  }
  return out;
}

}  // namespace kinfolk
