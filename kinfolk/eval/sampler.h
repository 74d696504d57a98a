// Drawing the next token from scores.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace kinfolk {
using at::Tensor;

/// Applied in this order: repetition penalty, temperature, top-k, top-p, min-p; then one draw.
struct SamplerOptions {
  double temperature = 0.8;  ///< 0: the most likely token, always
  int64_t top_k = 0;         ///< keep the k most likely; 0: all
  double top_p = 1;          ///< keep the fewest most likely tokens that hold this probability
  double min_p = 0;          ///< keep tokens at least this share as likely as the most likely one
  double repetition = 1;     ///< > 1: log-probabilities of recent tokens are multiplied by it
  int64_t repetition_window = 64;
  uint64_t seed = 1;
};

/// Throws Error for scores [..., V] with a NaN, or an infinity that leaves no probabilities: of a run that diverged.
void check_scores(const Tensor& scores);

class Sampler {
 public:
  /// Throws UsageError for values that make no sense. `drawn`: begins as one that has drawn so often before.
  explicit Sampler(const SamplerOptions& options, int64_t drawn = 0);
  struct Draw {
    int64_t token;
    double log_probability;  ///< under the model itself, before any of the options
  };
  /// scores [V] of any type, as `check_scores` wants them; recent: the tokens so far, newest last.
  Draw draw(const Tensor& scores, const std::vector<int64_t>& recent);

 private:
  SamplerOptions options_;
  uint64_t state_;
};

}  // namespace kinfolk
