// AdamW over named weights, with groups, clipping and a rule for gradients that are not finite.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kinfolk {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// True for matrices of products: two axes or more, a last name that starts with "weight", not of the model's input,
/// and no part of the name that speaks of an embedding, a table, a position, a norm or a bias.
bool decays(const std::string& name, const at::Tensor& weight);

/// Loshchilov and Hutter 2019:  m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,
///   w = w - rate * decay * w - rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)
class AdamW {
 public:
  struct Options {
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, decay = 0.1;
    double clip = 1.0;  ///< largest norm of the whole gradient; 0: no limit
    bool fused = true;  ///< one pass per weight by at::_fused_adamw_, where the device has it
  };
  AdamW(NamedTensors weights, Options options);

  struct Report {
    double norm = 0;       ///< of the whole gradient, before clipping
    bool skipped = false;  ///< the norm was not finite: weights and moments are as they were
  };
  /// One step with the gradients divided by `scale`. Weights without a gradient are left alone.
  Report step(double rate, double scale = 1.0);
  void zero_grad();

  int64_t skipped_in_a_row() const { return bad_; }
  const Options& options() const { return options_; }
  void set_options(const Options& options) { options_ = options; }
  std::string describe() const;  ///< the groups and their members

  /// "first.NAME", "second.NAME", "steps.NAME": copies share memory with the optimiser.
  std::map<std::string, at::Tensor> moments() const;
  /// Throws Error that names what is missing or has another shape.
  void load_moments(const std::map<std::string, at::Tensor>& moments);

 private:
  struct Group {
    std::vector<std::string> names;
    std::vector<at::Tensor> weights, first, second, steps;
    bool decay = false;
  };
  void plain_step(Group& group, size_t i, double rate, double divide);
  Group groups_[2];  // decayed, not decayed
  Options options_;
  int64_t bad_ = 0;
};

}  // namespace kinfolk
