#include "kinfolk/nn/mixers/heads.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {

int64_t head_count(int64_t asked, const Context& context) {
  const int64_t heads = asked == 0 ? context.size.heads : asked;
  if (heads < 1 || context.size.width % heads != 0) {
    fail("[", context.path, ".heads] expected a divisor of the width ", context.size.width, "; found ", heads);
  }
  return heads;
}

Tensor to_heads(const Tensor& x, int64_t heads) { return x.unflatten(-1, {heads, x.size(-1) / heads}).transpose(1, 2); }

Tensor from_heads(const Tensor& x) { return x.transpose(1, 2).flatten(2); }

Tensor carried(const State* state, const std::string& name) {
  if (!state) return {};
  const auto found = state->tensors.find(name);
  return found == state->tensors.end() ? Tensor() : found->second;
}

bool owned(const State* state, const std::string& name) {
  if (!state || at::GradMode::is_enabled()) return false;
  const auto found = state->tensors.find(name);
  return found != state->tensors.end() && found->second.use_count() == 1 && found->second.storage().use_count() == 1;
}

at::TensorOptions state_options(at::TensorOptions like) {
  const bool wide = like.has_dtype() && c10::typeMetaToScalarType(like.dtype()) == at::kDouble;
  return like.dtype(wide ? at::kDouble : at::kFloat).requires_grad(false);
}

}  // namespace kinfolk
