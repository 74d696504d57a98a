#include "kinfolk/ops/operator_library_record.h"

#include <torch/csrc/autograd/autograd.h>

namespace kinfolk {
namespace {
using torch::jit::Stack;

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

/// Autograd on, also in a kernel, which runs below it.
struct WithAutograd {
  at::AutoGradMode on{true};
  c10::impl::ForceDispatchKeyGuard above{
      c10::impl::tls_local_dispatch_key_set().included_,
      c10::impl::tls_local_dispatch_key_set().excluded_ -
          (c10::autograd_dispatch_keyset | c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView))};
};

struct Tape {
  Recording recording;
  uint8_t byte = 0;
};
void release(void* tape) { delete static_cast<Tape*>(tape); }

}  // namespace

void each_tensor(Stack& values, const std::function<void(Tensor&)>& change) {
  for (c10::IValue& value : values) {
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

std::vector<Tensor> run(const LibraryOperator& op, const c10::FunctionSchema& schema, const Stack& values) {
  return own(op.run({schema, values}), tensors_of(values));
}

Recording::Recording(const LibraryOperator& op, const c10::FunctionSchema& schema, Stack values,
                     const std::vector<bool>& wants) {
  const WithAutograd guard;
  each_tensor(values, [&](Tensor& t) {
    t = t.detach();
    if (wants.at(tensors.size())) t.requires_grad_(true);
    tensors.push_back(t);
  });
  results = run(op, schema, values);
}

bool Recording::has(const std::vector<bool>& wants) const {
  if (wants.size() != tensors.size()) return false;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (wants[i] && !tensors[i].requires_grad()) return false;
  return true;
}

std::vector<Tensor> Recording::gradients(const std::vector<std::optional<Tensor>>& grads,
                                         const std::vector<bool>& wants) const {
  const WithAutograd guard;
  std::vector<Tensor> of, by, leaves, given = tensors;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!grads[i] || !results[i].requires_grad()) continue;
    of.push_back(results[i]), by.push_back(*grads[i]), given.push_back(*grads[i]);
  }
  for (size_t i = 0; i < tensors.size(); ++i)
    if (wants[i]) leaves.push_back(tensors[i]);
  std::vector<Tensor> made(leaves.size());
  if (!of.empty() && !leaves.empty()) {
    made = torch::autograd::grad(of, leaves, by, /*retain_graph=*/true, /*create_graph=*/false, /*allow_unused=*/true);
  }
  for (size_t i = 0; i < made.size(); ++i) {
    made[i] = made[i].defined() ? made[i].detach().contiguous() : at::zeros(leaves[i].sizes(), leaves[i].options());
  }
  return own(std::move(made), given);
}

Tensor tape_of(Recording recording) {
  auto tape = std::make_unique<Tape>(Tape{std::move(recording)});
  void* byte = &tape->byte;
  c10::DataPtr data(byte, tape.release(), &release, at::kCPU);
  const c10::Storage storage(c10::Storage::use_byte_size_t(), 1, std::move(data), nullptr, false);
  return at::empty({0}, at::kByte).set_(storage, 0, {1}, {1});
}

const Recording* recording_of(const Tensor& tape) {
  if (!tape.defined() || !tape.has_storage() || !tape.is_cpu()) return nullptr;
  const Tape* found = tape.storage().data_ptr().cast_context<Tape>(&release);
  return found ? &found->recording : nullptr;
}

}  // namespace kinfolk
