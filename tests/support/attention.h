// What the tests of attention, its steps and its memories share.
#pragma once
#include <gtest/gtest.h>

#include "kinfolk/nn/mixers/attention.h"
#include "kinfolk/reference/golden.h"

namespace kinfolk::testing {

inline at::TensorOptions real() { return at::TensorOptions().dtype(at::kDouble); }

/// An attention branch from the text of its options, in double, with parameters large enough to matter.
inline std::shared_ptr<Attention> make_attention(const std::string& options, int64_t width, int64_t heads,
                                                 at::TensorOptions like = real()) {
  Context context;
  context.size.width = width;
  context.size.heads = heads;
  context.like = like;
  context.generator = at::detail::createCPUGenerator(7);
  context.path = "attention";
  Value table = parse_toml(options, "options");
  table.set("kind", "attention");
  auto made = std::dynamic_pointer_cast<Attention>(registry<Branch>().create(Spec(table), context, "attention"));
  at::NoGradGuard no_grad;
  auto generator = at::detail::createCPUGenerator(11);
  for (auto& p : made->parameters()) {
    if (p.dim() == 1) p.normal_(0, 0.3, generator);  // biases start at zero
    if (p.size(0) == heads) p.normal_(0, 0.5, generator);
  }
  return made;
}

inline Tensor normal(at::IntArrayRef sizes, uint64_t seed) {
  return at::normal(0, 1, sizes, at::detail::createCPUGenerator(seed), real());
}

/// A sequence and its facts.
struct Sequence {
  Tensor x;                          ///< [B, L, D]
  Tensor valid = {}, document = {};  ///< [B, L] or undefined
};

/// Runs the branch over the sequence in calls of these lengths. state null: one that is forgotten, or none when there
/// is one call only.
inline Tensor run(Branch& branch, const Sequence& s, const std::vector<int64_t>& calls, State* state = nullptr,
                  uint64_t seed = 0, int64_t first_position = 0) {
  const int64_t length = s.x.size(1);
  Tensor position = at::arange(length, at::kLong).repeat({s.x.size(0), 1});
  if (s.valid.defined()) position = s.valid.to(at::kLong).cumsum(1) - s.valid.to(at::kLong);
  position = position + first_position;
  State forgotten;
  if (!state && calls.size() > 1) {
    forgotten = branch.start(s.x.size(0), s.x.options());
    state = &forgotten;
  }
  std::vector<Tensor> out;
  int64_t from = 0;
  const Batch batch;
  for (const int64_t n : calls) {
    Pass pass{.batch = batch};
    pass.position = position.narrow(1, from, n);
    if (s.valid.defined()) pass.valid = s.valid.narrow(1, from, n);
    if (s.document.defined()) pass.document = s.document.narrow(1, from, n);
    pass.state = state;
    pass.seed = seed;
    out.push_back(branch.forward(s.x.narrow(1, from, n), pass, state));
    from += n;
  }
  EXPECT_EQ(from, length);
  return at::cat(out, 1);
}

/// Output and the gradients of sum(output * a fixed tensor) to the input and to every parameter.
struct Outcome {
  Tensor out;
  std::map<std::string, Tensor> gradients;
};
inline Outcome run_with_gradients(Branch& branch, const Sequence& s, const std::vector<int64_t>& calls) {
  const Tensor x = s.x.detach().clone().set_requires_grad(true);
  for (auto& p : branch.parameters()) p.mutable_grad() = Tensor();
  const Tensor out = run(branch, {x, s.valid, s.document}, calls);
  (out * normal(out.sizes(), 99)).sum().backward();
  Outcome result{out.detach(), {{"x", x.grad()}}};
  for (const auto& p : branch.named_parameters())
    result.gradients[p.key()] = p.value().grad().defined() ? p.value().grad().clone() : at::zeros_like(p.value());
  return result;
}

inline double distance(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  const Tensor d = (a - b).abs();
  return d.numel() == 0 ? 0 : d.max().item<double>();
}

inline void expect_same(const Outcome& got, const Outcome& want, const std::string& what, double bound = 1e-10) {
  EXPECT_LE(distance(got.out, want.out), bound) << what << ", output";
  for (const auto& [name, gradient] : want.gradients)
    EXPECT_LE(distance(got.gradients.at(name), gradient), bound) << what << ", gradient of " << name;
}

/// All ways to cut a length into at most three calls.
inline std::vector<std::vector<int64_t>> splits(int64_t length) {
  std::vector<std::vector<int64_t>> out{{length}};
  for (int64_t a = 1; a < length; ++a) {
    out.push_back({a, length - a});
    for (int64_t b = a + 1; b < length; ++b) out.push_back({a, b - a, length - b});
  }
  return out;
}

/// A golden row on q, k, v alone: through the branch's steps, pattern and scores, gradients included.
/// parameters: tensors of the branch by the case's name.
inline void expect_core(const golden::Case& one, Attention& branch, int64_t start = 0,
                        std::map<std::string, Tensor> parameters = {}) {
  for (auto& [name, p] : parameters) {
    at::NoGradGuard no_grad;
    p.copy_(one.at("param." + name));
  }
  const Tensor q = one.at("in.q").set_requires_grad(true), k = one.at("in.k").set_requires_grad(true),
               v = one.at("in.v").set_requires_grad(true);
  const int64_t batch = q.size(0), queries = q.size(2), keys = k.size(2);
  const Tensor k_at = (at::arange(keys, at::kLong) + start).repeat({batch, 1});
  const Tensor q_at = k_at.narrow(1, keys - queries, queries);
  const Read read = branch.look(q, q_at, {}, {Keys{k, v, k_at, {}, {}, {}}});
  golden::expect_close(read.out, one.at("out.o"), one, "out.o");
  Tensor loss = (read.out * one.at("cot.o")).sum();
  if (one.has("cot.q")) loss = loss + (branch.qk.at(0)->queries({.q = q}, q_at)[0].q * one.at("cot.q")).sum();
  if (one.has("cot.k")) loss = loss + (branch.prepare_keys(k, k_at).at(0) * one.at("cot.k")).sum();
  loss.backward();
  golden::expect_gradient(q.grad(), one.at("grad.in.q"), one, "grad.in.q");
  golden::expect_gradient(k.grad(), one.at("grad.in.k"), one, "grad.in.k");
  golden::expect_gradient(v.grad(), one.at("grad.in.v"), one, "grad.in.v");
  for (auto& [name, p] : parameters)
    golden::expect_gradient(p.grad(), one.at("grad.param." + name), one, "grad " + name);
}

/// A branch for the sizes of such a row.
inline std::shared_ptr<Attention> core_branch(const golden::Case& one, const std::string& options) {
  const Tensor q = one.at("in.q");
  return make_attention(options, q.size(1) * q.size(3), q.size(1));
}

}  // namespace kinfolk::testing
