#include "kinfolk/eval/sampler.h"

#include <numeric>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

void require(bool good, const char* key, const char* expected, double found) {
  if (!good) refuse("[sampler.", key, "] expected ", expected, "; found ", found);
}

constexpr uint64_t kStep = 0x9E3779B97F4A7C15ull;

double next_unit(uint64_t& state) {  // SplitMix64
  uint64_t z = (state += kStep);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

double log_sum(const std::vector<double>& scores) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const double s : scores) sum += std::exp(s - largest);
  return largest + std::log(sum);
}

[[noreturn]] void no_numbers() {
  fail("[sampler.scores] expected scores that are numbers; found NaN or infinity (of a run that diverged, or a file ",
       "that was changed)");
}

}  // namespace

void check_scores(const Tensor& scores) {
  if (!scores.to(at::kDouble).logsumexp(-1).isfinite().all().item<bool>()) no_numbers();
}

Sampler::Sampler(const SamplerOptions& options, int64_t drawn)
    : options_(options), state_(options.seed + static_cast<uint64_t>(drawn) * kStep) {
  require(options.temperature >= 0 && std::isfinite(options.temperature), "temperature", "0 or more",
          options.temperature);
  require(options.top_k >= 0, "top_k", "0 or more", static_cast<double>(options.top_k));
  require(options.top_p > 0 && options.top_p <= 1, "top_p", "more than 0, at most 1", options.top_p);
  require(options.min_p >= 0 && options.min_p <= 1, "min_p", "0 to 1", options.min_p);
  require(options.repetition > 0 && std::isfinite(options.repetition), "repetition", "more than 0", options.repetition);
  require(options.repetition_window >= 0, "repetition_window", "0 or more",
          static_cast<double>(options.repetition_window));
}

Sampler::Draw Sampler::draw(const Tensor& scores, const std::vector<int64_t>& recent) {
  const Tensor flat = scores.detach().to(at::kCPU, at::kDouble).contiguous();
  const auto* data = flat.const_data_ptr<double>();
  const std::vector<double> plain(data, data + flat.numel());
  std::vector<double> s = plain;
  const double normaliser = log_sum(plain);
  if (!std::isfinite(normaliser)) no_numbers();
  if (options_.repetition != 1) {
    const size_t window = std::min(recent.size(), static_cast<size_t>(options_.repetition_window));
    std::vector<bool> done(s.size(), false);
    for (size_t i = recent.size() - window; i < recent.size(); ++i) {
      const auto token = static_cast<size_t>(recent[i]);
      if (token >= s.size() || done[token]) continue;
      done[token] = true;
      // Scores are made log-probabilities first, so that the penalty does not depend on a constant added to all of
      // them.
      s[token] = normaliser + (plain[token] - normaliser) * options_.repetition;
    }
  }
  std::vector<size_t> order(s.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return s[a] > s[b]; });
  size_t chosen = order[0];
  if (options_.temperature > 0) {
    const size_t limit =
        options_.top_k > 0 ? std::min(order.size(), static_cast<size_t>(options_.top_k)) : order.size();
    std::vector<double> p(limit);
    double sum = 0;
    for (size_t i = 0; i < limit; ++i) sum += p[i] = std::exp((s[order[i]] - s[order[0]]) / options_.temperature);
    size_t kept = 0;
    double mass = 0;
    while (kept < limit && (kept == 0 || (mass < options_.top_p * sum && p[kept] >= options_.min_p * p[0])))
      mass += p[kept++];
    double target = next_unit(state_) * mass;
    size_t i = 0;
    while (i + 1 < kept && target >= p[i]) target -= p[i++];
    chosen = order[i];
  }
  return {static_cast<int64_t>(chosen), plain[chosen] - normaliser};
}

}  // namespace kinfolk
