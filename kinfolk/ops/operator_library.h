// torch.ops.kinfolk: how an operator of this layer is registered, so that Python, saved graphs and torch.compile can
// call it by name with flattened arguments.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>

#include <memory>
#include <string>
#include <vector>

namespace kinfolk {
using at::Tensor;

/// The arguments of one call, by the names of the schema.
struct Arguments {
  const c10::FunctionSchema& schema;
  c10::ArrayRef<c10::IValue> values;

  const c10::IValue& operator[](const char* name) const;
  Tensor tensor(const char* name) const;                      ///< undefined for None
  Tensor tensor(const char* name, int64_t dimensions) const;  ///< a given tensor of so many dimensions
  std::vector<Tensor> tensors(const char* name) const;        ///< of a list; empty for None
  bool flag(const char* name) const { return (*this)[name].toBool(); }
  double number(const char* name) const { return (*this)[name].toDouble(); }
  int64_t integer(const char* name) const { return (*this)[name].toInt(); }
};

/// An operator without side effects whose results are new tensors.
struct LibraryOperator {
  std::string name;
  std::string arguments;  ///< of the schema, in its language
  std::string results;
  /// The operator itself; where gradients are recorded its results carry them.
  std::vector<Tensor> (*run)(const Arguments&);
  /// Tensors without numbers, in the sizes, strides and types of the results. Sizes may be symbols.
  std::vector<Tensor> (*shapes)(const Arguments&);
  /// Tensors and lists of tensors that autocast casts to its type, double aside.
  std::vector<std::string> autocast = {};
};

/// Registers kinfolk::name and, for graphs that are captured (torch.compile, export, make_fx), where it is one node:
///   kinfolk::name_recorded(bool[] wants, arguments) -> (results, Tensor tape)
///   kinfolk::name_backward(Tensor?[] grads, bool[] wants, Tensor[] results, Tensor? tape, arguments) -> Tensor[]
/// `wants` marks the tensors among the arguments, lists opened, whose gradients are returned. The tape carries what the
/// forward pass kept; without one (None, or a copy of it) the forward pass runs again. `results` are there so that
/// nobody writes over them before. Called as it stands the operator records the graph of `run`. Differentiable once.
/// The registration lasts as long as the result.
std::shared_ptr<void> register_operator(LibraryOperator op);

}  // namespace kinfolk
