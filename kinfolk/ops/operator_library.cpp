#include "kinfolk/ops/operator_library.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/ops/operator_library_record.h"

namespace kinfolk {
namespace {
using c10::IValue;
using c10::OperatorHandle;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::jit::Stack;
using Shared = std::shared_ptr<const LibraryOperator>;

OperatorHandle find(const std::string& name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(("kinfolk::" + name).c_str(), "");
}

/// Without the library's name.
std::string name_of(const c10::FunctionSchema& schema) { return schema.name().substr(schema.name().rfind(':') + 1); }

/// The last `count` values of a stack, taken off it.
Stack take(Stack& stack, size_t count) {
  Stack taken(stack.end() - static_cast<int64_t>(count), stack.end());
  torch::jit::drop(stack, count);
  return taken;
}

void push(Stack& stack, const std::vector<Tensor>& results) {
  for (const Tensor& result : results) stack.emplace_back(result);
}

/// Whether the call is to be captured rather than computed: a Python mode is on, or a tensor is only a stand-in.
bool captured(const std::vector<Tensor>& tensors) {
  constexpr c10::DispatchKeySet kStands({c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                                         c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper});
  return c10::impl::TorchDispatchModeTLS::any_modes_set() ||
         std::any_of(tensors.begin(), tensors.end(),
                     [&](const Tensor& t) { return t.is_meta() || t.key_set().has_any(kStands); });
}

c10::List<bool> flags(const std::vector<bool>& values) {
  c10::List<bool> list;
  for (const bool value : values) list.push_back(value);
  return list;
}

/// The operator as one node, name_recorded, with name_backward as its derivative.
struct Captured : torch::autograd::Function<Captured> {
  static variable_list forward(AutogradContext* ctx, const std::string& name, Stack values, at::TensorList tensors) {
    std::vector<bool> wants;
    for (const Tensor& t : tensors) wants.push_back(t.requires_grad());
    Stack stack{flags(wants)};
    stack.insert(stack.end(), values.begin(), values.end());
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      find(name + "_recorded").callBoxed(stack);
    }
    // Of the arguments the context keeps the tensors apart, in their places a count: -1 for one, n for a list of n.
    for (IValue& value : values) {
      if (value.isTensor() && value.toTensor().defined()) {
        value = c10::ivalue::Tuple::create(int64_t{-1});
      } else if (value.isTensorList()) {
        value = c10::ivalue::Tuple::create(static_cast<int64_t>(value.toTensorVector().size()));
      }
    }
    ctx->saved_data["name"] = name;
    ctx->saved_data["values"] = c10::ivalue::Tuple::create(std::move(values));
    std::vector<Tensor> results = tensors_of(stack), saved = tensors.vec();
    saved.insert(saved.end(), results.begin(), results.end());  // the tape is the last
    ctx->save_for_backward(saved);
    ctx->set_materialize_grads(false);
    results.pop_back();
    return results;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto tensors = static_cast<int64_t>(saved.size() - grads.size() - 1);
    c10::List<std::optional<Tensor>> given;
    for (const Tensor& g : grads) given.push_back(g.defined() ? std::optional(g) : std::nullopt);
    std::vector<bool> wants;
    for (int64_t i = 0; i < tensors; ++i) wants.push_back(ctx->needs_input_grad(static_cast<size_t>(i)));
    Stack stack{given, flags(wants), variable_list(saved.begin() + tensors, saved.end() - 1), saved.back()};
    auto next = saved.begin();
    for (const IValue& value : ctx->saved_data["values"].toTupleRef().elements()) {
      if (!value.isTuple()) {
        stack.push_back(value);
      } else if (const int64_t count = value.toTupleRef().elements()[0].toInt(); count < 0) {
        stack.emplace_back(*next++);
      } else {
        stack.emplace_back(variable_list(next, next + count));
        next += count;
      }
    }
    find(ctx->saved_data["name"].toStringRef() + "_backward").callBoxed(stack);
    const std::vector<Tensor> made = stack[0].toTensorVector();
    variable_list result(2);  // the name and the values
    size_t m = 0;
    for (const bool want : wants) result.push_back(want ? made[m++] : Tensor());
    return result;
  }
};

struct Kernel : c10::OperatorKernel {
  explicit Kernel(Shared op) : op(std::move(op)) {}
  Shared op;
};

struct Compute : Kernel {
  using Kernel::Kernel;
  void operator()(const OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
    const at::NoGradGuard guard;
    const Stack values = take(*stack, handle.schema().arguments().size());
    push(*stack, run(*op, handle.schema(), values));
  }
};

struct Shapes : Kernel {
  using Kernel::Kernel;
  void operator()(const OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
    const Stack values = take(*stack, handle.schema().arguments().size());
    push(*stack, op->shapes({handle.schema(), values}));
  }
};

struct Record : Kernel {
  using Kernel::Kernel;
  void operator()(const OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
    const Stack values = take(*stack, handle.schema().arguments().size());
    const std::vector<Tensor> tensors = tensors_of(values);
    const bool wants = at::GradMode::is_enabled() &&
                       std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.requires_grad(); });
    if (!captured(tensors)) {
      push(*stack, run(*op, handle.schema(), values));
    } else if (wants) {
      push(*stack, Captured::apply(op->name, values, at::TensorList(tensors)));
    } else {
      const at::AutoDispatchBelowADInplaceOrView below;
      stack->insert(stack->end(), values.begin(), values.end());
      handle.callBoxed(stack);
    }
  }
};

/// Casts as autocast does, then goes on without it.
struct Cast : Kernel {
  using Kernel::Kernel;
  void operator()(const OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard once(c10::autocast_dispatch_keyset);
    Stack values = take(*stack, handle.schema().arguments().size());
    for (const std::string& name : op->autocast) {
      Stack one{values[static_cast<size_t>(*handle.schema().argumentIndexWithName(name))]};
      each_tensor(one, [](Tensor& t) {
        if (!t.is_floating_point() || t.scalar_type() == at::kDouble) return;
        t = at::autocast::cached_cast(at::autocast::get_autocast_dtype(t.device().type()), t, t.device().type());
      });
      values[static_cast<size_t>(*handle.schema().argumentIndexWithName(name))] = one[0];
    }
    stack->insert(stack->end(), values.begin(), values.end());
    handle.callBoxed(stack);
  }
};

/// A list of marks in front of the arguments, one for each tensor among them.
std::vector<bool> marks(const OperatorHandle& handle, const IValue& value, const Stack& values) {
  std::vector<bool> all;
  for (const bool mark : value.toBoolList()) all.push_back(mark);
  if (const size_t count = tensors_of(values).size(); all.size() != count) {
    fail("[", name_of(handle.schema()), ".wants] expected one for each of ", count, " tensors; found ", all.size());
  }
  return all;
}

struct ComputeRecorded : Kernel {
  using Kernel::Kernel;
  void operator()(const OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
    const Stack values = take(*stack, handle.schema().arguments().size() - 1);
    const std::vector<bool> wants = marks(handle, torch::jit::pop(*stack), values);
    Recording recording(*op, find(op->name).schema(), values, wants);
    for (const Tensor& result : recording.results) stack->emplace_back(result.detach());
    const at::NoGradGuard guard;
    const Tensor& first = recording.results[0];
    stack->emplace_back(first.is_cpu() ? tape_of(std::move(recording))
                                       : at::zeros({1}, first.options().dtype(at::kByte)));
  }
};

struct RecordedShapes : Kernel {
  using Kernel::Kernel;
  void operator()(const OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
    const Stack values = take(*stack, handle.schema().arguments().size() - 1);
    torch::jit::drop(*stack, 1);
    const std::vector<Tensor> results = op->shapes({find(op->name).schema(), values});
    push(*stack, results);
    stack->emplace_back(at::empty({1}, results[0].options().dtype(at::kByte)));
  }
};

/// The arguments of name_backward.
struct Backward {
  std::vector<std::optional<Tensor>> grads;
  std::vector<bool> wants;
  Tensor tape;
  Stack values;

  Backward(const OperatorHandle& handle, Stack& stack) : values(take(stack, handle.schema().arguments().size())) {
    for (const std::optional<Tensor>& g : values[0].toOptionalTensorList()) grads.push_back(g);
    const IValue wanted = values[1];
    if (!values[3].isNone()) tape = values[3].toTensor();
    values.erase(values.begin(), values.begin() + 4);
    wants = marks(handle, wanted, values);
  }
};

struct ComputeBackward : Kernel {
  using Kernel::Kernel;
  void operator()(const OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
    const Backward call(handle, *stack);
    std::optional<Recording> again;
    const Recording* recording = recording_of(call.tape);
    if (!recording || !recording->has(call.wants)) {
      recording = &again.emplace(*op, find(op->name).schema(), call.values, call.wants);
    }
    if (call.grads.size() != recording->results.size()) {
      fail("[", name_of(handle.schema()), ".grads] expected one for each of ", recording->results.size(),
           " results; found ", call.grads.size());
    }
    stack->emplace_back(recording->gradients(call.grads, call.wants));
  }
};

struct BackwardShapes : Kernel {
  using Kernel::Kernel;
  void operator()(const OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
    Backward call(handle, *stack);
    std::vector<Tensor> made;
    size_t next = 0;
    each_tensor(call.values, [&](const Tensor& t) {
      if (call.wants[next++]) made.push_back(at::empty_symint(t.sym_sizes(), t.options()));
    });
    stack->emplace_back(made);
  }
};

template <class K>
torch::CppFunction boxed(const Shared& op) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<K>(op));
}

}  // namespace

const IValue& Arguments::operator[](const char* name) const {
  const auto index = schema.argumentIndexWithName(name);
  if (!index) fail("[", name_of(schema), "] has no argument ", name);
  return values[static_cast<size_t>(*index)];
}

Tensor Arguments::tensor(const char* name) const {
  const IValue& value = (*this)[name];
  return value.isNone() ? Tensor() : value.toTensor();
}

Tensor Arguments::tensor(const char* name, int64_t dimensions) const {
  Tensor given = tensor(name);
  if (!given.defined() || given.dim() != dimensions) {
    fail("[", name_of(schema), ".", name, "] expected ", dimensions, " dimensions; found ",
         given.defined() ? text(given.dim()) : "None");
  }
  return given;
}

std::vector<Tensor> Arguments::tensors(const char* name) const {
  const IValue& value = (*this)[name];
  return value.isNone() ? std::vector<Tensor>{} : value.toTensorVector();
}

std::shared_ptr<void> register_operator(LibraryOperator given) {
  const Shared op = std::make_shared<const LibraryOperator>(std::move(given));
  const std::string backward = op->name + "_backward", recorded = op->name + "_recorded";
  const auto library =
      std::make_shared<torch::Library>(torch::Library::FRAGMENT, "kinfolk", std::nullopt, __FILE__, __LINE__);
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  library->def((op->name + "(" + op->arguments + ") -> " + op->results).c_str(), tags);
  const std::string all = op->results.substr(0, op->results.size() - 1) + ", Tensor tape)";
  library->def((recorded + "(bool[] wants, " + op->arguments + ") -> " + all).c_str(), tags);
  library->def(
      (backward + "(Tensor?[] grads, bool[] wants, Tensor[] results, Tensor? tape, " + op->arguments + ") -> Tensor[]")
          .c_str(),
      tags);
  using c10::DispatchKey;
  const auto implement = [&](const std::string& name, DispatchKey key, torch::CppFunction kernel) {
    library->impl(name.c_str(), torch::dispatch(key, std::move(kernel)));
  };
  implement(op->name, DispatchKey::CompositeExplicitAutograd, boxed<Compute>(op));
  implement(op->name, DispatchKey::Meta, boxed<Shapes>(op));
  implement(op->name, DispatchKey::Autograd, boxed<Record>(op));
  implement(recorded, DispatchKey::CompositeExplicitAutograd, boxed<ComputeRecorded>(op));
  implement(recorded, DispatchKey::Meta, boxed<RecordedShapes>(op));
  implement(recorded, DispatchKey::Autograd, torch::autograd::autogradNotImplementedFallback());
  implement(backward, DispatchKey::CompositeExplicitAutograd, boxed<ComputeBackward>(op));
  implement(backward, DispatchKey::Meta, boxed<BackwardShapes>(op));
  implement(backward, DispatchKey::Autograd, torch::autograd::autogradNotImplementedFallback());
  if (!op->autocast.empty()) {
    implement(op->name, DispatchKey::AutocastCPU, boxed<Cast>(op));
    implement(op->name, DispatchKey::AutocastCUDA, boxed<Cast>(op));
  }
  return library;
}

}  // namespace kinfolk
