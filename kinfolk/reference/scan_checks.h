// What the tests of recurrences share: gradients by autograd and by finite differences, comparison by largest value.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

#include "kinfolk/core/errors.h"
#include "kinfolk/reference/golden.h"

namespace kinfolk::reference {
using at::Tensor;
using Tensors = std::vector<Tensor>;

/// |got - want| <= tolerance * max(largest |want|, 1), and finite.
inline void expect_near(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  if (got.numel() == 0) return;
  const Tensor g = got.detach().to(at::kDouble), w = want.detach().to(at::kDouble);
  EXPECT_TRUE(g.isfinite().all().item<bool>()) << what << " is not finite";
  EXPECT_LE((g - w).abs().max().item<double>(), tolerance * std::max(1.0, w.abs().max().item<double>())) << what;
}

inline Tensor leaf(const Tensor& t) { return t.detach().clone().requires_grad_(true); }
inline Tensors leaves(const Tensors& all) {
  Tensors out;
  for (const Tensor& t : all) out.push_back(leaf(t));
  return out;
}

/// d sum(outputs * cotangents) / d inputs; zeros where nothing depends on it.
inline Tensors gradients(const Tensors& outputs, const Tensors& cotangents, const Tensors& inputs) {
  Tensors out = torch::autograd::grad(outputs, inputs, cotangents, false, false, true);
  for (size_t i = 0; i < out.size(); i++) {
    if (!out[i].defined()) out[i] = at::zeros_like(inputs[i]);
  }
  return out;
}

/// Fixed pseudo-random cotangents.
inline Tensors cotangents(const Tensors& outputs, int seed = 7) {
  auto generator = at::detail::createCPUGenerator(seed);
  Tensors out;
  for (const Tensor& t : outputs) {
    out.push_back(at::randn(t.sizes(), generator, t.options().dtype(at::kDouble)).to(t.scalar_type()));
  }
  return out;
}

/// Gradients of f at `inputs` (double) against central differences in every entry.
inline void expect_gradients(const std::function<Tensors(const Tensors&)>& f, const Tensors& inputs,
                             const std::string& what, double tolerance = 1e-7) {
  const Tensors at_point = leaves(inputs), outputs = f(at_point), cot = cotangents(outputs);
  const Tensors got = gradients(outputs, cot, at_point);
  const auto value = [&] {
    double sum = 0;
    at::NoGradGuard guard;
    const Tensors out = f(at_point);
    for (size_t i = 0; i < out.size(); i++) sum += (out[i] * cot[i]).sum().item<double>();
    return sum;
  };
  for (size_t i = 0; i < inputs.size(); i++) {
    Tensor want = at::empty_like(inputs[i]).contiguous();
    const Tensor flat = at_point[i].detach().view(-1);
    for (int64_t e = 0; e < flat.numel(); e++) {
      const double kept = flat[e].item<double>(), step = 1e-5;
      flat[e].fill_(kept + step);
      const double above = value();
      flat[e].fill_(kept - step);
      const double below = value();
      flat[e].fill_(kept);
      want.view(-1)[e].fill_((above - below) / (2 * step));
    }
    expect_near(got[i], want, tolerance, what + " gradient " + std::to_string(i));
  }
}

/// All outputs and gradients of a golden case: `f` maps its inputs, in the order of `in`, to its outputs in that of
/// `out`.
inline void expect_golden(const golden::Case& one, const std::vector<std::string>& in,
                          const std::vector<std::string>& out, const std::function<Tensors(const Tensors&)>& f,
                          at::ScalarType type, const std::string& what) {
  Tensors inputs, cot, given;
  for (const auto& name : in) inputs.push_back(one.has(name) ? leaf(one.at(name).to(type)) : Tensor());
  const Tensors outputs = f(inputs);
  for (size_t i = 0; i < out.size(); i++) {
    golden::expect_close(outputs[i], one.at("out." + out[i]), one, what + " " + out[i]);
    cot.push_back(one.at("cot." + out[i]).to(type));
  }
  for (const Tensor& t : inputs)
    if (t.defined()) given.push_back(t);
  const Tensors got = gradients(outputs, cot, given);
  for (size_t i = 0, g = 0; i < in.size(); i++) {
    if (!inputs[i].defined()) continue;
    const std::string name = in[i].substr(in[i].find('.') + 1);
    if (one.has("grad." + name)) golden::expect_gradient(got[g], one.at("grad." + name), one, what + " grad " + name);
    g++;
  }
}

/// The piece lengths of a streaming case; one piece of everything otherwise.
inline std::vector<int64_t> pieces(const golden::Case& one, int64_t length) {
  if (one.config.contains("pieces")) return one.config["pieces"].get<std::vector<int64_t>>();
  return {length};
}

}  // namespace kinfolk::reference
