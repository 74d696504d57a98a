#include "kinfolk/train/optim.h"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>

#include <cmath>

#include "kinfolk/core/errors.h"

namespace kinfolk {
bool decays(const std::string& name, const at::Tensor& weight) {
  if (weight.dim() < 2) return false;
  const size_t dot = name.rfind('.');
  if (name.compare(dot == std::string::npos ? 0 : dot + 1, 6, "weight") != 0) return false;
  if (name.rfind("input.", 0) == 0) return false;
  for (const char* word : {"embed", "table", "position", "norm", "bias"})
    if (name.find(word) != std::string::npos) return false;
  return true;
}

AdamW::AdamW(NamedTensors weights, Options options) : options_(options) {
  groups_[0].decay = true;
  for (auto& [name, weight] : weights) {
    Group& group = groups_[decays(name, weight) ? 0 : 1];
    group.names.push_back(name);
    group.weights.push_back(weight);
    group.first.push_back(at::zeros_like(weight));
    group.second.push_back(at::zeros_like(weight));
    group.steps.push_back(at::zeros({}, at::TensorOptions(at::kFloat)));
  }
}

AdamW::Report AdamW::step(double rate, double scale) {
  at::NoGradGuard no_grad;
  if (!(scale > 0)) fail("[train] expected a step with at least one target; found a weight of ", scale);
  std::vector<at::Tensor> all;
  for (const Group& group : groups_)
    for (const auto& weight : group.weights)
      if (weight.grad().defined()) all.push_back(weight.grad());
  Report report;
  if (all.empty()) return report;
  // Norms of each gradient in float32, their joint norm in double: no overflow at 2^31 entries and more.
  report.norm = at::stack(at::_foreach_norm(all)).to(at::kDouble).norm().item<double>() / scale;
  if (!std::isfinite(report.norm)) {
    report.skipped = true;
    ++bad_;
    return report;
  }
  bad_ = 0;
  const double divide = scale * (options_.clip > 0 && report.norm > options_.clip ? report.norm / options_.clip : 1.0);
  for (Group& group : groups_) {
    std::vector<at::Tensor> weights, gradients, first, second, steps;
    for (size_t i = 0; i < group.weights.size(); ++i) {
      const at::Tensor& weight = group.weights[i];
      if (!weight.grad().defined()) continue;
      group.steps[i].add_(1);
      const bool fits = options_.fused && weight.is_contiguous() && weight.grad().is_contiguous() &&
                        weight.grad().scalar_type() == weight.scalar_type() && weight.device().is_cpu();
      if (!fits) {
        plain_step(group, i, rate, divide);
        continue;
      }
      weights.push_back(weight);
      gradients.push_back(weight.grad());
      first.push_back(group.first[i]);
      second.push_back(group.second[i]);
      steps.push_back(group.steps[i]);
    }
    if (weights.empty()) continue;
    const at::Tensor by = at::scalar_tensor(divide, at::TensorOptions(at::kFloat));
    at::_fused_adamw_(weights, gradients, first, second, {}, steps, rate, options_.beta1, options_.beta2,
                      group.decay ? options_.decay : 0.0, options_.epsilon, false, false,
                      divide == 1.0 ? std::optional<at::Tensor>() : by);
  }
  return report;
}

void AdamW::plain_step(Group& group, size_t i, double rate, double divide) {
  at::Tensor& weight = group.weights[i];
  const at::Tensor gradient = weight.grad().to(weight.scalar_type()) / divide;
  const double t = group.steps[i].item<double>();
  if (group.decay) weight.mul_(1 - rate * options_.decay);
  group.first[i].lerp_(gradient, 1 - options_.beta1);
  group.second[i].mul_(options_.beta2).addcmul_(gradient, gradient, 1 - options_.beta2);
  const at::Tensor root = (group.second[i].sqrt() / std::sqrt(1 - std::pow(options_.beta2, t))).add_(options_.epsilon);
  weight.addcdiv_(group.first[i], root, -rate / (1 - std::pow(options_.beta1, t)));
}

void AdamW::zero_grad() {
  for (Group& group : groups_)
    for (auto& weight : group.weights) weight.mutable_grad().reset();
}

std::string AdamW::describe() const {
  std::string out;
  for (const Group& group : groups_) {
    int64_t count = 0;
    for (const auto& weight : group.weights) count += weight.numel();
    out += text(group.decay ? "decayed by " : "not decayed: ", group.decay ? text(options_.decay, ": ") : "",
                group.weights.size(), " tensors, ", count, " numbers");
    for (const auto& name : group.names) out += text("\n  ", name);
    out += "\n";
  }
  return out;
}

std::map<std::string, at::Tensor> AdamW::moments() const {
  std::map<std::string, at::Tensor> out;
  for (const Group& group : groups_)
    for (size_t i = 0; i < group.names.size(); ++i) {
      out["first." + group.names[i]] = group.first[i];
      out["second." + group.names[i]] = group.second[i];
      out["steps." + group.names[i]] = group.steps[i];
    }
  return out;
}

void AdamW::load_moments(const std::map<std::string, at::Tensor>& moments) {
  at::NoGradGuard no_grad;
  const auto mine = this->moments();
  for (const auto& [name, tensor] : mine) {
    const auto found = moments.find(name);
    if (found == moments.end()) fail("[checkpoint] expected the optimiser's ", name, "; found none");
    if (found->second.sizes() != tensor.sizes()) {
      fail("[checkpoint] expected the optimiser's ", name, " of shape ", tensor.sizes(), "; found ",
           found->second.sizes());
    }
    tensor.copy_(found->second);
  }
  for (const auto& [name, tensor] : moments)
    if (!mine.count(name)) fail("[checkpoint] expected no optimiser tensor of a name unknown here; found ", name);
}

}  // namespace kinfolk
