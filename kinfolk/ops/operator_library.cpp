#include "kinfolk/ops/operator_library.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include "kinfolk/core/errors.h"

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

/// change(tensor) for every defined tensor among the values, lists opened, in order.
template <class Change>
void each_tensor(Stack& values, Change&& change) {
  for (IValue& value : values) {
    if (value.isTensor()) {
      Tensor t = value.toTensor();
      if (t.defined()) change(t);
      value = t;
    } else if (value.isTensorList()) {
      std::vector<Tensor> list = value.toTensorVector();
      for (Tensor& t : list) change(t);
      value = list;
    }
  }
}

std::vector<Tensor> tensors_of(Stack values) {
  std::vector<Tensor> all;
  each_tensor(values, [&](const Tensor& t) { all.push_back(t); });
  return all;
}

/// The last `count` values of a stack, taken off it.
Stack take(Stack& stack, size_t count) {
  Stack taken(stack.end() - static_cast<int64_t>(count), stack.end());
  torch::jit::drop(stack, count);
  return taken;
}

/// Results as tensors of their own: none shares memory with an argument or with another result.
std::vector<Tensor> own(std::vector<Tensor> results, const std::vector<Tensor>& arguments) {
  for (size_t i = 0; i < results.size(); ++i) {
    const auto shares = [&](const Tensor& other) { return results[i].is_alias_of(other); };
    if (std::any_of(arguments.begin(), arguments.end(), shares) ||
        std::any_of(results.begin(), results.begin() + static_cast<int64_t>(i), shares)) {
      results[i] = results[i].clone(at::MemoryFormat::Preserve);
    }
  }
  return results;
}

std::vector<Tensor> run(const LibraryOperator& op, const c10::FunctionSchema& schema, const Stack& values) {
  return own(op.run({schema, values}), tensors_of(values));
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

/// The operator as one node, with name_backward as its derivative.
struct Captured : torch::autograd::Function<Captured> {
  static variable_list forward(AutogradContext* ctx, const std::string& name, Stack values, at::TensorList tensors) {
    Stack results = values;
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      find(name).callBoxed(results);
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
    ctx->save_for_backward(tensors.vec());
    ctx->set_materialize_grads(false);
    return tensors_of(results);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    c10::List<std::optional<Tensor>> given;
    for (const Tensor& g : grads) given.push_back(g.defined() ? std::optional(g) : std::nullopt);
    c10::List<bool> wants;
    for (size_t i = 0; i < saved.size(); ++i) wants.push_back(ctx->needs_input_grad(i));
    Stack stack{given, wants};
    size_t next = 0;
    for (const IValue& value : ctx->saved_data["values"].toTupleRef().elements()) {
      if (!value.isTuple()) {
        stack.push_back(value);
      } else if (const int64_t count = value.toTupleRef().elements()[0].toInt(); count < 0) {
        stack.emplace_back(saved[next++]);
      } else {
        stack.emplace_back(std::vector<Tensor>(saved.begin() + static_cast<int64_t>(next),
                                               saved.begin() + static_cast<int64_t>(next) + count));
        next += static_cast<size_t>(count);
      }
    }
    find(ctx->saved_data["name"].toStringRef() + "_backward").callBoxed(stack);
    const std::vector<Tensor> made = stack[0].toTensorVector();
    variable_list result(2);  // the name and the values
    for (size_t i = 0, m = 0; i < saved.size(); ++i) result.push_back(wants[i] ? made[m++] : Tensor());
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
    push(*stack, captured(tensors) ? Captured::apply(op->name, values, at::TensorList(tensors))
                                   : run(*op, handle.schema(), values));
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

struct Backward {
  std::vector<std::optional<Tensor>> grads;
  std::vector<bool> wants;
  Stack values;

  Backward(const OperatorHandle& handle, Stack& stack) : values(take(stack, handle.schema().arguments().size())) {
    for (const std::optional<Tensor>& g : values[0].toOptionalTensorList()) grads.push_back(g);
    for (const bool want : values[1].toBoolList()) wants.push_back(want);
    values.erase(values.begin(), values.begin() + 2);
    const size_t count = tensors_of(values).size();
    if (wants.size() != count) {
      fail("[", name_of(handle.schema()), ".wants] expected one for each of ", count, " tensors; found ", wants.size());
    }
  }
};

struct ComputeBackward : Kernel {
  using Kernel::Kernel;
  void operator()(const OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
    Backward call(handle, *stack);
    // The kernel runs below autograd, and wants it.
    auto keys = c10::impl::tls_local_dispatch_key_set();
    const auto autograd = c10::autograd_dispatch_keyset | c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView);
    const c10::impl::ForceDispatchKeyGuard above(keys.included_, keys.excluded_ - autograd);
    const at::AutoGradMode on(true);
    std::vector<Tensor> leaves;
    size_t next = 0;
    each_tensor(call.values, [&](Tensor& t) {
      t = t.detach();
      if (call.wants[next++]) leaves.push_back(t.requires_grad_(true));
    });
    const std::vector<Tensor> results = op->run({find(op->name).schema(), call.values});
    if (call.grads.size() != results.size()) {
      fail("[", op->name, "_backward.grads] expected one for each of ", results.size(), " results; found ",
           call.grads.size());
    }
    variable_list of, by;
    for (size_t i = 0; i < results.size(); ++i) {
      if (!call.grads[i] || !results[i].requires_grad()) continue;
      of.push_back(results[i]), by.push_back(*call.grads[i]);
    }
    variable_list made(leaves.size());
    if (!of.empty() && !leaves.empty()) {
      made = torch::autograd::grad(of, leaves, by, /*retain_graph=*/false, /*create_graph=*/false,
                                   /*allow_unused=*/true);
    }
    for (size_t i = 0; i < made.size(); ++i) {
      made[i] = made[i].defined() ? made[i].detach().contiguous() : at::zeros(leaves[i].sizes(), leaves[i].options());
    }
    std::vector<Tensor> given = tensors_of(call.values);
    for (const auto& g : call.grads)
      if (g) given.push_back(*g);
    stack->emplace_back(own(std::move(made), given));
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
  const std::string backward = op->name + "_backward";
  const auto library =
      std::make_shared<torch::Library>(torch::Library::FRAGMENT, "kinfolk", std::nullopt, __FILE__, __LINE__);
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  library->def((op->name + "(" + op->arguments + ") -> " + op->results).c_str(), tags);
  library->def((backward + "(Tensor?[] grads, bool[] wants, " + op->arguments + ") -> Tensor[]").c_str(), tags);
  using c10::DispatchKey;
  const auto implement = [&](const std::string& name, DispatchKey key, torch::CppFunction kernel) {
    library->impl(name.c_str(), torch::dispatch(key, std::move(kernel)));
  };
  implement(op->name, DispatchKey::CompositeExplicitAutograd, boxed<Compute>(op));
  implement(op->name, DispatchKey::Meta, boxed<Shapes>(op));
  implement(op->name, DispatchKey::Autograd, boxed<Record>(op));
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
