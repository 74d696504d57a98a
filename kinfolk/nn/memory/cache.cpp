#include "kinfolk/nn/memory/cache.h"

#include "kinfolk/nn/memory/newest.h"

namespace kinfolk {
namespace {
constexpr auto kKeys = "k", kValues = "v", kAt = "at", kDocument = "document";
}

Tensor valid_positions(const Pass& pass) {
  return pass.valid.defined() ? pass.position.masked_fill(pass.valid.logical_not(), -1) : pass.position;
}

Tensor documents(const Pass& pass) { return pass.document.defined() ? pass.document : at::zeros_like(pass.position); }

Traits Cache::traits() const {
  Traits traits;
  traits.bounded = heads_.horizon >= 0;
  traits.relative = true;
  return traits;
}

State Cache::start(int64_t batch, at::TensorOptions like) const {
  const int64_t capacity = std::max<int64_t>(heads_.horizon - 1, 0);
  const auto whole = like.dtype(at::kLong);
  State state;
  state.tensors[kKeys] = at::zeros({batch, heads_.groups, capacity, heads_.width}, like);
  const int64_t value_width = heads_.value_width > 0 ? heads_.value_width : heads_.width;
  state.tensors[kValues] = at::zeros({batch, heads_.groups, capacity, value_width}, like);
  state.tensors[kAt] = at::full({batch, capacity}, -1, whole);
  state.tensors[kDocument] = at::zeros({batch, capacity}, whole);
  return state;
}

Read Cache::meet(const Fresh& fresh, const Eyes& eyes, Pass& pass, State* state) {
  const Tensor at = valid_positions(pass);
  Keys keys{eyes.prepare_keys(fresh.k, at), fresh.v, at, documents(pass), {}, {}};
  if (state) {
    if (state->tensors.empty()) *state = start(at.size(0), fresh.k.options());
    auto& kept = state->tensors;
    const auto kind = kept.at(kKeys).scalar_type(), now = fresh.k.scalar_type();  // they differ under autocast
    keys.k = at::cat({kept.at(kKeys).to(now), keys.k}, 2);                        // [B, G, C + L, d]
    keys.v = at::cat({kept.at(kValues).to(now), keys.v}, 2);
    keys.at = at::cat({kept.at(kAt), keys.at}, 1);  // [B, C + L]
    keys.document = at::cat({kept.at(kDocument), keys.document}, 1);
    const Newest newest(keys.at, heads_.horizon < 0 ? -1 : std::max<int64_t>(heads_.horizon - 1, 0),
                        pass.valid.defined() && !pass.valid.all().item<bool>());
    kept[kKeys] = newest.keep(keys.k, 2).to(kind);
    kept[kValues] = newest.keep(keys.v, 2).to(kind);
    kept[kAt] = newest.keep(keys.at, 1);
    kept[kDocument] = newest.keep(keys.document, 1);
  }
  if (!pass.document.defined()) keys.document = Tensor();
  return eyes.look(fresh.q, {keys}, {.prepared = true});
}

}  // namespace kinfolk
