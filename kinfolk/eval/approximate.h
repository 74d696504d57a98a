// How far the cheaper forms of attention are from exact attention over given queries, keys and values.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kinfolk/eval/attention_inputs.h"

namespace kinfolk {

/// What a form approximates. Some change the attention itself before they save anything: that is a form of its own,
/// exact at the same cost as the model's.
enum class ExactForm {
  causal,  ///< softmax(q_i . k_j / sqrt(d)) over j <= i, the model's own
  shared,  ///< LSH's: k_j = q_j / |q_j| over j < i; who meets none reads its own value
  unit,    ///< RFA's: softmax(q_i . k_j) of q and k divided by their norms, over j <= i
  whole,   ///< Linformer's: as causal, over all j
  alike    ///< the mean of v_j over j <= i, whatever the keys: what an approximation must be better than
};
/// [B, H, L, d], memory linear in L.
Tensor exact_attention(const AttentionInputs& in, ExactForm form);
std::string exact_words(ExactForm form);

struct Approximation {
  std::string name;    ///< such as "lsh"
  std::string about;   ///< one sentence
  std::string number;  ///< what is turned, such as "rounds"
  ExactForm form = ExactForm::causal;
  std::vector<int64_t> (*values)(int64_t length) = nullptr;  ///< that are measured
  /// With so many rounds, features, ...: [B, H, L, d]. Random draws come from the seed alone.
  Tensor (*read)(const AttentionInputs& in, int64_t value, uint64_t seed) = nullptr;
};
const std::vector<Approximation>& approximations();

/// |a - b| / |b|, Frobenius, of each lane and head of [B, H, L, d].  double [B, H]
Tensor relative_error(const Tensor& a, const Tensor& b);

struct ErrorOver {
  double mean = 0, spread = 0;  ///< over layers, lanes and heads: mean and standard deviation
  double median = 0;
  std::vector<double> by_layer;  ///< means
};
struct ApproximationRow {
  const Approximation* of = nullptr;
  int64_t value = 0;
  ErrorOver own;     ///< to the exact form that it approximates
  ErrorOver causal;  ///< to the model's own attention; not for `whole`
};
struct FormRow {
  ExactForm form;
  ErrorOver error;  ///< of the exact form itself, to the model's own attention
};
struct Approximations {
  std::vector<ApproximationRow> rows;
  std::vector<FormRow> forms;  ///< `alike`, and those that rows are measured against and that are not the model's
};
/// names: of `approximations`, empty: all.
Approximations measure_approximations(const std::vector<AttentionInputs>& layers, const std::vector<std::string>& names,
                                      uint64_t seed, const std::function<void(double share)>& progress = {});

/// One chart a number that is turned, side by side, errors against it; each to its own form, dashed names to the
/// model's own.
std::string approximation_charts(const Approximations& found, const std::string& title);

}  // namespace kinfolk
